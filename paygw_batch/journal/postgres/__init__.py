"""Stores the journal in PostgreSQL: implements the journal's port with tables, functions and SQL."""
