"""Runs the engine as the program composes it: signers, journal on disk, transport, uvloop if installed."""

import asyncio
import random
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.figures import Sample
from benchmarks.keys_elsewhere import KeyElsewhere
from benchmarks.loops import loop_factory
from benchmarks.merchant import Merchant, open_batch
from benchmarks.silent_progress import SilentProgress
from benchmarks.slow_disk import slow_flushes
from paygw_batch.clock import elapsed_s, timestamp
from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.outcome import Outcome
from paygw_batch.engine.engine import Engine
from paygw_batch.engine.pacing import Pace
from paygw_batch.engine.ports import Runtime
from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import Connections, TransportSettings
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.sign import Preparer
from paygw_batch.gateway.signing.signers import signers_for, signing_lookahead
from paygw_batch.journal.file_location import FileLocation, in_memory_journal
from paygw_batch.journal.journal import Journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import DueRow
from paygw_batch.processes import gc_relaxed


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings of one run: gateway, number of rows, concurrency, connections, and journal."""

    directory: Path
    """Where the merchant's key lies, and the journal is made: on the disk that is measured."""
    base_url: str
    rows: int
    concurrency: int = 64
    connections: Literal["fresh", "reuse"] = "reuse"
    journal: Literal["disk", "memory"] = "disk"
    ca_bundle: Path | None = None
    key: KeyElsewhere | None = None
    """The key that signs; None: the merchant's file."""
    flush_s: float = 0.0
    """How much longer each flush of the journal takes than the disk needs."""


def payouts_per_s(trial: Trial) -> Sample:
    """Return the payouts per second of a run, from its first read of the journal to its last outcome.

    Raises `InternalError` unless every row was paid, because the rate would be meaningless.
    """
    merchant = Merchant.load_or_create(trial.directory)
    with slow_flushes(trial.flush_s), _open_journal(trial) as journal:
        batch = open_batch(journal, trial.rows)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run_trial(trial, merchant, journal, batch.number))


@contextmanager
def _open_journal(trial: Trial) -> Iterator[Journal]:
    if trial.journal == "memory":
        yield in_memory_journal()
        return
    with journal_on_disk(trial.directory) as journal:
        yield journal


@contextmanager
def journal_on_disk(directory: Path) -> Iterator[SqliteJournal]:
    """Yield a new journal on the disk of `directory`."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        folder = Path(name)
        at = FileLocation(
            folder / "journal.sqlite3",
            endpoint=EndpointIdentity("benchmark", "1000"),
            known_dir=folder / "journals",
            now=lambda: timestamp(datetime.now(UTC)),
        )
        at.create("benchmark")
        journal = at.open_to_write("benchmark")
        try:
            yield journal
        finally:
            journal.close()


class _OutcomeTimes(SilentProgress):
    """Records when each outcome became durable."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def record_outcome(self, due: DueRow, outcome: Outcome) -> None:  # noqa: ARG002 (the port's)
        """Record the time."""
        self.at_s.append(time.perf_counter())

    def steady_per_s(self, places: int) -> float:
        """Return the rate without warm-up and end.

        All slots are in use long before as many outcomes as slots have arrived, and until the last row starts. The
        result is 0 if there were too few rows.
        """
        first, last = 2 * places, len(self.at_s) - places
        last -= (last - first) % places
        return (last - first) / (self.at_s[last] - self.at_s[first]) if last > first else 0.0


async def _run_trial(trial: Trial, merchant: Merchant, journal: Journal, batch: int) -> Sample:
    reached = TransportSettings(trial.base_url, connections=Connections(trial.connections), ca_bundle=trial.ca_bundle)
    signer, noted = merchant.signer(trial.base_url), _OutcomeTimes()
    if trial.key is not None:
        signer = replace(signer, key=trial.key.load())
    with gc_relaxed(), journal.open_engine_journal() as given:
        async with signers_for(signer.key, trial.rows) as signers, PayoutTransport(reached) as transport:
            engine = Engine(
                journal=given,
                gateway=transport,
                prepare=Preparer(merchant.rules, signer, signers),
                assess=partial(classify, words=merchant.settings.words(), operation=merchant.operation),
                pace=Pace(trial.concurrency),
                runtime=Runtime(lambda: datetime.now(UTC), elapsed_s, partial(secrets.token_hex, 16), random.random),
                progress=noted,
                send_within_s=reached.connect_timeout_s + reached.total_timeout_s,
                signing_lookahead=signing_lookahead(signer.key),
            )
            started_s, cpu_s = time.perf_counter(), time.process_time()
            end = await engine.run(batch)
            took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    if end.sent != trial.rows or end.stop_reason is not None or end.failure is not None:
        raise InternalError(f"the run ended early: {end}")
    per_s = trial.rows / took_s
    return Sample(per_s, 1e6 * cpu_s / trial.rows, noted.steady_per_s(trial.concurrency) or per_s)
