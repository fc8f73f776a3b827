"""Checks the signed orders that a journal keeps, and withdraws signed plans and orders.

A check covers the signatures of an order, and the facts to which the order led. A withdrawal is a person's statement,
signed unless it was made on a page. The journal keeps it under the digest of the document's signed text, so it applies
to every copy, whatever approvals a copy has. A document that was already used cannot be withdrawn.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from paygw_batch.approval.approval_keys import ApprovalKey, People, party_named_by, read_own_spelling
from paygw_batch.approval.order import ForgetOrder, Order
from paygw_batch.approval.signed_document import SignedDocument, SignedPart, has_signed_by, signed_bytes
from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import FactKind, Resolved, kind_of
from paygw_batch.core.shown_states import kept_text
from paygw_batch.errors import ApprovalError, JournalCorrupt
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader, Withdrawal
from paygw_batch.language import say
from paygw_batch.settle.row_order import RowOrder

_Kept = RowOrder | ForgetOrder
_READER: TypeAdapter[_Kept] = TypeAdapter(Annotated[_Kept, Field(discriminator="document")])
_FORGOTTEN = "forgotten"

_Deed = tuple[str, int | None, int | None, str, str]
"""The batch, row, attempt and kind of a fact, and the evidence of a settlement; other facts have no evidence."""


def check_kept_orders(journal: JournalReader) -> int:
    """Return the number of signed orders in the journal. Raises `JournalCorrupt` if an order is not genuine.

    Each order must be signed by the keys that it names, be about this journal and its batch, and have led to the facts
    that it asks for. The keys that are configured now do not matter for a past order.
    """
    records, count = journal.batches(), 0
    for name in dict.fromkeys(("", *(record.batch for record in records))):
        if not (texts := journal.signed_orders(name)):
            continue
        # The journal keeps an order to forget people under no batch; the facts of the order are in each of its batches.
        own = [record for record in records if name in {"", record.batch}]
        done = [(entry.order, _deed_of(batch, entry)) for batch in own for entry in journal.history(batch.number)]
        for text in texts:
            _check(_order_of(text, name), name, journal.head().journal_id, done)
            count += 1
    return count


def kept_orders(journal: JournalReader, batch: str) -> Sequence[_Kept]:
    """Return the signed orders that were carried out for a batch (empty: to forget people), oldest first."""
    return [_order_of(text, batch) for text in journal.signed_orders(batch)]


def is_kept(journal: JournalReader, order: Order) -> bool:
    """Return whether the journal keeps an order, with any approvals. If so, the order was carried out."""
    digest = order.digest()
    return any(other.digest() == digest for other in kept_orders(journal, order.batch))


def _order_of(text: str, batch: str) -> _Kept:
    try:
        return _READER.validate_json(text)
    except ValueError:
        raise JournalCorrupt(say("A signed order of batch {batch} cannot be read.", batch=batch or "-")) from None


def _check(order: _Kept, batch: str, journal_id: str, done: Sequence[tuple[str, _Deed]]) -> None:
    """Raise `JournalCorrupt` unless an order is genuine. `done` has facts, each with the digest of its order."""
    digest, deeds = order.digest(), set(_deeds(order))
    names = {"order": digest[:16], "batch": batch or "-"}
    if not _is_signed_by_its_keys(order):
        raise JournalCorrupt(
            say("The signed order {order} of batch {batch} is not signed by the keys that it names.", **names)
        )
    if (order.content.journal, order.batch) != (journal_id, batch):
        raise JournalCorrupt(
            say("The signed order {order} of batch {batch} is about another journal or another batch.", **names)
        )
    recorded = {deed for by_order, deed in done if by_order == digest}
    if recorded != deeds:
        raise JournalCorrupt(
            say(
                "The signed order {order} of batch {batch} differs from the journal: {done} of {asked} decisions fit.",
                done=len(recorded & deeds),
                asked=len(deeds),
                **names,
            )
        )


def _is_signed_by_its_keys(document: SignedDocument) -> bool:
    """Return whether the maker and every approver signed a document, each with a different key of those that it names.

    The owners of the keys are not checked, because past documents were judged when they were carried out.
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


def _deeds(order: _Kept) -> Iterator[_Deed]:
    if isinstance(order, ForgetOrder):
        for batch in order.content.batches:
            yield f"{batch.operation} {batch.batch}", None, None, _FORGOTTEN, ""
        return
    name = f"{order.content.operation} {order.batch}"
    for row in order.content.rows:
        if order.is_release:
            yield name, row.row, row.attempt, FactKind.RELEASED.value, ""
        else:
            kind = kind_of(Resolved(row.decision.settlement.resolution, "", "")).value
            yield name, row.row, row.attempt, kind, kept_text(row.decision.settlement.said)


def _deed_of(record: BatchRecord, entry: HistoryEntry) -> _Deed:
    evidence = "" if entry.kind in {FactKind.RELEASED, _FORGOTTEN} else entry.said
    return f"{record.operation} {record.batch}", entry.row, entry.attempt, entry.kind, evidence


class WithdrawalDocument(SignedPart):
    """A withdrawal as the journal keeps it. `key` and `signature` are empty if the withdrawal was made on a page."""

    document: Literal["paygw-batch withdrawal 1"] = "paygw-batch withdrawal 1"
    journal: str
    sha256: str
    """The digest of the signed text of the withdrawn document."""
    by: str
    at: str
    key: str
    signature: str

    def signed_text(self) -> bytes:
        """Return the text that the signature covers: every value except the signature."""
        return signed_bytes(self.document, self.model_dump(exclude={"signature"}))


def withdrawn_with(document: SignedDocument, key: ApprovalKey, people: People, now: datetime) -> Withdrawal:
    """Return the withdrawal of a document, signed by the document's maker or by anyone who may approve.

    Raises `ApprovalError` for the key of anyone else.
    """
    owner = people.owner_of(key.public)
    maker = read_own_spelling(document.maker)
    is_maker = owner is not None and maker is not None and people.owner_of(maker) == owner
    if owner is None or not (is_maker or owner.approver_keys):
        raise ApprovalError(
            say("This key may not withdraw: it belongs neither to the maker nor to a listed approver."),
            hint=say("Nothing was withdrawn."),
            for_terminal=False,
        )
    return _withdrawal(document, owner.name, now, key)


def withdrawn_at_a_page(document: SignedDocument, name: str, now: datetime) -> Withdrawal:
    """Return the withdrawal of a document by a person who is signed in. As it pays nothing, it needs no key."""
    return _withdrawal(document, name, now, None)


def require_unused(document: SignedDocument, journal: JournalReader) -> None:
    """Raise `ApprovalError` for a plan that has opened a batch, or an order that was carried out."""
    if isinstance(document, Order):
        if is_kept(journal, document):
            raise ApprovalError(
                say("The {noun} was carried out already: it can't be withdrawn.", noun=say(document.noun)),
                hint=say("`paygw-batch status {batch} --history` shows what it did.", batch=document.batch or "BATCH"),
            )
        return
    for opened in journal.batches(plan_sha256=document.digest()):
        raise ApprovalError(
            say(
                "The payout has started: the plan opened batch {batch} at {opened_at}, and can't be withdrawn.",
                batch=opened.batch,
                opened_at=opened.opened_at,
            ),
            hint=say(
                "To stop it, press Ctrl-C in its terminal, or run `paygw-batch workers --stop {batch}`. What was sent "
                "stays sent: `paygw-batch status {batch}` shows it.",
                batch=opened.batch,
            ),
        )


def check_kept_withdrawals(journal: JournalReader) -> int:
    """Return the number of withdrawals in the journal. Raises `JournalCorrupt` if a withdrawal is not genuine.

    The keys that are configured now do not matter for a past withdrawal.
    """
    journal_id, withdrawals = journal.head().journal_id, journal.withdrawals()
    for entry in withdrawals:
        try:
            signed = WithdrawalDocument.model_validate_json(entry.document)
        except ValueError:
            raise JournalCorrupt(say("A withdrawal in the journal cannot be read.")) from None
        key = read_own_spelling(signed.key)
        is_signed = key.has_signed(signed.signed_text(), signed.signature) if key is not None else not signed.key
        if not is_signed or (signed.sha256, signed.by, signed.journal) != (entry.sha256, entry.by, journal_id):
            raise JournalCorrupt(say("The withdrawal of {sha256} was changed after signing.", sha256=entry.sha256[:16]))
    return len(withdrawals)


def _withdrawal(document: SignedDocument, name: str, now: datetime, key: ApprovalKey | None) -> Withdrawal:
    journal, digest, public = document.content.journal, document.digest(), "" if key is None else key.public.text
    made = WithdrawalDocument(journal=journal, sha256=digest, by=name, at=timestamp(now), key=public, signature="")
    if key is not None:
        made = made.model_copy(update={"signature": key.sign(made.signed_text())})
    return Withdrawal(digest, name, made.model_dump_json(), made.at)
