"""Reads the data under config/ (countries, forms and operations) into typed rules."""
