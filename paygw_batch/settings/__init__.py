"""Reads the configuration file and the environment into frozen values."""
