"""Sends the due instructions of a batch, within limits of concurrency and rate."""
