"""Writes rows to files for people."""
