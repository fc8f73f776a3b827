"""What people and programs are shown of a batch: states, sums, next steps, pages, files."""
