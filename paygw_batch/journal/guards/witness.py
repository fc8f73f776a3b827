"""The witness: the end of a journal's chain, kept a second time in a small file elsewhere.

A journal that was restored from a backup, copied or replaced is consistent, and would pay rows again. The witness finds
it, because the witness has seen newer facts. Two slots in separate sectors are written in turn, each with a checksum:
whenever a machine stops, one slot is whole. The run that holds the journal writes them. Whoever adds a fact beside a
run (a withdrawal) has two slots of its own, written by one process at a time: neither waits for the other.

A fact is noted after it is durable in the journal, and before the call that wrote it returns.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paygw_batch.errors import JournalWentBack, WitnessDamaged
from paygw_batch.files import replacing, sync_directory
from paygw_batch.journal.guards.location import check_file, open_private
from paygw_batch.language import say

_SLOT_OFFSETS = (0, 4096)
_BESIDE_OFFSETS = (8192, 12288)
_SLOT_BYTES = 512
_WORD = "paygw-witness-1"


@dataclass(frozen=True, slots=True)
class WitnessedHead:
    """The newest fact that a witness noted: the journal's id, the fact's number, and its hash (hex).

    `seq` is 0 for a new journal without facts.
    """

    journal_id: str
    seq: int
    hash: str

    @property
    def has_history(self) -> bool:
        """Whether the journal had a fact: nothing may take its place by itself."""
        return self.seq > 0


def witness_path(witness_dir: Path, journal: Path) -> Path:
    """Return the path of the witness of the journal at this canonical path."""
    digest = hashlib.sha256(os.fsencode(journal)).hexdigest()
    return witness_dir / f"{digest[:32]}.witness"


def read_witness(path: Path, mend: str | None = None) -> WitnessedHead | None:
    """Return the newest fact that the witness has seen; None if there is no witness.

    Raises `WitnessDamaged`, with the hint `mend`, if the file exists but neither slot can be read.
    """
    if not check_file(path):
        return None
    content = path.read_bytes()
    seen = _slots_of(content, _SLOT_OFFSETS)
    if not seen:
        raise WitnessDamaged(
            say("The journal's witness {path} is damaged.", path=path),
            hint=mend
            or say(
                "If you know that the journal is the newest one, remove the witness file and confirm it with "
                "`paygw-batch journal adopt`."
            ),
        )
    newest = max(seen, key=_place)
    beside = [one for one in _slots_of(content, _BESIDE_OFFSETS) if one.journal_id == newest.journal_id]
    return max([newest, *beside], key=_place)


def note_beside(path: Path, seen: WitnessedHead) -> None:
    """Note a fact that was written beside a run, in the witness at `path`. Raises `OSError`."""
    fd = open_private(path)
    try:
        _note_later(fd, seen, _BESIDE_OFFSETS)
    finally:
        os.close(fd)


def note_newest(path: Path, seen: WitnessedHead) -> None:
    """Note a fact in a file that several processes write, unless it has a newer one. Raises `OSError`."""
    held = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # of two processes at the same moment, one creates it
        if not check_file(path):
            make_witness(path, seen)
            return
        fd = open_private(path)
        try:
            _note_later(fd, seen, _SLOT_OFFSETS)
        finally:
            os.close(fd)
    finally:
        os.close(held)


def _note_later(fd: int, seen: WitnessedHead, offsets: tuple[int, int]) -> None:
    """Write `seen` over the older of two slots, unless another process has noted it, or more, by now."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    slots = [_read_slot(os.pread(fd, _SLOT_BYTES, offset)) for offset in offsets]
    known = [-1 if slot is None or slot.journal_id != seen.journal_id else slot.seq for slot in slots]
    if max(known) < seen.seq:
        os.pwrite(fd, _slot(seen), offsets[known.index(min(known))])
        _sync_data(fd)


def _place(seen: WitnessedHead) -> int:
    """Return what grows from note to note."""
    return seen.seq


def _slots_of(content: bytes, offsets: tuple[int, int]) -> list[WitnessedHead]:
    slots = [_read_slot(content[offset : offset + _SLOT_BYTES]) for offset in offsets]
    return [slot for slot in slots if slot is not None]


def seen_elsewhere(witness_dir: Path, journal_id: str) -> Iterator[tuple[Path, WitnessedHead]]:
    """Yield path and newest fact of every witness of a journal in `witness_dir`, wherever the journal was."""
    for path in sorted(witness_dir.glob("*.witness")):
        seen = read_witness(path)
        if seen is not None and seen.journal_id == journal_id:
            yield path, seen


def retire(path: Path, seen: WitnessedHead) -> None:
    """Rename the witness of a lost journal after that journal, because another journal takes over its path."""
    path.rename(path.with_name(f"{seen.journal_id}.witness"))
    sync_directory(path.parent)


class HeadWitness(Protocol):
    """The interface of a writer's witness."""

    def note(self, seen: WitnessedHead) -> None:
        """Make `seen` durable. Raises `OSError`."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Witness:
    """The witness of a journal that a run writes. Creates the file, private to its owner, if it is missing."""

    def __init__(self, path: Path, seen: WitnessedHead) -> None:
        self.path = path
        if not check_file(path):
            make_witness(path, seen)
        self._fd = open_private(path)
        slots = [_read_slot(os.pread(self._fd, _SLOT_BYTES, offset)) for offset in _SLOT_OFFSETS]
        newest = max((0, 1), key=lambda n: -1 if (slot := slots[n]) is None else _place(slot))
        self._next_slot = 1 - newest
        if slots[newest] != seen:
            self.note(seen)

    def note(self, seen: WitnessedHead) -> None:
        """Make `seen` durable. Raises `OSError`."""
        # Always over the older of the two slots: a crash in the middle of the write leaves the newer one readable. A
        # witness that cannot be read would refuse a good journal; one that lags would accept an older copy.
        os.pwrite(self._fd, _slot(seen), _SLOT_OFFSETS[self._next_slot])
        _sync_data(self._fd)
        self._next_slot = 1 - self._next_slot

    def put(self, content: bytes, offset: int) -> None:
        """Write bytes outside of the slots; the next `note` makes them durable. Raises `OSError`."""
        while content:
            written = os.pwrite(self._fd, content, offset)
            content, offset = content[written:], offset + written

    def size(self) -> int:
        """Return the length of the file."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file. Closed once more, it closes nothing: its number may be another file's by then."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)


def require_not_older(seen: WitnessedHead, path: Path, *, found: WitnessedHead, hash_at: Callable[[int], str]) -> None:
    """Raise `JournalWentBack` unless the journal whose end is `found` includes `seen`.

    `hash_at` returns the hash of a fact. A journal may be ahead of its witness: a run can end between the two writes. A
    witness of another journal that never had a fact proves nothing.
    """
    if seen.journal_id != found.journal_id and not seen.has_history:
        return
    if seen.journal_id != found.journal_id:
        raise JournalWentBack(say("This is not the journal that this machine last sent rows from."), hint=_mend(path))
    if found.seq < seen.seq:
        raise JournalWentBack(
            say(
                "The journal ends at fact {seq}, but fact {written} was already written: this is an older copy.",
                seq=found.seq,
                written=seen.seq,
            ),
            hint=_mend(path),
        )
    if hash_at(seen.seq) != seen.hash:
        raise JournalWentBack(
            say(
                "Fact {seq} of the journal is not the one that was written first: this copy has diverged.",
                seq=seen.seq,
            ),
            hint=_mend(path),
        )


def witness_failed(error: OSError) -> str:
    """Return the reason, in words for a person, that a witness could not be written."""
    return say("its witness: {reason}", reason=say(str(error.strerror)))


def missing_journal(journal: Path, seen: WitnessedHead) -> JournalWentBack:
    """Return the error for a journal that is missing although its witness knows it."""
    return JournalWentBack(
        say(
            "The journal {journal} ({journal_id}) is gone, and rows were already sent from it.",
            journal=journal,
            journal_id=seen.journal_id,
        ),
        hint=say(
            "Put the newest journal file back: sending without it could pay rows twice. Only if it is lost "
            "for good and you have checked with the gateway what was paid, make another one with "
            "`paygw-batch journal new --beside {journal_id}`.",
            journal_id=seen.journal_id,
        ),
    )


def _mend(path: Path) -> str:
    return say(
        "Put the newest journal file back: sending without it could pay rows twice. Only if it is lost for good "
        "and you have checked with the gateway what was paid since, remove {path} and confirm with `paygw-batch "
        "journal adopt` that this one is now the newest.",
        path=path,
    )


def _slot(seen: WitnessedHead) -> bytes:
    text = f"{_WORD} {seen.journal_id} {seen.seq} {seen.hash}"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f"{text} {checksum}".encode().ljust(_SLOT_BYTES - 1) + b"\n"


def _read_slot(content: bytes) -> WitnessedHead | None:
    """Return the fact in a slot; None if the slot is empty, torn or damaged."""
    try:
        _, journal_id, seq, head_hash, _ = content.decode("ascii").split()
        seen = WitnessedHead(journal_id, int(seq), head_hash)
    except ValueError:
        return None
    return seen if _slot(seen) == content else None


def make_witness(path: Path, seen: WitnessedHead) -> None:
    """Replace any witness by one that knows `seen`: write it under another name, then rename it."""
    with replacing(path) as file:
        for offset in _SLOT_OFFSETS:
            os.pwrite(file.fileno(), _slot(seen), offset)


def _sync_data(fd: int) -> None:
    """Flush the data of a file, and its size if it changed; macOS can only flush everything."""
    getattr(os, "fdatasync", os.fsync)(fd)
