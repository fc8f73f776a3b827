"""Planted bugs: mistakes that someone could make, switched on in a simulated world only. Each must be found.

Where a bug is one of the program, a part of the program itself is replaced for as long as the world lasts.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from paygw_batch.approval import order, signed_document
from paygw_batch.approval import plan_document as approval
from paygw_batch.approval.approval_keys import Person
from paygw_batch.approval.order import Order
from paygw_batch.approval.plan_document import Approved, Content, PlanDocument
from paygw_batch.approval.signed_document import Approval, ApprovalPolicy, SignedDocument
from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import Concluded, Intended, Resolution
from paygw_batch.core.outcome import GoOn, Outcome, OutcomeKind, TryAgain, Verdict
from paygw_batch.engine import quarantine as quarantine_clock
from paygw_batch.engine.engine import Engine
from paygw_batch.engine.pacing import LocalPacing
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.errors import JournalHeld, JournalUnwritable
from paygw_batch.gateway.message import (
    Attempt,
    Expected,
    FaultKind,
    MayLeave,
    PreparedRequest,
    RawReply,
    TransportFault,
)
from paygw_batch.journal import journal as journal_of_all
from paygw_batch.journal.evidence import EvidenceLog, EvidenceQueries
from paygw_batch.journal.new_batch import BatchPart, InstructionRows, NewInstructions
from paygw_batch.journal.sqlite import sqlite_journal, sqlite_tables
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Due, Entry, Known, Link, MoveResult, NewInstruction, RowState, UsedSpelling
from paygw_batch.settle import match_statement, resolve, row_order
from paygw_batch.settle.match_statement import StatementReader
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.statement import StatementLine, StatementProof
from paygw_batch.show import batch_status
from paygw_batch.submit import approvals
from paygw_batch.submit import plan as submit
from paygw_batch.submit import submission as plan_document
from paygw_batch.submit.changes import CHANGED_ACCOUNT, Change, _Past, _Sheet
from tests.promise.simulation import corrections
from tests.promise.simulation.forging import ForgingWorld
from tests.promise.simulation.gateway import SimGateway
from tests.promise.simulation.process import Process, prepare
from tests.promise.simulation.world import SimWorld

Answer = RawReply | TransportFault


RUNS, FORGED, CORRECTED = "runs", "approvals", "corrections"
"""The kinds of worlds: runs and what befalls them; plans that a maker forges; sheets that a maker corrects."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: how it is switched on, and the invariants any of which finds it."""

    plant: Callable[[Any], None]
    found_by: frozenset[str]
    from_seed: int = 0
    """The seed that is played first with the other tests: where a bug is rare, little before one that finds it."""
    kind: str = RUNS
    """The kind of the worlds in which it is looked for."""


def patched(owner: object, name: str, value: object) -> Callable[[SimWorld], None]:
    """Return the plant that replaces a part of the program."""
    return lambda world: world.patch(owner, name, value)


# The journal.

_DUE, _NOT_HELD = sqlite_tables.QUERIES["due"], "NOT EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = i.number)"
if _NOT_HELD not in _DUE:
    raise LookupError(f"the program has no {_NOT_HELD!r} any more: nothing would be planted")
HELD_ROWS_ARE_DUE = {**sqlite_tables.QUERIES, "due": _DUE.replace(_NOT_HELD, "1")}


class IntentsLate(SqliteJournal):
    """Keeps intents back until their outcome is there."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        back = self.__dict__.setdefault("_back", {})
        for entry in entries:
            if isinstance(entry.fact, Intended):
                back[entry.instruction] = entry
        now = [entry for entry in entries if not isinstance(entry.fact, Intended)]
        intents = [back.pop(entry.instruction) for entry in now if entry.instruction in back]
        if now:
            super().append([*intents, *now])
        return [MoveResult.MOVED] * len(entries)


def nothing_is_held(journal: SqliteJournal, entries: Sequence[Entry]) -> Mapping[int, MoveResult]:
    """Evidence that came in since a row was read does not keep it from being sent."""
    return {place: result for place, result in _refused(journal, entries).items() if result is not MoveResult.HELD}


_refused = SqliteJournal._refused


class SendsInFlightAgain(SqliteJournal):
    """Takes what was in flight at a crash for unsent."""

    def mark_interrupted(self, at: str) -> int:
        found = fetch(self._connection, "SELECT instruction, attempt FROM state WHERE state = 'in_flight'")
        self.append([Entry(number, attempt, Concluded(Outcome(OutcomeKind.NOT_SENT)), at) for number, attempt in found])
        return len(found)


class InterruptsTheFirst(SqliteJournal):
    """Puts one row in doubt after a crash, and takes the others for unsent."""

    def mark_interrupted(self, at: str) -> int:
        count = super().mark_interrupted(at)
        if count > 1:
            self._connection.execute(
                """UPDATE state SET state = 'ready' WHERE state = 'in_doubt'
                AND fact IN (SELECT number FROM fact WHERE kind = 'interrupted')
                AND instruction > (SELECT min(instruction) FROM state WHERE state = 'in_doubt')"""
            )
        return count


class Overwrites(SqliteJournal):
    """Writes evidence wherever the row is."""

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> Sequence[Finding]:
        findings = super().record_evidence(evidence, words, at=at)
        with self._writing():
            for one, finding in zip(evidence, findings, strict=False):
                if finding in {Finding.CONTRADICTING, Finding.AMBIGUOUS, Finding.SUPERSEDED, Finding.LATE}:
                    self._connection.execute(
                        """UPDATE state SET state = ? WHERE state IN ('paid', 'rejected')
                        AND instruction IN (SELECT instruction FROM order_id WHERE order_id = ?)""",
                        (words[one.claim.status or ""].value, one.claim.order_id),
                    )
        return findings


class WritesOn(SqliteJournal):
    """Swallows the failure of a write and goes on."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        try:
            return super().append(entries)
        except JournalUnwritable:
            return [MoveResult.MOVED] * len(entries)

    def can_write(self) -> bool:
        return True


class SkipsARow(SqliteJournal):
    """Never comes to the last row of a sheet."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        last = max((one.row for one in self.rows(batch)), default=0)
        return [one for one in super().due(batch, after_row=after_row, limit=limit) if one.row < last]


class FloatAmounts(SqliteJournal):
    """Counts money in floats."""

    def open_batch(self, batch: Any, *, parts: Iterable[BatchPart], **rest: Any) -> Any:
        floats = (replace(part, instructions=self._in_floats(part.instructions)) for part in parts)
        return super().open_batch(batch, parts=floats, **rest)

    def _in_floats(self, instructions: NewInstructions) -> InstructionRows:
        news = map(NewInstruction._make, instructions)
        return InstructionRows(one._replace(minor=int(float(one.amount) * 100)) for one in news)


class ReleasesUnderAnUsedId(SqliteJournal):
    """Gives every further attempt the order id of the first, whatever was asked."""

    def release(self, batch: int, rows: Sequence[int] | None, *, suffix: bool, **rest: Any) -> int:
        del suffix
        return super().release(batch, rows, suffix=False, **rest)


class SpellingsAreOther(SqliteJournal):
    """Takes another spelling of an order id for another id."""

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        del operation, rows
        return []


class ChangesAreKnown(SqliteJournal):
    """Takes a row whose content changed for one that it knows."""

    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Any]]:
        known, clashes = super().compare(operation, rows)
        return [*known, *(Known(clash.row, clash.instruction, clash.state) for clash in clashes)], []


class NotesOnce(SqliteJournal):
    """Notes what left by its first commit alone."""

    def _note(self, end: Link) -> None:
        if self.__dict__.setdefault("_told", 0) < 1:
            super()._note(end)
        self.__dict__["_told"] += 1


class NotesTooSoon(SqliteJournal):
    """Notes facts before they are committed."""

    def _commit(self) -> None:
        self._note(self._end)
        super()._commit()


class ForgetsWhereItWas(SqliteJournal):
    """Rolls a failed write back, and goes on as if nothing had been."""

    def _give_up(self, reason: str) -> JournalUnwritable:
        return JournalUnwritable(reason)

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        try:
            return super().append(entries)
        except JournalUnwritable:
            return super().append(entries)


class GoesOnAfterASingleFact(SqliteJournal):
    """Takes a failed commit for final only where it had several facts: a single one is tried once more."""

    _is_single = False

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        self._is_single = len(entries) == 1
        try:
            return super().append(entries)
        except JournalUnwritable:
            if not self._is_single:
                raise
            return super().append(entries)
        finally:
            self._is_single = False

    def _give_up(self, reason: str) -> JournalUnwritable:
        return JournalUnwritable(reason) if self._is_single else super()._give_up(reason)


def journal(kind: type[SqliteJournal]) -> Callable[[SimWorld], None]:
    def plant(world: SimWorld) -> None:
        world.journal_type = kind

    return plant


# Notifications.


Arrivals = list[tuple[int, str]]


def _reading(look: Callable[[Arrivals], Arrivals]) -> Callable[[SimWorld], None]:
    arrivals = EvidenceQueries.arrivals
    return patched(EvidenceQueries, "arrivals", lambda self, limit: look(arrivals(self, limit)))


def first_is_skipped(found: Arrivals) -> Arrivals:
    return found[1:] if len(found) > 1 else found


def last_alone(found: Arrivals) -> Arrivals:
    return found[-1:]


# People's words: statements, settlements, approvals.


def from_the_first_attempt(standing: RowState, quarantine: Quarantine, _: object = None) -> datetime | None:
    """The quarantine counted from the first attempt instead of the latest."""
    return None if standing.first_sent_at is None else quarantine.opens(standing.first_sent_at)


def no_quarantine(*_: object) -> None:
    """No quarantine at all."""


def rejected_leaves_at_once(world: SimWorld) -> None:
    """A row that a person called rejected is released before its quarantine is over."""
    world.patch(journal_of_all, "is_in_quarantine", lambda *_: False)
    world.patch(resolve, "quarantined", lambda *_, **__: {})


def every_answer_settles(self: StatementReader, line: StatementLine) -> Resolution | None:
    """A statement's word that means accepted is taken for rejected: the gateway "has not paid it"."""
    meaning = self._words.get(line.status or "")
    return Resolution.PAID if meaning is OutcomeKind.PAID else Resolution.REJECTED


def earlier_lines_settle(self: StatementReader, order_ids: Mapping[str, int]) -> Any:
    """A line is held against the row's own id, whatever its latest attempt was sent under."""
    named, doubtful = _rows(self, order_ids)
    rows = self._journal.rows(self._batch.number)
    return {**{row.client_orderid: row for row in rows if row.client_orderid in order_ids}, **named}, doubtful


_rows = StatementReader._rows


def nothing_is_contrary(self: StatementReader, read: object) -> Mapping[str, StatementLine]:
    """A statement that has what the journal would send holds nothing."""
    del self, read
    return {}


def never_old(one: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime) -> Any:
    """An approval never grows old."""
    return _behind(one, document, maker, replace(policy, expires_h=1e6), now)


_behind = signed_document._approver_of
_approve, _check = signed_document.approve, approval.check_plan


_NOBODY = Person("nobody", (), ())


def maker_approves(world: SimWorld) -> None:
    """The maker may approve her own plan, and that is counted."""
    from tests.promise.simulation import approvals as simulated  # noqa: PLC0415 (it is this world's to change)

    def approve(document: PlanDocument, key: Any, policy: ApprovalPolicy, now: datetime) -> PlanDocument:
        if key.public.text != document.maker:
            return _approve(document, key, policy, now)
        at = timestamp(now)
        own = Approval(key=key.public.text, approved_at=at, signature=key.sign(document.approval_text(key.public, at)))
        return document.model_copy(update={"approvals": [*document.approvals, own]})

    def behind(
        one: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime
    ) -> Person | str:
        is_own = one.key in {key.text for key in maker.keys}
        return _behind(one, document, _NOBODY if is_own else maker, policy, now)

    world.patch(simulated, "approve", approve)
    world.patch(signed_document, "_approver_of", behind)


def whatever_content(
    document: PlanDocument, content: Content, policy: ApprovalPolicy, now: datetime, *, used: Any
) -> Approved:
    """A plan is asked for its approvals, and not for what it is about."""
    del content
    return _check(document, document.content, policy, now, used=used)


def other_content(world: SimWorld) -> None:
    from tests.promise.simulation import approvals as simulated  # noqa: PLC0415 (it is this world's to change)

    world.patch(simulated, "check_plan", whatever_content)


def one_is_enough(world: SimWorld) -> None:
    """One approval is enough, however many are asked for."""
    from tests.promise.simulation import approvals as simulated  # noqa: PLC0415 (it is this world's to change)

    def check(
        document: PlanDocument, content: Content, policy: ApprovalPolicy, now: datetime, *, used: Any
    ) -> Approved:
        return _check(document, content, replace(policy, needed=1), now, used=used)

    world.patch(simulated, "check_plan", check)


_AGREED = order.agreed


def agreed_by_the_first(
    order: Order, journal: Any, policy: ApprovalPolicy, now: datetime, *, by: str
) -> tuple[str, SignedOrder]:
    """An order to forget people needs one approval, however many are asked for."""
    return _AGREED(order, journal, replace(policy, needed=1), now, by=by)


# The disk and the lock.


def synchronous_off(world: SimWorld) -> None:
    world.disk.synchronous = False


def synchronous_normal(world: SimWorld) -> None:
    disk, stored = world.disk, world.disk.stored
    disk.synchronous = False

    def now_and_then(connection: Any) -> None:
        stored(connection)
        if disk.commits % 20 == 0:
            disk.sync()

    disk.stored = now_and_then  # type: ignore[method-assign]


def what_left_not_read(world: SimWorld) -> None:
    world.disk.heeds_what_left = False


def unknown_journal_taken(world: SimWorld) -> None:
    world.disk.asks_whether_known = False


def select_then_update(world: SimWorld) -> None:
    async def take(process: Process) -> None:
        if world.disk.holders:
            raise JournalHeld
        await asyncio.sleep(0.001)
        world.disk.holders.add(process)

    world.disk.take_lock = take  # type: ignore[method-assign]


def claim_lapses(world: SimWorld) -> None:
    taken_at_s: dict[Process, float] = {}

    async def take(process: Process) -> None:
        now_s = world.clock.now_s
        if any(now_s - taken_at_s[holder] < 300 for holder in world.disk.holders):
            raise JournalHeld
        taken_at_s[process] = now_s
        world.disk.holders.add(process)

    world.disk.take_lock = take  # type: ignore[method-assign]


def released_while_alive(world: SimWorld) -> None:
    take_lock = world.disk.take_lock

    async def take(process: Process) -> None:
        await take_lock(process)
        process.loop.call_later(0.3, world.disk.holders.discard, process)

    world.disk.take_lock = take  # type: ignore[method-assign]


# What a reply means.


def judged(look: Callable[[Answer, Verdict], Verdict]) -> Callable[[SimWorld], None]:
    """Return the plant that changes the verdict on what came back."""

    def plant(world: SimWorld) -> None:
        classify = world.classify
        world.classify = lambda answer, expected: look(answer, classify(answer, expected))

    return plant


def again_on(kind: FaultKind) -> Callable[[Answer, Verdict], Verdict]:
    def look(answer: Answer, verdict: Verdict) -> Verdict:
        if isinstance(answer, TransportFault) and answer.kind is kind:
            return Verdict(Outcome(OutcomeKind.NOT_SENT, kind.value), TryAgain())
        return verdict

    return look


def rejected_by_500(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and answer.http_status >= 500:
        return Verdict(Outcome(OutcomeKind.REJECTED))
    return verdict


def redirect_followed(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and 300 <= answer.http_status < 400:
        return Verdict(Outcome(OutcomeKind.NOT_SENT), TryAgain())
    return verdict


def echo_not_compared(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and verdict.outcome.conflict:
        return Verdict(Outcome(OutcomeKind.REJECTED), GoOn())
    return verdict


def last_of_two_keys(world: SimWorld) -> None:
    classify = world.classify

    def look(answer: Answer, expected: Expected) -> Verdict:
        if isinstance(answer, RawReply) and answer.body.startswith(b"{") and answer.body.endswith(b"}"):
            answer = replace(answer, body=json.dumps(json.loads(answer.body)).encode())
        return classify(answer, expected)

    world.classify = look


# The engine, and what it tells.


class DeafBreaker(Engine):
    """Never stops by itself for rows in doubt."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts, pacing=LocalPacing(replace(parts["pace"], stop_after_in_doubt=0)))


class NoPlaces(LocalPacing):
    """Has a place in flight for every row."""

    def has_place(self, in_flight: int) -> bool:
        return in_flight >= 0


class WideOpen(Engine):
    """Knows no limit of requests in flight."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts, pacing=NoPlaces(parts["pace"]))


def engine(kind: type[Engine]) -> Callable[[SimWorld], None]:
    def plant(world: SimWorld) -> None:
        world.engine_type = kind

    return plant


class NoTimeout(SimGateway):
    """Waits for ever where the gateway is silent."""

    async def deliver(self, request: PreparedRequest, may_leave: MayLeave) -> RawReply | TransportFault:
        answer = await super().deliver(request, may_leave)
        if isinstance(answer, TransportFault) and answer.kind is FaultKind.READ_TIMEOUT:
            await asyncio.Event().wait()
        return answer


def no_timeout(world: SimWorld) -> None:
    world.gateway_type = NoTimeout


def rounded_on_the_wire(world: SimWorld) -> None:
    def rounded(attempt: Attempt) -> PreparedRequest:
        request = prepare(attempt)
        return replace(request, expected=replace(request.expected, amount=Decimal(round(request.expected.amount))))

    world.prepare = rounded


_record_evidence = SqliteJournal.record_evidence


def _without_a_trace(self: SqliteJournal, *args: Any, **named: Any) -> Sequence[Finding]:
    findings = _record_evidence(self, *args, **named)
    self._took_in = False
    return findings


# Plans that a maker forges.


def people_not_compared(world: ForgingWorld) -> None:
    """The list of people in a plan is not compared with the one that its sheet has."""

    def check(document: PlanDocument, content: Content) -> None:
        theirs = {"people_sha256": document.content.people_sha256}
        return _same_content(document, content.model_copy(update=theirs))

    world.patch(approval, "require_same_content", check)


def code_without_findings(document: PlanDocument) -> str:
    """The code of a plan covers its content alone."""
    return approval.payments_sha256(document.content)[:16]


def withdrawal_not_heeded(world: ForgingWorld) -> None:
    """Neither the program nor the journal asks whether a plan was withdrawn."""
    world.patch(approvals, "require_not_withdrawn", lambda *_: None)
    world.patch(EvidenceLog, "require_in_force", lambda *_: None)


def newest_batch_compared(past: _Past, candidates: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Each person is compared with the newest batch that paid any, whoever approved it."""
    del past
    return candidates.group_by(keys).agg(latest=pl.col("batch").max(), alike=pl.col("batch").max())


def beside_its_new_amount(self: _Sheet, code: str, *given: Any) -> Change:
    """A changed account is shown beside the amount that it gets now, not the one that its owner got."""
    made = _change(self, code, *given)
    return replace(made, before=replace(made.before, amount=made.amount)) if code == CHANGED_ACCOUNT else made


def approvals_of_another_plan(world: ForgingWorld) -> None:
    """What an approver signs names no plan."""

    def text(self: SignedDocument, key: Any, approved_at: str) -> bytes:
        return f"{self.document} approval {key.text} {approved_at}".encode()

    world.patch(SignedDocument, "approval_text", text)


def second_key_approves(world: ForgingWorld) -> None:
    """A maker is her first key: with another one she may approve."""

    def behind(
        one: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime
    ) -> Person | str:
        return _behind(one, document, maker if one.key == document.maker else _NOBODY, policy, now)

    world.patch(signed_document, "_approver_of", behind)


def nothing_asked(*_: object, **__: object) -> None:
    """Ask for nothing."""


_same_content = approval.require_same_content
_change = _Sheet._change


def bug(plant: Callable[[Any], None], *found_by: str, from_seed: int = 0, kind: str = RUNS) -> Bug:
    return Bug(plant, frozenset(found_by), from_seed, kind)


BUGS: Mapping[str, Bug] = {
    "intent after send": bug(journal(IntentsLate), "I1", "I2"),
    "synchronous NORMAL": bug(synchronous_normal, "I1", "I2"),
    "synchronous OFF": bug(synchronous_off, "I1", "I2"),
    "resume sends in-flight rows again": bug(journal(SendsInFlightAgain), "I1", "I5", from_seed=22),
    "evidence that comes late holds nothing": bug(patched(SqliteJournal, "_refused", nothing_is_held), "I1"),
    "what came into the journal during a run is not asked for": bug(
        patched(SqliteJournal, "record_evidence", _without_a_trace), "I1"
    ),
    "held rows are due": bug(patched(sqlite_tables, "QUERIES", HELD_ROWS_ARE_DUE), "I1", "error"),
    "rows in flight at a crash: the first alone is in doubt": bug(
        journal(InterruptsTheFirst), "I1", "I5", "I11", "error", from_seed=22
    ),
    "a failed write is tried once more": bug(journal(ForgetsWhereItWas), "I2", "error", from_seed=17),
    "a failed commit of a single fact is not final": bug(journal(GoesOnAfterASingleFact), "I2", "error", from_seed=17),
    "a request leaves whenever it is ready": bug(patched(Engine, "_may_leave", lambda *_: True), "I2", from_seed=3),
    "what left is noted once": bug(journal(NotesOnce), "I10", from_seed=750),
    "what left is noted before the commit": bug(journal(NotesTooSoon), "I3", "I10", "I11", "error"),
    "the first notification of several is skipped": bug(_reading(first_is_skipped), "I11", "I1", "error", from_seed=23),
    "the last notification alone is taken in": bug(_reading(last_alone), "I11", "I1", "error", from_seed=23),
    "the quarantine is counted from the first attempt": bug(
        patched(resolve, "open_from", from_the_first_attempt), "I1", from_seed=571
    ),
    "no quarantine": bug(patched(resolve, "quarantine_sentence", no_quarantine), "I1", "I5", from_seed=16),
    "a clock that is behind is believed": bug(
        patched(quarantine_clock, "_behind_s", lambda _: 0), "I1", "I5", from_seed=1_241
    ),
    "a row called rejected may leave at once": bug(rejected_leaves_at_once, "I1", from_seed=44),
    "a statement's line settles whichever attempt": bug(
        patched(match_statement, "other_attempt_sentence", lambda *_, **__: None), "I1", "I5", "I3", from_seed=5_435
    ),
    "spellings are not compared": bug(journal(SpellingsAreOther), "I1", "I7"),
    "a sheet that repeats a batch is opened": bug(
        patched(submit, "_repeat", lambda *_, **__: None), "I1", from_seed=31
    ),
    "a journal that nobody knows is taken": bug(unknown_journal_taken, "I10"),
    "a typed file passes for the gateway's word": bug(
        patched(StatementProof, "is_proven", property(lambda _: True)), "I1", from_seed=44
    ),
    "an order's basis is believed": bug(patched(RowOrder, "require_said_by", no_quarantine), "I1", from_seed=200),
    "an order is carried out whatever it says of its rows": bug(
        patched(row_order, "require_true", nothing_asked), "I17", from_seed=123
    ),
    "a statement's accepted is taken for rejected": bug(
        patched(StatementReader, "_said", every_answer_settles), "I5", "I1", from_seed=494
    ),
    "a statement settles rows by their first order id": bug(
        patched(StatementReader, "_rows", earlier_lines_settle), "I1", "I5", "error", from_seed=420
    ),
    "a statement holds nothing": bug(patched(StatementReader, "_contrary", nothing_is_contrary), "I1"),
    "the maker's own approval is counted": bug(maker_approves, "I12"),
    "an approval never grows old": bug(patched(signed_document, "_approver_of", never_old), "I12", from_seed=53),
    "a plan of other content is taken": bug(other_content, "I12", from_seed=38),
    "one approval is enough": bug(one_is_enough, "I12"),
    "retry on read time-out": bug(judged(again_on(FaultKind.READ_TIMEOUT)), "I1", "I5"),
    "retry on server disconnected": bug(judged(again_on(FaultKind.CONNECTION_LOST)), "I1", "I5", from_seed=7),
    "5xx taken for rejected": bug(judged(rejected_by_500), "I5", "I1"),
    "redirects followed": bug(judged(redirect_followed), "I1", "I5"),
    "echo of another order taken for ours": bug(judged(echo_not_compared), "I5"),
    "the last of two equal JSON keys": bug(last_of_two_keys, "I5", "I9", "I1", from_seed=20),
    "claim by select, then update": bug(select_then_update, "I6"),
    "a claim that lapses": bug(claim_lapses, "I6", from_seed=36),
    "release while the owner lives": bug(released_while_alive, "I6"),
    "outcome without compare-and-set": bug(journal(Overwrites), "I11", "I5", "error", from_seed=7),
    "people are forgotten before all is over": bug(
        patched(journal_of_all.JournalReader, "_is_over", lambda *_: True), "I18", "I3", "I1", "error", from_seed=14
    ),
    "the index of forgotten payees is not made again": bug(
        patched(sqlite_journal, "index_again", lambda _: None), "I18", "error"
    ),
    "an order to forget counts without its approvals": bug(
        patched(order, "agreed", agreed_by_the_first), "I12", from_seed=158
    ),
    "float amounts": bug(journal(FloatAmounts), "I4", "error", from_seed=7),
    "the last row never comes up": bug(journal(SkipsARow), "I3"),
    "a changed row taken for known": bug(journal(ChangesAreKnown), "I7", "I1", "error"),
    "a journal that goes on after a failed write": bug(journal(WritesOn), "I2", from_seed=110),
    "a breaker that never trips": bug(engine(DeafBreaker), "I9", from_seed=56),
    "a window without a limit": bug(engine(WideOpen), "I9"),
    "what left is not read": bug(what_left_not_read, "I10"),
    "an amount rounded on the wire": bug(rounded_on_the_wire, "I12"),
    "no read time-out": bug(no_timeout, "I14"),
    "exit code always 0": bug(patched(batch_status, "of_states", lambda *_, **__: 0), "I16"),
    "findings are not made again at submit": bug(
        patched(plan_document, "check_findings", lambda *_, **__: None), "I17", from_seed=36, kind=FORGED
    ),
    "the people of a plan are not compared": bug(people_not_compared, "I17", from_seed=116, kind=FORGED),
    "the code of a plan does not cover its findings": bug(
        patched(approval, "payout_code", code_without_findings), "I17", from_seed=295, kind=FORGED
    ),
    "a withdrawal is not heeded": bug(withdrawal_not_heeded, "I17", kind=FORGED),
    "people are compared with the newest batch": bug(
        patched(_Past, "references", newest_batch_compared), "I17", from_seed=199, kind=FORGED
    ),
    "a changed account is shown beside its new amount": bug(
        patched(_Sheet, "_change", beside_its_new_amount), "I17", kind=FORGED
    ),
    "approvals of another plan count": bug(approvals_of_another_plan, "I17", from_seed=100, kind=FORGED),
    "the maker approves with a second key": bug(second_key_approves, "I17", kind=FORGED),
    "order ids of whole rows": bug(corrections.whole_rows_are_keys, "I1", kind=CORRECTED),
    "a used reference is not asked about": bug(corrections.references_are_not_asked_about, "I1", kind=CORRECTED),
    "a payee on several rows is not asked about": bug(corrections.repeats_are_not_asked_about, "I1", kind=CORRECTED),
    "an id that a spreadsheet rewrote is another": bug(corrections.rewritten_ids_are_others, "I1", kind=CORRECTED),
}
