"""Opens a journal: examines it, creates it, registers it, adopts a copy."""
