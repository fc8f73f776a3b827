"""Receiving the gateway's notifications: HTTP in, the spool out."""
