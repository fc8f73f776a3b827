"""Power loss: every file operation of a run is recorded, and a power cut at every moment is simulated.

After a cut, the disk has the synced content of each file, and any subset of the writes since, the last one perhaps
torn. Of the names changed in a directory since its sync, it has none or all. From each such disk the journal must open,
be sound, and have every order that had begun to be sent.
"""

import itertools
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Self

import pytest

from paygw_batch.errors import JournalError, JournalMissing
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.opening.open_journal import file_location
from paygw_batch.settings.configuration import Settings, load_settings
from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import Machine, Run, run_under_strace

CALLS = "openat,pwrite64,write,fdatasync,fsync,ftruncate,rename,unlink,unlinkat,mkdir,link,sendto,writev,sendmsg"
TRACE = ["-y", "-xx", "-s", "4000000", "-e", f"trace={CALLS}", "-e", "signal=none"]
SENDS = {"sendto", "sendmsg", "write", "writev"}


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    offset: int | None  # None means at the end
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    path: str


@dataclass(frozen=True, slots=True)
class Name:
    """A change of a directory: `make`, `rename`, `link`, `remove` or `mkdir`."""

    what: str
    path: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class OrderSent:
    order_id: str


@dataclass(frozen=True, slots=True)
class AnswerSent:
    """A request to the program was answered with 200, on which the sender relies."""


Operation = Write | Truncate | Sync | Name | OrderSent | AnswerSent
_LINE = re.compile(r"^(\d+)\s+(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+)\s+<\.\.\. (\w+) resumed>(.*)$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_DESCRIPTOR = re.compile(r"^(?:-?\d+|AT_FDCWD)<([^>]*)>")
_SOCKET = "<" + "".join(f"\\x{byte:02x}" for byte in b"socket:")
_ORDER_ID = re.compile(rb'"client_orderid":\s*"([^"]+)"')


def record(
    machine: Machine, *arguments: str | Path, planted: str | None = None, meanwhile: Callable[[Run], None] | None = None
) -> list[Operation]:
    """Run the program, and return its file operations in order, with the creation of a journal if it has none."""
    known, operations = set(files_of(machine)), list[Operation]()
    log = machine.home.with_name("operations.txt")
    creation: list[tuple[str | Path, ...]] = [] if machine.journal.exists() else [("journal", "new")]
    for words in (*creation, arguments):
        more: dict[str, Any] = {"planted": planted, "meanwhile": meanwhile} if words is arguments else {}
        if (code := run_under_strace(machine, log, TRACE, *words, **more)) not in {0, 4, 5}:
            raise AssertionError(f"exit code {code}: {machine.said()}")
        operations += _operations(log.read_text(), str(machine.home), known)
    return operations


def files_of(machine: Machine) -> dict[str, bytes]:
    ours = (path for path in machine.home.rglob("*") if path.is_file() and path.name not in {"out.txt", "err.txt"})
    return {str(path): path.read_bytes() for path in ours if not path.name.endswith("-shm")}


def _operations(log: str, home: str, known: set[str]) -> Iterator[Operation]:
    """Yield the operations of a trace; `known` are the files before and after it."""
    unfinished: dict[str, tuple[str, str]] = {}
    for line in log.splitlines():
        if found := _RESUMED.match(line):
            call, begun = unfinished.pop(found[1])
            arguments = begun + found[3]
        elif found := _LINE.match(line):
            call, arguments = found[2], found[3]
            if arguments.endswith("<unfinished ...>"):
                unfinished[found[1]] = call, arguments.removesuffix("<unfinished ...>")
                if call in SENDS:  # it may be sent from here on
                    yield from _sent(arguments)
                continue
        else:
            continue
        if " = -1 " not in arguments:
            yield from _operation(call, arguments, home, known)


def _operation(call: str, arguments: str, home: str, known: set[str]) -> Iterator[Operation]:
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(arguments)]
    if call in SENDS:
        yield from _sent(arguments)
    described = _DESCRIPTOR.match(arguments)
    path = _plain(described[1]) if described else ""
    if call in {"openat", "rename", "unlink", "unlinkat", "mkdir", "link"}:
        names = [text.decode() for text in texts[:2]]
        if names and names[0].startswith(home):
            yield from _name(call, names, arguments, known)
        return
    if not path.startswith(home) or path.endswith(("/out.txt", "/err.txt", "-shm")):
        return
    if call == "pwrite64":
        yield Write(path, int(arguments.rsplit(" = ", 1)[0].rstrip(" )").rsplit(", ", 1)[1]), texts[0])
    elif call == "write":
        yield Write(path, None, texts[0])
    elif call == "ftruncate":
        yield Truncate(path, int(arguments.partition(", ")[2].partition(")")[0]))
    elif call in {"fdatasync", "fsync"}:
        yield Sync(path)


def _plain(path: str) -> str:
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


def _sent(arguments: str) -> Iterator[OrderSent | AnswerSent]:
    if "<socket:" not in arguments and "<TCP:" not in arguments and _SOCKET not in arguments:
        return
    for text in _STRING.findall(arguments):
        data = bytes.fromhex(text.replace("\\x", ""))
        if found := _ORDER_ID.search(data):
            yield OrderSent(found[1].decode())
        if data.startswith(b"HTTP/1.1 200"):
            yield AnswerSent()


def _name(call: str, names: list[str], arguments: str, known: set[str]) -> Iterator[Operation]:
    path = names[0]
    if call == "openat":
        if "O_CREAT" in arguments and path not in known and not path.endswith(("/out.txt", "/err.txt", "-shm")):
            known.add(path)
            yield Name("make", path)
    elif call in {"rename", "link"}:
        known.add(names[1])
        yield Name(call, path, names[1])
    elif call in {"unlink", "unlinkat"}:
        known.discard(path)
        yield Name("remove", path)
    else:
        yield Name("mkdir", path)


@dataclass
class Disk:
    """The result of the operations so far: durable and possible content."""

    files: dict[str, bytes] = field(default_factory=dict)  # files by an identity that a rename does not change
    pending: defaultdict[str, list[Write | Truncate]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, str] = field(default_factory=dict)  # durable names, with their files
    now: dict[str, str] = field(default_factory=dict)  # names as the running program sees them
    renamed: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Changes of directories since their sync: the directory, and all names after the change."""
    sent: set[str] = field(default_factory=set)
    answered: int = 0

    @classmethod
    def holding(cls, files: Mapping[str, bytes]) -> Self:
        names = {name: f"{name}#before" for name in files}
        return cls({names[name]: content for name, content in files.items()}, names=dict(names), now=dict(names))

    def apply(self, operation: Operation) -> None:
        match operation:
            case OrderSent(order_id):
                self.sent.add(order_id)
            case AnswerSent():
                self.answered += 1
            case Write(path) | Truncate(path):
                if path in self.now:
                    self.pending[self.now[path]].append(operation)
            case Sync(path) if path in self.now:
                file = self.now[path]
                self.files[file] = _apply_writes(self.files.get(file, b""), self.pending.pop(file, []))
            case Sync(path):
                self._sync_directory(path)
            case Name():
                self._change(operation)

    def _change(self, change: Name) -> None:
        match change.what:
            case "make":
                self.now[change.path] = f"{change.path}#{len(self.renamed)}#{len(self.files)}"
            case "rename" if change.path in self.now:
                self.now[change.to] = self.now.pop(change.path)
            case "link" if change.path in self.now:
                self.now[change.to] = self.now[change.path]
            case "remove":
                self.now.pop(change.path, None)
            case _:
                return
        self.renamed.append((str(Path(change.path).parent), dict(self.now)))

    def _sync_directory(self, directory: str) -> None:
        mine = {name: file for name, file in self.now.items() if str(Path(name).parent) == directory}
        others = {name: file for name, file in self.names.items() if str(Path(name).parent) != directory}
        self.names = others | mine
        self.renamed = [(where, names) for where, names in self.renamed if where != directory]

    def left(self, rng: Random) -> Iterator[dict[str, bytes]]:
        names = [self.names, *(self.names | names for _, names in self.renamed)]
        dirty = [(file, write) for file, writes in self.pending.items() for write in range(len(writes))]
        for seen in (names[0], names[-1]) if len(names) > 1 else names:
            for kept in _subsets(dirty, rng):
                yield {name: self._content(file, kept) for name, file in seen.items()}
            yield {name: self._content(file, frozenset(dirty), torn=dirty[-1:]) for name, file in seen.items()}

    def _content(self, file: str, kept: frozenset[tuple[str, int]], *, torn: Sequence[tuple[str, int]] = ()) -> bytes:
        pending = [(n, write) for n, write in enumerate(self.pending.get(file, [])) if (file, n) in kept]
        writes = [_tear_write(write) if (file, n) in torn else write for n, write in pending]
        return _apply_writes(self.files.get(file, b""), writes)


def _tear_write(write: Write | Truncate) -> Write | Truncate:
    if isinstance(write, Truncate):
        return write
    return replace(write, data=write.data[: len(write.data) // 512 // 2 * 512])  # half of its sectors


def _apply_writes(content: bytes, writes: list[Write | Truncate]) -> bytes:
    image = bytearray(content)
    for write in writes:
        if isinstance(write, Truncate):
            image = image[: write.size].ljust(write.size, b"\0")
        else:
            offset = len(image) if write.offset is None else write.offset
            image = image.ljust(offset, b"\0")
            image[offset : offset + len(write.data)] = write.data
    return bytes(image)


def _subsets(dirty: list[tuple[str, int]], rng: Random) -> Iterator[frozenset[tuple[str, int]]]:
    if len(dirty) <= 5:
        for size in range(len(dirty) + 1):
            yield from map(frozenset, itertools.combinations(dirty, size))
        return
    yield from (frozenset(), frozenset(dirty))
    for _ in range(24):
        yield frozenset(write for write in dirty if rng.random() < 0.5)


def play(
    machine: Machine,
    operations: list[Operation],
    *,
    before: Mapping[str, bytes] | None = None,
    every: int = 1,
    seed: int = 1,
    stop: Event | None = None,
    look: "Look | None" = None,
) -> int:
    """Cut the power after every operation (or each `every`-th) in every way. Return the number of disks checked.

    `before` is the disk at the start of the recording. `look` checks each disk, and those after the end of the program,
    on which its reported results must be. The machine's home is moved away and each disk is built in its place, because
    a journal knows its path.
    """
    machine.home.rename(machine.home.with_name("recorded"))
    config = (machine.home.with_name("recorded") / "paygw.toml").read_bytes()
    rng, disk, looked_at, seen = Random(seed), Disk.holding(before or {}), 0, set()  # noqa: S311 (dice)
    for number, operation in enumerate(operations):
        if stop is not None and stop.is_set():
            break
        disk.apply(operation)
        is_over = number == len(operations) - 1
        if number % every and not is_over:
            continue
        for files in disk.left(rng):
            key = hash((frozenset(files.items()), frozenset(disk.sent), disk.answered, is_over))
            if key in seen:
                continue
            seen.add(key)
            _build(machine.home, {**files, str(machine.home / "paygw.toml"): config})
            looked_at += 1
            when = f"after operation {number} of {len(operations)} ({type(operation).__name__})"
            if look is None:
                check_journal(machine, disk.sent, when)
            else:
                look(machine, disk, when, is_over)
    return looked_at


def _build(home: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o600)


Look = Callable[[Machine, Disk, str, bool], None]
"""A check of the machine after its operations so far, at a named moment; the flag is set once the program has ended."""


def check_journal(machine: Machine, sent: set[str], when: str) -> None:
    """Check that the journal opens, is sound, and has every order that had begun to be sent."""
    with as_configured(machine) as settings:
        journals = file_location(settings).known_journals
    lines = [line.number for entry in journals.entries() for line in journals.newest_log_lines(entry.journal_id)]
    known = max(lines, default=0)
    try:
        journal = open_as_configured(machine)
    except JournalError as error:
        raise Broken(f"{when}: the journal does not open: {error.message}") from None
    try:
        journal.mark_interrupted("2026-11-21T12:00:00.000Z")
        query = "SELECT order_id, number FROM fact WHERE kind = 'intended'"
        for order_id, number in journal._connection.execute(query):
            if order_id in sent and known < number:
                raise Broken(f"{when}: {order_id} had begun to leave, and it is noted up to fact {known}, not {number}")
        batches = journal.batches()
        if sent and not batches:
            raise Broken(f"{when}: {sorted(sent)} had begun to leave, and the batch is gone")
        owed = {due.order_id for batch in batches for due in journal.due(batch.number, after_row=0, limit=1_000)}
        if twice := owed & sent:
            raise Broken(f"{when}: {sorted(twice)} had begun to leave, and would be sent again")
        for batch in batches:
            if sum(tally.count for tally in journal.tallies(batch.number)) != batch.rows:
                raise Broken(f"{when}: a row is lost")
        journal.verify()
    finally:
        journal.close()


@contextmanager
def as_configured(machine: Machine) -> Iterator[Settings]:
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("XDG_STATE_HOME", str(machine.home / "state"))
        yield load_settings(machine.home / "paygw.toml", environ=machine.environ, flags={})


def open_as_configured(machine: Machine) -> SqliteJournal:
    with as_configured(machine) as settings:
        location = file_location(settings)
        try:
            return location.open_to_write("campaign")
        except JournalMissing:  # its creation was interrupted, so it can be repeated, and has no batch
            location.create("campaign")
            return location.open_to_write("campaign")
