"""Carries out what several commands have in common: a run and its reports."""
