"""Reads the gateway's statement."""
