"""Tests of notices over the wire, to mail servers and webhooks."""
