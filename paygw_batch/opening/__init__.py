"""Opens the journal, the gateway and sheets according to the settings."""
