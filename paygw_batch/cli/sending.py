"""Carrying a batch to the gateway and its results back: what submit, resume and retry have in common."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from paygw_batch.cli.compose import PAYOUT, minor_units_of, real_world, require_complete, utc_now
from paygw_batch.cli.connect import Connection
from paygw_batch.cli.progress import progress_on
from paygw_batch.cli.render import Screen
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Verdict
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import Expected, RawReply, TransportFault
from paygw_batch.gateway.transport import PayoutTransport
from paygw_batch.journal.port import BatchRecord, Journal, JournalReader
from paygw_batch.run.books import Books, books
from paygw_batch.run.engine import Engine, Judge, Pace, RunEnd
from paygw_batch.run.ports import Progress
from paygw_batch.run.reconcile import reconciliation
from paygw_batch.run.report import report_html
from paygw_batch.run.summary import ExitCode, Summary, of_states
from paygw_batch.run.threads import Threads
from paygw_batch.run.workbook import workbook_of
from paygw_batch.settings import Settings
from paygw_batch.sheet.write import check_writable, write_frame, write_whole

SHOW_CURSOR = "\x1b[?25h"


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to send, and how its results are told."""

    settings: Settings
    rules: Rules
    connection: Connection
    journal: Journal
    batch: BatchRecord
    out: Path
    screen: Screen
    known: int = 0
    report: Path | None = None


def default_out(sheet: Path, name: str) -> Path:
    """Return where the reconciliation of a sheet goes when --out does not say: beside it.

    `name` is `Sheet.name`: two worksheets of one workbook must not write over each other's.
    """
    worksheet = name.removeprefix(sheet.name) if name.startswith(sheet.name) else ""
    safe = "".join(c if c.isalnum() or c in " []-_." else "_" for c in worksheet)
    return sheet.with_name(f"{sheet.stem}{safe}.reconciliation.csv")


def send_and_reconcile(task: Task) -> Summary:
    """Send what is due in the batch, write the reconciliation file, and return the summary.

    Raises what made the run impossible to go on.
    """
    due = due_countries(task.journal, task.batch)
    end = RunEnd(0, None, interrupted=False)
    if due:
        require_complete(task.settings, task.rules, set(due))
        end = _send(task, sum(due.values()))
    if end.failure is not None:
        for order_id, kind in end.unrecorded:
            task.screen.err.print(f"Not in the journal: {order_id} came to {kind.value.replace('_', ' ')}.")
        raise end.failure
    return reconcile(
        task.journal, task.batch, task.rules, task.out, task.screen, end=end, known=task.known, report=task.report
    )


def due_countries(journal: JournalReader, batch: BatchRecord) -> dict[str, int]:
    """Return how many rows of each country are ready to be sent."""
    due: dict[str, int] = {}
    for tally in journal.tallies(batch.number):
        if tally.state is State.READY:
            due[tally.country] = due.get(tally.country, 0) + tally.count
    return due


def _send(task: Task, due: int) -> RunEnd:
    progress = progress_on(task.screen.err)
    with Threads() as away, progress:
        progress.started(due)
        submission = task.settings.submission
        make = partial(
            Engine,
            journal=task.journal,
            prepare=task.connection.prepare,
            judge=_judge(task.settings),
            pace=Pace(submission.concurrency, submission.rate_per_s, submission.stop_after_in_doubt),
            world=real_world(),
            away=away,
            progress=progress,
        )
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(make, task.connection.transport, task.batch.number, progress))


def _judge(settings: Settings) -> Judge:
    words, operation = settings.words(), load_operation(PAYOUT)

    def judge(came_back: RawReply | TransportFault, expected: Expected) -> Verdict:
        return classify(came_back, expected, words, operation, now=utc_now())

    return judge


async def _run(make: Callable[..., Engine], transport: PayoutTransport, batch: int, progress: Progress) -> RunEnd:
    async with transport:
        engine = make(gateway=transport)
        _drain_on_signals(engine, progress)
        return await engine.run(batch)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return uvloop.new_event_loop


def _drain_on_signals(engine: Engine, progress: Progress) -> None:
    """First signal: start no new row and wait for those in flight. Second: leave at once."""
    signals = 0

    def heed() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            _leave()
        progress.note("Stopping: no new row is started; rows in flight are waited for. Again to leave at once.")
        engine.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heed)


def _leave() -> None:
    """End the process now: what is in flight has its intent in the journal, and will be in doubt on the next run."""
    if sys.stderr.isatty():
        os.write(2, f"{SHOW_CURSOR}\n".encode())
    os.write(2, b"Left at once: rows in flight will be in doubt.\n")
    os._exit(ExitCode.INTERRUPTED)


def write_results(frame: pl.DataFrame, counted: Books, batch: BatchRecord, out: Path, report: Path | None) -> None:
    """Write the reconciliation file (a workbook for people where it ends in .xlsx), and the report if one is asked."""
    if out.suffix.lower() == ".xlsx":
        check_writable(out)
        write_whole(out, workbook_of(frame, counted, batch))
    else:
        write_frame(frame, out)
    if report is not None:
        write_whole(report, report_html(frame, counted, batch).encode())


def reconcile(
    journal: JournalReader,
    batch: BatchRecord,
    rules: Rules,
    out: Path,
    screen: Screen,
    *,
    end: RunEnd,
    known: int = 0,
    report: Path | None = None,
) -> Summary:
    """Write the reconciliation file of a batch, show its books, and return how its rows stand after a run's `end`."""
    minor_units = minor_units_of(rules)
    frame = reconciliation(journal, batch, minor_units)
    counted = books(frame, minor_units)
    write_results(frame, counted, batch, out, report)
    screen.books(counted)
    contradictions = len(journal.contradictions(batch.number))
    told = f"{end_sentence(batch, counted.states, end, contradictions)} The reconciliation is in {out}."
    return Summary(
        of_states(counted.states, interrupted=end.interrupted, contradictions=contradictions),
        told,
        batch=batch.batch,
        sheet=batch.sheet_name,
        rows=batch.rows,
        states=counted.states,
        totals=counted.totals,
        defects=batch.defects,
        known=known,
        sent_this_run=end.sent,
        reconciliation=out,
    )


def end_sentence(batch: BatchRecord, states: Mapping[str, int], end: RunEnd, contradictions: int) -> str:
    """Return what a run came to, and what a person should do next."""
    parts = [", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in states.items()) + "."]
    if end.stop_reason:
        parts.append(f"The run stopped early: {end.stop_reason}")
    if states.get("in_doubt"):
        parts.append(
            "Rows in doubt may have been paid and are never sent again by themselves: "
            f"`paygw-batch status {batch.batch}` says what to do about each."
        )
    if contradictions:
        parts.append(f"The journal holds {contradictions} contradicting messages: `paygw-batch status` shows them.")
    if end.interrupted:
        parts.append("Interrupted: run the same command again to continue.")
    elif states.get("ready"):
        parts.append(f"`paygw-batch resume {batch.batch}` sends the rows that are ready.")
    if states.get("rejected"):
        parts.append(f"`paygw-batch retry {batch.batch}` gives rejected rows another attempt.")
    return " ".join(parts)
