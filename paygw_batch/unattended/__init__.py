"""What cron and monitoring need: the drop folder, the report of a run, metrics."""
