"""Runs a batch for several commands, and writes its reports."""
