"""Sends requests over sockets and sets the first-byte witness."""
