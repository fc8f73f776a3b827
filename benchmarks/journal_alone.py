"""Measures the journal alone: the cost of a payout's two facts, by the size of a commit."""

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands_resumed import build_intent, build_outcome
from benchmarks.figures import Sample
from benchmarks.merchant import open_batch
from benchmarks.payouts import journal_on_disk
from paygw_batch.journal.values import DueRow
from paygw_batch.processes import gc_relaxed


def journal_payouts_per_s(directory: Path, rows: int, facts_a_commit: int) -> Sample:
    """Return the number of payouts per second that a journal on disk can record.

    A commit carries the outcomes of some rows, and the intents of the same number of rows. Garbage collection is
    paused, as during a run.
    """
    with gc_relaxed(), journal_on_disk(directory) as journal:
        batch, after_row = open_batch(journal, rows), 0
        landed: Sequence[DueRow] = ()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        while landed or after_row <= rows:
            due = journal.due(batch.number, after_row=after_row, limit=facts_a_commit // 2)
            journal.append([*map(build_outcome, landed), *map(build_intent, due)])
            after_row, landed = due[-1].row if due else after_row, due
        elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    return Sample(rows / elapsed_s, 1e6 * cpu_s / rows)
