"""Guards a journal: its lock, its location, and what left from this host."""
