"""Metrics are gauges of the journal: rows that need a person remain until they are settled."""

import hashlib
import os
import re
import time
from datetime import datetime

import pytest

from tests.cli.listening import AUTHENTIC, configure_listener, notify, start_process
from tests.cli.metrics import read_gauges
from tests.support.patience import wait_until
from tests.support.ports import wait_for_server
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml


@pytest.fixture
def measured(program: Program) -> Program:
    program.config.write_text(f'{sandbox_toml()}\n[reporting]\nmetrics = "paygw.prom"\n')
    (program.home / "drop").mkdir()
    return program


def row_counts(program: Program) -> dict[str, int]:
    gauges = {key: value for key, value in read_gauges(program).items() if key.startswith("paygw_rows")}
    return {key.split('"')[1]: int(value) for key, value in gauges.items() if value}


def run_folder(program: Program, *sheets: list[str]) -> int:
    for number, sheet in enumerate(sheets):
        path = program.sheet(sheet, f"drop/{number}-{time.monotonic_ns()}.csv")
        os.utime(path, (1, 1))
    return program.run("run-folder", program.home / "drop").exit_code


def test_empty_run_keeps_metrics_about_rows_in_doubt(measured: Program) -> None:
    rows = [*kenyan_rows(1, amount="9007", prefix="LOST"), *kenyan_rows(2, amount="100")]
    assert run_folder(measured, rows) == 5
    assert not re.search("Wanjiku|PAY-|csv|2547", (measured.home / "paygw.prom").read_text())
    (first,) = (measured.home / "drop" / "done").glob("*.reconciliation.csv")
    sent = datetime.fromisoformat(read_csv(first)[0]["first_sent_at"])
    assert row_counts(measured) == {"paid": 2, "in_doubt": 1}
    assert run_folder(measured, kenyan_rows(1, amount="9007.50", prefix="LATER")) == 5
    assert run_folder(measured) == 0
    assert row_counts(measured) == {"paid": 2, "in_doubt": 2}
    after = read_gauges(measured)
    assert after["paygw_oldest_in_doubt_timestamp_seconds"] == int(sent.timestamp())
    assert after['paygw_amount{currency="KES",state="in_doubt"}'] == 18014.5
    assert after['paygw_run_exit_code{command="run-folder"}'] == 0


def test_metrics_ignore_statement_preview(measured: Program) -> None:
    sheet = measured.sheet([*kenyan_rows(1, amount="9007"), *kenyan_rows(1, amount="9007", prefix="LOST")])
    measured.json("submit", sheet)
    statement = measured.home / "statement.csv"
    statement.write_text("order_id,amount,currency,status\nPAY-1,9007,KES,approved\n")
    resolved = 'paygw_run_exit_code{command="resolve"}'
    measured.json("resolve", "statement", sheet, statement)
    assert (row_counts(measured), resolved in read_gauges(measured)) == ({"in_doubt": 2}, False)
    measured.json("resolve", "statement", sheet, statement, "--yes")
    assert (row_counts(measured), read_gauges(measured)[resolved]) == ({"paid": 1, "in_doubt": 1}, 5)
    measured.json("resolve", "row", sheet, "3", "--as", "paid", "--evidence", "their support said so")
    assert (row_counts(measured), read_gauges(measured)[resolved]) == ({"paid": 2}, 0)
    assert read_gauges(measured)["paygw_oldest_in_doubt_timestamp_seconds"] == 0


def test_metrics_count_notifications_received_by_listener(measured: Program) -> None:
    port = configure_listener(measured, AUTHENTIC)
    measured.config.write_text(f'{measured.config.read_text()}\n[reporting]\nmetrics = "paygw.prom"\n')
    measured.json("submit", measured.sheet(kenyan_rows(1, amount="9002")))
    assert row_counts(measured) == {"accepted": 1}
    with start_process(measured, "listen", config=measured.config) as listener:
        wait_for_server(port, listener)
        proof = hashlib.sha256(b"approved|PAY-1|9002|KES|a secret of enough bytes").hexdigest()
        assert notify(port, control=proof) == 200
        wait_until(lambda: row_counts(measured) == {"paid": 1}, "the figures are not written while it listens")
        listener.terminate()
        assert listener.wait() == 0
    assert read_gauges(measured)['paygw_run_exit_code{command="listen"}'] == 0


def test_metrics_count_each_row_in_one_state(measured: Program) -> None:
    first = kenyan_rows(2, amount="100")
    bad = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"
    measured.json("submit", measured.sheet(first))
    more = [*first, *kenyan_rows(1, amount="9001", prefix="NO"), *kenyan_rows(1, amount="9002", prefix="OPEN"), bad]
    measured.json("submit", measured.sheet(more, "more.csv"), "--skip-invalid")
    assert row_counts(measured) == {"paid": 2, "rejected": 1, "accepted": 1, "invalid": 1}
    gauges = read_gauges(measured)
    states = ("invalid", "ready", "in_flight", "in_doubt", "accepted", "paid", "rejected", "returned")
    assert {key for key in gauges if key.startswith("paygw_rows")} == {f'paygw_rows{{state="{one}"}}' for one in states}
    assert [gauges[f'paygw_amount{{currency="KES",state="{state}"}}'] for state in ("paid", "returned")] == [200, 0]


def test_metrics_keep_last_exit_code_and_success(measured: Program) -> None:
    sheet, success = measured.sheet(kenyan_rows(1)), 'paygw_run_last_success_timestamp_seconds{command="submit"}'
    began = int(time.time())
    measured.run("submit", measured.home / "absent.csv")
    assert success not in read_gauges(measured)
    assert measured.run("submit", sheet).exit_code == 0
    succeeded = read_gauges(measured)[success]
    assert began <= succeeded <= time.time()
    assert measured.run("submit", measured.home / "absent.csv").exit_code == 3
    assert run_folder(measured) == 0
    gauges = read_gauges(measured)
    assert gauges['paygw_run_exit_code{command="submit"}'] == 3
    assert gauges['paygw_run_exit_code{command="run-folder"}'] == 0
    assert gauges[success] == succeeded
    assert gauges['paygw_run_end_timestamp_seconds{command="submit"}'] >= succeeded
    assert gauges['paygw_run_sent_rows{command="submit"}'] == 0


def test_metrics_keep_figures_when_journal_is_unreadable(measured: Program) -> None:
    run_folder(measured, kenyan_rows(1, amount="9007"))
    measured.journal.rename(measured.home / "elsewhere")
    measured.journal.write_bytes(b"no database" * 100)
    measured.journal.chmod(0o600)
    assert run_folder(measured) == 7
    assert row_counts(measured) == {"in_doubt": 1}
    assert read_gauges(measured)['paygw_run_exit_code{command="run-folder"}'] == 7


def test_simultaneous_commands_keep_both_metrics(measured: Program) -> None:
    """One command waits for the journal of the other, and both write the file when they end."""
    sheet = measured.sheet(kenyan_rows(1, amount="100"))
    runs = [measured.start("submit", sheet, "--wait"), measured.start("run-folder", "drop", "--wait")]
    for run in runs:
        run.communicate()
    assert [run.returncode for run in runs] == [0, 0]
    gauges = read_gauges(measured)
    assert [gauges[f'paygw_run_exit_code{{command="{name}"}}'] for name in ("submit", "run-folder")] == [0, 0]


def test_obsolete_metrics_are_removed(measured: Program) -> None:
    (measured.home / "paygw.prom").write_text(
        "# HELP paygw_batch_rows Rows.\n# TYPE paygw_batch_rows gauge\n"
        'paygw_batch_rows{command="submit",state="paid"} 7\npaygw_run_exit_code{command="retry"} 4\n'
    )
    run_folder(measured)
    gauges = read_gauges(measured)
    assert gauges['paygw_run_exit_code{command="retry"}'] == 4
    assert not [key for key in gauges if key.startswith("paygw_batch_rows")]
