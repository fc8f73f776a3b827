"""Metrics are gauges of the journal: rows that need a person remain until they are settled."""

import hashlib
import os
import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.listening import AUTHENTIC, configure_listener, notify, start_process
from tests.cli.metrics import read_gauges
from tests.support.patience import wait_until
from tests.support.ports import wait_for_server
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml


@pytest.fixture
def measured_program(program: Program) -> Program:
    program.config.write_text(f'{sandbox_toml()}\n[reporting]\nmetrics = "paygw.prom"\n')
    (program.home / "drop").mkdir()
    return program


def row_counts(program: Program) -> dict[str, int]:
    """Return the numbers of rows by state, without zeros."""
    gauges = {key: value for key, value in read_gauges(program).items() if key.startswith("paygw_rows")}
    return {key.split('"')[1]: int(value) for key, value in gauges.items() if value}


def run_folder(program: Program, *sheets: list[str]) -> int:
    """Run the folder like cron."""
    for number, sheet in enumerate(sheets):
        path = program.sheet(sheet, f"drop/{number}-{time.monotonic_ns()}.csv")
        os.utime(path, (1, 1))
    return program.run("run-folder", program.home / "drop").exit_code


def test_empty_run_keeps_in_doubt_metrics(measured_program: Program) -> None:
    assert (
        run_folder(measured_program, [*kenyan_rows(2, amount="100"), *kenyan_rows(1, amount="9007", prefix="LOST")])
        == 5
    )
    before = read_gauges(measured_program)
    assert row_counts(measured_program) == {"paid": 2, "in_doubt": 1}
    assert run_folder(measured_program) == 0
    assert row_counts(measured_program) == {"paid": 2, "in_doubt": 1}
    after = read_gauges(measured_program)
    oldest = "paygw_oldest_in_doubt_timestamp_seconds"
    assert after[oldest] == before[oldest] > 0
    assert after['paygw_amount{currency="KES",state="in_doubt"}'] == 9007
    assert after['paygw_run_exit_code{command="run-folder"}'] == 0


def test_metrics_show_age_of_oldest_doubt(measured_program: Program) -> None:
    run_folder(measured_program, kenyan_rows(1, amount="9007", prefix="FIRST"))
    (first,) = (measured_program.home / "drop" / "done").glob("*.reconciliation.csv")
    sent = datetime.fromisoformat(read_csv(first)[0]["first_sent_at"])
    run_folder(measured_program, kenyan_rows(1, amount="9007", prefix="SECOND"))
    assert read_gauges(measured_program)["paygw_oldest_in_doubt_timestamp_seconds"] == int(sent.timestamp())


def test_settled_row_leaves_in_doubt_metrics(measured_program: Program) -> None:
    sheet = measured_program.sheet(kenyan_rows(1, amount="9007"))
    measured_program.json("submit", sheet)
    measured_program.json("resolve", "row", sheet, "2", "--as", "paid", "--evidence", "their support said so")
    assert row_counts(measured_program) == {"paid": 1}
    assert read_gauges(measured_program)['paygw_run_exit_code{command="resolve"}'] == 0
    assert read_gauges(measured_program)["paygw_oldest_in_doubt_timestamp_seconds"] == 0


def test_metrics_ignore_statement_preview(measured_program: Program) -> None:
    sheet = measured_program.sheet([*kenyan_rows(1, amount="9007"), *kenyan_rows(1, amount="9007", prefix="LOST")])
    measured_program.json("submit", sheet)
    statement = measured_program.home / "statement.csv"
    statement.write_text("order_id,amount,currency,status\nPAY-1,9007,KES,approved\n")
    measured_program.json("resolve", "statement", sheet, statement)
    assert row_counts(measured_program) == {"in_doubt": 2}
    assert 'paygw_run_exit_code{command="resolve"}' not in read_gauges(measured_program)
    measured_program.json("resolve", "statement", sheet, statement, "--yes")
    assert row_counts(measured_program) == {"paid": 1, "in_doubt": 1}
    assert read_gauges(measured_program)['paygw_run_exit_code{command="resolve"}'] == 5


def test_metrics_show_exit_code_of_refused_settlement(measured_program: Program) -> None:
    sheet = measured_program.sheet(kenyan_rows(1, amount="9007"))
    measured_program.json("submit", sheet)
    refused = measured_program.json("resolve", "row", sheet, "2", "--as", "not-received", "--evidence", "Ticket 1")
    assert refused["exit_code"] == 2
    assert row_counts(measured_program) == {"in_doubt": 1}
    assert read_gauges(measured_program)['paygw_run_exit_code{command="resolve"}'] == 2


def test_metrics_count_notifications_received_by_listener(measured_program: Program) -> None:
    port = configure_listener(measured_program, AUTHENTIC)
    measured_program.config.write_text(f'{measured_program.config.read_text()}\n[reporting]\nmetrics = "paygw.prom"\n')
    measured_program.json("submit", measured_program.sheet(kenyan_rows(1, amount="9002")))
    assert row_counts(measured_program) == {"accepted": 1}
    with start_process(measured_program, "listen", config=measured_program.config) as listener:
        wait_for_server(port, listener)
        proof = hashlib.sha256(b"approved|PAY-1|9002|KES|a secret of enough bytes").hexdigest()
        assert notify(port, control=proof) == 200
        wait_until(lambda: row_counts(measured_program) == {"paid": 1}, "the figures are not written while it listens")
        listener.terminate()
        assert listener.wait() == 0
    assert read_gauges(measured_program)['paygw_run_exit_code{command="listen"}'] == 0


def test_metrics_count_each_row_in_one_state(measured_program: Program) -> None:
    first = kenyan_rows(2, amount="100")
    bad = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"
    measured_program.json("submit", measured_program.sheet(first))
    more = [*first, *kenyan_rows(1, amount="9001", prefix="NO"), *kenyan_rows(1, amount="9002", prefix="OPEN"), bad]
    measured_program.json("submit", measured_program.sheet(more, "more.csv"), "--skip-invalid")
    assert row_counts(measured_program) == {"paid": 2, "rejected": 1, "accepted": 1, "invalid": 1}
    named = {key for key in read_gauges(measured_program) if key.startswith("paygw_rows")}
    states = ("invalid", "ready", "in_flight", "in_doubt", "accepted", "paid", "rejected", "returned")
    assert named == {f'paygw_rows{{state="{state}"}}' for state in states}
    assert read_gauges(measured_program)['paygw_amount{currency="KES",state="paid"}'] == 200
    assert read_gauges(measured_program)['paygw_amount{currency="KES",state="returned"}'] == 0


def test_metrics_keep_last_exit_code_and_success(measured_program: Program) -> None:
    sheet = measured_program.sheet(kenyan_rows(1, amount="100"))
    began = int(time.time())
    assert measured_program.run("submit", sheet).exit_code == 0
    succeeded = read_gauges(measured_program)['paygw_run_last_success_timestamp_seconds{command="submit"}']
    assert began <= succeeded <= time.time()
    assert measured_program.run("submit", measured_program.home / "absent.csv").exit_code == 3
    assert run_folder(measured_program) == 0
    gauges = read_gauges(measured_program)
    assert gauges['paygw_run_exit_code{command="submit"}'] == 3
    assert gauges['paygw_run_exit_code{command="run-folder"}'] == 0
    assert gauges['paygw_run_last_success_timestamp_seconds{command="submit"}'] == succeeded
    assert gauges['paygw_run_end_timestamp_seconds{command="submit"}'] >= succeeded
    assert gauges['paygw_run_sent_rows{command="submit"}'] == 0


def test_failed_command_has_no_last_success(measured_program: Program) -> None:
    measured_program.run("submit", measured_program.home / "absent.csv")
    assert 'paygw_run_last_success_timestamp_seconds{command="submit"}' not in read_gauges(measured_program)


def test_metrics_keep_figures_when_journal_is_unreadable(measured_program: Program) -> None:
    run_folder(measured_program, kenyan_rows(1, amount="9007"))
    measured_program.journal.rename(measured_program.home / "elsewhere")
    measured_program.journal.write_bytes(b"no database" * 100)
    measured_program.journal.chmod(0o600)
    assert run_folder(measured_program) == 7
    assert row_counts(measured_program) == {"in_doubt": 1}
    assert read_gauges(measured_program)['paygw_run_exit_code{command="run-folder"}'] == 7


def test_simultaneous_commands_keep_both_metrics(measured_program: Program) -> None:
    """One command waits for the journal of the other, and both write the file when they end."""
    sheet = measured_program.sheet(kenyan_rows(1, amount="100"))
    runs = [measured_program.start("submit", sheet, "--wait"), measured_program.start("run-folder", "drop", "--wait")]
    for run in runs:
        run.communicate()
    assert [run.returncode for run in runs] == [0, 0]
    gauges = read_gauges(measured_program)
    assert gauges['paygw_run_exit_code{command="submit"}'] == 0
    assert gauges['paygw_run_exit_code{command="run-folder"}'] == 0


def test_obsolete_metrics_are_removed(measured_program: Program) -> None:
    (measured_program.home / "paygw.prom").write_text(
        "# HELP paygw_batch_rows Rows.\n# TYPE paygw_batch_rows gauge\n"
        'paygw_batch_rows{command="submit",state="paid"} 7\npaygw_run_exit_code{command="retry"} 4\n'
    )
    run_folder(measured_program)
    gauges = read_gauges(measured_program)
    assert gauges['paygw_run_exit_code{command="retry"}'] == 4
    assert not [key for key in gauges if key.startswith("paygw_batch_rows")]


def test_metrics_contain_no_sheet_or_person_names(measured_program: Program) -> None:
    run_folder(measured_program, kenyan_rows(1, amount="9007"))
    text = Path(measured_program.home / "paygw.prom").read_text()
    assert not re.search("Wanjiku|PAY-|csv|2547", text)
