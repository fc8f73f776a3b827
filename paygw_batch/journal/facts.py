"""Encodes facts as lines, chains each line to the previous one, and checks personal data.

A fact's personal data is stored separately, with a salt. The chain contains only its digest, so people can be forgotten
without breaking the chain.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, astuple
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import EvidenceRecord, SignedOrder
from paygw_batch.core.lifecycle import (
    Concluded,
    Fact,
    FactKind,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolved,
    Returned,
    fact_kind,
)
from paygw_batch.core.shown_states import decode_record, encode_record, encode_text
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.values import (
    AdoptionNote,
    Arrival,
    BatchFact,
    BatchForgotten,
    BatchOpened,
    ClockComparison,
    EndpointNote,
    Entry,
    HistoryEntry,
    Link,
    Note,
    ProcessedArrivals,
    Remark,
    StatementNote,
    Withdrawal,
    canonical,
)
from paygw_batch.language import say

BATCH_OPENED = "batch_opened"
BATCH_FORGOTTEN = "batch_forgotten"
EVIDENCE_RECORDED = "heard"
"""The kind of a fact that records evidence without moving a row. It may name an instruction."""
SALT_BYTES = 16
"""The length of a salt. Salts are forgotten too, so that digests do not reveal forgotten values."""


class NoteKind(StrEnum):
    """The kinds of facts about the whole journal."""

    ADOPTED = "adopted"
    ARRIVED = "arrived"
    STATEMENT = "carried_out"
    CLOCK = "clock"
    ENDPOINT = "named"
    ORDER = "order"
    PROCESSED = "taken_in"
    """All notifications up to a certain fact were processed."""
    WITHDRAWN = "withdrawn"


CONCURRENT_KINDS = (NoteKind.WITHDRAWN.value, NoteKind.ARRIVED.value)
"""The kinds of `values.ConcurrentNote`, which may be recorded while a run holds the journal."""
NewSalt = Callable[[], bytes]


class FactColumns(NamedTuple):
    """The columns that describe a fact's event."""

    order_id: str | None = None
    nonce: str | None = None
    timestamp_s: int | None = None
    purpose: str | None = None
    endpoint_id: str | None = None
    gateway_status: str | None = None
    gateway_reference: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    cause: str | None = None
    conflict: int | None = None
    source: str | None = None
    finding: str | None = None
    means: str | None = None
    by: str | None = None
    basis: str | None = None
    agreement: str | None = None
    details: str | None = None


class PersonalData(NamedTuple):
    """A fact's personal data. `text` is the gateway's message or a person's evidence. The rest comes from a reply."""

    text: str | None = None
    customer_url: str | None = None
    reply_sha256: str | None = None


_NO_PERSONAL_DATA = PersonalData()
_FORBIDDEN_IN_WORD = re.compile(r"[\x00-\x1f\ud800-\udfff]")
"""Matches control characters, which would break a line's text, and lone surrogates, which a gateway may send."""
_FORBIDDEN_IN_TEXT = re.compile(r"[\x00\ud800-\udfff]")


def fact_columns(fact: Fact) -> tuple[FactColumns, PersonalData]:
    """Return a fact's stored columns and personal data. Replaces characters that databases cannot store."""
    match fact:
        case Intended():
            purpose, endpoint_id = _clean_word(fact.purpose), _clean_word(fact.endpoint_id)
            return FactColumns(fact.order_id, fact.nonce, fact.timestamp_s, purpose, endpoint_id), _NO_PERSONAL_DATA
        case Concluded():
            outcome = fact.outcome
            event = FactColumns(
                gateway_status=_clean_word(outcome.gateway_status),
                gateway_reference=_clean_word(outcome.gateway_reference),
                http_status=outcome.http_status,
                error_code=_clean_word(outcome.error_code),
                cause=outcome.cause or None,
                conflict=1 if outcome.conflict else None,
            )
            message, customer_url = _clean_text(outcome.message), _clean_text(outcome.customer_url)
            return event, PersonalData(message, customer_url, outcome.reply_sha256)
        case Interrupted():
            return FactColumns(), _NO_PERSONAL_DATA
        case Resolved():
            event = FactColumns(by=_clean_word(fact.by), basis=fact.basis.value, agreement=fact.order or None)
            return event, PersonalData(_clean_text(fact.evidence))
        case Released():
            event = FactColumns(order_id=fact.order_id, by=_clean_word(fact.by), agreement=fact.order or None)
            return event, _NO_PERSONAL_DATA
        case Returned():
            return FactColumns(), PersonalData(_clean_text(fact.evidence))
        case Replaced():
            return FactColumns(details=encode_record(FactKind.REPLACED, fact.row, fact.batch)), _NO_PERSONAL_DATA
        case _:
            assert_never(fact)


def add_evidence(event: FactColumns, personal: PersonalData, fact: EvidenceRecord) -> tuple[FactColumns, PersonalData]:
    added = _evidence_columns(fact)
    event = event._replace(source=added.source, finding=added.finding, means=added.means, details=added.details)
    return event, personal._replace(text=_clean_text(fact.content)) if fact.content else personal


def remark_columns(fact: EvidenceRecord | Note | BatchFact) -> tuple[str, FactColumns, PersonalData]:
    """Return the kind, stored columns and personal data of a fact that moves no instruction."""
    match fact:
        case EvidenceRecord():
            return EVIDENCE_RECORDED, _evidence_columns(fact), PersonalData(_clean_text(fact.content))
        case BatchOpened():
            return BATCH_OPENED, FactColumns(details=encode_batch(fact)), _NO_PERSONAL_DATA
        case BatchForgotten():
            return BATCH_FORGOTTEN, FactColumns(details=encode_forgetting(fact)), _NO_PERSONAL_DATA
        case _:
            return _note_columns(fact)


def _note_columns(note: Note) -> tuple[str, FactColumns, PersonalData]:
    match note:
        case StatementNote():
            details = canonical({"attempts": note.attempts, "batch": note.batch, "sha256": note.sha256})
            event = FactColumns(by=_clean_word(note.by), details=details)
            return NoteKind.STATEMENT.value, event, PersonalData(_clean_text(note.name))
        case ClockComparison():
            return NoteKind.CLOCK.value, FactColumns(details=canonical(asdict(note))), _NO_PERSONAL_DATA
        case SignedOrder():
            event = FactColumns(details=canonical(note.batch))
            return NoteKind.ORDER.value, event, PersonalData(_clean_text(note.document))
        case Withdrawal():
            event = FactColumns(by=_clean_word(note.by), agreement=_clean_word(note.sha256))
            return NoteKind.WITHDRAWN.value, event, PersonalData(_clean_text(note.document))
        case Arrival():
            return NoteKind.ARRIVED.value, FactColumns(), PersonalData(_clean_text(note.content))
        case ProcessedArrivals():
            return NoteKind.PROCESSED.value, FactColumns(details=canonical(note.number)), _NO_PERSONAL_DATA
        case AdoptionNote():
            event = FactColumns(by=_clean_word(note.by), details=canonical(note.path))
            return NoteKind.ADOPTED.value, event, _NO_PERSONAL_DATA
        case EndpointNote():
            details = canonical(astuple(note.endpoint))
            return NoteKind.ENDPOINT.value, FactColumns(by=_clean_word(note.by), details=details), _NO_PERSONAL_DATA
        case _:
            assert_never(note)


def parse_note(
    kind: NoteKind, by: str | None, agreement: str | None, details: str | None, text: str | None, at: str
) -> Note:
    """Parse a stored note about the whole journal. Raises `JournalCorrupt` if it cannot be read."""
    try:
        return _build_note(kind, by, agreement, json.loads(details or "null"), text, at)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise JournalCorrupt(say("A fact about the whole journal cannot be read.")) from None


def _build_note(kind: NoteKind, by: str | None, agreement: str | None, details: Any, text: str | None, at: str) -> Note:
    match kind:
        case NoteKind.STATEMENT:
            attempts = tuple((number, count) for number, count in details["attempts"])
            return StatementNote(details["batch"], text or "", details["sha256"], by or "", at, attempts)
        case NoteKind.CLOCK:
            return ClockComparison(**details)
        case NoteKind.ORDER:
            return SignedOrder(details, text or "")
        case NoteKind.WITHDRAWN:
            return Withdrawal(agreement or "", by or "", text or "", at)
        case NoteKind.ARRIVED | NoteKind.PROCESSED:  # read by `arrivals` and `last_processed_arrival` instead
            raise ValueError(kind)
        case NoteKind.ADOPTED:
            return AdoptionNote(by or "", details)
        case NoteKind.ENDPOINT:
            return EndpointNote(EndpointIdentity(*details), by or "")
        case _:
            assert_never(kind)


def _evidence_columns(fact: EvidenceRecord) -> FactColumns:
    means = None if fact.means is None else fact.means.value
    return FactColumns(source=fact.source.value, finding=fact.finding.value, means=means, details=fact.lasting or None)


def personal_data_digest(salt: bytes, personal: PersonalData) -> bytes:
    """Return the SHA-256 of a salt and the texts in `personal`, joined by NUL, which no text contains."""
    return hashlib.sha256(salt + "\0".join(text or "" for text in personal).encode()).digest()


def _clean_word(text: str | None) -> str | None:
    if not text or (text.isascii() and text.isprintable()):
        return "none" if text == "None" else text or None
    return _FORBIDDEN_IN_WORD.sub("?", text)


def _clean_text(text: str | None) -> str | None:
    if not text or (text.isascii() and text.isprintable()):
        return text or None
    return _FORBIDDEN_IN_TEXT.sub("?", text)


def _reject_float(number: str) -> None:
    raise ValueError(number)


_decode_json = json.JSONDecoder(parse_float=_reject_float).decode


def encode_batch(opening: BatchOpened) -> str:
    approvals = tuple(_clean_text(approval) or "" for approval in opening.approvals)
    fields = asdict(opening) | {"by": _clean_text(opening.by) or "", "approvals": approvals}
    if not opening.plan_sha256:
        del fields["plan_sha256"]
    return canonical(fields)


def decode_batch(details: str) -> BatchOpened:
    """Decode the output of `encode_batch`. Raises `JournalCorrupt` for any other text."""
    try:
        fields = _decode_json(details)
        fields["totals"] = {currency: (count, minor) for currency, (count, minor) in fields["totals"].items()}
        fields["approvals"] = tuple(fields["approvals"])
        opening = BatchOpened(**fields)
        if encode_batch(opening) == details:
            return opening
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise JournalCorrupt(say("The fact that opens a batch cannot be read."))


def encode_forgetting(forgetting: BatchForgotten) -> str:
    return canonical(asdict(forgetting) | {"by": _clean_text(forgetting.by) or ""})


def decode_forgetting(details: str) -> BatchForgotten:
    """Decode the output of `encode_forgetting`. Raises `JournalCorrupt` for any other text."""
    try:
        fields = _decode_json(details)
        forgetting = BatchForgotten(**{**fields, "orders": tuple(fields["orders"])})
        if encode_forgetting(forgetting) == details:
            return forgetting
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise JournalCorrupt(say("A fact about forgotten people cannot be read."))


class HistoryFact(NamedTuple):
    """A fact in a batch's history. `row` is the row in the sheet, or None if the fact is about the whole batch."""

    number: int
    at: str
    kind: str
    row: int | None
    attempt: int | None
    order_id: str | None
    by: str | None
    agreement: str | None
    details: str | None
    text: str | None


def history_entries(fact: HistoryFact) -> Iterator[HistoryEntry]:
    """Yield the history entries for a fact. The fact that opens a batch also gives one for each approval."""
    number, at, details = fact.number, fact.at, fact.details or ""
    if fact.kind == BATCH_OPENED:
        opening = decode_batch(details)
        name = opening.sheet_name
        text = encode_record("one_row", name) if opening.rows == 1 else encode_record("rows", opening.rows, name)
        yield HistoryEntry(number, at, "opened", None, None, opening.by, text)
        for approval in opening.approvals:
            yield HistoryEntry(number, at, "approved", None, None, "", approval)
        return
    if fact.kind == BATCH_FORGOTTEN:
        forgetting = decode_forgetting(details)
        rows, before = forgetting.instructions, forgetting.before
        count = rows if rows != 1 else None
        text = encode_record("forgotten_before", count, before) if before else encode_record("forgotten_person", count)
        yield HistoryEntry(number, at, "forgotten", None, None, forgetting.by, text, forgetting.order)
        return
    match FactKind(fact.kind):
        case FactKind.RELEASED:
            text = encode_record("next_attempt", fact.order_id)
        case FactKind.REPLACED:
            text = encode_record("by_row", *decode_record(details)[1])
        case _:
            text = encode_text(fact.text or "")
    yield HistoryEntry(number, at, fact.kind, fact.row, fact.attempt, fact.by or "", text, fact.agreement or "")


class Line(NamedTuple):
    """A stored line of a chain. `seq` is its position in the chain."""

    seq: int
    at: str
    kind: str
    batch: int | None
    instruction: int | None
    attempt: int | None
    order_id: str | None
    nonce: str | None
    timestamp_s: int | None
    purpose: str | None
    endpoint_id: str | None
    gateway_status: str | None
    gateway_reference: str | None
    http_status: int | None
    error_code: str | None
    cause: str | None
    conflict: int | None
    source: str | None
    finding: str | None
    means: str | None
    by: str | None
    basis: str | None
    agreement: str | None
    details: str | None
    said_sha256: bytes | None
    hash: bytes


class PersonalDataLine(NamedTuple):
    """The stored personal data of the line at `seq`."""

    seq: int
    salt: bytes
    text: str | None
    customer_url: str | None
    reply_sha256: str | None


def line_text(columns: Iterable[Any]) -> str:
    """Return the text to hash for a stored line: its columns except the two hashes, separated by line breaks.

    No column contains a line break or the text "None", so different facts have different texts.
    """
    return "\n".join(map(str, columns))


def line_text_sql(fact: str, seq: str, newline: str, as_text: str = "") -> str:
    """Return SQL that computes the `line_text` of the stored line `fact`. `as_text` casts numbers to text."""
    columns = (f"coalesce({fact}.{name}{as_text}, 'None')" for name in Line._fields[1:-2])
    return f"concat_ws({newline}, {seq}, {', '.join(columns)})"


def link_hash(previous_hash: bytes, text: str, said_sha256: bytes | None) -> bytes:
    """Return the SHA-256 of the previous line's hash, this line's text, and the digest of its personal data."""
    return hashlib.sha256(previous_hash + text.encode() + (said_sha256 or b"")).digest()


def verify_links(start: Link, lines: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Verify and yield stored lines (seq, text, digest, hash, ...). Raises `JournalCorrupt` at a wrong line."""
    seq, previous_hash = start.seq, start.hash
    for line in lines:
        seq += 1
        if line[0] != seq:
            raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))
        if link_hash(previous_hash, line[1], line[2]) != line[3]:
            raise JournalCorrupt(say("Fact {number} or the one before it was changed: its hash is wrong.", number=seq))
        previous_hash = line[3]
        yield line


def chain_facts(
    entries: Iterable[Entry | Remark], end: Link, new_salt: NewSalt
) -> tuple[list[Line], list[PersonalDataLine]]:
    """Return the lines that append `entries` to the chain at `end`, and their personal data.

    Times in a chain never decrease. If the clock was set back, a fact gets the previous fact's time.
    """
    lines, personal_lines = [], []
    seq, previous_hash, at = end
    for entry in entries:
        seq, at = seq + 1, max(entry.at, at)
        batch = None
        if isinstance(entry, Remark):
            batch, (kind, event, personal) = entry.batch, remark_columns(entry.fact)
        else:
            kind, (event, personal) = fact_kind(entry.fact), fact_columns(entry.fact)
            if entry.evidence is not None:
                event, personal = add_evidence(event, personal, entry.evidence)
        digest = None
        if any(personal):
            salt = new_salt()
            digest = personal_data_digest(salt, personal)
            personal_lines.append(PersonalDataLine(seq, salt, *personal))
        columns = (seq, at, kind, batch, entry.instruction, entry.attempt, *event)
        previous_hash = link_hash(previous_hash, line_text(columns), digest)
        lines.append(Line(*columns, digest, previous_hash))
    return lines, personal_lines
