"""Chains the notifications of an inbox, so that a changed, missing or foreign one is found.

A group is what one commit made durable. Its hash is SHA-256 over the hash before it and the group's text: the number of
its first notification and the contents. The first group of an inbox is empty: it says where the inbox goes on from.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paygw_batch.errors import InboxDamaged
from paygw_batch.journal.facts.codec import canonical
from paygw_batch.journal.values import InboxEnd

_HASH_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One notification in the inbox, as it was appended."""

    number: int
    hash: str
    content: str


class InboxGroup(NamedTuple):
    """A line of the inbox: the number of its last notification, the contents as JSON, and its hash."""

    last: int
    contents: str
    hash: str

    @property
    def end(self) -> InboxEnd:
        """The end of an inbox that ends with this group."""
        return InboxEnd(self.last, self.hash)


def first_group(end: InboxEnd) -> InboxGroup:
    """Return the empty group with which an inbox begins that goes on from `end`."""
    return InboxGroup(end.number, canonical([]), end.hash)


def next_group(end: InboxEnd, contents: Sequence[str]) -> InboxGroup:
    """Return `contents` as the group that follows `end`."""
    text = canonical(list(contents))
    return InboxGroup(end.number + len(contents), text, _hash(end, text))


def entries_after(groups: Iterable[InboxGroup], taken: InboxEnd, path: str) -> Iterator[InboxEntry]:
    """Yield the notifications after `taken`, and check each group against the one before it.

    `groups` begin with one whose last notification is no later than `taken`. Raises `InboxDamaged` when a group was
    changed, or when the inbox at `path` does not go on from `taken`.
    """
    remaining = iter(groups)
    end = next((group.end for group in remaining), InboxEnd(-1))
    goes_on = end == taken
    for group in remaining:
        contents = json.loads(group.contents) if group.hash == _hash(end, group.contents) else []
        if not contents or group.last != end.number + len(contents):
            raise InboxDamaged(f"The inbox {path} is damaged after notification {end.number}.")
        goes_on |= end.number < taken.number <= group.last and group.hash == taken.hash
        if group.last > taken.number and not goes_on:
            break
        numbered = enumerate(contents, start=end.number + 1)
        yield from (InboxEntry(number, group.hash, one) for number, one in numbered if number > taken.number)
        end = group.end
    if not goes_on:
        raise InboxDamaged(
            f"The inbox {path} does not go on from notification {taken.number}, the last that the journal took."
        )


def groups_of_lines(data: bytes, path: str) -> list[InboxGroup]:
    """Return the groups of an inbox of earlier versions, which was a file of lines, each with its hash in front.

    Only the last line can be torn, by a crash in its write; it was never answered, and is left out. Raises
    `InboxDamaged` when any other line does not follow the one before it.
    """
    header, *lines = data.splitlines(keepends=True)
    try:
        fields = json.loads(header)
        groups = [first_group(InboxEnd(int(fields["after"]), str(fields["hash"])))]
    except (ValueError, KeyError, TypeError):
        raise InboxDamaged(f"{path} is not an inbox of an earlier version, or its first line is damaged.") from None
    for at, line in enumerate(lines, start=1):
        group = _group_of_line(groups[-1].end, line)
        if group is not None:
            groups.append(group)
        elif at < len(lines):
            raise InboxDamaged(f"The inbox {path} is damaged in its middle.")
    return groups


def _group_of_line(end: InboxEnd, line: bytes) -> InboxGroup | None:
    """Return the group that a line holds; None unless the line is whole and follows `end`."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return None
    digest, rest = text[:_HASH_CHARACTERS], text[_HASH_CHARACTERS:-1]
    contents = rest[1:].partition(" ")[2]
    if not text.endswith("\n") or rest != _text(end, contents) or digest != _hash(end, contents):
        return None
    return InboxGroup(end.number + len(json.loads(contents)), contents, digest)


def _text(end: InboxEnd, contents: str) -> str:
    return f" {end.number + 1} {contents}"


def _hash(end: InboxEnd, contents: str) -> str:
    return hashlib.sha256(f"{end.hash}{_text(end, contents)}".encode()).hexdigest()
