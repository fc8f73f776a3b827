"""Find the defects and warnings of rows."""
