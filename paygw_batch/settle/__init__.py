"""What becomes of rows afterwards: evidence, statements, release, and asking the gateway again."""
