"""Planted bugs: `BUGS` says which part of the program each replaces during a scenario. Each must be found."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import polars as pl

from paygw_batch.approval import order, signed_document
from paygw_batch.approval import plan_document as approval
from paygw_batch.approval.approval_keys import Person
from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.approval.signed_document import Approval, ApprovalPolicy, SignedDocument
from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import Evidence, Finding
from paygw_batch.core.lifecycle import Concluded, Intended, Resolution
from paygw_batch.core.outcome import ContinueRun, Outcome, OutcomeKind, RetrySoon, Verdict
from paygw_batch.engine import pacing
from paygw_batch.engine import quarantine as quarantine_clock
from paygw_batch.engine.engine import Engine
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.errors import JournalHeld, JournalUnwritable
from paygw_batch.gateway.message import ExpectedReply, FaultKind, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal import journal as journal_of_all
from paygw_batch.journal.evidence import EvidenceLog, EvidenceQueries
from paygw_batch.journal.new_batch import BatchPart, InstructionRows, NewInstructions
from paygw_batch.journal.sqlite import sqlite_journal, sqlite_tables
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Entry, KnownRow, Link, MoveResult, NewInstruction, RowState
from paygw_batch.settle import match_statement, resolve, row_order
from paygw_batch.settle.match_statement import StatementMatcher
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.statement import StatementLine, StatementProof
from paygw_batch.show import batch_status
from paygw_batch.submit import approvals
from paygw_batch.submit import plan as submit
from paygw_batch.submit import submission as plan_document
from paygw_batch.submit.changes import CHANGED_ACCOUNT, _ChangeFinder, _PastPayments
from tests.promise.simulation import approvals as simulated
from tests.promise.simulation import corrections
from tests.promise.simulation.forging import ForgeryScenario
from tests.promise.simulation.gateway import SimGateway
from tests.promise.simulation.process import Process
from tests.promise.simulation.scenario import Scenario
from tests.support.signed_plans import forge_approval

Answer = RawReply | TransportFault
RUNS, FORGED, CORRECTED = "runs", "approvals", "corrections"
"""The kinds of scenarios: runs with mishaps, plans that a maker forges, sheets that a maker corrects."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: how to switch it on, and the invariants that may find it."""

    plant: Callable[[Any], None]
    found_by: frozenset[str]
    from_seed: int = 0  # the first seed to play in tests: for a rare bug, shortly before one that finds it
    kind: str = RUNS  # the kind of the scenarios in which it is searched


def patch(owner: object, name: str, value: object) -> Callable[[Any], None]:
    return lambda scenario: scenario.patch(owner, name, value)


def around(owner: object, name: str, value: Callable[..., Any]) -> Callable[[Any], None]:
    """Replace a function by one that gets the original before its arguments."""
    original = getattr(owner, name)
    return patch(owner, name, lambda *given, **named: value(original, *given, **named))


def change_verdict(look: Callable[[Answer, Verdict], Verdict]) -> Callable[[Scenario], None]:
    def plant(scenario: Scenario) -> None:
        classify = scenario.classify
        scenario.classify = lambda answer, expected: look(answer, classify(answer, expected))

    return plant


def journal(kind: type[SqliteJournal]) -> Callable[[Scenario], None]:
    return lambda scenario: setattr(scenario, "journal_type", kind)


def on_disk(name: str) -> Callable[[Scenario], None]:
    return lambda scenario: setattr(scenario.disk, name, False)


# The journal.

_DUE, _NOT_HELD = sqlite_tables.QUERIES["due"], "NOT EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = i.number)"
if _NOT_HELD not in _DUE:
    raise LookupError(f"the program has no {_NOT_HELD!r} any more: nothing would be planted")


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


def ignore_holds(refused: Callable[..., Mapping[int, MoveResult]], *given: Any) -> Mapping[int, MoveResult]:
    return {at: why for at, why in refused(*given).items() if why is not MoveResult.HELD}


def resend_interrupted(self: SqliteJournal, at: str) -> int:
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


class FloatJournal(SqliteJournal):
    def open_batch(self, batch: Any, *, parts: Iterable[BatchPart], **rest: Any) -> Any:
        floats = (replace(part, instructions=self._in_floats(part.instructions)) for part in parts)
        return super().open_batch(batch, parts=floats, **rest)

    def _in_floats(self, instructions: NewInstructions) -> InstructionRows:
        news = map(NewInstruction._make, instructions)
        return InstructionRows(instruction._replace(minor=int(float(instruction.amount) * 100)) for instruction in news)


def skip_last_row(due: Callable[..., Any], self: SqliteJournal, batch: int, **page: int) -> Any:
    last = max((row.row for row in self.rows(batch)), default=0)
    return [due_row for due_row in due(self, batch, **page) if due_row.row < last]


def ignore_changes(compare: Callable[..., Any], *given: Any) -> Any:
    known, clashes = compare(*given)
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


class RetryingJournal(SqliteJournal):
    _retries = True

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        try:
            return super().append(entries)
        except JournalUnwritable:
            if not self._retries:
                raise
            return super().append(entries)

    def _disable_writes(self, reason: str) -> JournalUnwritable:
        return JournalUnwritable(reason) if self._retries else super()._disable_writes(reason)


class SingleFactRetryingJournal(RetryingJournal):
    _retries = False

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        self._retries = len(entries) == 1
        try:
            return super().append(entries)
        finally:
            self._retries = False


def ignore_new_evidence(record_evidence: Callable[..., Any], self: SqliteJournal, *given: Any, **named: Any) -> Any:
    findings = record_evidence(self, *given, **named)
    self._has_new_evidence = False
    return findings


# People's decisions: statements, settlements, approvals.


def count_from_first_attempt(standing: RowState, quarantine: Quarantine, _: object = None) -> datetime | None:
    return None if standing.first_sent_at is None else quarantine.ends_at(standing.first_sent_at)


def do_nothing(*_: object, **__: object) -> None:
    """Require nothing, and find nothing."""


def release_at_once(scenario: Scenario) -> None:
    scenario.patch(journal_of_all, "is_in_quarantine", lambda *_: False)
    scenario.patch(resolve, "quarantined_rows", lambda *_, **__: {})


def settle_by_any_answer(self: StatementMatcher, line: StatementLine) -> Resolution | None:
    return Resolution.PAID if self._words.get(line.status or "") is OutcomeKind.PAID else Resolution.REJECTED


def match_own_ids(named_rows: Callable[..., Any], self: StatementMatcher, order_ids: Mapping[str, int]) -> Any:
    named, doubtful = named_rows(self, order_ids)
    rows = self._journal.rows(self._batch.number)
    return {**{row.client_orderid: row for row in rows if row.client_orderid in order_ids}, **named}, doubtful


def lax(owner: object, name: str, **changes: Any) -> Callable[[Any], None]:
    """Let a function apply a laxer policy of approvals."""

    def apply(right: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return right(*(replace(one, **changes) if isinstance(one, ApprovalPolicy) else one for one in given), **named)

    return around(owner, name, apply)


def ignore_content(right: Callable[..., Any], document: PlanDocument, _content: Any, *given: Any, **named: Any) -> Any:
    return right(document, document.content, *given, **named)


_NOBODY = Person("nobody", (), ())


def let_maker_approve(scenario: Scenario) -> None:
    def approve(
        right: Callable[..., Any], document: PlanDocument, key: Any, policy: ApprovalPolicy, now: datetime
    ) -> PlanDocument:
        if key.public.text != document.maker:
            return right(document, key, policy, now)  # type: ignore[no-any-return]
        approvals = [*document.approvals, forge_approval(key, document, at=timestamp(now))]
        return document.model_copy(update={"approvals": approvals})

    def behind(
        right: Callable[..., Any], one: Approval, document: SignedDocument, maker: Person, *given: Any
    ) -> Person | str:
        is_own = one.key in {key.text for key in maker.keys}
        return right(one, document, _NOBODY if is_own else maker, *given)  # type: ignore[no-any-return]

    around(simulated, "approve", approve)(scenario)
    around(signed_document, "_find_approver", behind)(scenario)


# The disk and the lock.


def synchronous_normal(scenario: Scenario) -> None:
    disk, stored = scenario.disk, scenario.disk.stored
    disk.synchronous = False

    def now_and_then(connection: Any) -> None:
        stored(connection)
        if disk.commits % 20 == 0:
            disk.sync()

    disk.stored = now_and_then  # type: ignore[method-assign]


def lock(take: Callable[[Scenario, Process], Awaitable[None]]) -> Callable[[Scenario], None]:
    return lambda scenario: setattr(scenario.disk, "take_lock", lambda process: take(scenario, process))


async def select_then_update(scenario: Scenario, process: Process) -> None:
    if scenario.disk.holders:
        raise JournalHeld
    await asyncio.sleep(0.001)
    scenario.disk.holders.add(process)


def let_claim_lapse(scenario: Scenario) -> None:
    taken_at_s: dict[Process, float] = {}

    async def take(scenario: Scenario, process: Process) -> None:
        now_s = scenario.clock.now_s
        if any(now_s - taken_at_s[holder] < 300 for holder in scenario.disk.holders):
            raise JournalHeld
        taken_at_s[process] = now_s
        scenario.disk.holders.add(process)

    lock(take)(scenario)


async def release_living_lock(scenario: Scenario, process: Process) -> None:
    await type(scenario.disk).take_lock(scenario.disk, process)
    process.loop.call_later(0.3, scenario.disk.holders.discard, process)


# The meaning of replies.


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


async def never_time_out(deliver: Callable[..., Awaitable[Answer]], *given: Any) -> Answer:
    answer = await deliver(*given)
    if isinstance(answer, TransportFault) and answer.kind is FaultKind.READ_TIMEOUT:
        await asyncio.Event().wait()
    return answer


def round_on_wire(scenario: Scenario) -> None:
    prepare = scenario.prepare

    def rounded(attempt: Any) -> PreparedRequest:
        request = prepare(attempt)
        return replace(request, expected=replace(request.expected, amount=Decimal(round(request.expected.amount))))

    scenario.prepare = rounded


# Plans that a maker forges.


def skip_people_comparison(same_content: Callable[..., Any], document: PlanDocument, content: Any) -> Any:
    return same_content(document, content.model_copy(update={"people_sha256": document.content.people_sha256}))


def ignore_withdrawal(scenario: ForgeryScenario) -> None:
    scenario.patch(approvals, "require_not_withdrawn", lambda *_: None)
    scenario.patch(EvidenceLog, "require_in_force", lambda *_: None)


def compare_with_newest_batch(_past: object, candidates: Any, *keys: str) -> Any:
    return candidates.group_by(keys).agg(latest=pl.col("batch").max(), alike=pl.col("batch").max())


def show_new_amount(build_change: Callable[..., Any], self: _ChangeFinder, code: str, *given: Any) -> Any:
    made = build_change(self, code, *given)
    return replace(made, before=replace(made.before, amount=made.amount)) if code == CHANGED_ACCOUNT else made


def name_no_digest(self: SignedDocument, key: Any, approved_at: str) -> bytes:
    return f"{self.document} approval {key.text} {approved_at}".encode()


def let_second_key_approve(
    right: Callable[..., Any], one: Approval, document: SignedDocument, maker: Person, *given: Any
) -> Any:
    return right(one, document, maker if one.key == document.maker else _NOBODY, *given)


def bug(plant: Callable[[Any], None], found_by: str, from_seed: int = 0, *, kind: str = RUNS) -> Bug:
    return Bug(plant, frozenset(found_by.split()), from_seed, kind)


forged, corrected = partial(bug, found_by="I17", kind=FORGED), partial(bug, found_by="I1", kind=CORRECTED)
BUGS: Mapping[str, Bug] = {
    "intent after send": bug(journal(LateIntentJournal), "I1 I2"),
    "synchronous NORMAL": bug(synchronous_normal, "I1 I2"),
    "synchronous OFF": bug(on_disk("synchronous"), "I1 I2"),
    "resume sends in-flight rows again": bug(patch(SqliteJournal, "mark_interrupted", resend_interrupted), "I1 I5", 22),
    "evidence that comes late holds nothing": bug(around(SqliteJournal, "_refused_intents", ignore_holds), "I1"),
    "what came into the journal during a run is not asked for": bug(
        around(SqliteJournal, "record_evidence", ignore_new_evidence), "I1"
    ),
    "held rows are due": bug(
        patch(sqlite_tables, "QUERIES", {**sqlite_tables.QUERIES, "due": _DUE.replace(_NOT_HELD, "1")}), "I1 error"
    ),
    "rows in flight at a crash: the first alone is in doubt": bug(
        journal(PartlyInterruptingJournal), "I1 I5 I11 error", 22
    ),
    "a failed write is tried once more": bug(journal(RetryingJournal), "I2 error", 17),
    "a failed commit of a single fact is not final": bug(journal(SingleFactRetryingJournal), "I2 error", 17),
    "a request leaves whenever it is ready": bug(patch(Engine, "_may_send", lambda *_: True), "I2", 3),
    "the sent log gets one line": bug(journal(SingleNoteJournal), "I10", 750),
    "the sent log gets lines before the commit": bug(journal(EarlyNoteJournal), "I3 I10 I11 error"),
    "the first notification of several is skipped": bug(
        around(EvidenceQueries, "arrivals", lambda read, *given: read(*given)[1:] or read(*given)), "I11 I1 error", 23
    ),
    "the last notification alone is taken in": bug(
        around(EvidenceQueries, "arrivals", lambda read, *given: read(*given)[-1:]), "I11 I1 error", 23
    ),
    "the quarantine is counted from the first attempt": bug(
        patch(resolve, "quarantine_end", count_from_first_attempt), "I1", 571
    ),
    "no quarantine": bug(patch(resolve, "quarantine_message", do_nothing), "I1 I5", 16),
    "a clock that is behind is believed": bug(patch(quarantine_clock, "_behind_s", lambda _: 0), "I1 I5", 1_241),
    "a row called rejected may leave at once": bug(release_at_once, "I1", 44),
    "a statement's line settles whichever attempt": bug(
        patch(match_statement, "attempt_mismatch", do_nothing), "I1 I5 I3", 5_435
    ),
    "spellings are not compared": bug(patch(SqliteJournal, "used_spellings", lambda *_: []), "I1 I7"),
    "a sheet that repeats a batch is opened": bug(patch(submit, "_find_repeat", do_nothing), "I1", 31),
    "a journal that nobody knows is taken": bug(on_disk("asks_whether_known"), "I10"),
    "a typed file passes for the gateway's word": bug(
        patch(StatementProof, "is_proven", property(lambda _: True)), "I1", 44
    ),
    "an order's basis is believed": bug(patch(RowOrder, "require_confirmed_by", do_nothing), "I1", 200),
    "an order is carried out whatever it says of its rows": bug(
        patch(row_order, "require_unchanged", do_nothing), "I17", 123
    ),
    "a statement's accepted is taken for rejected": bug(
        patch(StatementMatcher, "_stated_resolution", settle_by_any_answer), "I5 I1", 494
    ),
    "a statement settles rows by their first order id": bug(
        around(StatementMatcher, "_named_rows", match_own_ids), "I1 I5 error", 420
    ),
    "a statement holds nothing": bug(patch(StatementMatcher, "_blocking_lines", lambda *_: {}), "I1"),
    "the maker's own approval is counted": bug(let_maker_approve, "I12"),
    "an approval never grows old": bug(lax(signed_document, "_find_approver", expires_h=1e6), "I12", 53),
    "a plan of other content is taken": bug(around(simulated, "check_plan", ignore_content), "I12", 38),
    "one approval is enough": bug(lax(simulated, "check_plan", needed=1), "I12"),
    "retry on read time-out": bug(change_verdict(retry_on(FaultKind.READ_TIMEOUT)), "I1 I5"),
    "retry on server disconnected": bug(change_verdict(retry_on(FaultKind.CONNECTION_LOST)), "I1 I5", 7),
    "5xx taken for rejected": bug(change_verdict(reject_on_500), "I5 I1"),
    "redirects followed": bug(change_verdict(follow_redirect), "I1 I5"),
    "echo of another order taken for ours": bug(change_verdict(ignore_echo), "I5"),
    "the last of two equal JSON keys": bug(take_last_key, "I5 I9 I1", 20),
    "claim by select, then update": bug(lock(select_then_update), "I6"),
    "a claim that lapses": bug(let_claim_lapse, "I6", 36),
    "release while the owner lives": bug(lock(release_living_lock), "I6"),
    "outcome without compare-and-set": bug(journal(OverwritingJournal), "I11 I5 error", 7),
    "people are forgotten before all is over": bug(
        patch(journal_of_all.JournalReader, "_is_finished", lambda *_: True), "I18 I3 I1 error", 14
    ),
    "the index of forgotten payees is not made again": bug(
        patch(sqlite_journal, "rebuild_payee_index", do_nothing), "I18 error"
    ),
    "an order to forget counts without its approvals": bug(lax(order, "require_approved", needed=1), "I12", 158),
    "float amounts": bug(journal(FloatJournal), "I4 error", 7),
    "the last row never comes up": bug(around(SqliteJournal, "due", skip_last_row), "I3"),
    "a changed row taken for known": bug(around(SqliteJournal, "compare", ignore_changes), "I7 I1 error"),
    "a journal that goes on after a failed write": bug(journal(FailureIgnoringJournal), "I2", 110),
    "a breaker that never trips": bug(around(pacing, "Breaker", lambda breaker, _most: breaker(0)), "I9", 56),
    "a window without a limit": bug(patch(pacing.LocalPacing, "has_slot", lambda *_: True), "I9"),
    "the sent log is not read": bug(on_disk("heeds_sent_log"), "I10"),
    "an amount rounded on the wire": bug(round_on_wire, "I12"),
    "no read time-out": bug(around(SimGateway, "deliver", never_time_out), "I14"),
    "exit code always 0": bug(patch(batch_status, "exit_code_for", lambda *_, **__: 0), "I16"),
    "findings are not made again at submit": forged(
        patch(plan_document, "require_same_findings", do_nothing), from_seed=36
    ),
    "the people of a plan are not compared": forged(
        around(approval, "require_same_content", skip_people_comparison), from_seed=116
    ),
    "the code of a plan does not cover its findings": forged(
        patch(approval, "payout_code", lambda document: approval.payments_sha256(document.content)[:16]), from_seed=295
    ),
    "a withdrawal is not heeded": forged(ignore_withdrawal),
    "people are compared with the newest batch": forged(
        patch(_PastPayments, "reference_batches", compare_with_newest_batch), from_seed=199
    ),
    "a changed account is shown beside its new amount": forged(around(_ChangeFinder, "_build_change", show_new_amount)),
    "approvals of another plan count": forged(patch(SignedDocument, "approval_text", name_no_digest), from_seed=100),
    "the maker approves with a second key": forged(around(signed_document, "_find_approver", let_second_key_approve)),
    "order ids of whole rows": corrected(corrections.derive_ids_from_rows),
    "a used reference is not asked about": corrected(corrections.skip_reference_question),
    "a payee in several rows is not asked about": corrected(patch(submit, "repeated_payee_question", do_nothing)),
    "an id that a spreadsheet rewrote is another": corrected(
        patch(journal_of_all, "are_damaged_variants", lambda *_: False)
    ),
}
