"""Builds from settings the parts of a run, for the commands and the Python API."""
