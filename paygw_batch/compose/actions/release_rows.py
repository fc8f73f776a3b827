"""Releases rejected rows by an order of two people: drafts it, signs it, carries it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.continue_batch import ReleasedRows, release_rejected
from paygw_batch.compose.actions.send import Task
from paygw_batch.compose.approvals import known_maker, required_policy
from paygw_batch.core.lifecycle import State
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowStanding
from paygw_batch.language import say
from paygw_batch.run.approval_keys import ApprovalKey, PublicKey
from paygw_batch.run.orders.ordered_batch import order_in_force
from paygw_batch.run.orders.release_order import ReleaseOrder, release_content, unsigned_release
from paygw_batch.run.quarantine_clock import quarantine_in_force
from paygw_batch.run.release import check_releasable, is_quarantined, quarantined
from paygw_batch.run.resolve import open_from
from paygw_batch.run.signed_document import signed
from paygw_batch.settings.configuration import Settings


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """The first rejected rows of a batch. `opens` is from when on those may be released that may not be now, by row."""

    rows: Sequence[RowStanding]
    opens: Mapping[int, str]
    has_more: bool


def rejected_rows(settings: Settings, journal: JournalReader, record: BatchRecord, *, limit: int) -> RejectedRows:
    """Return up to `limit` rejected rows of a batch, in the sheet's order."""
    found = list(journal.rows(record.number, states={State.REJECTED}, limit=limit + 1))
    now = utc_now()
    quarantine = quarantine_in_force(journal, settings.submission.quarantine_h, now)
    until = quarantine.left_until(now)
    opens = {row.row: open_from(row, quarantine) for row in found[:limit] if is_quarantined(row, until)}
    later = {row: timestamp(at) for row, at in opens.items() if at is not None}
    return RejectedRows(found[:limit], later, len(found) > limit)


def prepare_release(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    rows: Sequence[int],
    evidence: str,
    maker: ApprovalKey,
) -> ReleaseOrder:
    """Return the order to release rejected rows, signed by its maker. It is written nowhere yet."""
    return signed(draft_release(settings, journal, record, rows, evidence, maker.public), maker)


def draft_release(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    rows: Sequence[int],
    evidence: str,
    maker: PublicKey,
) -> ReleaseOrder:
    """Return the order to release rejected rows (none named: all that may be released now), yet to be signed.

    Raises `UsageError` when a named row may not be released.
    """
    known_maker(maker, required_policy(settings), say("No order was written."))
    quarantine_h = settings.submission.quarantine_h
    check_releasable(journal, record, rows, quarantine_h=quarantine_h, now=utc_now)
    waiting = quarantined(journal, record, quarantine_h=quarantine_h, now=utc_now)
    rejected = [row.row for row in journal.rows(record.number, states={State.REJECTED}) if row.row not in waiting]
    content = release_content(
        journal,
        record,
        sorted(set(rows)) or rejected,
        evidence=evidence,
        endpoint=settings.endpoint(),
        minor_units=minor_units_by_currency(),
    )
    if not content.rows:
        raise UsageError(say("There is no rejected row that may be released now: no order was written."))
    return unsigned_release(content, maker, utc_now())


def release_by_order(task: Task, order: ReleaseOrder, by: str) -> ReleasedRows:
    """Release the rows that an order of two people names, once. Raises `ApprovalError`, and then none is."""
    settings = task.settings
    found = order_in_force(
        order,
        task.journal,
        required_policy(settings),
        utc_now(),
        endpoint=settings.endpoint(),
        minor_units=minor_units_by_currency(),
    )
    if found.batch != task.batch:
        raise UsageError(
            say(
                "The order is about batch {batch}, and not about {other}.",
                batch=found.batch.batch,
                other=task.batch.batch,
            )
        )
    return release_rejected(task, order.numbers, f"{by}, {found.decided}", order=found.kept)
