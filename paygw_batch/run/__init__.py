"""Takes the decisions that a person or timer asks for: submit, release, resolve, refresh, approval. Knows no screen."""
