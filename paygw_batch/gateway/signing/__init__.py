"""Holds the private key, and makes signatures with it."""
