"""Carries out what people and programs ask for, once for command line, console and API: no click, terminal or page."""
