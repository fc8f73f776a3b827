"""The simulated machine of one seed: random choices, clock, disk, gateway, and replaceable parts for planted bugs."""

import csv
import heapq
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Verdict
from paygw_batch.core.shown_states import INVALID, display_state
from paygw_batch.engine.engine import Engine, RunEnd
from paygw_batch.engine.pacing import Pace
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import JournalError
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import Attempt, ExpectedReply, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal import file_location
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.values import LINE_COLUMNS, BatchRecord
from paygw_batch.settle.statement import SignedStatements
from paygw_batch.sheet.check.repeats import LOOK_ALIKE
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.write import table
from paygw_batch.show.totals import BatchTotals
from paygw_batch.submit import plan as submit
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.results import batch_result, summary_after_run
from tests.promise.simulation.approvals import Approvals, Orders
from tests.promise.simulation.disk import Disk
from tests.promise.simulation.gateway import HONEST, OPERATIONS, QUARANTINE_H, USUAL, WORDS, AnswerMeaning, SimGateway
from tests.promise.simulation.inbox import SimulatedInbox
from tests.promise.simulation.judge import Judge, Request, ShownBatch
from tests.promise.simulation.loop import Clock
from tests.promise.simulation.people import StatementFile, signature_of
from tests.promise.simulation.sheets import FIRST_ROW, RULES, CachedGate, validated, wanted
from tests.support.scripted_scenario import unsigned

EVERYTHING = (*HONEST, *USUAL * (len(HONEST) // len(USUAL)))
"""Every behaviour of the gateway except lies. The usual ones are as frequent as all others together."""
EPOCH = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Scenario:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)  # noqa: S311 (dice, not secrets)
        self.sleeps = Random(~seed)  # noqa: S311 (dice of their own: the other stories stay as they were)
        self.operation = "payin" if seed % 2 else "payout"
        self.clock = Clock()
        self.disk = Disk(seed)
        self.undo = ExitStack()  # cleanup at the end of this scenario
        self.undo.callback(self.disk.close)
        self.row_count = rng.randrange(1, 9)
        self._directory: Path | None = None
        self.patch(submit, "ContractGate", CachedGate)
        self.patch(file_location, "check_tables", self.disk.check_tables)
        self.pace = Pace(
            concurrency=rng.choice((1, 2, 3, 8)),
            rate_per_s=rng.choice((0.0, 0.0, 5.0)),
            stop_after_in_doubt=rng.choice((0, 1, 2, 5)),
        )
        self.mood: Sequence[str] = USUAL
        self.judge = Judge()
        self.inbox = SimulatedInbox(self)
        self.approvals = Approvals(self) if seed % 5 == 0 else None
        self.judge.needs_approval = self.approvals is not None
        self.typing = Random(f"typing {seed}")  # noqa: S311 (as above)
        """A separate dice for typed files and forged orders, so that the others are not affected."""
        self.forgetting = Random(f"forgetting {seed}")  # noqa: S311 (as above)
        signed = SignedStatements(lambda signature, content: signature == signature_of(content))
        self.statement_rule = signed if self.typing.random() < 0.5 else None
        self.orders = None if self.approvals is None else Orders(self, self.approvals.policy)
        self._amends = rng.random() < 0.3
        self.statements: list[StatementFile] = []
        self.has_forgotten = False
        self.sheet_of_batch: dict[str, str] = {}
        self.unhandled: list[str] = []
        self.refused: JournalError | None = None
        self.restored_older = False
        self._nonces = count(1)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self.newcomers: list[str] = []  # sheets that someone submits meanwhile
        self.skew = timedelta()
        self.clock_is_unknown = False
        """Whether requests left by a slow clock, and no reply's `Date` has been recorded since."""
        self._now_of, self._now = (0.0, self.skew), EPOCH
        # Parts that a planted bug may replace.
        self.engine_type: type[Engine] = Engine
        self.journal_type: type[SqliteJournal] = SqliteJournal
        self.classify: Callable[[RawReply | TransportFault, ExpectedReply], Verdict] = partial(
            classify, words=WORDS, operation=OPERATIONS[self.operation]
        )
        self.gateway_type: type[SimGateway] = SimGateway
        self.prepare: Callable[[Attempt], PreparedRequest] = unsigned

    def now(self) -> datetime:
        if self._now_of != (of := (self.clock.now_s, self.skew)):
            self._now_of, self._now = of, EPOCH + self.skew + timedelta(seconds=self.clock.now_s)
        return self._now

    def elapsed_s(self) -> float:
        return self.clock.now_s

    def at(self) -> str:
        return timestamp(self.now())

    def cutoff(self, journal: SqliteReader) -> str:
        """Return the time before which attempts are out of quarantine."""
        return JournalClock.read(journal, self.now()).quarantine(QUARANTINE_H).cutoff(self.now())

    def right_time(self, at_s: float) -> datetime:
        """Return the gateway's clock at a time of this scenario."""
        return EPOCH + timedelta(seconds=at_s)

    def add_date(self, answer: RawReply | TransportFault) -> RawReply | TransportFault:
        """Return a reply with the gateway's date, whose clock is right."""
        if isinstance(answer, TransportFault):
            return answer
        right = self.right_time(self.clock.now_s)
        return replace(answer, headers=(*answer.headers, ("date", format_datetime(right, usegmt=True))))

    def nonce(self) -> str:
        return f"{next(self._nonces):032x}"

    @property
    def amends(self) -> bool:
        rows, paid = self.judge.rows, self.judge.paid_nonces
        return self._amends and not any(rows[number].nonce in paid for number in self.judge.called_early)

    def gateway_records(self, requests: Sequence[Request]) -> Mapping[str, tuple[Request, str]]:
        """Return the gateway's latest request and status by order id, without unsent and undecided ones."""
        found: dict[str, tuple[Request, str]] = {}
        for request in requests:
            word = {AnswerMeaning.NO: "declined", AnswerMeaning.PENDING: "processing"}.get(request.meaning)
            if request.left and self.judge.executed_orders[request.order_id]:
                word = "approved"
            if request.left and word is not None:
                found[request.order_id] = request, word
        return found

    # The gateway's own events.

    def later(self, delay_s: float, happening: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.clock.now_s + delay_s, next(self._nonces), happening))

    def next_happening_s(self) -> float | None:
        return self._later[0][0] if self._later else None

    def advance_clock(self, until_s: float) -> None:
        while self._later and self._later[0][0] <= until_s:
            at_s, _, happening = heapq.heappop(self._later)
            self.clock.now_s = max(self.clock.now_s, at_s)
            happening()
        self.clock.now_s = max(self.clock.now_s, until_s)

    # Sheets and their reports.

    def validated(self, sheet: str) -> Validated:
        return validated(self.operation, sheet, self.row_count)

    def check_comparison(self, sheet: str, journal: SqliteJournal, plan: Plan) -> None:
        """I7: exactly the rows whose content changed are found."""
        if plan.existing is not None:
            return
        held = dict(journal._connection.execute("SELECT client_orderid, amount FROM instruction"))
        asked = wanted(sheet, self.row_count)
        changed = {one for one, amount in held.items() if one in asked and Decimal(amount) != asked[one]}
        # Rows of forgotten people cannot be compared.
        query = "SELECT client_orderid FROM instruction WHERE salt IS {}NULL"
        forgotten = f"{query.format('')} EXCEPT {query.format('NOT ')}"  # others were amended since
        changed |= {order_id for (order_id,) in journal._connection.execute(forgotten) if order_id in asked}
        defects = plan.validated.defects.select("code", "value").rows() if plan.validated.defects.height else []
        reported = {value for code, value in defects if code == "client_orderid.conflict"}
        order_ids = list(asked)
        reported |= {order_ids[amendment.row - FIRST_ROW] for amendment in plan.amendments}
        if reported != changed:
            raise self.judge.found("I7", f"{sorted(reported)} are told to have changed, and {sorted(changed)} did")
        spellings = {order_id.casefold() for order_id in held}
        spelled = {order_id for order_id in asked if order_id not in held and order_id.casefold() in spellings}
        reported = {value for code, value in defects if code == LOOK_ALIKE}
        if reported != spelled:
            raise self.judge.found(
                "I7", f"{sorted(reported)} are told to be spelled otherwise, and {sorted(spelled)} are"
            )
        self.sheet_of_batch[plan.validated.batch] = sheet

    def shown(self, journal: SqliteReader, record: BatchRecord, end: RunEnd) -> ShownBatch:
        """Return a batch's reconciliation and summary, or states and amounts from the journal if none is written."""
        # The chance of a full reconciliation when somebody views a batch. It costs as much as all runs.
        if self.rng.random() >= 0.25 or journal.first_forgetting(record.number) is not None:
            return self._shown_by_the_journal(journal, record, end)
        stand = batch_result(journal, record, RULES[self.operation], end)
        lines = stand.frame.to_dicts()
        # The chance that it is also written and read as CSV. Otherwise its frame is checked.
        if self.rng.random() < 0.3:
            file = io.BytesIO()
            table._guard_piece(stand.frame).write_csv(file)
            lines = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
        return ShownBatch(self.sheet_of_batch[record.batch], self.row_count, lines, stand.summary.as_json())

    def _shown_by_the_journal(self, journal: SqliteReader, record: BatchRecord, end: RunEnd) -> ShownBatch:
        sheet = self.sheet_of_batch[record.batch]
        row_at, state_at, minor_at = (LINE_COLUMNS.index(name) for name in ("row", "state", "minor"))
        known = {int(line[row_at] or 0): line for some in journal.batch_lines(record.number) for line in some}
        lines, states, sums = [], Counter[str](), defaultdict[str, Decimal](Decimal)
        for number, (order_id, asked) in enumerate(wanted(sheet, self.row_count).items(), FIRST_ROW):
            line = known.pop(number, None)
            state = INVALID if line is None else display_state(State(str(line[state_at])))
            amount = asked if line is None else Decimal(line[minor_at] or 0) / 100
            lines.append({"client_orderid": order_id, "state": state, "amount": str(amount)})
            states[state] += 1
            sums[state] += amount
        if known:
            raise self.judge.found("I3", f"the journal has rows {sorted(known)} of {sheet}, which has none such")
        totals = BatchTotals(states, {"KES": {state: str(amount) for state, amount in sums.items()}}, ())
        return ShownBatch(sheet, self.row_count, lines, summary_after_run(journal, record, totals, end).as_json())

    def directory(self) -> Path:
        """Return a folder for files, made when it is first asked for."""
        if self._directory is None:
            self._directory = Path(self.undo.enter_context(TemporaryDirectory(dir="/dev/shm")))
        return self._directory

    def patch(self, owner: object, name: str, value: object) -> None:
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)
