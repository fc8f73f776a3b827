"""Accepts the loss of a host's commits: puts the rows sent under them in doubt.

The witnesses of this host have the intents of its commits. For commits that the database lacks, the intents are written
again, as the same attempts under the same order ids, each with an interruption. If the host knows that nothing of an
attempt left, it is written as not sent. Everything else is as the database says, and can be sent.

A host that will never show its witness again is retired. It could have taken any chunk in the meantime: so each row
that is ready or in flight gets an intent and an interruption, as if it had been sent, and a person settles it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from psycopg import Connection

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.lifecycle import Basis, Concluded, Intended, Interrupted, Released, Resolution, Resolved, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import InternalError, JournalHeld, WitnessDamaged
from paygw_batch.journal.facts.standing import RowStanding, row_standing
from paygw_batch.journal.guards.witness import read_witness
from paygw_batch.journal.postgres.leasing.chain_writer import ChainWriter
from paygw_batch.journal.postgres.leasing.host_witness import has_commit, newest_commit, witness_files
from paygw_batch.journal.postgres.leasing.intent_log import LogBroken, Noted, NotedCommit, commits_noted
from paygw_batch.journal.postgres.lines import chunks_of
from paygw_batch.journal.postgres.lost_orders import keep_lost_orders
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.postgres.tables import evidence_in, tables_on
from paygw_batch.journal.values import Entry, Identity, Link, MoveResult
from paygw_batch.language import say

_AT_ONCE = 1_000
_COMMITS_AT_ONCE = 200
_EVIDENCE = "A commit of this attempt's row was lost with the database, and the host that sent it accepted the loss."
_FINAL = (State.PAID, State.RETURNED, State.REPLACED)
_ROWS = """SELECT i.number, EXISTS (SELECT FROM unanswered e WHERE e.instruction = i.number), b.operation
    FROM instruction i JOIN batch b ON b.number = i.batch WHERE i.number = ANY (%s)"""
_INTENTS = "SELECT instruction, attempt, nonce FROM fact WHERE kind = 'intended' AND instruction = ANY (%s)"
_PRESENT = """SELECT u.place
    FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) WITH ORDINALITY u(segment, seq, hash, place)
    JOIN fact f ON f.segment = u.segment AND f.seq = u.seq AND f.hash = u.hash"""
_UNDONE = """SELECT c.number, count(*) FROM chunk c JOIN state s ON s.instruction BETWEEN c.first AND c.last
    WHERE s.state IN ('ready', 'in_flight')
        AND (s.state = 'in_flight' OR NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction))
    GROUP BY 1 ORDER BY 1"""
_READY = f"""SELECT s.instruction, s.attempt + 1, coalesce(s.order_id, i.client_orderid)
    FROM chunk c JOIN state s ON s.instruction BETWEEN c.first AND c.last JOIN instruction i ON i.number = s.instruction
    WHERE c.number = %s AND s.state = 'ready'
        AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)
    ORDER BY 1 LIMIT {_AT_ONCE}"""  # noqa: S608 - constants of ours
"""Rows that evidence holds are excluded: nothing sends them before a person has settled them."""

Attempt = tuple[int, int]
"""An instruction and the number of its attempt."""


@dataclass(frozen=True, slots=True)
class LostIntent:
    """An intent that only this host knows: the time of its commit, and a unique name for that commit."""

    order_id: str
    at: str
    name: str


@dataclass(frozen=True, slots=True)
class Loss:
    """The commits of this host that the database lacks; `is_whole`: the witnesses know all of them."""

    commits: int = 0
    intents: Mapping[Attempt, LostIntent] = field(default_factory=dict)
    unsent: AbstractSet[Attempt] = frozenset()
    is_whole: bool = True


@dataclass(slots=True)
class AcceptedRows:
    """The rows of an accepted loss. The last two are order ids that a person must look for at the gateway."""

    in_doubt: int = 0
    not_sent: int = 0
    unknown_orders: list[str] = field(default_factory=list)
    """Sent, but not in the database: their batch is lost too. The journal keeps them, and holds rows that use them."""
    contradictions: list[str] = field(default_factory=list)
    """Sent from here, but completed in the database by another attempt."""


def find_loss(connection: Connection[Row], directory: Path, journal_id: str, key: bytes) -> Loss:
    """Return the commits that this host's witnesses saw but the database lacks."""
    lost: list[NotedCommit] = []
    is_whole = True
    for path in witness_files(directory, journal_id):
        try:
            seen = read_witness(path)
            newest = None if seen is None else newest_commit(seen)
            if newest is None or has_commit(connection, newest.segment, newest.seq, newest.hash):
                continue
            lost += _lost_of(connection, commits_noted(path, key, newest.log))
        except (WitnessDamaged, LogBroken):
            is_whole = False
    intents: dict[Attempt, LostIntent] = {}
    unsent: set[Attempt] = set()
    for commit in lost:
        for one in commit.noted:
            if one.order_id is None:
                unsent.add((one.instruction, one.attempt))
            else:
                name = f"a lost commit {commit.segment}.{commit.end.seq}"
                intents[one.instruction, one.attempt] = LostIntent(one.order_id, commit.end.at, name)
    return Loss(len(lost), intents, unsent, is_whole)


def _lost_of(connection: Connection[Row], commits: Iterator[NotedCommit]) -> Iterator[NotedCommit]:
    """Yield the commits, newest first, until one that the database has: it then also has all earlier ones.

    Raises `LogBroken` after those that could be read.
    """
    broken: LogBroken | None = None
    while broken is None:
        page: list[NotedCommit] = []
        try:
            page += islice(commits, _COMMITS_AT_ONCE)
        except LogBroken as error:
            broken = error
        if not page:
            break
        ends = [(one.segment, one.end.seq, one.end.hash) for one in page]
        present = {
            place for (place,) in fetch(connection, _PRESENT, [list(column) for column in zip(*ends, strict=True)])
        }
        for place, one in enumerate(page, start=1):
            if place in present:
                return
            yield one
    if broken is not None:
        raise broken


class LossWriter:
    """Writes the lost attempts of this host to the database. It can be interrupted and repeated."""

    def __init__(self, connection: Connection[Row], identity: Identity, writer: ChainWriter, loss: Loss) -> None:
        self._connection, self._identity, self._writer = connection, identity, writer
        self._loss = loss
        self._lost: dict[int, dict[int, LostIntent]] = {}
        for (number, attempt), one in loss.intents.items():
            self._lost.setdefault(number, {})[attempt] = one
        self._has_desk = False
        self._rows = AcceptedRows()

    def write(self, by: str, at: str) -> AcceptedRows:
        """Put the rows in doubt that may have left. Raises `JournalHeld` while another process leases rows."""
        prepare_to_accept(self._connection)
        self._writer.known_unsent = self._loss.unsent
        first = {number: min(one.at for one in lost.values()) for number, lost in self._lost.items()}
        numbers = {number for number, _ in self._loss.unsent} | first.keys()
        # In the order in which they left: times in a chain never decrease, and answers are compared with them.
        in_order = sorted(numbers, key=lambda number: (first.get(number, ""), number))
        for start in range(0, len(in_order), _AT_ONCE):
            self._write_page(in_order[start : start + _AT_ONCE], by, at)
        self._keep_unknown(by, at)
        return self._rows

    def write_guess(self, by: str, at: str) -> AcceptedRows:
        """Put every row that may have left in doubt, because the witness knows only some; keep its knowledge.

        Raises `JournalHeld` as `write` does.
        """
        self._rows.in_doubt = put_undone_in_doubt(self._connection, self._writer, at)
        left = {one.order_id for attempt, one in self._loss.intents.items() if attempt not in self._loss.unsent}
        firsts = {order: first_order_id(order) or order for order in left}
        query = "SELECT order_id FROM order_id WHERE order_id = ANY (%s)"
        known = {order for (order,) in fetch(self._connection, query, (sorted({*left, *firsts.values()}),))}
        self._rows.unknown_orders = sorted(order for order, first in firsts.items() if not {order, first} & known)
        self._keep_unknown(by, at)
        return self._rows

    def _keep_unknown(self, by: str, at: str) -> None:
        """Keep the orders that the database does not know: a new sheet with one of them does not send it."""
        if self._rows.unknown_orders:
            with self._at_desk() as connection:
                tables, orders = tables_on(connection, self._identity), self._rows.unknown_orders
                keep_lost_orders(tables, self._writer.record, orders, by=by, at=at)

    def _write_page(self, page: Sequence[int], by: str, at: str) -> None:
        known = self._written_before(page)
        left = {
            number: [attempt for attempt in self._lost.get(number, ()) if (number, attempt) not in self._loss.unsent]
            for number in page
        }
        newest = {number: max(attempts) for number, attempts in left.items() if attempts}
        self._rows.in_doubt += sum((number, attempt) in known for number, attempt in newest.items())
        waiting = {number: attempt for number, attempt in newest.items() if (number, attempt) not in known}
        self._lease(page)
        self._set_apart(page, waiting)
        while waiting:
            rows = self._read(waiting)
            sent, deeds = [], []
            for number, attempt in list(waiting.items()):
                is_held, _, one = rows[number]
                standing = one.standing
                if standing.state in _FINAL or (standing.state is State.IN_DOUBT and standing.attempt >= attempt):
                    if standing.state in _FINAL:
                        self._rows.contradictions.append(self._lost[number][newest[number]].order_id)
                    else:
                        self._rows.in_doubt += 1
                    del waiting[number]
                elif standing.state is State.READY and not is_held:
                    waiting[number] = max(attempt, standing.attempt + 1)
                    sent += self._attempt(one, waiting[number])
                else:
                    deeds.append((one, self._order_id(one, standing.attempt + 1)))
            self._clear(rows, deeds, by, at)
            self._append(sorted(sent, key=lambda entry: entry.at))

    def _lease(self, numbers: Sequence[int]) -> None:
        """Lease the chunks of rows: those in flight there are in doubt, or not sent, as the witness says."""
        before = {number: one for number, (_, _, one) in self._read(numbers).items()}
        chunks = set(chunks_of(self._connection, before).values())
        if not chunks <= self._writer.lease_chunks(chunks):
            raise JournalHeld(say("Another process still sends rows of this journal."))
        self._rows.not_sent += sum(
            one.standing.state is State.IN_FLIGHT and (number, one.standing.attempt) in self._loss.unsent
            for number, one in before.items()
        )

    def _set_apart(self, page: Sequence[int], waiting: dict[int, int]) -> None:
        """Return, for a person, the orders of rows that the database lacks or has as other rows."""
        rows = self._read(page)
        for number in list(waiting):
            orders = {one.order_id for one in self._lost[number].values()}
            if number in rows and all(order == _first(order, rows[number][2]) for order in orders):
                continue
            self._rows.unknown_orders += sorted(orders)
            del waiting[number]

    def _attempt(self, one: RowStanding, until: int) -> list[Entry]:
        """Return an intent that the database does not know, and its outcome; attempt `until` is in doubt."""
        number, attempt = one.number, one.standing.attempt + 1
        all_lost = self._lost[number]
        lost = all_lost.get(attempt) or all_lost[max(one for one in all_lost if one <= until)]
        intended = Intended(one.order_id, lost.name, 0, None)
        is_unsent = (number, attempt) in self._loss.unsent
        end = Concluded(Outcome(OutcomeKind.NOT_SENT, "run.stopped")) if is_unsent else Interrupted()
        return [Entry(number, attempt, intended, lost.at), Entry(number, attempt, end, lost.at)]

    def _order_id(self, one: RowStanding, attempt: int) -> str:
        lost = self._loss.intents.get((one.number, attempt))
        return one.order_id if lost is None else lost.order_id

    def _clear(
        self,
        rows: Mapping[int, tuple[bool, str, RowStanding]],
        deeds: Iterable[tuple[RowStanding, str]],
        by: str,
        at: str,
    ) -> None:
        """Write the decisions again without which a later attempt could not have left: they are lost too."""
        settled, released = [], []
        for one, order_id in deeds:
            number, standing = one.number, one.standing
            is_same = order_id == one.order_id
            if standing.state is State.READY or (standing.state is State.IN_DOUBT and is_same):
                fact = Resolved(Resolution.NOT_RECEIVED, _EVIDENCE, by, Basis.PERSON)
                settled.append(Entry(number, standing.attempt, fact, at))
                continue
            if standing.state is not State.REJECTED:
                fact = Resolved(Resolution.REJECTED, _EVIDENCE, by, Basis.PERSON)
                settled.append(Entry(number, standing.attempt, fact, at))
            released.append((rows[number][1], Entry(number, standing.attempt, Released(order_id, by), at)))
        if not settled and not released:
            return
        with self._at_desk() as connection:
            evidence_in(connection, self._identity).settle(settled, self._writer.record)
            for operation, entry in released:
                assert isinstance(entry.fact, Released)  # noqa: S101 - made above
                line = (operation, entry.fact.order_id, entry.instruction, spelled_alike(entry.fact.order_id))
                fetch(connection, "INSERT INTO order_id VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", line)
            self._writer.record([entry for _, entry in released])

    def _at_desk(self) -> AbstractContextManager[Connection[Row]]:
        if not self._has_desk:
            self._writer.take_desk()
            self._has_desk = True
        return self._writer.at_desk()

    def _append(self, entries: Sequence[Entry]) -> None:
        if MoveResult.NOT_MOVED in self._writer.append(entries):
            raise InternalError("a lost attempt does not follow from what the database says of its row")

    def _read(self, numbers: Iterable[int]) -> dict[int, tuple[bool, str, RowStanding]]:
        about = {number: line for number, *line in fetch(self._connection, _ROWS, (list(numbers),))}
        lines = tables_on(self._connection, self._identity).run("standings", numbers=list(about)) if about else []
        return {line[0]: (*about[line[0]], row_standing(line)) for line in lines}

    def _written_before(self, page: Sequence[int]) -> set[Attempt]:
        """Return the lost attempts already written by an interrupted command."""
        found = fetch(self._connection, _INTENTS, (list(page),))
        return {
            (number, attempt)
            for number, attempt, nonce in found
            if (lost := self._loss.intents.get((number, attempt))) is not None and nonce == lost.name
        }


def _first(order_id: str, one: RowStanding) -> str | None:
    """Return an order id if it belongs to the row; None if it belongs to another."""
    return order_id if one.client_orderid in {order_id, first_order_id(order_id)} else None


class NoWitness:
    """Replaces the witness of a command that accepts a loss: it sends nothing, and does not touch the witness."""

    def note(self, segment: int, end: Link, noted: Sequence[Noted] = ()) -> None:
        """Note nothing."""

    def close(self) -> None:
        """Do nothing."""


def put_undone_in_doubt(connection: Connection[Row], writer: ChainWriter, at: str) -> int:
    """Put every row that is ready or in flight in doubt, and return their number. It can be repeated after a crash.

    Raises `JournalHeld` while another process has rows leased.
    """
    prepare_to_accept(connection)
    rows = 0
    for chunk, undone in fetch(connection, _UNDONE):
        if chunk not in writer.lease_chunks([chunk]):  # puts in doubt what is in flight there
            raise JournalHeld(say("Another process still sends rows of this journal."))
        while found := fetch(connection, _READY, (chunk,)):
            entries = []
            for number, attempt, order_id in found:
                fact = Intended(order_id, "a retired host", 0, None)
                entries += [Entry(number, attempt, fact, at), Entry(number, attempt, Interrupted(), at)]
            writer.append(entries)
        rows += undone
    return rows


def prepare_to_accept(connection: Connection[Row]) -> None:
    """Let this session write intents although the roll-call is open and a breaker stopped every worker.

    They are not sent, and no one else gets a lease before the roll-call is complete. The stop stays in force.
    """
    fetch(connection, "SET paygw.retires = 'on'")


def write_retired(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who retired a host: the roll-call no longer waits for it."""
    fetch(connection, "SELECT retire_host(%s, %s)", (host_id, by))


def write_accepted(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who accepted the loss of a host: this counts as its answer to the roll-call."""
    fetch(connection, "SELECT accept_loss(%s, %s)", (host_id, by))
