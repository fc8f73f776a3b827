"""Chains the entries of the audit trail, so that a changed, missing or foreign entry is detected.

The hash of an entry is SHA-256 over the previous hash and the entry's text. The first entry follows a hash of the
journal's id: a trail belongs to one journal.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from paygw_batch.errors import AuditDamaged
from paygw_batch.journal.values import canonical
from paygw_batch.language import say

MAX_AUDIT_TEXT = 500
"""The maximum length of a text in an entry. A longer one is cut, so that no request can fill the trail."""


class AuditResult(StrEnum):
    """The result of an act on the console."""

    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class AuditNote:
    """One act, refusal or download on the console.

    `who` is a person's own name (empty if nobody is signed in), `act` a word of the console (`approve`, `download`),
    `thing` identifies the object: a batch by its id, a row by its number, a file by its kind. `said` is a reason. None
    of them contains a payee, account, amount or order id.
    """

    who: str
    act: str
    thing: str
    result: AuditResult
    said: str = ""


class AuditEntry(NamedTuple):
    """A line of the trail, as it is stored. `hash` is in hex."""

    number: int
    at: str
    who: str
    act: str
    thing: str
    result: str
    said: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditEnd:
    """The end of the trail: the number of its last entry (0: none), and its hash in hex."""

    number: int
    hash: str


def start_of_trail(journal_id: str) -> AuditEnd:
    """Return the end of the trail of a journal before its first entry."""
    return AuditEnd(0, hashlib.sha256(f"paygw-batch audit trail 1\n{journal_id}".encode()).hexdigest())


def next_audit_entry(end: AuditEnd, note: AuditNote, at: str) -> AuditEntry:
    """Return the entry for a note, after `end`."""
    who, act, thing, said = (_shortened(text) for text in (note.who, note.act, note.thing, note.said))
    return _hashed(end, AuditEntry(end.number + 1, at, who, act, thing, note.result.value, said, ""))


def follow_trail(entries: Iterable[AuditEntry], journal_id: str, path: str) -> Iterator[AuditEnd]:
    """Yield the end after each entry, from the first. Raises `AuditDamaged` at an entry that does not follow."""
    end = start_of_trail(journal_id)
    for entry in entries:
        if entry.number != end.number + 1:
            raise AuditDamaged(
                say("Entry {value} is missing from the audit trail {path}.", value=end.number + 1, path=path)
            )
        if _hashed(end, entry) != entry:
            raise AuditDamaged(
                say(
                    "Entry {number} of the audit trail {path} does not follow the one before it: one of them "
                    "was changed, or the trail belongs to another journal.",
                    number=entry.number,
                    path=path,
                )
            )
        end = AuditEnd(entry.number, entry.hash)
        yield end


def _hashed(end: AuditEnd, entry: AuditEntry) -> AuditEntry:
    text = canonical(list(entry[:-1]))
    return entry._replace(hash=hashlib.sha256(f"{end.hash}{text}".encode()).hexdigest())


def _shortened(text: str) -> str:
    """Return a text that can be stored and shown on one line."""
    plain = "".join(one if one.isprintable() else " " for one in text)
    return plain if len(plain) <= MAX_AUDIT_TEXT else f"{plain[: MAX_AUDIT_TEXT - 3]}..."
