"""Leases chains of facts, writes to them, and finds the fate of a commit that got no answer."""
