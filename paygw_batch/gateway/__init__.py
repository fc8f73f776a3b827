"""Encodes, signs and sends requests to the gateway, and reads its replies and notifications."""
