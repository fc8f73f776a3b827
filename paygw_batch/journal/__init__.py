"""Durable facts: what was intended, what came of it, and where every instruction stands."""
