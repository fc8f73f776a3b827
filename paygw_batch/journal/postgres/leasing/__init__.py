"""Leases chains of facts, writes to them, and finds out what became of a commit that got no answer."""
