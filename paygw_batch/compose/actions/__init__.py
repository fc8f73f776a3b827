"""Carries out the requests of people and programs, once for every surface: no click, no terminal, no page."""
