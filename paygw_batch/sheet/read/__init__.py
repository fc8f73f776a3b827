"""Reads the rows of a file as exact text."""
