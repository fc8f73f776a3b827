"""Reads a file into rows of exact text."""
