"""Encodes facts as lines with columns, chains each line to the one before it, and checks their personal data.

The personal data of a fact is in a separate line, with a salt. The chain holds only a digest of it, so that a person
can be forgotten while the chain stays whole.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, astuple
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import Heard, SignedOrder
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
    kind_of,
)
from paygw_batch.core.shown_states import code_of, kept, kept_text
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.values import (
    Adopted,
    Arrived,
    BatchForgotten,
    BatchOpened,
    CarriedOut,
    ClockSeen,
    Entry,
    HistoryEntry,
    Link,
    Named,
    Note,
    OfBatch,
    Remark,
    TakenIn,
    Withdrawal,
    canonical,
)
from paygw_batch.language import say

BATCH_OPENED = "batch_opened"
"""The kind of the fact that opens a batch; it belongs to no instruction."""
BATCH_FORGOTTEN = "batch_forgotten"
"""The kind of the fact that forgets people of a batch; it belongs to no instruction."""
HEARD = "heard"
"""The kind of the fact that keeps evidence which moved no row; it may be about an instruction or about none."""
SALT_BYTES = 16
"""The length of a salt: random bytes without which the digest of a forgotten value reveals nothing."""


class NoteKind(StrEnum):
    """The kinds of facts about the whole journal."""

    ADOPTED = "adopted"
    ARRIVED = "arrived"
    CARRIED_OUT = "carried_out"
    CLOCK = "clock"
    NAMED = "named"
    ORDER = "order"
    TAKEN_IN = "taken_in"
    """All notifications that had arrived by a certain fact were judged."""
    WITHDRAWN = "withdrawn"


KINDS_BESIDE = (NoteKind.WITHDRAWN.value, NoteKind.ARRIVED.value)
"""The kinds of facts that are recorded while a run holds the journal (`values.NotedBeside`)."""
NewSalt = Callable[[], bytes]
"""Returns a salt."""


class Told(NamedTuple):
    """The columns of a fact that describe the event."""

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


class Said(NamedTuple):
    """The personal data of a fact: the gateway's message or a person's evidence, and further texts of a reply."""

    text: str | None = None
    customer_url: str | None = None
    reply_sha256: str | None = None


_NOTHING = Said()
_UNFIT = re.compile(r"[\x00-\x1f\ud800-\udfff]")
"""The characters that would end a column in the text of a line, and half a surrogate pair, which a gateway may send."""
_UNFIT_IN_TEXT = re.compile(r"[\x00\ud800-\udfff]")


def columns_of(fact: Fact) -> tuple[Told, Said]:
    """Return a fact as it is stored. No text is empty, reads None, or has characters that a database cannot hold."""
    match fact:
        case Intended():
            told = Told(fact.order_id, fact.nonce, fact.timestamp_s, _word(fact.purpose), _word(fact.endpoint_id))
            return told, _NOTHING
        case Concluded():
            outcome = fact.outcome
            told = Told(
                gateway_status=_word(outcome.gateway_status),
                gateway_reference=_word(outcome.gateway_reference),
                http_status=outcome.http_status,
                error_code=_word(outcome.error_code),
                cause=outcome.cause or None,
                conflict=1 if outcome.conflict else None,
            )
            return told, Said(_text(outcome.message), _text(outcome.customer_url), outcome.reply_sha256)
        case Interrupted():
            return Told(), _NOTHING
        case Resolved():
            told = Told(by=_word(fact.by), basis=fact.basis.value, agreement=fact.order or None)
            return told, Said(_text(fact.evidence))
        case Released():
            return Told(order_id=fact.order_id, by=_word(fact.by), agreement=fact.order or None), _NOTHING
        case Returned():
            return Told(), Said(_text(fact.evidence))
        case Replaced():
            return Told(details=kept(FactKind.REPLACED, fact.row, fact.batch)), _NOTHING
        case _:
            assert_never(fact)


def with_evidence(told: Told, said: Said, heard: Heard) -> tuple[Told, Said]:
    about = _heard(heard)
    told = told._replace(source=about.source, finding=about.finding, means=about.means, details=about.details)
    return told, said._replace(text=_text(heard.content)) if heard.content else said


def columns_of_remark(fact: Heard | Note | OfBatch) -> tuple[str, Told, Said]:
    """Return a fact that moves no instruction as it is stored: its kind and its columns."""
    match fact:
        case Heard():
            return HEARD, _heard(fact), Said(_text(fact.content))
        case BatchOpened():
            return BATCH_OPENED, Told(details=encode_batch(fact)), _NOTHING
        case BatchForgotten():
            return BATCH_FORGOTTEN, Told(details=encode_forgotten(fact)), _NOTHING
        case _:
            return _columns_of_note(fact)


def _columns_of_note(fact: Note) -> tuple[str, Told, Said]:
    match fact:
        case CarriedOut():
            details = canonical({"attempts": fact.attempts, "batch": fact.batch, "sha256": fact.sha256})
            return NoteKind.CARRIED_OUT.value, Told(by=_word(fact.by), details=details), Said(_text(fact.name))
        case ClockSeen():
            return NoteKind.CLOCK.value, Told(details=canonical(asdict(fact))), _NOTHING
        case SignedOrder():
            return NoteKind.ORDER.value, Told(details=canonical(fact.batch)), Said(_text(fact.document))
        case Withdrawal():
            told = Told(by=_word(fact.by), agreement=_word(fact.sha256))
            return NoteKind.WITHDRAWN.value, told, Said(_text(fact.document))
        case Arrived():
            return NoteKind.ARRIVED.value, Told(), Said(_text(fact.content))
        case TakenIn():
            return NoteKind.TAKEN_IN.value, Told(details=canonical(fact.number)), _NOTHING
        case Adopted():
            return NoteKind.ADOPTED.value, Told(by=_word(fact.by), details=canonical(fact.path)), _NOTHING
        case Named():
            details = canonical(astuple(fact.endpoint))
            return NoteKind.NAMED.value, Told(by=_word(fact.by), details=details), _NOTHING
        case _:
            assert_never(fact)


def note_of(
    kind: NoteKind, by: str | None, agreement: str | None, details: str | None, text: str | None, at: str
) -> Note:
    """Return the fact about the whole journal that these columns hold. Raises `JournalCorrupt` if they hold none."""
    try:
        return _note_of(kind, by, agreement, json.loads(details or "null"), text, at)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise JournalCorrupt(say("A fact about the whole journal cannot be read.")) from None


def _note_of(kind: NoteKind, by: str | None, agreement: str | None, details: Any, text: str | None, at: str) -> Note:
    match kind:
        case NoteKind.CARRIED_OUT:
            attempts = tuple((number, attempts) for number, attempts in details["attempts"])
            return CarriedOut(details["batch"], text or "", details["sha256"], by or "", at, attempts)
        case NoteKind.CLOCK:
            return ClockSeen(**details)
        case NoteKind.ORDER:
            return SignedOrder(details, text or "")
        case NoteKind.WITHDRAWN:
            return Withdrawal(agreement or "", by or "", text or "", at)
        case NoteKind.ARRIVED | NoteKind.TAKEN_IN:  # the statements `arrivals` and `taken_in` read these
            raise ValueError(kind)
        case NoteKind.ADOPTED:
            return Adopted(by or "", details)
        case NoteKind.NAMED:
            return Named(EndpointIdentity(*details), by or "")
        case _:
            assert_never(kind)


def _heard(heard: Heard) -> Told:
    means = None if heard.means is None else heard.means.value
    return Told(source=heard.source.value, finding=heard.finding.value, means=means, details=heard.lasting or None)


def said_digest(salt: bytes, said: Said) -> bytes:
    """Return SHA-256 over a salt and personal data, with NUL between the texts: no text contains NUL."""
    return hashlib.sha256(salt + "\0".join(text or "" for text in said).encode()).digest()


def _word(text: str | None) -> str | None:
    if not text or (text.isascii() and text.isprintable()):
        return "none" if text == "None" else text or None
    return _UNFIT.sub("?", text)


def _text(text: str | None) -> str | None:
    if not text or (text.isascii() and text.isprintable()):
        return text or None
    return _UNFIT_IN_TEXT.sub("?", text)


def _refused(number: str) -> None:
    """Refuse a number that is not whole, because we never write one."""
    raise ValueError(number)


_read = json.JSONDecoder(parse_float=_refused).decode


def encode_batch(opened: BatchOpened) -> str:
    """Return the canonical details of the fact that opens a batch."""
    approvals = tuple(_text(approval) or "" for approval in opened.approvals)
    fields = asdict(opened) | {"by": _text(opened.by) or "", "approvals": approvals}
    if not opened.plan_sha256:
        del fields["plan_sha256"]
    return canonical(fields)


def decode_batch(details: str) -> BatchOpened:
    """Return the opening that `encode_batch` wrote. Raises `JournalCorrupt` for a text that it cannot write."""
    try:
        fields = _read(details)
        fields["totals"] = {currency: (count, minor) for currency, (count, minor) in fields["totals"].items()}
        fields["approvals"] = tuple(fields["approvals"])
        opened = BatchOpened(**fields)
        same = encode_batch(opened) == details
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        same = False
    if not same:
        raise JournalCorrupt(say("The opening of a batch cannot be read."))
    return opened


def encode_forgotten(forgotten: BatchForgotten) -> str:
    """Return the canonical details of the fact that forgets people of a batch."""
    return canonical(asdict(forgotten) | {"by": _text(forgotten.by) or ""})


def decode_forgotten(details: str) -> BatchForgotten:
    """Return the value that `encode_forgotten` wrote. Raises `JournalCorrupt` for a text that it cannot write."""
    try:
        fields = _read(details)
        forgotten = BatchForgotten(**{**fields, "orders": tuple(fields["orders"])})
        same = encode_forgotten(forgotten) == details
    except (ValueError, TypeError, KeyError, RecursionError):
        same = False
    if not same:
        raise JournalCorrupt(say("The forgetting of a batch cannot be read."))
    return forgotten


class PeopleFact(NamedTuple):
    """A fact as the history of a batch reads it. `row` is a row of the sheet; None if the fact is about the batch."""

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


def history_of(fact: PeopleFact) -> Iterator[HistoryEntry]:
    """Yield the acts of people that one fact records."""
    number, at, details = fact.number, fact.at, fact.details or ""
    if fact.kind == BATCH_OPENED:
        opened = decode_batch(details)
        name = opened.sheet_name
        text = kept("one_row", name) if opened.rows == 1 else kept("rows", opened.rows, name)
        yield HistoryEntry(number, at, "opened", None, None, opened.by, text)
        for approval in opened.approvals:
            yield HistoryEntry(number, at, "approved", None, None, "", approval)
        return
    if fact.kind == BATCH_FORGOTTEN:
        forgotten = decode_forgotten(details)
        rows, before = forgotten.instructions, forgotten.before
        text = kept("forgotten_before", rows, before) if before else kept("forgotten_person", rows)
        yield HistoryEntry(number, at, "forgotten", None, None, forgotten.by, text, forgotten.order)
        return
    match FactKind(fact.kind):
        case FactKind.RELEASED:
            text = kept("next_attempt", fact.order_id)
        case FactKind.REPLACED:
            text = kept("by_row", *code_of(details)[1])
        case _:
            text = kept_text(fact.text or "")
    yield HistoryEntry(number, at, fact.kind, fact.row, fact.attempt, fact.by or "", text, fact.agreement or "")


class Line(NamedTuple):
    """A line of the chain, as it is stored. `seq` is its place in the chain."""

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


class SaidLine(NamedTuple):
    """The personal data of the line at `seq`, as it is stored."""

    seq: int
    salt: bytes
    text: str | None
    customer_url: str | None
    reply_sha256: str | None


def text_of_line(columns: Iterable[Any]) -> str:
    """Return the text of a line that is hashed: all its columns but the last two.

    Each column is on its own line, and none contains a line break or reads None. So two different facts never have the
    same text.
    """
    return "\n".join(map(str, columns))


def text_in_sql(fact: str, seq: str, newline: str, as_text: str = "") -> str:
    """Return SQL for the text of a line that is stored as `fact`. `as_text` is SQL that turns a number into text."""
    columns = (f"coalesce({fact}.{name}{as_text}, 'None')" for name in Line._fields[1:-2])
    return f"concat_ws({newline}, {seq}, {', '.join(columns)})"


def link_hash(before: bytes, text: str, said_sha256: bytes | None) -> bytes:
    """Return SHA-256 over the hash of the line before, the text of a line, and the digest of its personal data."""
    return hashlib.sha256(before + text.encode() + (said_sha256 or b"")).digest()


def followed(end: Link, lines: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Check stored lines (seq, text, digest of personal data, hash, others) and yield them.

    Raises `JournalCorrupt` at the first line that does not follow the line before it.
    """
    seq, before = end.seq, end.hash
    for line in lines:
        seq += 1
        if line[0] != seq:
            raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))
        if link_hash(before, line[1], line[2]) != line[3]:
            raise JournalCorrupt(say("Fact {number} or the one before it was changed: its hash is wrong.", number=seq))
        before = line[3]
        yield line


def chained(entries: Iterable[Entry | Remark], end: Link, new_salt: NewSalt) -> tuple[list[Line], list[SaidLine]]:
    """Return the lines for `entries` that follow `end`, and their personal data.

    Times in a chain never decrease: after a clock was set back, a fact gets the time of the fact before it.
    """
    lines, texts = [], []
    seq, before, at = end
    for entry in entries:
        seq, at = seq + 1, max(entry.at, at)
        batch = None
        if isinstance(entry, Remark):
            batch, (kind, told, said) = entry.batch, columns_of_remark(entry.fact)
        else:
            kind, (told, said) = kind_of(entry.fact), columns_of(entry.fact)
            if entry.heard is not None:
                told, said = with_evidence(told, said, entry.heard)
        digest = None
        if any(said):
            salt = new_salt()
            digest = said_digest(salt, said)
            texts.append(SaidLine(seq, salt, *said))
        columns = (seq, at, kind, batch, entry.instruction, entry.attempt, *told)
        before = link_hash(before, text_of_line(columns), digest)
        lines.append(Line(*columns, digest, before))
    return lines, texts
