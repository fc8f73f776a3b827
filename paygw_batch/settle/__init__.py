"""Settles rows after a run: evidence, statements, orders, release, and asking the gateway again."""
