"""Orders about rows of a batch, signed by one person and approved by others: to settle, and to release."""
