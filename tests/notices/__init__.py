"""Notices: what goes over the wire to mail servers and webhooks."""
