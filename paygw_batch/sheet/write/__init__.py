"""Writes rows to files that people read or correct."""
