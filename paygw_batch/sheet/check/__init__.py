"""Finds the defects and warnings of rows."""
