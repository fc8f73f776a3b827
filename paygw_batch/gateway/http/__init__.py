"""Sends requests over sockets. The first-byte witness is here."""
