"""Compares a statement with a batch: finds the rows that it settles, and the lines that agree or do not match.

Because money is at stake, nothing is inferred: a line is used only if its order id, amount and currency are those of a
row's latest attempt. Rows that the statement does not mention stay unchanged, because absence is not evidence.

Several attempts may share an order id. A line settles a row only if it is certainly about the latest attempt, either
because there is no other or because of its time (`line_time`). If a line is about an order that could still be sent,
or was never sent from here, the order's row is held, in any batch. Such lines are in `blocking`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import (
    GATEWAY_HAS_ORDER,
    HOLDING_FINDINGS,
    AttemptMatch,
    Candidate,
    Claim,
    Evidence,
    EvidenceSource,
    Finding,
    Proof,
    Ruling,
    StatedTimes,
    TimeInterval,
    assess_claim,
    is_only_attempt,
    match_attempt,
    matching_candidates,
    predates_attempt,
)
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.money import format_amount, from_minor
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import display_state, state_label
from paygw_batch.core.text import normalise_spelling, repair_order_id
from paygw_batch.engine.quarantine import CLOCK_TOLERANCE_S, JournalClock, latest_send_time
from paygw_batch.journal import LINE_COLUMNS, BatchRecord, Clash, FirstReading, JournalReader, RowState, canonical
from paygw_batch.language import mark, say
from paygw_batch.settle.resolve import Settlement, quarantine_message
from paygw_batch.settle.statement import TIME_EXAMPLES, Statement, StatementLine, TimeSpan, parse_time_span

_UNSETTLED = frozenset({State.IN_DOUBT, State.IN_FLIGHT, State.ACCEPTED})

_RESOLUTION_BY_ANSWER: Mapping[str, Resolution] = {resolution.value: resolution for resolution in Resolution}
_RESOLUTION_BY_OUTCOME: Mapping[OutcomeKind, Resolution] = {
    OutcomeKind.PAID: Resolution.PAID,
    OutcomeKind.REJECTED: Resolution.REJECTED,
}
_AGREEING_RESOLUTIONS: Mapping[State, frozenset[Resolution]] = {
    State.PAID: frozenset({Resolution.PAID}),
    State.RETURNED: frozenset({Resolution.PAID, Resolution.REJECTED}),
    State.REJECTED: frozenset({Resolution.REJECTED, Resolution.NOT_RECEIVED}),
    State.READY: frozenset({Resolution.REJECTED, Resolution.NOT_RECEIVED}),
    State.REPLACED: frozenset({Resolution.REJECTED, Resolution.NOT_RECEIVED}),
}
"""The resolutions in a statement that agree with each state of a settled row."""
_OUTCOME_BY_ANSWER: Mapping[str, OutcomeKind] = {"paid": OutcomeKind.PAID, "rejected": OutcomeKind.REJECTED}
_SENDABLE = frozenset({State.READY, State.REJECTED}) | _UNSETTLED
"""The states from which a row may be sent, either immediately or after a person's decision."""
_EARLIER_ATTEMPT = mark("This line is about an earlier attempt. The payee may be paid twice. Stop and ask the gateway.")
_TWO_OPERATIONS = mark(
    "{order_id} is both a payout and a collection of the same amount. Settle the right row separately."
)
_NOT_LISTED = mark("The configuration does not say what the gateway's status {status!r} means.")
_EARLIER_REJECTED = mark(
    "{order_id} is an earlier attempt. The journal shows it as rejected, but the statement does not. The payee may be "
    "paid twice. Stop and ask the gateway."
)
DO_NOT_SEND = mark("The payee may have been paid. Do not send the payment again. Ask the gateway.")


@dataclass(frozen=True, slots=True)
class LineTime:
    """The times of a line and its attempt, or a `problem` with them. `stated` has the times in the line itself."""

    times: StatedTimes
    stated: StatedTimes
    text: str
    problem: str | None = None


def line_time(line: StatementLine, as_of: TimeSpan | None, now: datetime, *, true_by: str = "") -> LineTime:
    """Return the times of a line. `as_of` is the time that a person gave for the whole statement, or None.

    `true_by` is when the same file was first carried out, or empty. Its lines cannot be newer.
    """
    given_time, sent_at, problem = parse_time_span(line.time), parse_time_span(line.sent_at), None
    for text, span in ((line.sent_at, sent_at), (line.time, given_time)):
        if text and span is None:
            problem = say("The time {text!r} is unclear. Write it as {written}.", text=text, written=TIME_EXAMPLES)
        if span is not None and span.start > now + timedelta(seconds=CLOCK_TOLERANCE_S):
            problem = say("The time {text} is in the future. Our clock shows {now}.", text=text, now=timestamp(now))
    if problem is not None:
        return LineTime(StatedTimes(), StatedTimes(), "", problem)
    true_at = [_to_interval(time) for time in (given_time, as_of) if time is not None]
    if true_by:
        true_at.append(TimeInterval("", true_by))
    true_by_text = say("{time} at the latest (the file was applied then)", time=true_by) if true_by else ""
    return LineTime(
        StatedTimes(tuple(true_at), _to_interval(sent_at) if sent_at is not None else None),
        StatedTimes((_to_interval(given_time),) if given_time is not None else ()),
        line.time or line.sent_at or (say("its time") if as_of is not None else true_by_text),
    )


def attempt_mismatch(
    line: StatementLine, last_sent_at: str | None, time: LineTime, *, is_only_attempt: bool, predates_attempt: bool
) -> str | None:
    """Return why a line cannot be about its row's latest attempt (sent at `last_sent_at`), or None.

    `predates_attempt` is set if the file was first read before that attempt was recorded, regardless of the clocks.
    """
    if predates_attempt:
        return say(
            "{order_id} was sent again after this file was first read, so the line cannot be about the latest attempt.",
            order_id=line.order_id,
        )
    order = {"order_id": line.order_id, "intended_at": last_sent_at}
    match match_attempt(time.times, last_sent_at):
        case AttemptMatch.EARLIER:
            return say(
                "{order_id}: {shown} is before the latest attempt ({intended_at}), so the line is about "
                "an earlier one.",
                shown=time.text,
                **order,
            )
        case AttemptMatch.NONE:
            return say(
                "No attempt of {order_id} was sent at {sent_at}. The latest was sent at {intended_at}.",
                sent_at=line.sent_at,
                **order,
            )
        case AttemptMatch.UNSTATED if not is_only_attempt:
            return say(
                "{order_id} was sent more than once, most recently at {intended_at}. The line does not say which "
                "attempt it is about. Give an exact time in a column called time, in the column sent_at of the "
                "question list, or for the whole file.",
                **order,
            )
        case AttemptMatch.LATEST | AttemptMatch.UNSTATED:
            return None


def _to_interval(time: TimeSpan) -> TimeInterval:
    return TimeInterval(timestamp(time.start), timestamp(time.end))


def money_mismatch(line: StatementLine, row: RowState, minor_units: int) -> str | None:
    """Describe how a line and its row differ in amount or currency, or return None if they agree."""
    amount = from_minor(row.minor, minor_units=minor_units)
    if line.currency != row.currency:
        return say(
            "The statement shows {order_id} in {currency}, but we sent it in {ours}.",
            order_id=line.order_id,
            currency=line.currency or say("no currency"),
            ours=row.currency,
        )
    if line.amount is None:
        return say(
            "The amount {amount_text!r} of {order_id} is not a plain number, such as {ours}.",
            amount_text=line.amount_text,
            order_id=line.order_id,
            ours=amount,
        )
    if line.amount != Decimal(amount):
        return say(
            "The statement shows {stated} for {order_id}, but we sent {sent}.",
            order_id=line.order_id,
            stated=f"{row.currency} {format_amount(line.amount_text)}",
            sent=f"{row.currency} {format_amount(amount)}",
        )
    return None


def order_mismatch(order_id: str, clash: Clash | None, *, is_blocking: bool) -> str | None:
    """Return why a line matches no order in the batch, or None if its order is from another batch.

    `clash` is the order in the journal, if any. `is_blocking` is set if the line holds a row.
    """
    if clash is not None and not is_blocking:
        return None
    if not is_blocking:
        return say(
            "The journal has no order {order_id}. Was it sent from another system, or was its id changed?",
            order_id=order_id,
        )
    if clash is None:
        message = say(
            "The journal has no order {order_id}, which looks like a later attempt of {first}. The journal may be an "
            "old copy.",
            order_id=order_id,
            first=first_order_id(order_id),
        )
    else:
        message = say(
            "Row {sheet_row} of batch {batch} is {state} in the journal.",
            sheet_row=clash.sheet_row,
            batch=clash.batch,
            state=state_label(display_state(clash.state)),
        )
    return f"{message} {say(DO_NOT_SEND)}"


def nearest_order_question(line: StatementLine, candidates: Sequence[RowState], minor_units: Mapping[str, int]) -> str:
    """Return a question whether an unmatched line is about one of `candidates`, which have similar order ids."""
    row = min(candidates, key=lambda row: money_mismatch(line, row, minor_units[row.currency]) is not None)
    order_id = row.sent_orderid or row.client_orderid
    lost_zeros = normalise_spelling(line.order_id).replace("0", "") == normalise_spelling(order_id).replace("0", "")
    return say(
        "The journal has no order {order_id}. The closest match is {near}, {money}: {question}",
        order_id=line.order_id,
        near=order_id,
        money=f"{row.currency} {format_amount(from_minor(row.minor, minor_units=minor_units[row.currency]))}",
        question=say("did a spreadsheet drop the zeros?") if lost_zeros else say("did software change the id?"),
    )


@dataclass(frozen=True, slots=True)
class StatementDifference:
    """A statement line that does not match the journal, and why."""

    line: int
    order_id: str
    sentence: str


@dataclass(frozen=True, slots=True)
class StatementMatch:
    """The result of comparing a statement with one batch.

    - `settlements`: the settlements that the statement allows. `standings`: their rows when compared, because the
      statement is not about later attempts.
    - `agreeing`, `elsewhere`, `waiting`: how many lines agree with the journal, are about orders in other batches, or
      are about orders that the gateway has not decided.
    - `unsettled_rows`: rows in doubt that the statement does not settle.
    - `blocking`: lines (also among the differences) to record as evidence so that their orders are not sent.
    - `attempts`: the attempt number of each instruction in the statement that may be sent again. The journal stores the
      number, because the file cannot be about later attempts.
    """

    settlements: Sequence[Settlement]
    differences: Sequence[StatementDifference]
    agreeing: int
    elsewhere: int
    waiting: int
    unsettled_rows: Sequence[RowState]
    blocking: Sequence[StatementLine]
    attempts: Mapping[int, int]
    standings: Mapping[int, RowState]


class _NoAction(Enum):
    """Why a line needs no action."""

    AGREES = "the journal knows this already"
    ELSEWHERE = "the order belongs to another batch"
    WAITS = "the gateway has not decided or answered yet"


_LineResult = Settlement | StatementDifference | _NoAction


class StatementMatcher:
    """Compares one statement with one batch in a journal.

    `words` maps the gateway's status words to outcomes, and `minor_units` currencies to their decimals. `as_of` is the
    time that a person gave for the whole statement, if any.
    """

    def __init__(
        self,
        journal: JournalReader,
        batch: BatchRecord,
        *,
        words: Mapping[str, OutcomeKind],
        minor_units: Mapping[str, int],
        quarantine_h: float,
        now: Now,
        as_of: TimeSpan | None = None,
    ) -> None:
        self._journal, self._batch, self._now, self._as_of = journal, batch, now, as_of
        self._words, self._minor_units, self._quarantine_h = words, minor_units, quarantine_h
        self._clock = JournalClock.read(journal, now())
        self._first_reading = FirstReading()
        self._is_proven = False
        self._blocking_ids: Collection[str] = ()

    def match(self, statement: Statement) -> StatementMatch:
        """Compare every line of a statement with the batch."""
        counts = Counter(line.order_id for line in statement.lines)
        rows, rows_in_doubt = self._named_rows(counts)
        earlier, elsewhere = self._other_orders([order_id for order_id in counts if order_id not in rows])
        # Another operation has also used these order ids.
        shared = {clash.client_orderid for clash in self._used_orders(counts, except_operation=self._batch.operation)}
        self._first_reading = self._journal.first_reading(statement.sha256)
        self._is_proven = statement.proof.is_proven
        self._blocking_ids = blocking = self._blocking_lines(statement)
        kind = "Proven statement" if self._is_proven else "Statement"
        evidence = f"{kind} {statement.name} (SHA-256 {statement.sha256[:16]})"
        nearest_rows = self._nearest_rows({*counts} - {"", *rows, *earlier, *elsewhere, *blocking})
        results: list[_LineResult] = []
        for line in statement.lines:
            if not line.order_id:
                results.append(_difference(line, say("The line has no order id.")))
            elif counts[line.order_id] > 1:
                order_values = {"order_id": line.order_id, "times": counts[line.order_id]}
                message = say("The statement has {times} lines for {order_id}. Which one is right?", **order_values)
                results.append(_difference(line, message))
            elif line.order_id in shared and len(self._matching_candidates(line)) > 1:
                results.append(_difference(line, say(_TWO_OPERATIONS, order_id=line.order_id)))
            elif (row := rows.get(line.order_id)) is not None:
                results.append(self._read_line(line, row, evidence))
            elif line.order_id in earlier:
                results.append(self._read_earlier_line(line, earlier[line.order_id]))
            elif candidates := nearest_rows.get(line.order_id):
                results.append(_difference(line, nearest_order_question(line, candidates, self._minor_units)))
            else:
                clash, is_blocking = elsewhere.get(line.order_id), line.order_id in blocking
                mismatch = order_mismatch(line.order_id, clash, is_blocking=is_blocking)
                results.append(_difference(line, mismatch) if mismatch else _NoAction.ELSEWHERE)
        settlements = [result for result in results if isinstance(result, Settlement)]
        settled_rows = {settlement.row for settlement in settlements}
        return StatementMatch(
            settlements=settlements,
            differences=[result for result in results if isinstance(result, StatementDifference)],
            agreeing=results.count(_NoAction.AGREES),
            elsewhere=results.count(_NoAction.ELSEWHERE),
            waiting=results.count(_NoAction.WAITS),
            unsettled_rows=[row for row in rows_in_doubt if row.row not in settled_rows],
            blocking=list(blocking.values()),
            attempts=self._resendable_attempts(rows.values(), {**earlier, **elsewhere}, blocking),
            standings={row.row: row for row in rows.values() if row.row in settled_rows},
        )

    def evidence(self, statement: Statement, blocking: Sequence[StatementLine], by: str) -> Sequence[Evidence]:
        """Return `blocking` lines as evidence for which the person `by` vouches."""
        source = {"statement": statement.name, "sha256": statement.sha256, "by": by}
        entries = []
        for line in blocking:
            body = {"line": line.line, "order_id": line.order_id, "amount": line.amount_text, "currency": line.currency}
            times = {"sent_at": line.sent_at, "time": line.time} if line.sent_at or line.time else {}
            attempts = [(order.number, order.standing.attempt) for order in self._journal.candidates(line.order_id)]
            content = canonical(source | body | times | {"word": _status_word(line)})
            lasting = canonical({"attempts": attempts, "sha256": statement.sha256})
            entries.append(Evidence(EvidenceSource.STATEMENT, self._build_claim(line), content, lasting=lasting))
        return entries

    def meanings(self, statement: Statement) -> Mapping[str, OutcomeKind]:
        """Return the outcome meant by each status or answer in a statement."""
        by_word = {_status_word(line): self._line_outcome(line) for line in statement.lines}
        return {word: meaning for word, meaning in by_word.items() if meaning is not None}

    def _resendable_attempts(
        self, rows: Iterable[RowState], other_orders: Mapping[str, Clash], blocking: Iterable[str]
    ) -> Mapping[int, int]:
        attempts = {row.instruction: row.attempt for row in rows if row.state in _SENDABLE}
        for order_id in {*blocking, *(other for other, clash in other_orders.items() if clash.state in _SENDABLE)}:
            attempts |= {
                candidate.number: candidate.standing.attempt for candidate in self._journal.candidates(order_id)
            }
        return attempts

    def _blocking_lines(self, statement: Statement) -> Mapping[str, StatementLine]:
        """Return the lines, by order id, about orders that could still be sent although the gateway has them."""
        by_id = {line.order_id: line for line in reversed(statement.lines) if self._line_outcome(line) is not None}
        suspects = {order_id: line for order_id, line in by_id.items() if first_order_id(order_id)}
        for clash in self._used_orders(by_id):
            line, state = by_id[clash.client_orderid], clash.state
            if state is State.READY or (state in _SENDABLE and self._line_outcome(line) in GATEWAY_HAS_ORDER):
                suspects[line.order_id] = line
        return {order_id: line for order_id, line in suspects.items() if self._is_blocking(line)}

    def _is_blocking(self, line: StatementLine) -> bool:
        outcome, candidates = self._line_outcome(line), self._journal.candidates(line.order_id)
        if outcome is None or not any(candidate.standing.state in _SENDABLE for candidate in candidates):
            return False
        ruling = assess_claim(self._build_claim(line), candidates, {_status_word(line): outcome})
        findings = HOLDING_FINDINGS if outcome in GATEWAY_HAS_ORDER else {Finding.CONTRADICTING}
        return isinstance(ruling, Ruling) and ruling.finding in findings

    def _line_outcome(self, line: StatementLine) -> OutcomeKind | None:
        if line.status is not None:
            return self._words.get(line.status)
        return _OUTCOME_BY_ANSWER.get(line.answer or "")

    def _used_orders(self, order_ids: Collection[str], *, except_operation: str = "") -> Iterator[Clash]:
        """Yield the journal's orders with these ids, except those of one operation."""
        for operation in sorted({record.operation for record in self._journal.batches()} - {except_operation}):
            _, clashes = self._journal.compare(operation, ((0, order_id, "") for order_id in order_ids))
            yield from clashes

    def _matching_candidates(self, line: StatementLine) -> Sequence[Candidate]:
        return matching_candidates(self._build_claim(line), self._journal.candidates(line.order_id))

    def _named_rows(self, order_ids: Mapping[str, int]) -> tuple[Mapping[str, RowState], Sequence[RowState]]:
        """Return the rows whose latest attempt is in the statement, by order id, and all rows in doubt."""
        by_order_id: dict[str, RowState] = {}
        rows_in_doubt = []
        for row in self._journal.rows(self._batch.number, numbers=self._relevant_row_numbers(order_ids)):
            if row.sent_orderid is not None and row.sent_orderid in order_ids:
                by_order_id[row.sent_orderid] = row
            if row.state in {State.IN_DOUBT, State.IN_FLIGHT}:
                rows_in_doubt.append(row)
        return by_order_id, rows_in_doubt

    def _relevant_row_numbers(self, order_ids: Mapping[str, int]) -> set[int]:
        """Return the numbers of the rows that are in doubt or named in the statement."""
        row, state, sent_id = (LINE_COLUMNS.index(name) for name in ("row", "state", "sent_orderid"))
        doubtful_states = {State.IN_DOUBT.value, State.IN_FLIGHT.value}
        return {
            int(line[row] or 0)
            for lines in self._journal.batch_lines(self._batch.number)
            for line in lines
            if line[sent_id] in order_ids or line[state] in doubtful_states
        }

    def _nearest_rows(self, unknown_ids: Collection[str]) -> Mapping[str, Sequence[RowState]]:
        """Return, for each unknown id, the sent rows with similar order ids."""
        if not unknown_ids:
            return {}
        repaired = {order_id: repair_order_id(order_id) for order_id in unknown_ids}
        repaired_ids, rows_by_id = frozenset(repaired.values()), defaultdict[str, list[RowState]](list)
        row, sent_id = LINE_COLUMNS.index("row"), LINE_COLUMNS.index("sent_orderid")
        keys = {
            int(line[row] or 0): key
            for lines in self._journal.batch_lines(self._batch.number)
            for line in lines
            if line[sent_id] is not None and (key := repair_order_id(str(line[sent_id]))) in repaired_ids
        }
        for sent_row in self._journal.rows(self._batch.number, numbers=set(keys)):
            rows_by_id[keys[sent_row.row]].append(sent_row)
        return {order_id: rows_by_id[key] for order_id, key in repaired.items() if key in rows_by_id}

    def _other_orders(self, order_ids: Sequence[str]) -> tuple[Mapping[str, Clash], Mapping[str, Clash]]:
        """Return the orders of this batch's earlier attempts and those of other batches, by order id."""
        earlier: dict[str, Clash] = {}
        elsewhere: dict[str, Clash] = {}
        for clash in self._used_orders(order_ids):
            (earlier if clash.batch == self._batch.batch else elsewhere)[clash.client_orderid] = clash
        return earlier, elsewhere

    def _read_line(self, line: StatementLine, row: RowState, evidence: str) -> _LineResult:
        if (message := money_mismatch(line, row, self._minor_units[row.currency])) is not None:
            return _difference(line, message)
        if line.answer == "":
            return _NoAction.WAITS
        resolution, time = self._stated_resolution(line), self._line_time(line)
        if isinstance(resolution, StatementDifference):
            return resolution
        if time.problem is not None:
            return _difference(line, time.problem)
        if row.state in _UNSETTLED:
            return self._read_unsettled_line(line, row, resolution, time, evidence)
        return self._read_settled_line(line, row, resolution, time)

    def _read_unsettled_line(
        self, line: StatementLine, row: RowState, resolution: Resolution | None, time: LineTime, evidence: str
    ) -> _LineResult:
        is_only = all(map(is_only_attempt, self._matching_candidates(line)))
        last_sent_at = self._latest_send_time(row)
        is_outdated = predates_attempt(self._first_reading.attempts, row.instruction, row.attempt)
        message = attempt_mismatch(line, last_sent_at, time, is_only_attempt=is_only, predates_attempt=is_outdated)
        if message is not None:
            return _difference(line, message)
        if resolution is None:  # the gateway has not decided yet
            return _NoAction.WAITS
        if resolution is Resolution.NOT_RECEIVED:
            if row.state is State.ACCEPTED:
                return self._contradiction(line, row, say("not received"))
            quarantine = self._clock.quarantine(self._quarantine_h)
            if (message := quarantine_message(row, quarantine, self._now())) is not None:
                return _difference(line, message)
        # A row rejected by the gateway may be sent again immediately. If only a person says so, the quarantine applies.
        # So the file must be proven, and the line must have the gateway's own status and a time after that attempt.
        has_gateway_status = line.status is not None and match_attempt(time.stated, last_sent_at) is AttemptMatch.LATEST
        basis = Basis.GATEWAY if self._is_proven and has_gateway_status else Basis.PERSON
        time_text = f" at {line.time}" if line.time else ""
        return Settlement(row.row, resolution, f"{evidence}, line {line.line}: {_status_word(line)}{time_text}", basis)

    def _read_settled_line(
        self, line: StatementLine, row: RowState, resolution: Resolution | None, time: LineTime
    ) -> _LineResult:
        if resolution is None:
            waiting_text = say("still being worked on")
            return _NoAction.AGREES if row.state is State.PAID else self._contradiction(line, row, waiting_text)
        is_earlier = predates_attempt(self._first_reading.attempts, row.instruction, row.attempt) or (
            match_attempt(time.times, self._latest_send_time(row)) is AttemptMatch.EARLIER
        )
        is_other_attempt = is_earlier and not all(map(is_only_attempt, self._matching_candidates(line)))
        if is_other_attempt and resolution is not Resolution.PAID:
            return _NoAction.AGREES
        difference = self._contradiction(line, row, say(resolution.value.replace("-", " ")))
        if is_other_attempt:
            return replace(difference, sentence=f"{difference.sentence} {say(_EARLIER_ATTEMPT)}")
        return (
            _NoAction.AGREES
            if resolution in _AGREEING_RESOLUTIONS[row.state] and line.order_id not in self._blocking_ids
            else difference
        )

    def _line_time(self, line: StatementLine) -> LineTime:
        return line_time(line, self._as_of, self._now(), true_by=self._first_reading.at)

    def _latest_send_time(self, row: RowState) -> str | None:
        """Return the latest time at which a row's last attempt may have been sent, or None if it was not."""
        return None if row.intended_at is None else latest_send_time(self._clock.last_comparison, row.intended_at)

    def _build_claim(self, line: StatementLine) -> Claim:
        """Return a line as a claim that the person who submits the statement vouches for."""
        amount = None if line.amount is None else f"{line.amount:f}"
        return Claim(
            line.order_id,
            amount,
            line.currency,
            _status_word(line),
            proof=Proof.VOUCHED,
            is_current=True,
            times=self._line_time(line).times,
            attempts=self._first_reading.attempts,
        )

    def _read_earlier_line(self, line: StatementLine, clash: Clash) -> _LineResult:
        """Read a line about an earlier, rejected attempt, or about a row that was never sent."""
        resolution = self._stated_resolution(line)
        if isinstance(resolution, StatementDifference):
            return resolution
        is_negative = resolution in {Resolution.REJECTED, Resolution.NOT_RECEIVED}
        if line.answer == "" or (is_negative and line.order_id not in self._blocking_ids):
            return _NoAction.AGREES
        if is_negative or not any(candidate.sent_order_id for candidate in self._journal.candidates(line.order_id)):
            message = say(
                "According to the journal, row {row} was never sent, but the statement says otherwise.",
                row=clash.sheet_row,
            )
            return _difference(line, f"{message} {say(DO_NOT_SEND)}")
        return _difference(line, say(_EARLIER_REJECTED, order_id=line.order_id))

    def _stated_resolution(self, line: StatementLine) -> Resolution | StatementDifference | None:
        """Return the resolution that a line states, or None if the gateway has not decided."""
        if line.status is None:
            resolution = _RESOLUTION_BY_ANSWER.get(line.answer or "")
            if resolution is None and line.answer:
                answers = ", ".join(_RESOLUTION_BY_ANSWER)
                message = say("The answer {answer!r} is not one of {says}.", answer=line.answer, says=answers)
                return _difference(line, message)
            return resolution
        if (outcome := self._words.get(line.status)) is None:
            return _difference(line, say(_NOT_LISTED, status=line.status))
        return _RESOLUTION_BY_OUTCOME.get(outcome)

    def _contradiction(self, line: StatementLine, row: RowState, stated: str) -> StatementDifference:
        state = state_label(display_state(row.state))
        message = say(
            "Row {row} is {state} in the journal, but {said} in the statement.", row=row.row, state=state, said=stated
        )
        if row.state in {State.READY, State.REJECTED, State.REPLACED}:
            message += f" {say(DO_NOT_SEND)}"
        return _difference(line, message)


def _difference(line: StatementLine, message: str) -> StatementDifference:
    return StatementDifference(line.line, line.order_id, message)


def _status_word(line: StatementLine) -> str:
    return line.status if line.status is not None else line.answer or ""
