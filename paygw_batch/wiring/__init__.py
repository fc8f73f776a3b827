"""Opens the journal, gateway, signing, sheet and outputs that the settings name."""
