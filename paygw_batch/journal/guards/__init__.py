"""Guards a journal file: its lock, its witness, its location."""
