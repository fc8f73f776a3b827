"""Carries out the decisions of a person or timer: submit, release, resolve, refresh, approval. Knows no screen."""
