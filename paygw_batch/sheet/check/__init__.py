"""Finds the defects and the warnings of rows."""
