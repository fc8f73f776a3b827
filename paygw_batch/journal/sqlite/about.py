"""Keeps the names of the journal's endpoint, and people's statements that it is the newest copy.

Each is a separate chain, like the facts: the hash of a line is SHA-256 over the hash before it and all its columns.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.schema import identity_of
from paygw_batch.journal.values import Identity, Link, canonical
from paygw_batch.language import say

_NAMES = "endpoint_name"
_ADOPTIONS = "adoption"


def names_of(connection: apsw.Connection, identity: Identity) -> tuple[EndpointIdentity, ...]:
    """Return every name under which a journal knows its endpoint, the first one first."""
    first = EndpointIdentity.from_name(identity.endpoint)
    noted = fetch(connection, "SELECT host, consumer_key_sha256 FROM endpoint_name ORDER BY number")
    return (first, *(EndpointIdentity(host, first.endpoint_id, key) for host, key in noted))


def note_name(connection: apsw.Connection, endpoint: EndpointIdentity, *, at: str, by: str) -> None:
    """Keep a name of the endpoint, inside the transaction that the caller holds; nothing for one that is kept."""
    name = (endpoint.host, endpoint.consumer_key_sha256)
    kept = fetch(connection, "SELECT 1 FROM endpoint_name WHERE (host, consumer_key_sha256) = (?, ?)", name)
    if not kept:
        _add(connection, _NAMES, (*name, at, by))


def note_adoption(connection: apsw.Connection, end: Link, *, at: str, by: str, path: str) -> None:
    """Note an adoption, in the caller's transaction. `end` is the end of the chain that the person calls the newest."""
    _add(connection, _ADOPTIONS, (at, by, path, end.seq, end.hash.hex()))


def check_about(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless names and adoptions are as they were written."""
    for table in (_NAMES, _ADOPTIONS):
        before = identity_of(connection).start.hash
        lines = fetch(connection, f"SELECT * FROM {table} ORDER BY number")  # noqa: S608 - one of two names of ours
        for number, (found, *columns, digest) in enumerate(lines, start=1):
            before = _linked(before, number, columns)
            if found != number or digest != before:
                raise JournalCorrupt(
                    say(
                        "Line {number} of table {table} was changed, or one before it is missing.",
                        number=number,
                        table=table,
                    )
                )


def _add(connection: apsw.Connection, table: str, columns: Sequence[Any]) -> None:
    found = fetch(connection, f"SELECT number, hash FROM {table} ORDER BY number DESC LIMIT 1")  # noqa: S608 - as above
    number, before = found[0] if found else (0, identity_of(connection).start.hash)
    line = (number + 1, *columns, _linked(before, number + 1, columns))
    fetch(connection, f"INSERT INTO {table} VALUES ({', '.join('?' * len(line))})", line)  # noqa: S608 - as above


def _linked(before: bytes, number: int, columns: Sequence[Any]) -> bytes:
    return hashlib.sha256(before + canonical([number, *columns]).encode()).digest()
