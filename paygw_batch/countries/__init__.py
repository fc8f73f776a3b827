"""Country rules, forms and operations: data under config/, read into typed rules."""
