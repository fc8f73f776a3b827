"""Keeps the intents of this host's commits behind its witness's slots: if the commits are lost, these may have left.

A record is one commit. It refers to the record before it by position and digest, and the witness's slot to the newest
one. So the log is read backwards, and a record that was overwritten, torn or copied from another host is never mistaken
for a commit. It depends on no clock: the file grows to `MAX_BYTES`, and then the oldest records are overwritten.
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
"""About 1.5 million intents of a process: an hour at 400 rows a second. A standby seldom lags by minutes."""
_FIRST = 8192
"""The slots of the witness come before it."""
_STEP = 256 << 10
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<4sIQ16sqq32s24s")
_ITEM = struct.Struct("<qIH")
_WORD = b"PWI1"
_DID_NOT_LEAVE = 0xFFFF


class Noted(NamedTuple):
    """An attempt that may leave now, with its order id; without an order id, an attempt of which nothing left."""

    instruction: int
    attempt: int
    order_id: str | None


class LogEnd(NamedTuple):
    """The position of the next record, and the position and digest of the newest one."""

    free: int = _FIRST
    newest: int = 0
    digest: bytes = bytes(_DIGEST_BYTES)

    def as_text(self) -> str:
        """Return the text for a slot of the witness."""
        return f"{self.free}.{self.newest}.{self.digest.hex()}"


@dataclass(frozen=True, slots=True)
class NotedCommit:
    """A commit that this host saw: one end of it, its time, and its attempts."""

    segment: int
    end: Link
    noted: tuple[Noted, ...]


class LogBroken(Exception):
    """A record is missing: it was overwritten, damaged, or written on another host."""


class LogFile(Protocol):
    """The part of a witness's file that its log uses."""

    def put(self, content: bytes, offset: int) -> None:
        """Write outside of the slots; the next `note` makes it durable."""
        ...

    def size(self) -> int:
        """Return the length of the file."""
        ...


class IntentLog:
    """Adds records to a witness's file. `key` identifies the journal and the host."""

    def __init__(self, file: LogFile, key: bytes, end: LogEnd) -> None:
        self._file, self._key, self.end = file, key, end

    def add(self, segment: int, link: Link, noted: Sequence[Noted]) -> None:
        """Write a record after the newest one. It is valid once a slot refers to it. Raises `OSError`."""
        record = _record(self._key, self.end, segment, link, noted)
        at = self._room_for(len(record))
        self._file.put(record, at)
        self.end = LogEnd(at + len(record), at, record[-_DIGEST_BYTES:])

    def _room_for(self, length: int) -> int:
        """Return the position for a record of this length. The file is first filled to its final size."""
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
    """Return the key that marks the records of one host in one journal."""
    return hashlib.sha256(f"paygw intents {journal_id} {host_id}".encode()).digest()


def commits_noted(path: Path, key: bytes, end: LogEnd) -> Iterator[NotedCommit]:
    """Yield the commits of a log, newest first, back to the first in the file. Raises `LogBroken`."""
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
