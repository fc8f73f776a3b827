"""What settings open: the journal, the gateway, a sheet."""
