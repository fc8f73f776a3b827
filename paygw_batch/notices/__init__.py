"""Sends notices: by e-mail, and to a webhook. They know no journal and no settings."""
