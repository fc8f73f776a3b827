"""Continues a batch from the journal alone: holds journal and gateway, releases rejected rows for another attempt."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.send import SentBy, Task
from paygw_batch.compose.gateway import gateway_of
from paygw_batch.compose.journal import Tell
from paygw_batch.compose.operations import require_complete, rules_of
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.compose.signing import signer_key
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, TallyKind
from paygw_batch.language import say
from paygw_batch.run.quarantine_clock import quarantine_in_force
from paygw_batch.run.release import check_releasable, quarantined, waiting_sentence
from paygw_batch.settings.configuration import Settings


@contextmanager
def continued_batch(
    settings: Settings,
    command: str,
    find: Callable[[JournalReader], BatchRecord],
    environ: Mapping[str, str],
    tell: Tell,
    *,
    wait: bool = False,
) -> Iterator[Task]:
    """Hold the journal, and the way to the gateway, for the batch that `find` returns."""
    signer_key(settings, environ)  # what is wrong with the key shows before the journal is touched
    with run_journal(settings, command, tell, wait=wait) as journal:
        record = find(journal)
        rules = rules_of(settings, record.operation)
        with gateway_of(settings, rules, environ) as gateway:
            yield Task(settings, rules, gateway, journal, record, sent_by=SentBy.WORKERS_IF_ANY)


def unfinished_batch(journal: JournalReader) -> BatchRecord:
    """Return the one batch that has rows to send, or the newest one where none has. Raises `UsageError`."""
    records = journal.batches()
    found = [record for record in records if journal.tallies(record.number, kind=TallyKind.DUE)]
    if len(found) == 1:
        return found[0]
    if not found and records:
        return records[-1]
    if not found:
        raise UsageError(say("The journal has no batch yet."), hint=say("`paygw-batch submit SHEET` starts one."))
    names = ", ".join(f"{record.batch} ({record.sheet_name})" for record in found)
    raise UsageError(
        say("Several batches have rows to send: {names}.", names=names),
        hint=say("Name one: `paygw-batch resume BATCH`."),
    )


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """How many rejected rows were released, and a sentence for each that has to wait: why, and until when."""

    rows: int
    waiting: Sequence[str]


def release_rejected(task: Task, rows: Sequence[int], by: str, *, order: SignedOrder | None = None) -> ReleasedRows:
    """Release the rejected rows of a batch (all, or those named) for another attempt, as decided `by` a person.

    `order` is the signed order that asks for it, which the journal keeps. Raises `UsageError` when a named row may not
    be released: then none is.
    """
    settings, journal, batch = task.settings, task.journal, task.batch
    quarantine_h = settings.submission.quarantine_h
    check_releasable(journal, batch, rows, quarantine_h=quarantine_h, now=utc_now)
    to_send = {State.READY, State.REJECTED}
    countries = {tally.country for tally in journal.tallies(batch.number) if tally.state in to_send}
    require_complete(settings, task.rules, countries)
    now = utc_now()
    quarantine = quarantine_in_force(journal, quarantine_h, now)
    released = journal.release(
        batch.number,
        rows or None,
        suffix=settings.retry.order_id == "suffix",
        by=by,
        at=timestamp(now),
        left_until=quarantine.left_until(now),
        order=None if order is None else replace(order, at=timestamp(now)),
    )
    waiting = quarantined(journal, batch, quarantine_h=quarantine_h, now=utc_now).values()
    return ReleasedRows(released, [waiting_sentence(row, quarantine) for row in waiting])
