"""Chains the notifications of an inbox, so that a changed, missing or foreign notification is detected.

A group is one durable commit. Its hash is SHA-256 over the previous hash and the group's text: the number of its first
notification and the contents. The first group of an inbox is empty: it says where the inbox continues from.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paygw_batch.errors import InboxDamaged
from paygw_batch.journal.values import InboxEnd, canonical
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One notification in the inbox, as it was appended."""

    number: int
    hash: str
    content: str


class InboxGroup(NamedTuple):
    """A line of the inbox: the number of its last notification, a salt and the contents as JSON, and its hash.

    The salt protects forgotten contents, whose hash remains.
    """

    last: int
    contents: str
    hash: str

    @property
    def end(self) -> InboxEnd:
        """The end of the inbox after this group."""
        return InboxEnd(self.last, self.hash)


def first_group(end: InboxEnd) -> InboxGroup:
    """Return the empty first group of an inbox that continues from `end`."""
    return InboxGroup(end.number, canonical([]), end.hash)


def next_group(end: InboxEnd, contents: Sequence[str], salt: str) -> InboxGroup:
    """Return `contents` as the group after `end`."""
    text = canonical([salt, *contents])
    return InboxGroup(end.number + len(contents), text, _hash(end, text))


def entries_after(groups: Iterable[InboxGroup], taken: InboxEnd, path: str) -> Iterator[InboxEntry]:
    """Yield the notifications after `taken`; check each group against the one before it.

    The last notification of the first of `groups` is at most `taken`. Raises `InboxDamaged` if a group was changed, or
    if the inbox at `path` does not continue from `taken`.
    """
    remaining = iter(groups)
    end = next((group.end for group in remaining), InboxEnd(-1))
    goes_on = end == taken
    for group in remaining:
        contents = json.loads(group.contents)[1:] if group.hash == _hash(end, group.contents) else []
        if not contents or group.last != end.number + len(contents):
            raise InboxDamaged(
                say("The inbox {path} is damaged after notification {number}.", path=path, number=end.number)
            )
        goes_on |= end.number < taken.number <= group.last and group.hash == taken.hash
        if group.last > taken.number and not goes_on:
            break
        numbered = enumerate(contents, start=end.number + 1)
        yield from (InboxEntry(number, group.hash, one) for number, one in numbered if number > taken.number)
        end = group.end
    if not goes_on:
        raise InboxDamaged(
            say(
                "The inbox {path} does not continue from notification {number}, the last that the journal recorded.",
                path=path,
                number=taken.number,
            )
        )


def _hash(end: InboxEnd, contents: str) -> str:
    return hashlib.sha256(f"{end.hash} {end.number + 1} {contents}".encode()).hexdigest()
