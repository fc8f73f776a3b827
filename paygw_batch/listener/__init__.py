"""Receives the gateway's notifications over HTTP and writes them to the inbox."""
