"""Facts as text, and the acts of people that they tell.

A fact is stored as a kind and a canonical JSON object (sorted keys, no blanks, ASCII only): each value has one
spelling, and a changed byte is detected. Reading is strict: anything that this version would not have written is
damage.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, assert_never

from paygw_batch.core.lifecycle import (
    Basis,
    Concluded,
    Fact,
    FactKind,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
    kind_of,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.recorded_words import kept, kept_text
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.values import HistoryEntry, canonical
from paygw_batch.language import say

BATCH_OPENED = "batch_opened"
"""The kind of the fact that opens a batch; it belongs to no instruction."""
BATCH_FORGOTTEN = "batch_forgotten"
"""The kind of the fact that forgets people of a batch; it belongs to no instruction either."""
SALT_BYTES = 16
"""The length of a salt: random bytes without which the digest of a forgotten value reveals nothing."""
NewSalt = Callable[[], str]
"""Returns a salt, in hex."""

_quoted = json.encoder.encode_basestring_ascii


@dataclass(frozen=True, slots=True)
class BatchOpened:
    """The details of the fact that opens a batch, with digests that reveal any later change to its rows.

    `totals` maps a currency to the count and the sum, in minor units, of the rows that are new. Digests are SHA-256 in
    hex, over the canonical bytes of the rows in order (see `digest.py`).
    """

    batch: str
    operation: str
    sheet_name: str
    sheet_path: str
    sheet_sha256: str
    rows: int
    defects: int
    first_instruction: int
    instructions: int
    instructions_sha256: str
    known: int
    known_sha256: str
    pages: int
    pages_sha256: str
    totals: Mapping[str, tuple[int, int]]
    by: str
    approvals: tuple[str, ...]
    plan_sha256: str = ""
    """The digest of the approved plan; empty, and not written, if none was needed."""


@dataclass(frozen=True, slots=True)
class BatchForgotten:
    """The details of the fact that forgets people of a batch: who decided, which people, and a digest of the rest.

    `before` is the date before which payments were forgotten; empty if it was one person. `remains_sha256` is the
    digest of everything left (see `forgetting.py`); it reveals a later change.
    """

    by: str
    before: str
    instructions: int
    evidence: int
    remains_sha256: str
    order: str = ""
    """The digest of the signed order for it; empty if one person was enough."""
    key: str = ""
    """The id of the fingerprints' key (`forgetting.key_id`); it reveals nothing about the key."""


def encode(fact: Fact) -> tuple[str, str]:
    """Return the kind and the canonical details of `fact`, without a salt."""
    return kind_of(fact), _details(fact)


def encode_salted(fact: Fact, new_salt: NewSalt) -> tuple[str, str]:
    """Return the kind and the canonical details of `fact` as it is stored: with a salt if it can name a person.

    A forgotten text leaves the hash of its line behind. Without the salt, nobody can guess the text from that hash. An
    intent has its own nonce.
    """
    kind, details = encode(fact)
    if not _can_name_a_person(fact):
        return kind, details
    return kind, f'{details[:-1]},"salt":"{new_salt()}"}}'


def _can_name_a_person(fact: Fact) -> bool:
    if isinstance(fact, Concluded):
        outcome = fact.outcome
        return (outcome.message or outcome.customer_url or outcome.reply_sha256) is not None
    return isinstance(fact, Resolved | Returned)


def without_people(fact: Fact) -> Fact:
    """Return a fact without the people in it."""
    match fact:
        case Intended():
            return fact._replace(nonce="", body_sha256="")
        case Concluded():
            return Concluded(fact.outcome._replace(message=None, customer_url=None, reply_sha256=None))
        case Resolved() | Returned():
            return replace(fact, evidence="")
        case Interrupted() | Released() | Replaced():
            return fact
        case _:
            assert_never(fact)


def _details(fact: Fact) -> str:
    """Return the same details as `canonical`, written out for speed: each payout has two facts."""
    match fact:
        case Intended():
            purpose = "null" if fact.purpose is None else _quoted(fact.purpose)
            return (
                f'{{"body_sha256":{_quoted(fact.body_sha256)},"nonce":{_quoted(fact.nonce)},'
                f'"order_id":{_quoted(fact.order_id)},"purpose":{purpose},"timestamp_s":{fact.timestamp_s}}}'
            )
        case Concluded():
            return _outcome_details(fact.outcome)
        case Interrupted():
            return "{}"
        case Resolved():
            said = {"basis": fact.basis.value, "by": fact.by, "evidence": fact.evidence}
            return canonical(said | _of_order(fact.order))
        case Released():
            return canonical({"by": fact.by, "order_id": fact.order_id} | _of_order(fact.order))
        case Returned():
            return canonical({"evidence": fact.evidence})
        case Replaced():
            return canonical({"batch": fact.batch, "row": fact.row})
        case _:
            assert_never(fact)


def _of_order(digest: str) -> dict[str, str]:
    return {"order": digest} if digest else {}


def _outcome_details(outcome: Outcome) -> str:
    """Return the details of an outcome without its kind; fields without a value are left out."""
    parts = [f'"cause":{_quoted(outcome.cause)}'] if outcome.cause else []
    if outcome.conflict:
        parts.append('"conflict":true')
    if outcome.customer_url is not None:
        parts.append(f'"customer_url":{_quoted(outcome.customer_url)}')
    if outcome.error_code is not None:
        parts.append(f'"error_code":{_quoted(outcome.error_code)}')
    if outcome.gateway_reference is not None:
        parts.append(f'"gateway_reference":{_quoted(outcome.gateway_reference)}')
    if outcome.gateway_status is not None:
        parts.append(f'"gateway_status":{_quoted(outcome.gateway_status)}')
    if outcome.http_status is not None:
        parts.append(f'"http_status":{outcome.http_status}')
    if outcome.message is not None:
        parts.append(f'"message":{_quoted(outcome.message)}')
    if outcome.reply_sha256 is not None:
        parts.append(f'"reply_sha256":{_quoted(outcome.reply_sha256)}')
    return f"{{{','.join(parts)}}}"


def _concluded(kind: OutcomeKind) -> Callable[[Any], Fact]:
    return lambda details: Concluded(Outcome(kind, **details))


def _resolved(resolution: Resolution) -> Callable[[Any], Fact]:
    return lambda details: Resolved(resolution, basis=Basis(details.pop("basis")), **details)


_READERS: Mapping[FactKind, Callable[[Any], Fact]] = MappingProxyType(
    {
        FactKind.INTENDED: lambda details: Intended(**details),
        FactKind.NOT_SENT: _concluded(OutcomeKind.NOT_SENT),
        FactKind.ACCEPTED: _concluded(OutcomeKind.ACCEPTED),
        FactKind.PAID: _concluded(OutcomeKind.PAID),
        FactKind.REJECTED: _concluded(OutcomeKind.REJECTED),
        FactKind.UNKNOWN: _concluded(OutcomeKind.UNKNOWN),
        FactKind.INTERRUPTED: lambda details: Interrupted(**details),
        FactKind.RESOLVED_PAID: _resolved(Resolution.PAID),
        FactKind.RESOLVED_REJECTED: _resolved(Resolution.REJECTED),
        FactKind.RESOLVED_NOT_RECEIVED: _resolved(Resolution.NOT_RECEIVED),
        FactKind.RELEASED: lambda details: Released(**details),
        FactKind.RETURNED: lambda details: Returned(**details),
        FactKind.REPLACED: lambda details: Replaced(**details),
    }
)


def _refused(number: str) -> None:
    """Refuse a number that is not whole: we never write one."""
    raise ValueError(number)


_read = json.JSONDecoder(parse_float=_refused).decode


_TEXT = r'"([ !#-\[\]-~]*)"'
"""A text without characters to escape, as most are."""
_PLAIN_INTENT = re.compile(
    rf'\{{"body_sha256":{_TEXT},"nonce":{_TEXT},"order_id":{_TEXT},"purpose":(?:null|{_TEXT}),'
    r'"timestamp_s":(0|-?[1-9][0-9]{0,17})\}'
)
_SALT = re.compile(rf',"salt":"[0-9a-f]{{{2 * SALT_BYTES}}}"\}}$')
_COMMA = r"(?:(?<=\{)|(?<!\{),)"
_PLAIN_ANSWER = re.compile(
    rf'\{{(?:{_COMMA}"error_code":{_TEXT})?(?:{_COMMA}"gateway_reference":{_TEXT})?'
    rf'(?:{_COMMA}"gateway_status":{_TEXT})?(?:{_COMMA}"http_status":(0|-?[1-9][0-9]{{0,17}}))?'
    rf'(?:{_COMMA}"message":{_TEXT})?(?:{_COMMA}"reply_sha256":{_TEXT})?(?:{_COMMA}"salt":"[0-9a-f]{{32}}")?\}}'
)
_INTENDED = FactKind.INTENDED.value
_ANSWERS: Mapping[str, OutcomeKind] = MappingProxyType(
    {kind.value: kind for kind in (OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.REJECTED)}
)


def _plainly_read(kind: str, details: str) -> Fact | None:
    """Return the fact of a canonical intent or gateway's answer; None for any other.

    Most facts of a payout are as plain as these; reading the JSON and writing it again takes four times as long. A
    property test compares this with `_strictly_read`.
    """
    if kind == _INTENDED:
        if (found := _PLAIN_INTENT.fullmatch(details)) is None:
            return None
        body_sha256, nonce, order_id, purpose, timestamp_s = found.groups()
        return Intended(order_id, nonce, int(timestamp_s), body_sha256, purpose)
    answer = _ANSWERS.get(kind)
    if answer is None or (found := _PLAIN_ANSWER.fullmatch(details)) is None:
        return None
    error_code, reference, status, http_status, message, sha256 = found.groups()
    http = None if http_status is None else int(http_status)
    return Concluded(Outcome(answer, "", status, reference, http, error_code, message, reply_sha256=sha256))


def decode(kind: str, details: str) -> Fact:
    """Return the fact that `encode` wrote. Raises `JournalCorrupt` if it cannot have written this."""
    return _plainly_read(kind, details) or _strictly_read(kind, details)


def _strictly_read(kind: str, details: str) -> Fact:
    try:
        salt = _SALT.search(details)
        plain = details if salt is None else f"{details[: salt.start()]}}}"
        fact = _READERS[FactKind(kind)](_read(plain))
        same = encode(fact) == (kind, plain) and (salt is None or _can_name_a_person(fact))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        same = False
    if not same:
        raise JournalCorrupt(say("A fact of the kind {kind!r} cannot be read.", kind=kind[:40]))
    return fact


def encode_batch(opened: BatchOpened) -> str:
    """Return the canonical details of the fact that opens a batch."""
    fields = asdict(opened)
    if not opened.plan_sha256:
        del fields["plan_sha256"]
    return canonical(fields)


def decode_batch(details: str) -> BatchOpened:
    """Return the opening that `encode_batch` wrote. Raises `JournalCorrupt` if it cannot have written this."""
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
    return canonical(asdict(forgotten))


def decode_forgotten(details: str) -> BatchForgotten:
    """Return the value that `encode_forgotten` wrote. Raises `JournalCorrupt` if it cannot have written this."""
    try:
        forgotten = BatchForgotten(**_read(details))
        same = encode_forgotten(forgotten) == details
    except (ValueError, TypeError, RecursionError):
        same = False
    if not same:
        raise JournalCorrupt(say("The forgetting of a batch cannot be read."))
    return forgotten


def history_of(
    seq: int, at: str, kind: str, details: str, *, row: int | None, attempt: int | None
) -> Iterator[HistoryEntry]:
    """Yield the acts of people that one fact records; nothing for the facts of a run."""
    if kind == BATCH_OPENED:
        opened = decode_batch(details)
        name = opened.sheet_name
        said = kept("one_row", name) if opened.rows == 1 else kept("rows", opened.rows, name)
        yield HistoryEntry(seq, at, "opened", None, None, opened.by, said)
        for approval in opened.approvals:
            yield HistoryEntry(seq, at, "approved", None, None, "", approval)
        return
    if kind == BATCH_FORGOTTEN:
        forgotten = decode_forgotten(details)
        rows, before = forgotten.instructions, forgotten.before
        said = kept("forgotten_before", rows, before) if before else kept("forgotten_person", rows)
        yield HistoryEntry(seq, at, "forgotten", None, None, forgotten.by, said, forgotten.order)
        return
    fact = decode(kind, details)
    match fact:
        case Resolved():
            yield HistoryEntry(seq, at, kind, row, attempt, fact.by, kept_text(fact.evidence), fact.order)
        case Released():
            said = kept("next_attempt", fact.order_id)
            yield HistoryEntry(seq, at, kind, row, attempt, fact.by, said, fact.order)
        case Returned():
            yield HistoryEntry(seq, at, kind, row, attempt, "", kept_text(fact.evidence))
        case Replaced():
            yield HistoryEntry(seq, at, kind, row, attempt, "", kept("by_row", fact.row, fact.batch))
        case Intended() | Concluded() | Interrupted():
            return
        case _:
            assert_never(fact)
