"""Shows a batch to people and programs: states, sums, next steps, pages and files."""
