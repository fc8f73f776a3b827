"""Checks the signed orders in a journal and withdraws signed plans and orders.

A check covers the signatures of an order and the facts that it led to. A withdrawal is signed unless it was made on a
page. The journal stores it under the digest of the document's signed text, so it applies to every copy, with any
approvals. A document that has already been used cannot be withdrawn.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from paygw_batch.approval.approval_keys import ApprovalKey, People, parse_canonical_key, parse_claimed_party
from paygw_batch.approval.order import ForgetOrder, Order
from paygw_batch.approval.signed_document import SignedDocument, SignedPart, encode_signed_text, is_valid_signature
from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import FactKind, Resolved, fact_kind
from paygw_batch.core.shown_states import encode_text
from paygw_batch.errors import ApprovalError, JournalCorrupt
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader, Withdrawal
from paygw_batch.language import say
from paygw_batch.settle.row_order import RowOrder

_RecordedOrder = RowOrder | ForgetOrder
_ORDER_ADAPTER: TypeAdapter[_RecordedOrder] = TypeAdapter(Annotated[_RecordedOrder, Field(discriminator="document")])
_FORGOTTEN = "forgotten"

_OrderedFact = tuple[str, int | None, int | None, str, str]
"""The batch, row, attempt, kind and evidence of a fact. Only settlements have evidence."""


def check_recorded_orders(journal: JournalReader) -> int:
    """Check the signed orders in the journal and return their number. Raises `JournalCorrupt` if one is not genuine.

    Each order must be signed by the keys that it lists, be for this journal and its batch, and match the facts that it
    led to. The configured keys are not used.
    """
    records, count = journal.batches(), 0
    for batch_id in dict.fromkeys(("", *(record.batch for record in records))):
        if not (texts := journal.signed_orders(batch_id)):
            continue
        # An order to forget people is stored without a batch, but its facts are spread over its batches.
        own_batches = [record for record in records if batch_id in {"", record.batch}]
        history = ((batch, entry) for batch in own_batches for entry in journal.history(batch.number))
        facts = [(entry.order, _recorded_fact(batch, entry)) for batch, entry in history]
        for text in texts:
            _check_order(_parse_order(text, batch_id), batch_id, journal.head().journal_id, facts)
            count += 1
    return count


def recorded_orders(journal: JournalReader, batch: str) -> Sequence[_RecordedOrder]:
    """Return a batch's signed orders, or those to forget people if `batch` is empty, oldest first."""
    return [_parse_order(text, batch) for text in journal.signed_orders(batch)]


def is_recorded(journal: JournalReader, order: Order) -> bool:
    """Return whether an order is in the journal, which means that it has been carried out."""
    digest = order.digest()
    return any(other.digest() == digest for other in recorded_orders(journal, order.batch))


def _parse_order(text: str, batch: str) -> _RecordedOrder:
    try:
        return _ORDER_ADAPTER.validate_json(text)
    except ValueError:
        raise JournalCorrupt(say("A signed order for batch {batch} cannot be read.", batch=batch or "-")) from None


def _check_order(order: _RecordedOrder, batch: str, journal_id: str, facts: Sequence[tuple[str, _OrderedFact]]) -> None:
    """Raise `JournalCorrupt` unless an order is genuine. `facts` lists all facts, each with its order's digest."""
    digest, expected = order.digest(), set(_expected_facts(order))
    values = {"order": digest[:16], "batch": batch or "-"}
    if not _is_signed_by_its_keys(order):
        raise JournalCorrupt(
            say("The signed order {order} for batch {batch} is not signed with the keys that it lists.", **values)
        )
    if (order.content.journal, order.batch) != (journal_id, batch):
        raise JournalCorrupt(
            say("The signed order {order} for batch {batch} belongs to another journal or another batch.", **values)
        )
    actual = {fact for order_digest, fact in facts if order_digest == digest}
    if actual != expected:
        raise JournalCorrupt(
            say(
                "The signed order {order} for batch {batch} does not match the journal: {done} of {asked} decisions "
                "agree.",
                done=len(actual & expected),
                asked=len(expected),
                **values,
            )
        )


def _is_signed_by_its_keys(document: SignedDocument) -> bool:
    """Return whether a document is signed with every key that it lists, and no key is listed twice.

    The owners of the keys were checked when the document was carried out.
    """
    signatures = {document.maker: (document.signature, "")}
    signatures |= {approval.key: (approval.signature, approval.approved_at) for approval in document.approvals}
    for key_text, (signature, approved_at) in signatures.items():
        if (key := parse_canonical_key(key_text)) is None:
            return False
        signed_text = document.approval_text(key, approved_at) if approved_at else document.signed_text()
        party = None if isinstance(signature, str) else parse_claimed_party(signature)
        if not is_valid_signature(key, signed_text, signature, party):
            return False
    return len(signatures) == 1 + len(document.approvals) > 1


def _expected_facts(order: _RecordedOrder) -> Iterator[_OrderedFact]:
    if isinstance(order, ForgetOrder):
        for batch in order.content.batches:
            yield f"{batch.operation} {batch.batch}", None, None, _FORGOTTEN, ""
        return
    batch_name = f"{order.content.operation} {order.batch}"
    for row in order.content.rows:
        if order.is_release:
            yield batch_name, row.row, row.attempt, FactKind.RELEASED.value, ""
        else:
            kind = fact_kind(Resolved(row.decision.settlement.resolution, "", "")).value
            yield batch_name, row.row, row.attempt, kind, encode_text(row.decision.settlement.evidence_text)


def _recorded_fact(record: BatchRecord, entry: HistoryEntry) -> _OrderedFact:
    evidence = "" if entry.kind in {FactKind.RELEASED, _FORGOTTEN} else entry.said
    return f"{record.operation} {record.batch}", entry.row, entry.attempt, entry.kind, evidence


class WithdrawalDocument(SignedPart):
    """A withdrawal as the journal stores it. `key` and `signature` are empty if it was made on a page."""

    document: Literal["paygw-batch withdrawal 1"] = "paygw-batch withdrawal 1"
    journal: str
    sha256: str
    """The digest of the withdrawn document's signed text."""
    by: str
    at: str
    key: str
    signature: str

    def signed_text(self) -> bytes:
        """Return the text to sign: every value except the signature."""
        return encode_signed_text(self.document, self.model_dump(exclude={"signature"}))


def sign_withdrawal(document: SignedDocument, key: ApprovalKey, people: People, now: datetime) -> Withdrawal:
    """Return a withdrawal signed by the document's maker or an approver. Raises `ApprovalError` for any other key."""
    owner = people.find_owner(key.public)
    maker = parse_canonical_key(document.maker)
    is_maker = owner is not None and maker is not None and people.find_owner(maker) == owner
    if owner is None or not (is_maker or owner.approver_keys):
        raise ApprovalError(
            say("This key cannot withdraw the document: it does not belong to the maker or to a listed approver."),
            hint=say("Nothing was withdrawn."),
            for_terminal=False,
        )
    return _build_withdrawal(document, owner.name, now, key)


def withdraw_on_page(document: SignedDocument, name: str, now: datetime) -> Withdrawal:
    """Return a withdrawal by a person who is signed in. It needs no signature, because nothing is paid."""
    return _build_withdrawal(document, name, now, None)


def require_unused(document: SignedDocument, journal: JournalReader) -> None:
    """Raise `ApprovalError` if a plan has opened a batch or an order has been carried out."""
    if isinstance(document, Order):
        if is_recorded(journal, document):
            raise ApprovalError(
                say(
                    "The {noun} cannot be withdrawn, because it has already been carried out.", noun=say(document.noun)
                ),
                hint=say(
                    "To see what the order did, run `paygw-batch status {batch} --history`.",
                    batch=document.batch or "BATCH",
                ),
            )
        return
    for batch in journal.batches(plan_sha256=document.digest()):
        raise ApprovalError(
            say(
                "The plan cannot be withdrawn, because its payout has started: it opened batch {batch} at {opened_at}.",
                batch=batch.batch,
                opened_at=batch.opened_at,
            ),
            hint=say(
                "To stop it, press Ctrl-C in its terminal, or run `paygw-batch workers --stop {batch}`. Rows that were "
                "already sent are not affected. To see them, run `paygw-batch status {batch}`.",
                batch=batch.batch,
            ),
        )


def check_recorded_withdrawals(journal: JournalReader) -> int:
    """Check the withdrawals in the journal and return their number. Raises `JournalCorrupt` if one is not genuine."""
    journal_id, withdrawals = journal.head().journal_id, journal.withdrawals()
    for entry in withdrawals:
        try:
            signed = WithdrawalDocument.model_validate_json(entry.document)
        except ValueError:
            raise JournalCorrupt(say("A withdrawal in the journal cannot be read.")) from None
        key = parse_canonical_key(signed.key)
        is_signed = key.verifies(signed.signed_text(), signed.signature) if key is not None else not signed.key
        if not is_signed or (signed.sha256, signed.by, signed.journal) != (entry.sha256, entry.by, journal_id):
            raise JournalCorrupt(say("The withdrawal of {sha256} was changed after signing.", sha256=entry.sha256[:16]))
    return len(withdrawals)


def _build_withdrawal(document: SignedDocument, by: str, now: datetime, key: ApprovalKey | None) -> Withdrawal:
    journal, digest, signer = document.content.journal, document.digest(), "" if key is None else key.public.text
    withdrawal = WithdrawalDocument(journal=journal, sha256=digest, by=by, at=timestamp(now), key=signer, signature="")
    if key is not None:
        withdrawal = withdrawal.model_copy(update={"signature": key.sign(withdrawal.signed_text())})
    return Withdrawal(digest, by, withdrawal.model_dump_json(), withdrawal.at)
