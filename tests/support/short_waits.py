"""Importing this shortens the waits of processes that tests start: they look for work more often than a user's do."""

from paygw_batch.cluster import job_worker, work_command
from paygw_batch.submit import send

job_worker.POLL_INTERVAL_S = 0.25
job_worker.RECOVERY_INTERVAL_S = 0.5
send.ARRIVALS_INTERVAL_S = 0.25
work_command.CHECK_INTERVAL_S = 0.25
