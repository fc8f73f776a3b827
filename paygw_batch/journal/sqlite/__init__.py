"""Stores the journal in SQLite."""
