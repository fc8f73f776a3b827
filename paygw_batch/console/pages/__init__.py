"""The screens: each function answers one request."""
