"""Planted bugs: plausible mistakes, switched on only in a scenario. Each must be found.

For a bug of the program, a part of the program itself is replaced during the scenario. `BUGS` says what each does.
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
from paygw_batch.approval.plan_document import PlanApproval, PlanContent, PlanDocument
from paygw_batch.approval.signed_document import Approval, ApprovalPolicy, SignedDocument
from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import Concluded, Intended, Resolution
from paygw_batch.core.outcome import ContinueRun, Outcome, OutcomeKind, RetrySoon, Verdict
from paygw_batch.engine import quarantine as quarantine_clock
from paygw_batch.engine.engine import Engine
from paygw_batch.engine.pacing import LocalPacing
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.errors import JournalHeld, JournalUnwritable
from paygw_batch.gateway.message import (
    Attempt,
    ExpectedReply,
    FaultKind,
    PreparedRequest,
    RawReply,
    SendGuard,
    TransportFault,
)
from paygw_batch.journal import journal as journal_of_all
from paygw_batch.journal.evidence import EvidenceLog, EvidenceQueries
from paygw_batch.journal.new_batch import BatchPart, InstructionRows, NewInstructions
from paygw_batch.journal.sqlite import sqlite_journal, sqlite_tables
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import DueRow, Entry, KnownRow, Link, MoveResult, NewInstruction, RowState, UsedSpelling
from paygw_batch.settle import match_statement, resolve, row_order
from paygw_batch.settle.match_statement import StatementMatcher
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.statement import StatementLine, StatementProof
from paygw_batch.show import batch_status
from paygw_batch.submit import approvals
from paygw_batch.submit import plan as submit
from paygw_batch.submit import submission as plan_document
from paygw_batch.submit.changes import CHANGED_ACCOUNT, Change, _ChangeFinder, _PastPayments
from tests.promise.simulation import corrections
from tests.promise.simulation.forging import ForgeryScenario
from tests.promise.simulation.gateway import SimGateway
from tests.promise.simulation.process import Process, prepare
from tests.promise.simulation.scenario import Scenario

Answer = RawReply | TransportFault


RUNS, FORGED, CORRECTED = "runs", "approvals", "corrections"
"""The kinds of scenarios: runs with mishaps, plans that a maker forges, sheets that a maker corrects."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: how to switch it on, and the invariants that may find it."""

    plant: Callable[[Any], None]
    found_by: frozenset[str]
    from_seed: int = 0
    """The first seed to play in tests: for a rare bug, shortly before one that finds it."""
    kind: str = RUNS
    """The kind of the scenarios in which it is searched."""


def patch_part(owner: object, name: str, value: object) -> Callable[[Scenario], None]:
    return lambda scenario: scenario.patch(owner, name, value)


# The journal.

_DUE, _NOT_HELD = sqlite_tables.QUERIES["due"], "NOT EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = i.number)"
if _NOT_HELD not in _DUE:
    raise LookupError(f"the program has no {_NOT_HELD!r} any more: nothing would be planted")
HELD_ROWS_ARE_DUE = {**sqlite_tables.QUERIES, "due": _DUE.replace(_NOT_HELD, "1")}


class LateIntentJournal(SqliteJournal):
    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        held_back = self.__dict__.setdefault("_back", {})
        for entry in entries:
            if isinstance(entry.fact, Intended):
                held_back[entry.instruction] = entry
        now = [entry for entry in entries if not isinstance(entry.fact, Intended)]
        intents = [held_back.pop(entry.instruction) for entry in now if entry.instruction in held_back]
        if now:
            super().append([*intents, *now])
        return [MoveResult.MOVED] * len(entries)


def ignore_holds(journal: SqliteJournal, entries: Sequence[Entry]) -> Mapping[int, MoveResult]:
    return {
        place: result for place, result in _refused_intents(journal, entries).items() if result is not MoveResult.HELD
    }


_refused_intents = SqliteJournal._refused_intents


class ResendingJournal(SqliteJournal):
    def mark_interrupted(self, at: str) -> int:
        items = fetch(self._connection, "SELECT instruction, attempt FROM state WHERE state = 'in_flight'")
        self.append([Entry(number, attempt, Concluded(Outcome(OutcomeKind.NOT_SENT)), at) for number, attempt in items])
        return len(items)


class PartlyInterruptingJournal(SqliteJournal):
    def mark_interrupted(self, at: str) -> int:
        count = super().mark_interrupted(at)
        if count > 1:
            self._connection.execute(
                """UPDATE state SET state = 'ready' WHERE state = 'in_doubt'
                AND fact IN (SELECT number FROM fact WHERE kind = 'interrupted')
                AND instruction > (SELECT min(instruction) FROM state WHERE state = 'in_doubt')"""
            )
        return count


class OverwritingJournal(SqliteJournal):
    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> Sequence[Finding]:
        findings = super().record_evidence(evidence, words, at=at)
        with self._write_transaction():
            for item, finding in zip(evidence, findings, strict=False):
                if finding in {Finding.CONTRADICTING, Finding.AMBIGUOUS, Finding.SUPERSEDED, Finding.LATE}:
                    self._connection.execute(
                        """UPDATE state SET state = ? WHERE state IN ('paid', 'rejected')
                        AND instruction IN (SELECT instruction FROM order_id WHERE order_id = ?)""",
                        (words[item.claim.status or ""].value, item.claim.order_id),
                    )
        return findings


class FailureIgnoringJournal(SqliteJournal):
    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        try:
            return super().append(entries)
        except JournalUnwritable:
            return [MoveResult.MOVED] * len(entries)

    def can_write(self) -> bool:
        return True


class RowSkippingJournal(SqliteJournal):
    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[DueRow]:
        last = max((row.row for row in self.rows(batch)), default=0)
        return [due_row for due_row in super().due(batch, after_row=after_row, limit=limit) if due_row.row < last]


class FloatJournal(SqliteJournal):
    def open_batch(self, batch: Any, *, parts: Iterable[BatchPart], **rest: Any) -> Any:
        floats = (replace(part, instructions=self._in_floats(part.instructions)) for part in parts)
        return super().open_batch(batch, parts=floats, **rest)

    def _in_floats(self, instructions: NewInstructions) -> InstructionRows:
        news = map(NewInstruction._make, instructions)
        return InstructionRows(instruction._replace(minor=int(float(instruction.amount) * 100)) for instruction in news)


class SpellingBlindJournal(SqliteJournal):
    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        del operation, rows
        return []


class ChangeBlindJournal(SqliteJournal):
    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[KnownRow], Sequence[Any]]:
        known, clashes = super().compare(operation, rows)
        return [*known, *(KnownRow(clash.row, clash.instruction, clash.state) for clash in clashes)], []


class SingleNoteJournal(SqliteJournal):
    def _log_commit(self, end: Link) -> None:
        if self.__dict__.setdefault("_told", 0) < 1:
            super()._log_commit(end)
        self.__dict__["_told"] += 1


class EarlyNoteJournal(SqliteJournal):
    def _commit(self) -> None:
        self._log_commit(self._end)
        super()._commit()


class RollbackIgnoringJournal(SqliteJournal):
    def _disable_writes(self, reason: str) -> JournalUnwritable:
        return JournalUnwritable(reason)

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        try:
            return super().append(entries)
        except JournalUnwritable:
            return super().append(entries)


class SingleFactRetryingJournal(SqliteJournal):
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

    def _disable_writes(self, reason: str) -> JournalUnwritable:
        return JournalUnwritable(reason) if self._is_single else super()._disable_writes(reason)


def journal(kind: type[SqliteJournal]) -> Callable[[Scenario], None]:
    def plant(scenario: Scenario) -> None:
        scenario.journal_type = kind

    return plant


# Notifications.


Arrivals = list[tuple[int, str]]


def _read_first(look: Callable[[Arrivals], Arrivals]) -> Callable[[Scenario], None]:
    arrivals = EvidenceQueries.arrivals
    return patch_part(EvidenceQueries, "arrivals", lambda self, limit: look(arrivals(self, limit)))


def skip_first(items: Arrivals) -> Arrivals:
    return items[1:] if len(items) > 1 else items


def keep_last(items: Arrivals) -> Arrivals:
    return items[-1:]


# People's decisions: statements, settlements, approvals.


def count_from_first_attempt(standing: RowState, quarantine: Quarantine, _: object = None) -> datetime | None:
    return None if standing.first_sent_at is None else quarantine.ends_at(standing.first_sent_at)


def skip_quarantine(*_: object) -> None:
    """Apply no quarantine."""


def release_at_once(scenario: Scenario) -> None:
    scenario.patch(journal_of_all, "is_in_quarantine", lambda *_: False)
    scenario.patch(resolve, "quarantined_rows", lambda *_, **__: {})


def settle_by_any_answer(self: StatementMatcher, line: StatementLine) -> Resolution | None:
    meaning = self._words.get(line.status or "")
    return Resolution.PAID if meaning is OutcomeKind.PAID else Resolution.REJECTED


def match_own_ids(self: StatementMatcher, order_ids: Mapping[str, int]) -> Any:
    named, doubtful = _rows(self, order_ids)
    rows = self._journal.rows(self._batch.number)
    return {**{row.client_orderid: row for row in rows if row.client_orderid in order_ids}, **named}, doubtful


_rows = StatementMatcher._named_rows


def block_nothing(self: StatementMatcher, read: object) -> Mapping[str, StatementLine]:
    del self, read
    return {}


def ignore_approval_age(
    one: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime
) -> Any:
    return _behind(one, document, maker, replace(policy, expires_h=1e6), now)


_behind = signed_document._find_approver
_approve, _check = signed_document.approve, approval.check_plan


_NOBODY = Person("nobody", (), ())


def let_maker_approve(scenario: Scenario) -> None:
    from tests.promise.simulation import approvals as simulated  # noqa: PLC0415 (it is this scenario's to change)

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

    scenario.patch(simulated, "approve", approve)
    scenario.patch(signed_document, "_find_approver", behind)


def ignore_content(
    document: PlanDocument, content: PlanContent, policy: ApprovalPolicy, now: datetime, *, opened_batch: Any
) -> PlanApproval:
    del content
    return _check(document, document.content, policy, now, opened_batch=opened_batch)


def accept_other_content(scenario: Scenario) -> None:
    from tests.promise.simulation import approvals as simulated  # noqa: PLC0415 (it is this scenario's to change)

    scenario.patch(simulated, "check_plan", ignore_content)


def require_one_approval(scenario: Scenario) -> None:
    from tests.promise.simulation import approvals as simulated  # noqa: PLC0415 (it is this scenario's to change)

    def check(
        document: PlanDocument, content: PlanContent, policy: ApprovalPolicy, now: datetime, *, opened_batch: Any
    ) -> PlanApproval:
        return _check(document, content, replace(policy, needed=1), now, opened_batch=opened_batch)

    scenario.patch(simulated, "check_plan", check)


_AGREED = order.require_agreement


def agree_with_first_approval(
    order: Order, journal: Any, policy: ApprovalPolicy, now: datetime, *, by: str
) -> tuple[str, SignedOrder]:
    return _AGREED(order, journal, replace(policy, needed=1), now, by=by)


# The disk and the lock.


def synchronous_off(scenario: Scenario) -> None:
    scenario.disk.synchronous = False


def synchronous_normal(scenario: Scenario) -> None:
    disk, stored = scenario.disk, scenario.disk.stored
    disk.synchronous = False

    def now_and_then(connection: Any) -> None:
        stored(connection)
        if disk.commits % 20 == 0:
            disk.sync()

    disk.stored = now_and_then  # type: ignore[method-assign]


def sent_log_not_read(scenario: Scenario) -> None:
    scenario.disk.heeds_sent_log = False


def accept_unknown_journal(scenario: Scenario) -> None:
    scenario.disk.asks_whether_known = False


def select_then_update(scenario: Scenario) -> None:
    async def take(process: Process) -> None:
        if scenario.disk.holders:
            raise JournalHeld
        await asyncio.sleep(0.001)
        scenario.disk.holders.add(process)

    scenario.disk.take_lock = take  # type: ignore[method-assign]


def let_claim_lapse(scenario: Scenario) -> None:
    taken_at_s: dict[Process, float] = {}

    async def take(process: Process) -> None:
        now_s = scenario.clock.now_s
        if any(now_s - taken_at_s[holder] < 300 for holder in scenario.disk.holders):
            raise JournalHeld
        taken_at_s[process] = now_s
        scenario.disk.holders.add(process)

    scenario.disk.take_lock = take  # type: ignore[method-assign]


def release_living_lock(scenario: Scenario) -> None:
    take_lock = scenario.disk.take_lock

    async def take(process: Process) -> None:
        await take_lock(process)
        process.loop.call_later(0.3, scenario.disk.holders.discard, process)

    scenario.disk.take_lock = take  # type: ignore[method-assign]


# The meaning of replies.


def change_verdict(look: Callable[[Answer, Verdict], Verdict]) -> Callable[[Scenario], None]:
    def plant(scenario: Scenario) -> None:
        classify = scenario.classify
        scenario.classify = lambda answer, expected: look(answer, classify(answer, expected))

    return plant


def retry_on(kind: FaultKind) -> Callable[[Answer, Verdict], Verdict]:
    def look(answer: Answer, verdict: Verdict) -> Verdict:
        if isinstance(answer, TransportFault) and answer.kind is kind:
            return Verdict(Outcome(OutcomeKind.NOT_SENT, kind.value), RetrySoon())
        return verdict

    return look


def reject_on_500(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and answer.http_status >= 500:
        return Verdict(Outcome(OutcomeKind.REJECTED))
    return verdict


def follow_redirect(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and 300 <= answer.http_status < 400:
        return Verdict(Outcome(OutcomeKind.NOT_SENT), RetrySoon())
    return verdict


def ignore_echo(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and verdict.outcome.conflict:
        return Verdict(Outcome(OutcomeKind.REJECTED), ContinueRun())
    return verdict


def take_last_key(scenario: Scenario) -> None:
    classify = scenario.classify

    def look(answer: Answer, expected: ExpectedReply) -> Verdict:
        if isinstance(answer, RawReply) and answer.body.startswith(b"{") and answer.body.endswith(b"}"):
            answer = replace(answer, body=json.dumps(json.loads(answer.body)).encode())
        return classify(answer, expected)

    scenario.classify = look


# The engine, and its reports.


class DeafBreaker(Engine):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts, pacing=LocalPacing(replace(parts["pace"], stop_after_in_doubt=0)))


class UnlimitedPacing(LocalPacing):
    def has_slot(self, in_flight: int) -> bool:
        return in_flight >= 0


class WideOpenWindow(Engine):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts, pacing=UnlimitedPacing(parts["pace"]))


def engine(kind: type[Engine]) -> Callable[[Scenario], None]:
    def plant(scenario: Scenario) -> None:
        scenario.engine_type = kind

    return plant


class TimeoutlessGateway(SimGateway):
    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> RawReply | TransportFault:
        answer = await super().deliver(request, may_send)
        if isinstance(answer, TransportFault) and answer.kind is FaultKind.READ_TIMEOUT:
            await asyncio.Event().wait()
        return answer


def no_timeout(scenario: Scenario) -> None:
    scenario.gateway_type = TimeoutlessGateway


def round_on_wire(scenario: Scenario) -> None:
    def rounded(attempt: Attempt) -> PreparedRequest:
        request = prepare(attempt)
        return replace(request, expected=replace(request.expected, amount=Decimal(round(request.expected.amount))))

    scenario.prepare = rounded


_record_evidence = SqliteJournal.record_evidence


def _record_nothing(self: SqliteJournal, *args: Any, **named: Any) -> Sequence[Finding]:
    findings = _record_evidence(self, *args, **named)
    self._has_new_evidence = False
    return findings


# Plans that a maker forges.


def skip_people_comparison(scenario: ForgeryScenario) -> None:
    def check(document: PlanDocument, content: PlanContent) -> None:
        theirs = {"people_sha256": document.content.people_sha256}
        return _same_content(document, content.model_copy(update=theirs))

    scenario.patch(approval, "require_same_content", check)


def digest_content_only(document: PlanDocument) -> str:
    return approval.payments_sha256(document.content)[:16]


def ignore_withdrawal(scenario: ForgeryScenario) -> None:
    scenario.patch(approvals, "require_not_withdrawn", lambda *_: None)
    scenario.patch(EvidenceLog, "require_in_force", lambda *_: None)


def compare_with_newest_batch(past: _PastPayments, candidates: pl.DataFrame, *keys: str) -> pl.DataFrame:
    del past
    return candidates.group_by(keys).agg(latest=pl.col("batch").max(), alike=pl.col("batch").max())


def show_new_amount(self: _ChangeFinder, code: str, *given: Any) -> Change:
    made = _build_change(self, code, *given)
    return replace(made, before=replace(made.before, amount=made.amount)) if code == CHANGED_ACCOUNT else made


def unbind_approvals(scenario: ForgeryScenario) -> None:
    def text(self: SignedDocument, key: Any, approved_at: str) -> bytes:
        return f"{self.document} approval {key.text} {approved_at}".encode()

    scenario.patch(SignedDocument, "approval_text", text)


def let_second_key_approve(scenario: ForgeryScenario) -> None:
    def behind(
        one: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime
    ) -> Person | str:
        return _behind(one, document, maker if one.key == document.maker else _NOBODY, policy, now)

    scenario.patch(signed_document, "_find_approver", behind)


def require_nothing(*_: object, **__: object) -> None:
    """Require nothing."""


_same_content = approval.require_same_content
_build_change = _ChangeFinder._build_change


def bug(plant: Callable[[Any], None], *found_by: str, from_seed: int = 0, kind: str = RUNS) -> Bug:
    return Bug(plant, frozenset(found_by), from_seed, kind)


BUGS: Mapping[str, Bug] = {
    "intent after send": bug(journal(LateIntentJournal), "I1", "I2"),
    "synchronous NORMAL": bug(synchronous_normal, "I1", "I2"),
    "synchronous OFF": bug(synchronous_off, "I1", "I2"),
    "resume sends in-flight rows again": bug(journal(ResendingJournal), "I1", "I5", from_seed=22),
    "evidence that comes late holds nothing": bug(patch_part(SqliteJournal, "_refused_intents", ignore_holds), "I1"),
    "what came into the journal during a run is not asked for": bug(
        patch_part(SqliteJournal, "record_evidence", _record_nothing), "I1"
    ),
    "held rows are due": bug(patch_part(sqlite_tables, "QUERIES", HELD_ROWS_ARE_DUE), "I1", "error"),
    "rows in flight at a crash: the first alone is in doubt": bug(
        journal(PartlyInterruptingJournal), "I1", "I5", "I11", "error", from_seed=22
    ),
    "a failed write is tried once more": bug(journal(RollbackIgnoringJournal), "I2", "error", from_seed=17),
    "a failed commit of a single fact is not final": bug(
        journal(SingleFactRetryingJournal), "I2", "error", from_seed=17
    ),
    "a request leaves whenever it is ready": bug(patch_part(Engine, "_may_send", lambda *_: True), "I2", from_seed=3),
    "the sent log gets one line": bug(journal(SingleNoteJournal), "I10", from_seed=750),
    "the sent log gets lines before the commit": bug(journal(EarlyNoteJournal), "I3", "I10", "I11", "error"),
    "the first notification of several is skipped": bug(_read_first(skip_first), "I11", "I1", "error", from_seed=23),
    "the last notification alone is taken in": bug(_read_first(keep_last), "I11", "I1", "error", from_seed=23),
    "the quarantine is counted from the first attempt": bug(
        patch_part(resolve, "quarantine_end", count_from_first_attempt), "I1", from_seed=571
    ),
    "no quarantine": bug(patch_part(resolve, "quarantine_message", skip_quarantine), "I1", "I5", from_seed=16),
    "a clock that is behind is believed": bug(
        patch_part(quarantine_clock, "_behind_s", lambda _: 0), "I1", "I5", from_seed=1_241
    ),
    "a row called rejected may leave at once": bug(release_at_once, "I1", from_seed=44),
    "a statement's line settles whichever attempt": bug(
        patch_part(match_statement, "attempt_mismatch", lambda *_, **__: None), "I1", "I5", "I3", from_seed=5_435
    ),
    "spellings are not compared": bug(journal(SpellingBlindJournal), "I1", "I7"),
    "a sheet that repeats a batch is opened": bug(
        patch_part(submit, "_find_repeat", lambda *_, **__: None), "I1", from_seed=31
    ),
    "a journal that nobody knows is taken": bug(accept_unknown_journal, "I10"),
    "a typed file passes for the gateway's word": bug(
        patch_part(StatementProof, "is_proven", property(lambda _: True)), "I1", from_seed=44
    ),
    "an order's basis is believed": bug(
        patch_part(RowOrder, "require_confirmed_by", skip_quarantine), "I1", from_seed=200
    ),
    "an order is carried out whatever it says of its rows": bug(
        patch_part(row_order, "require_unchanged", require_nothing), "I17", from_seed=123
    ),
    "a statement's accepted is taken for rejected": bug(
        patch_part(StatementMatcher, "_stated_resolution", settle_by_any_answer), "I5", "I1", from_seed=494
    ),
    "a statement settles rows by their first order id": bug(
        patch_part(StatementMatcher, "_named_rows", match_own_ids), "I1", "I5", "error", from_seed=420
    ),
    "a statement holds nothing": bug(patch_part(StatementMatcher, "_blocking_lines", block_nothing), "I1"),
    "the maker's own approval is counted": bug(let_maker_approve, "I12"),
    "an approval never grows old": bug(
        patch_part(signed_document, "_find_approver", ignore_approval_age), "I12", from_seed=53
    ),
    "a plan of other content is taken": bug(accept_other_content, "I12", from_seed=38),
    "one approval is enough": bug(require_one_approval, "I12"),
    "retry on read time-out": bug(change_verdict(retry_on(FaultKind.READ_TIMEOUT)), "I1", "I5"),
    "retry on server disconnected": bug(change_verdict(retry_on(FaultKind.CONNECTION_LOST)), "I1", "I5", from_seed=7),
    "5xx taken for rejected": bug(change_verdict(reject_on_500), "I5", "I1"),
    "redirects followed": bug(change_verdict(follow_redirect), "I1", "I5"),
    "echo of another order taken for ours": bug(change_verdict(ignore_echo), "I5"),
    "the last of two equal JSON keys": bug(take_last_key, "I5", "I9", "I1", from_seed=20),
    "claim by select, then update": bug(select_then_update, "I6"),
    "a claim that lapses": bug(let_claim_lapse, "I6", from_seed=36),
    "release while the owner lives": bug(release_living_lock, "I6"),
    "outcome without compare-and-set": bug(journal(OverwritingJournal), "I11", "I5", "error", from_seed=7),
    "people are forgotten before all is over": bug(
        patch_part(journal_of_all.JournalReader, "_is_finished", lambda *_: True),
        "I18",
        "I3",
        "I1",
        "error",
        from_seed=14,
    ),
    "the index of forgotten payees is not made again": bug(
        patch_part(sqlite_journal, "rebuild_payee_index", lambda _: None), "I18", "error"
    ),
    "an order to forget counts without its approvals": bug(
        patch_part(order, "require_agreement", agree_with_first_approval), "I12", from_seed=158
    ),
    "float amounts": bug(journal(FloatJournal), "I4", "error", from_seed=7),
    "the last row never comes up": bug(journal(RowSkippingJournal), "I3"),
    "a changed row taken for known": bug(journal(ChangeBlindJournal), "I7", "I1", "error"),
    "a journal that goes on after a failed write": bug(journal(FailureIgnoringJournal), "I2", from_seed=110),
    "a breaker that never trips": bug(engine(DeafBreaker), "I9", from_seed=56),
    "a window without a limit": bug(engine(WideOpenWindow), "I9"),
    "the sent log is not read": bug(sent_log_not_read, "I10"),
    "an amount rounded on the wire": bug(round_on_wire, "I12"),
    "no read time-out": bug(no_timeout, "I14"),
    "exit code always 0": bug(patch_part(batch_status, "exit_code_for", lambda *_, **__: 0), "I16"),
    "findings are not made again at submit": bug(
        patch_part(plan_document, "require_same_findings", lambda *_, **__: None), "I17", from_seed=36, kind=FORGED
    ),
    "the people of a plan are not compared": bug(skip_people_comparison, "I17", from_seed=116, kind=FORGED),
    "the code of a plan does not cover its findings": bug(
        patch_part(approval, "payout_code", digest_content_only), "I17", from_seed=295, kind=FORGED
    ),
    "a withdrawal is not heeded": bug(ignore_withdrawal, "I17", kind=FORGED),
    "people are compared with the newest batch": bug(
        patch_part(_PastPayments, "reference_batches", compare_with_newest_batch), "I17", from_seed=199, kind=FORGED
    ),
    "a changed account is shown beside its new amount": bug(
        patch_part(_ChangeFinder, "_build_change", show_new_amount), "I17", kind=FORGED
    ),
    "approvals of another plan count": bug(unbind_approvals, "I17", from_seed=100, kind=FORGED),
    "the maker approves with a second key": bug(let_second_key_approve, "I17", kind=FORGED),
    "order ids of whole rows": bug(corrections.derive_ids_from_rows, "I1", kind=CORRECTED),
    "a used reference is not asked about": bug(corrections.skip_reference_question, "I1", kind=CORRECTED),
    "a payee on several rows is not asked about": bug(corrections.skip_repeat_question, "I1", kind=CORRECTED),
    "an id that a spreadsheet rewrote is another": bug(corrections.accept_rewritten_ids, "I1", kind=CORRECTED),
}
