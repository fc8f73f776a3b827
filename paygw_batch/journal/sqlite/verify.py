"""Checking the journal: the whole of it by replaying every fact, and its end each time it is opened.

Three streams are read side by side in the order of instructions (what they are, their facts, their order ids), so that
memory does not grow with the journal. In a long journal, what needs no replay is checked by a second process meanwhile
(docs/decisions/0147-verify-in-two-processes.md).
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path

import apsw

from paygw_batch.core.batch import BILLION
from paygw_batch.core.lifecycle import TRANSITIONS, State
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts.chain import Line, Link, follow, followed
from paygw_batch.journal.facts.codec import BATCH_OPENED, BatchOpened, decode_batch
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.fact_replay import InstructionReplay, LinesByInstruction
from paygw_batch.journal.port import VerifyProgress, unwatched
from paygw_batch.journal.sqlite import messages, replies, search, spellings
from paygw_batch.journal.sqlite.about import check_about
from paygw_batch.journal.sqlite.connect import connect, fetch
from paygw_batch.journal.sqlite.rows import CONTENT, PROGRESS, progress_columns
from paygw_batch.journal.sqlite.schema import check_tables, end_of, hash_at, identity_of, versions
from paygw_batch.journal.values import Known, NewBatch
from paygw_batch.processes import child_environment, forbid_core_dumps, python_command

_TAIL_FACTS = 256
_ROWS_A_STEP = 1_000
_BATCHES = "SELECT number, batch, operation FROM batch"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_LINE = "seq, at, kind, batch, instruction, attempt, contradicts, details, hash"
_FACTS_BY_INSTRUCTION = """SELECT f.instruction, f.seq, f.at, f.kind, f.attempt, f.contradicts, f.details
    FROM (SELECT seq FROM fact WHERE instruction IS NOT NULL ORDER BY instruction, seq LIMIT -1) s
    CROSS JOIN fact f ON f.seq = s.seq"""
"""By instruction and then in order; only two numbers of each are sorted. (The limit keeps the inner order.)"""
_LEADS_TO: Mapping[str, str] = {kind.value: state.value for (_, kind), state in TRANSITIONS.items()}
"""Every kind of fact leads to one state, wherever it is legal."""


_WORTH_A_PROCESS = 100_000
"""From so many facts on, a second process is worth its start."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The counts of a journal whose chain is whole. `head` is the hash of the fact that was asked for, in hex."""

    head: str
    facts: int
    batches: int
    pages: int


def verify(
    connection: apsw.Connection,
    path: Path,
    *,
    in_parallel: bool = False,
    progress: VerifyProgress = unwatched,
) -> Mapping[str, int]:
    """Replay the whole journal and return the counts: facts, batches, pages, order ids, states.

    With `in_parallel`, a second process follows the chain of a long journal while this one replays the rows; it sees
    what is committed, and `connection` may have nothing uncommitted. `progress` is called with how many rows are
    replayed, and how many there are. Raises `JournalCorrupt`, naming the first wrong place; `apsw.Error` where SQLite
    cannot read.
    """
    counts = Counter(dict.fromkeys((*map(str, State), "instructions", "order_ids", "contradictions"), 0))
    ((facts,),) = fetch(connection, "SELECT count(*) FROM fact")
    end = end_of(connection)
    with ExitStack() as stack:
        beside = None
        if in_parallel and facts >= _WORTH_A_PROCESS:
            beside = stack.enter_context(_beside(path, end.seq))
        if beside is None:
            stored = _check_stored(connection, path)
            _Replay(connection, counts, progress).run()
        else:
            try:
                _Replay(connection, counts, progress).run()
            except Exception:
                beside()  # what it finds, if anything, is nearer to the cause
                raise
            found = beside()
            if found is None or found.head != end.hash.hex():
                found = _check_stored(connection, path)
            stored = found
    counts["batches"], counts["pages"], counts["facts"] = stored.batches, stored.pages, stored.facts
    counts["evidence"] = messages.check(connection)
    return dict(counts)


def _check_stored(connection: apsw.Connection, path: Path, *, seq: int = 0) -> _Stored:
    """Check all but the states of rows: the file, the chain from its start, the batches, and tables made of them."""
    _check_database(connection, path)
    batches = dict(_replay_chain(connection))
    _check_batches(connection, batches)
    _check_totals(connection)
    check_about(connection)
    spellings.check(connection)
    search.check(connection)
    ((facts,),) = fetch(connection, "SELECT count(*) FROM fact")
    pages = sum(opened.pages for opened in batches.values())
    return _Stored(hash_at(connection, seq).hex(), facts, len(batches), pages)


@contextmanager
def _beside(path: Path, seq: int) -> Iterator[Callable[[], _Stored | None] | None]:
    """Start a second process that does `_check_stored`; yield a function that returns its result, or None."""
    command = python_command("from paygw_batch.journal.sqlite import verify; verify.answer_stored()")
    if command is None:
        yield None
        return
    with subprocess.Popen(  # noqa: S603 (our own program, in this very Python)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(os.environ),
    ) as process:
        source, out = process.stdin, process.stdout
        if source is None or out is None:
            raise InternalError("a process was started without its pipes")
        with suppress(BrokenPipeError):  # it has ended, and its answer is empty
            source.write(json.dumps([str(path), seq]).encode())
            source.close()
        try:
            yield lambda: _stored_in(out.read())
        finally:
            process.kill()


def _stored_in(answer: bytes) -> _Stored | None:
    """Return the result of a second process, None where it ended without. Raises `JournalCorrupt` for its finding."""
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    if damage := found.pop("damage", None):
        raise JournalCorrupt(damage)
    return _Stored(**found)


def answer_stored() -> None:
    """Do `_check_stored` on the journal that standard input names, and write the result to standard output."""
    forbid_core_dumps(for_good=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for this one is told, and ends it
    name, seq = json.loads(sys.stdin.read())
    with closing(connect(Path(name), write=False)) as connection:
        connection.execute("BEGIN")
        try:
            answer = asdict(_check_stored(connection, Path(name), seq=seq))
        except JournalCorrupt as found:
            answer = {"damage": found.message}
    sys.stdout.write(json.dumps(answer))


def check_tail(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless the last facts are chained, and their instructions are in the right states."""
    found = fetch(connection, f"SELECT {_LINE} FROM fact ORDER BY seq DESC LIMIT ?", (_TAIL_FACTS,))  # noqa: S608 - ours
    if not found:
        return
    lines = [Line(*line) for line in reversed(found)]
    end = Link(lines[0].seq - 1, hash_at(connection, lines[0].seq - 1))
    latest: dict[int, Line] = {}
    for line in lines:
        end = follow(end, line)
        if line.instruction is not None and line.contradicts is None:
            latest[line.instruction] = line
    for number, line in latest.items():
        stands = fetch(connection, "SELECT state, attempt FROM standing WHERE instruction = ?", (number,))
        if stands != [(_LEADS_TO.get(line.kind), line.attempt)]:
            raise JournalCorrupt(f"Instruction {number} does not stand where fact {line.seq} leads.")


def _check_database(connection: apsw.Connection, path: Path) -> None:
    ((verdict,), *_) = fetch(connection, "PRAGMA integrity_check(1)")
    if verdict != "ok":
        raise JournalCorrupt(f"The journal {path} is damaged: {verdict}.")
    check_tables(connection, path)
    created_at = identity_of(connection).created_at
    applied = fetch(connection, "SELECT version, applied_at FROM migration ORDER BY version")
    if not applied or applied[0] != (1, created_at):
        raise JournalCorrupt(f"The journal {path} does not say when it was made.")
    if not all(_TIME.fullmatch(when) for _, when in applied) or [one for one, _ in applied] != versions():
        raise JournalCorrupt(f"The journal {path} does not say when it was brought up.")
    if broken := fetch(connection, "PRAGMA foreign_key_check"):
        raise JournalCorrupt(f"A line of table {broken[0][0]} speaks of what the journal does not have.")


def _replay_chain(connection: apsw.Connection) -> Iterator[tuple[int, BatchOpened]]:
    """Follow the chain from its start, and yield the openings of batches with their numbers and times."""
    lines = connection.execute(f"SELECT {_LINE} FROM fact ORDER BY seq")  # noqa: S608 - a constant of ours
    for _, _, kind, batch, _, _, _, details, _ in followed(identity_of(connection).start, lines):
        if kind == BATCH_OPENED:
            yield batch, decode_batch(details)


def _check_batches(connection: apsw.Connection, batches: Mapping[int, BatchOpened]) -> None:
    """Hold every batch, with its pages, instructions and known rows, against the fact that opened it."""
    stored = fetch(connection, "SELECT number FROM batch ORDER BY number")
    if [number for (number,) in stored] != sorted(batches):
        raise JournalCorrupt("The batches of the journal are not those that its facts opened.")
    opened_at = dict(fetch(connection, "SELECT batch, at FROM fact WHERE kind = ?", (BATCH_OPENED,)))
    for number, opened in batches.items():
        columns = "batch, operation, sheet_name, sheet_sha256, rows, defects, sheet_path"
        ((at, *row),) = fetch(connection, f"SELECT opened_at, {columns} FROM batch WHERE number = ?", (number,))  # noqa: S608 - ours
        # Who opened and approved it stands in the fact alone.
        batch = replace(NewBatch(*row), by=opened.by, approvals=opened.approvals, plan_sha256=opened.plan_sha256)
        found = _digested(connection, number, OpeningDigests(batch, opened.first_instruction))
        for part in BatchOpened.__dataclass_fields__:
            if getattr(found, part) != getattr(opened, part):
                raise JournalCorrupt(f"Batch {opened.batch} was changed after it was opened: {part} differs.")
        if at != opened_at[number]:
            raise JournalCorrupt(f"Batch {opened.batch} was changed after it was opened: opened_at differs.")


def _check_totals(connection: apsw.Connection) -> None:
    """Compare the noted totals of each batch with the rows that it covers."""
    counted = f"""SELECT c.batch, i.country, i.currency, count(*), sum(i.minor / {BILLION}), sum(i.minor % {BILLION}),
            min(i.number), max(i.number)
        FROM covered c JOIN instruction i ON i.number = c.instruction GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""  # noqa: S608 - ours
    noted = "SELECT * FROM batch_total ORDER BY batch, country, currency"
    for line, also in zip_longest(connection.execute(counted), connection.execute(noted)):
        if line != also:
            raise JournalCorrupt(f"Batch number {(line or also)[0]} does not come to what is noted of it.")


def _digested(connection: apsw.Connection, number: int, intake: OpeningDigests) -> BatchOpened:
    for page_number, content in connection.execute(
        "SELECT number, content FROM page WHERE batch = ? ORDER BY number", (number,)
    ):
        if page_number != intake.pages:
            raise JournalCorrupt(f"A page of batch number {number} is missing.")
        intake.page(content)
    query = f"""SELECT number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee,
        {CONTENT} FROM instruction WHERE batch = ? ORDER BY number"""  # noqa: S608 - a constant of ours
    for row, instruction in connection.execute(
        "SELECT row, instruction FROM known WHERE batch = ? ORDER BY row", (number,)
    ):
        intake.known(Known(row, instruction, State.READY))
    try:
        intake.stored(connection.execute(query, (number,)))
        return intake.opened()
    except InternalError:
        raise JournalCorrupt(f"An instruction of batch number {number} was changed.") from None


@dataclass(slots=True)
class _Replay:
    """Replays every instruction's facts, in the order of their numbers, and compares the result with the stored one."""

    connection: apsw.Connection
    counts: Counter[str]
    progress: VerifyProgress
    replies: int = 0

    def run(self) -> None:
        """Raise `JournalCorrupt` at the first instruction that is not in the state its facts lead to."""
        batches = {number: (batch, operation) for number, batch, operation in fetch(self.connection, _BATCHES)}
        ((rows,),) = fetch(self.connection, "SELECT count(*) FROM instruction")
        facts = LinesByInstruction(self.connection.execute(_FACTS_BY_INSTRUCTION), "A fact")
        order_ids = LinesByInstruction(
            self.connection.execute("SELECT instruction, operation, order_id FROM order_id ORDER BY 1, 2, 3"),
            "An order id",
        )
        replay = InstructionReplay(self.counts)
        query = f"SELECT number, batch, row, client_orderid, replaces, {PROGRESS} FROM progress ORDER BY number"  # noqa: S608 - ours
        for line in self.connection.execute(query):
            number, batch, row, client_orderid, replaces = line[:5]
            if batch not in batches:
                raise JournalCorrupt(f"Instruction {number} is of a batch that the journal does not have.")
            batch_id, operation = batches[batch]
            found = replay.replay(number, row, batch_id, client_orderid, replaces, facts.of(number))
            for reply in found.replies:
                replies.check(self.connection, reply.seq, number, reply.sha256)
            if progress_columns(found.progress) != line[5:]:
                raise JournalCorrupt(f"Instruction {number} (row {row} of batch {batch_id}) is not as its facts say.")
            owned = {(operation, order_id) for order_id in found.order_ids}
            if set(order_ids.of(number)) != owned:
                raise JournalCorrupt(f"The order ids of instruction {number} are not those its facts used.")
            self.replies += len(found.replies)
            self.counts["instructions"] += 1
            self.counts["order_ids"] += len(owned)
            self.counts[found.progress.standing.state] += 1
            if self.counts["instructions"] % _ROWS_A_STEP == 0:
                self.progress(self.counts["instructions"], rows)
        facts.end()
        order_ids.end()
        if fetch(self.connection, "SELECT count(*) FROM reply") != [(self.replies,)]:
            raise JournalCorrupt("A reply is kept that no fact names.")
