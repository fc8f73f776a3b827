"""Decides what a person or a timer asks for: submit, release, resolve, refresh, approval. Knows no screen."""
