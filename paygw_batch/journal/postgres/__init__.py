"""Stores the journal in PostgreSQL: tables, functions and SQL behind the journal's port."""
