"""Leases chains of facts, writes to them, and determines the fate of a commit that got no answer."""
