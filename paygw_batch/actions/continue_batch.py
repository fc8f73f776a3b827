"""Continues a batch from the journal alone, and releases rejected rows on one person's word or two people's order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from paygw_batch.actions.plan_document import SentBy
from paygw_batch.actions.send import SendJob
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState, TallyKind, is_in_quarantine
from paygw_batch.language import say
from paygw_batch.run.forget_order import require_remembered
from paygw_batch.run.quarantine_clock import JournalClock
from paygw_batch.run.release import check_releasable, quarantined, waiting_sentence
from paygw_batch.run.resolve import open_from
from paygw_batch.run.row_order import RowOrder, order_in_force
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import required_policy
from paygw_batch.wiring.gateway import gateway_of
from paygw_batch.wiring.journal import Tell, run_journal
from paygw_batch.wiring.operations import require_complete, rules_of
from paygw_batch.wiring.signing import signer_key


@contextmanager
def continued_batch(
    settings: Settings,
    command: str,
    find: Callable[[JournalReader], BatchRecord],
    environ: Mapping[str, str],
    tell: Tell,
    *,
    wait: bool = False,
) -> Iterator[SendJob]:
    """Hold the journal and the connection to the gateway for the batch that `find` returns."""
    signer_key(settings, environ)  # reports an unusable key before the journal is touched
    with run_journal(settings, command, tell, wait=wait) as journal:
        record = find(journal)
        require_remembered(journal, record)
        rules = rules_of(settings, record.operation)
        with gateway_of(settings, rules, environ) as gateway:
            yield SendJob(settings, rules, gateway, journal, record, sent_by=SentBy.WORKERS_IF_ANY)


def unfinished_batch(journal: JournalReader) -> BatchRecord:
    """Return the only batch with rows to send, or the newest batch if none has any. Raises `UsageError`."""
    records = journal.batches()
    found = [record for record in records if journal.tallies(record.number, kind=TallyKind.DUE)]
    if len(found) == 1:
        return found[0]
    if not found and records:
        return records[-1]
    if not found:
        raise UsageError(
            say("The journal has no batch yet."), hint=say("`paygw-batch submit SHEET` starts one."), for_terminal=True
        )
    names = ", ".join(f"{record.batch} ({record.sheet_name})" for record in found)
    raise UsageError(
        say("Several batches have rows to send: {names}.", names=names),
        hint=say("Name one: `paygw-batch resume BATCH`."),
        for_terminal=True,
    )


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """The number of released rows, and a sentence for each row that must wait: why, and until when."""

    rows: int
    waiting: Sequence[str]


def release_rejected(task: SendJob, rows: Sequence[int], by: str, *, order: SignedOrder | None = None) -> ReleasedRows:
    """Release a batch's rejected rows (all, or those named) for another attempt, as `by` decided.

    The journal keeps `order`, the signed order that asks for this. Raises `UsageError` if a named row may not be
    released, and then releases none.
    """
    settings, journal, batch = task.settings, task.journal, task.batch
    quarantine_h = settings.submission.quarantine_h
    check_releasable(journal, batch, rows, quarantine_h=quarantine_h, now=utc_now)
    to_send = {State.READY, State.REJECTED}
    countries = {tally.country for tally in journal.tallies(batch.number) if tally.state in to_send}
    require_complete(settings, task.rules, countries)
    now = utc_now()
    quarantine = JournalClock.read(journal, now).quarantine(quarantine_h)
    released = journal.release(
        batch.number,
        rows or None,
        suffix=settings.retry.order_id == "suffix",
        by=by,
        at=timestamp(now),
        cutoff=quarantine.cutoff(now),
        order=None if order is None else replace(order, at=timestamp(now)),
    )
    waiting = quarantined(journal, batch, quarantine_h=quarantine_h, now=utc_now).values()
    return ReleasedRows(released, [waiting_sentence(row, quarantine) for row in waiting])


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """The first rejected rows of a batch. `opens` says, by row, when those that must wait may be released."""

    rows: Sequence[RowState]
    opens: Mapping[int, str]
    has_more: bool


def rejected_rows(settings: Settings, journal: JournalReader, record: BatchRecord, *, limit: int) -> RejectedRows:
    """Return up to `limit` rejected rows of a batch, in the sheet's order."""
    found = list(journal.rows(record.number, states={State.REJECTED}, limit=limit + 1))
    now = utc_now()
    quarantine = JournalClock.read(journal, now).quarantine(settings.submission.quarantine_h)
    until = quarantine.cutoff(now)
    opens = {
        row.row: open_from(row, quarantine) for row in found[:limit] if is_in_quarantine(row.quarantined_since, until)
    }
    later = {row: timestamp(at) for row, at in opens.items() if at is not None}
    return RejectedRows(found[:limit], later, len(found) > limit)


def releasable_rows(settings: Settings, journal: JournalReader, record: BatchRecord) -> Sequence[int]:
    """Return the rejected rows of a batch that may be released now."""
    waiting = quarantined(journal, record, quarantine_h=settings.submission.quarantine_h, now=utc_now)
    return [row.row for row in journal.rows(record.number, states={State.REJECTED}) if row.row not in waiting]


def release_by_order(task: SendJob, order: RowOrder, by: str) -> ReleasedRows:
    """Release the rows named by two people's order, once. Raises `ApprovalError`, and then releases none."""
    policy, endpoint = required_policy(task.settings), task.settings.endpoint()
    found = order_in_force(order, task.journal, policy, utc_now(), by=by, endpoint=endpoint)
    if found.batch != task.batch:
        raise InternalError(f"an order about batch {found.batch.batch} was to be carried out for {task.batch.batch}")
    return release_rejected(task, order.numbers, found.by, order=found.kept)
