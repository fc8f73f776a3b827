"""Importing this shortens the waits of processes that tests start: they look for work more often than a user's do."""

from paygw_batch.cluster import job_worker, work_command
from paygw_batch.submit import send

job_worker.POLL_EVERY_S = 0.25
job_worker.TEND_EVERY_S = 0.5
send.RECORD_ARRIVALS_EVERY_S = 0.25
work_command.LOOK_EVERY_S = 0.25
