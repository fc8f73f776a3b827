"""Keeps the intents of this host's commits behind the slots of its witness: if they are lost, these may have left.

A record is one commit. It names the record before it by place and digest, and the witness's slot names the newest one:
so the log is read backwards, and what was overwritten, torn or copied from another host is seen and never taken for a
commit. No clock is asked: the file grows to `MAX_BYTES`, and from then on the oldest records are overwritten.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from paygw_batch.journal.values import Link

MAX_BYTES = 64 << 20
"""About 1.5 million intents of a process: an hour at 400 rows a second. A standby seldom lags for minutes."""
_FIRST = 8192
"""The slots of the witness come before it."""
_STEP = 256 << 10
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<4sIQ16sqq32s24s")
_ITEM = struct.Struct("<qIH")
_WORD = b"PWI1"
_DID_NOT_LEAVE = 0xFFFF


class Noted(NamedTuple):
    """An attempt that may leave now, under an order id; or, without one, an attempt of which nothing left."""

    instruction: int
    attempt: int
    order_id: str | None


class LogEnd(NamedTuple):
    """Where the next record goes, and where the newest one is, with its digest."""

    free: int = _FIRST
    newest: int = 0
    digest: bytes = bytes(_DIGEST_BYTES)

    def as_text(self) -> str:
        """Return it as the slot of a witness keeps it."""
        return f"{self.free}.{self.newest}.{self.digest.hex()}"


@dataclass(frozen=True, slots=True)
class NotedCommit:
    """A commit that this host saw: one end of it, its time, and its attempts."""

    segment: int
    end: Link
    noted: tuple[Noted, ...]


class LogBroken(Exception):
    """A record that has to be there is not: it was overwritten, damaged, or written on another host."""


class LogFile(Protocol):
    """The file of a witness, as far as its log writes to it."""

    def put(self, content: bytes, offset: int) -> None:
        """Write beside the slots. It is durable with the next `note`."""
        ...

    def size(self) -> int:
        """Return the length of the file."""
        ...


class IntentLog:
    """Adds records to the file of a witness. `key` is that of the journal and the host."""

    def __init__(self, file: LogFile, key: bytes, end: LogEnd) -> None:
        self._file, self._key, self.end = file, key, end

    def add(self, segment: int, link: Link, noted: Sequence[Noted]) -> None:
        """Write a record after the newest one. It counts once the slot that names it is written. Raises `OSError`."""
        record = _record(self._key, self.end, segment, link, noted)
        at = self._room_for(len(record))
        self._file.put(record, at)
        self.end = LogEnd(at + len(record), at, record[-_DIGEST_BYTES:])

    def _room_for(self, length: int) -> int:
        """Return where a record of this length goes. The file is written full first: then its size never changes."""
        size = max(self._file.size(), _FIRST)
        at = self.end.free
        while at + length > size:
            if size - _FIRST >= MAX_BYTES and at > _FIRST:
                at = _FIRST
                continue
            self._file.put(bytes(_STEP), size)
            size += _STEP
        return at


def end_in(text: str) -> LogEnd:
    """Return the end that `LogEnd.as_text` wrote. Raises `ValueError`."""
    free, newest, digest = text.split(".")
    return LogEnd(int(free), int(newest), bytes.fromhex(digest))


def log_key(journal_id: str, host_id: str) -> bytes:
    """Return the key by which the records of one host in one journal are known."""
    return hashlib.sha256(f"paygw intents {journal_id} {host_id}".encode()).digest()


def commits_noted(path: Path, key: bytes, end: LogEnd) -> Iterator[NotedCommit]:
    """Yield the commits of a log, the newest first, back to the first one of the file. Raises `LogBroken`."""
    with path.open("rb") as file:
        while end.newest:
            content = os.pread(file.fileno(), _HEAD.size, end.newest)
            if len(content) < _HEAD.size or content[:4] != _WORD:
                raise LogBroken
            length = _HEAD.unpack(content)[1]
            if not _HEAD.size + _DIGEST_BYTES <= length <= MAX_BYTES:
                raise LogBroken
            record = os.pread(file.fileno(), length, end.newest)
            if len(record) != length or _digest(key, record[:-_DIGEST_BYTES]) != record[-_DIGEST_BYTES:]:
                raise LogBroken
            if record[-_DIGEST_BYTES:] != end.digest:
                raise LogBroken
            _, _, before, digest, segment, seq, head_hash, at = _HEAD.unpack_from(record)
            yield NotedCommit(segment, Link(seq, head_hash, at.decode().rstrip()), tuple(_items(record)))
            end = LogEnd(end.newest, before, digest)


def _record(key: bytes, before: LogEnd, segment: int, link: Link, noted: Sequence[Noted]) -> bytes:
    items = []
    for one in noted:
        order_id = b"" if one.order_id is None else one.order_id.encode()
        length = _DID_NOT_LEAVE if one.order_id is None else len(order_id)
        items.append(_ITEM.pack(one.instruction, one.attempt, length) + order_id)
    body = b"".join(items)
    length = _HEAD.size + len(body) + _DIGEST_BYTES
    head = _HEAD.pack(
        _WORD, length, before.newest, before.digest, segment, link.seq, link.hash, link.at.encode().ljust(24)
    )
    return head + body + _digest(key, head + body)


def _items(record: bytes) -> Iterator[Noted]:
    at, end = _HEAD.size, len(record) - _DIGEST_BYTES
    while at < end:
        number, attempt, length = _ITEM.unpack_from(record, at)
        at += _ITEM.size
        if length == _DID_NOT_LEAVE:
            yield Noted(number, attempt, None)
            continue
        yield Noted(number, attempt, record[at : at + length].decode())
        at += length


def _digest(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=key).digest()
