"""The commands, in one module per task."""
