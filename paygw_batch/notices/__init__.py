"""Sends notices by e-mail and to a webhook."""
