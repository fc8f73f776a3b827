"""Airflow: hand the salaries over on the 28th, then send shares until nothing is left (docs/several-hosts.md)."""

import subprocess
from datetime import UTC, datetime, timedelta

from airflow.exceptions import AirflowFailException
from airflow.sdk import dag, task

SHEET = "/srv/payroll/salaries.csv"
STILL_TO_SEND = {6, 130}


def paygw(*words: str) -> None:
    """Run a command. Airflow tries again if rows are left, and never if a person is needed."""
    code = subprocess.run(["paygw-batch", *words], check=False).returncode
    if code in STILL_TO_SEND:
        raise RuntimeError("Rows are still to be sent.")
    if code:
        raise AirflowFailException(f"paygw-batch ended with {code}: `paygw-batch status` says what to do.")


@dag(schedule="0 18 28 * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def salaries() -> None:
    """Pay the salaries."""

    @task
    def hand_over() -> None:
        paygw("submit", SHEET, "--detach")

    @task(retries=100, retry_delay=timedelta(minutes=5), execution_timeout=timedelta(hours=2))
    def share() -> None:
        paygw("work", "--once", SHEET, "--for", "3600")

    hand_over() >> share()


salaries()
