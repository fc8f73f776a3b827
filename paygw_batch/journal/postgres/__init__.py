"""Stores the journal in PostgreSQL: the tables, functions and SQL that implement the journal's port."""
