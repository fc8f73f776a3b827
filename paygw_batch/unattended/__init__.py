"""Serves cron and monitoring: the drop folder, the report of a run, and metrics."""
