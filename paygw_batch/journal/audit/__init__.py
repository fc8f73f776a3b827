"""The audit trail of the console: a separate file beside the journal."""
