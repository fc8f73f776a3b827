"""Encodes facts, chains them, and computes states from them. Pure: no file, no clock."""
