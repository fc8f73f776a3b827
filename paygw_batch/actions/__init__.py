"""Carries out the actions of people and programs, once for command line, console and API."""
