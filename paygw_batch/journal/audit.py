"""Chains the audit trail's entries by hashes, to detect changed, missing or foreign entries.

An entry's hash is the SHA-256 of the previous entry's hash and the entry's text. The chain starts with a hash of the
journal's id, so a trail belongs to exactly one journal.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.values import canonical
from paygw_batch.language import mark, say

MAX_AUDIT_TEXT = 500
"""The maximum length of a text in an entry. Longer texts are truncated, so that no request can flood the trail."""
_HINT = mark(
    "Find out who has write access to the journal. The chain of facts, which contains the payments, is intact."
)


class AuditResult(StrEnum):
    """The result of an action on the console."""

    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class AuditNote:
    """An audit entry that is not stored yet: an action, refusal or download on the console.

    `who` is a person's name (empty if nobody is signed in), and `act` the console's name for the action (`approve`,
    `download`). `thing` identifies the object: a batch by id, a row by number, a file by kind. `said` is the reason, if
    any. No field contains a payee, account, amount or order id.
    """

    who: str
    act: str
    thing: str
    result: AuditResult
    said: str = ""


class AuditEntry(NamedTuple):
    """A stored audit entry. `hash` is in hex."""

    number: int
    at: str
    who: str
    act: str
    thing: str
    result: str
    said: str
    hash: str


def trail_start(journal_id: str) -> AuditEntry:
    """Return a placeholder entry with only a hash, which precedes a journal's first entry."""
    digest = hashlib.sha256(f"paygw-batch audit trail 1\n{journal_id}".encode()).hexdigest()
    return AuditEntry(0, "", "", "", "", "", "", digest)


def next_audit_entry(previous: AuditEntry, note: AuditNote, at: str) -> AuditEntry:
    who, act, thing, said = (_truncate(text) for text in (note.who, note.act, note.thing, note.said))
    return _with_hash(previous, AuditEntry(previous.number + 1, at, who, act, thing, note.result.value, said, ""))


def verify_trail(entries: Iterable[AuditEntry], journal_id: str) -> int:
    """Verify an audit trail and return its number of entries. Raises `JournalCorrupt` at the first wrong entry."""
    previous = trail_start(journal_id)
    for entry in entries:
        if entry.number != previous.number + 1:
            message = say("Entry {number} is missing from the audit trail.", number=previous.number + 1)
            raise JournalCorrupt(message, hint=say(_HINT))
        if _with_hash(previous, entry) != entry:
            raise JournalCorrupt(
                say(
                    "Entry {number} of the audit trail does not follow the one before it: one of them was changed, or "
                    "the trail belongs to another journal.",
                    number=entry.number,
                ),
                hint=say(_HINT),
            )
        previous = entry
    return previous.number


def _with_hash(previous: AuditEntry, entry: AuditEntry) -> AuditEntry:
    text = canonical(list(entry[:-1]))
    return entry._replace(hash=hashlib.sha256(f"{previous.hash}{text}".encode()).hexdigest())


def _truncate(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    return printable if len(printable) <= MAX_AUDIT_TEXT else f"{printable[: MAX_AUDIT_TEXT - 3]}..."
