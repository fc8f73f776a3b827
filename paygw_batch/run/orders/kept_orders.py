"""Checks the signed orders that a journal keeps: their signatures, and the facts that they brought about."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from pydantic import ValidationError

from paygw_batch.core.lifecycle import FactKind, Resolved, kind_of
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader
from paygw_batch.run.approval_keys import read_own_spelling
from paygw_batch.run.orders.ordered_batch import RowOrder
from paygw_batch.run.orders.release_order import ReleaseOrder
from paygw_batch.run.orders.settlement_order import SettlementOrder
from paygw_batch.run.passkey import party_named_by
from paygw_batch.run.signed_document import SignedDocument, has_signed_by

KINDS = (SettlementOrder, ReleaseOrder)


_Deed = tuple[int | None, int | None, str, str]
"""Row, attempt, kind of fact, and the evidence of a settlement; a release has none in its fact."""


def check_kept_orders(journal: JournalReader) -> int:
    """Return how many signed orders the journal keeps. Raises `JournalCorrupt` for one that is not true.

    Each must be signed by the keys that it names, be about this journal and its batch, and have brought about the facts
    that it asks for. Whether these keys are in the configuration today decides nothing about an order of then.
    """
    journal_id, count = journal.head().journal_id, 0
    for batch in journal.batches():
        orders = journal.messages(batch.number).orders
        if not orders:
            continue
        history = journal.history(batch.number)
        for text in orders:
            _check(_order_of(text, batch), batch, journal_id, history)
            count += 1
    return count


def is_kept(journal: JournalReader, order: RowOrder) -> bool:
    """Whether the journal keeps an order, under whichever approvals: it was carried out."""
    content, digest = order.content, order.digest()
    batch = next((one for one in journal.batches() if one.batch == content.batch), None)
    kept = [] if batch is None else journal.messages(batch.number).orders
    return batch is not None and any(_order_of(text, batch).digest() == digest for text in kept)


def _order_of(text: str, batch: BatchRecord) -> SettlementOrder | ReleaseOrder:
    for kind in KINDS:
        try:
            return kind.model_validate_json(text)
        except ValidationError:
            continue
    raise JournalCorrupt(f"A signed order of batch {batch.batch} does not read as one.")


def _check(
    order: SettlementOrder | ReleaseOrder, batch: BatchRecord, journal_id: str, history: Sequence[HistoryEntry]
) -> None:
    digest, content = order.digest(), order.content
    named = f"The signed order {digest[:16]} of batch {batch.batch}"
    if not _is_signed_by_its_keys(order):
        raise JournalCorrupt(f"{named} is not signed by the keys that it names.")
    if (content.journal, content.batch, content.operation) != (journal_id, batch.batch, batch.operation):
        raise JournalCorrupt(f"{named} is about another journal or another batch.")
    done = {_deed_of(one) for one in history if f", order {digest}, " in one.by}
    missing = [deed for deed in _deeds(order) if deed not in done]
    if missing or len(done) != len(content.rows):
        raise JournalCorrupt(f"{named} is not what its facts say: {len(done)} of {len(content.rows)} rows have one.")


def _is_signed_by_its_keys(document: SignedDocument) -> bool:
    """Whether the maker and every approver signed a document, each with another key: with those that it names.

    Whose keys they are is not asked: for the documents of then, which were judged when they were carried out.
    """
    signed_by = {document.maker: (document.signature, "")}
    signed_by |= {approval.key: (approval.signature, approval.approved_at) for approval in document.approvals}
    for text, (signature, approved_at) in signed_by.items():
        key = read_own_spelling(text)
        if key is None:
            return False
        signed_text = document.approval_text(key, approved_at) if approved_at else document.signed_text()
        party = None if isinstance(signature, str) else party_named_by(signature)
        if not has_signed_by(key, signed_text, signature, party):
            return False
    return len(signed_by) == 1 + len(document.approvals) > 1


def _deeds(order: SettlementOrder | ReleaseOrder) -> Iterator[_Deed]:
    match order:
        case SettlementOrder():
            for one in order.content.rows:
                yield one.row, one.attempt, kind_of(Resolved(one.resolution, "", "")).value, one.evidence
        case ReleaseOrder():
            for row in order.content.rows:
                yield row.row, row.attempt, FactKind.RELEASED.value, ""
        case _:
            assert_never(order)


def _deed_of(entry: HistoryEntry) -> _Deed:
    return entry.row, entry.attempt, entry.kind, "" if entry.kind == FactKind.RELEASED else entry.said
