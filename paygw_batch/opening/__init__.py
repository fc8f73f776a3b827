"""Opens the journal, the gateway and sheets as the settings say."""
