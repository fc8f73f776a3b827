"""Stores the journal in PostgreSQL: tables, functions and SQL of its own behind the journal's port."""
