"""Scenarios in which a malicious maker forges plans with their own key, and approvers see only their screens.

Plan -> forge -> screen -> approve or withdraw -> submit -> journal: all of this is the real program (`draft_plan`,
`recompute_plan`, `approve`, `submit_sheet`, the journal), in memory. The gateway pays at once.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import apsw
import polars as pl

from paygw_batch.approval.approval_keys import build_people
from paygw_batch.approval.plan_document import PlanApproval, PlanDocument, PlanFinding
from paygw_batch.approval.signed_document import ApprovalPolicy, approve, sign_document
from paygw_batch.clock import timestamp
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Concluded, Intended
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import ApprovalError, InternalError, PaygwError
from paygw_batch.journal.file_location import empty_database
from paygw_batch.journal.sent_log import NoSentLog
from paygw_batch.journal.sqlite.connect import configure
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, Entry, Identity, Link
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob
from paygw_batch.opening.given_sheet import SheetSource
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import sign_withdrawal
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import sheet_from_frame
from paygw_batch.submit import approvals, submit_sheet
from paygw_batch.submit import plan as submit
from paygw_batch.submit import submission as plan_document
from paygw_batch.submit.changes import Comparison, compare_with_past
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from paygw_batch.submit.submission import Conversation, RefusedSheet, Submission
from tests.promise.simulation.approvals import key_of
from tests.promise.simulation.scenario import EPOCH
from tests.promise.simulation.screens import (
    Opening,
    PaidBatch,
    Payment,
    Review,
    ScreenJudge,
    ScreenLines,
    render_screen,
    text_sha256,
)
from tests.promise.simulation.sheets import RULES, CachedGate
from tests.support.signed_plans import forge_approval

MAKER, SECOND_KEY = "amina", "amina's second"
APPROVERS = ("brian", "carol")
EXPIRES_H = 72
SMALL = Decimal(900)
"""The sum above which approval is needed, in half of the scenarios: every salary is above it, a trick may be below."""
NAMES = ("Jane Wanjiku", "Otieno Ouma", "Amani Njoroge", "Grace Achieng", "Peter Mwangi", "Zuri Kamau", "Ghost Writer")
GHOST = NAMES[-1]
_HEADINGS = ("country", "client_orderid", "amount", "currency", "account_name", "account_number", "phone")
_DANGERS = ("payee.account", "payee.amount", "payee.new", "payee.gone")
_ENDPOINT = "unset/unset"


def account_of(name: str) -> str:
    return f"25471234{NAMES.index(name):04}"


def thief_account(number: int) -> str:
    return f"25472999{number:04}"


@dataclass(frozen=True, slots=True)
class Sheet:
    name: str
    prefix: str
    payments: tuple[Payment, ...]

    @property
    def validated(self) -> Validated:
        return _validated(self)

    @property
    def total(self) -> Decimal:
        return sum((payment.amount for payment in self.payments), Decimal())


@lru_cache(maxsize=8_192)
def _validated(sheet: Sheet) -> Validated:
    return validate(sheet_from_frame(_frame(sheet), ReadOptions(operation="payout"), name=sheet.name), RULES["payout"])


def _frame(sheet: Sheet) -> pl.DataFrame:
    lines = [
        ("KE", f"{sheet.prefix}-{row}", f"{one.amount:.2f}", "KES", one.name, one.account, f"+{one.account}")
        for row, one in enumerate(sheet.payments, 2)
    ]
    return pl.DataFrame(lines, schema=dict.fromkeys(_HEADINGS, pl.String), orient="row")


@cache
def _settings(needed: int, from_amount: Decimal) -> Settings:
    approvers = {name: key_of(name).public.text for name in APPROVERS} | {MAKER: key_of(SECOND_KEY).public.text}
    limits = {"needed": needed, "from_amount": {"KES": str(from_amount)}, "expires_h": EXPIRES_H}
    people = {"makers": {MAKER: key_of(MAKER).public.text}, "approvers": approvers}
    return Settings.model_validate({"approval": limits | people})


@dataclass(frozen=True, slots=True)
class PaymentHistory:
    image: bytes
    end: Link
    paid: tuple[PaidBatch, ...]


def month_sheet(people: int, month: int, prefix: str) -> Sheet:
    """Return the payroll of a month. Each person's pay is always different, and always close to the last one."""
    pay = [Decimal(1000 + 150 * at + month * 3) + Decimal("0.25") for at in range(people)]
    return Sheet("payroll.csv", prefix, tuple(map(Payment, NAMES, map(account_of, NAMES), pay)))


@cache
def payment_history(people: int, months: int) -> PaymentHistory:
    identity = Identity("6" * 32, _ENDPOINT, "2026-01-01T00:00:00.000Z", ":memory:")
    journal = _open_journal(empty_database(identity), identity.start)
    paid = []
    for month in range(months):
        at = EPOCH - timedelta(days=30 * (months - month))
        sheet = month_sheet(people, month, f"M{month}")

        def now(at: datetime = at) -> datetime:
            return at

        plan = plan_submission(sheet.validated, journal, Choices(), now=now, quarantine_h=24)
        approved = PlanApproval("", (f"approved by brian at {timestamp(at)} (plan {'0' * 16})",))
        rules, path = RULES["payout"], Path("/payroll.csv")
        record = open_planned_batch(plan, journal, rules, sheet_path=path, now=now, approved=approved)
        pay(journal, record.number, at)
        paid.append(PaidBatch(record.batch, at, True, sheet.payments))
    return PaymentHistory(journal._connection.serialize("main"), journal._end, tuple(paid))


def _open_journal(image: bytes, end: Link) -> SqliteJournal:
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image)
    configure(connection)
    return SqliteJournal(connection, Path(":memory:"), end=end, sent_log=NoSentLog(), lock=ExitStack(), notes=())


def pay(journal: SqliteJournal, batch: int, at: datetime) -> None:
    when, entries = timestamp(at), []
    for due in journal.due(batch, after_row=0, limit=100):
        intended = Intended(due.order_id, f"{due.number:032x}", int(at.timestamp()), None)
        paid = Concluded(Outcome(OutcomeKind.PAID))
        entries += [Entry(due.number, 1, intended, when), Entry(due.number, 1, paid, when)]
    journal.append(entries)


_COMPARED: dict[object, Comparison] = {}
"""Cached comparisons of sheets with journals, shared by all scenarios of a process."""


@dataclass(frozen=True, slots=True)
class MadePlan:
    sheet: Sheet
    document: PlanDocument


class ForgeryScenario:
    """Everything that one seed decides."""

    def __init__(self, seed: int, plant: object = None) -> None:
        self.rng = rng = Random(f"forging {seed}")  # noqa: S311 (dice, not secrets)
        self.undo = ExitStack()
        self.people, self.months = rng.randrange(2, 5), rng.randrange(3)
        needed, from_amount = rng.choice((1, 2)), rng.choice((Decimal(0), SMALL))
        self.settings = _settings(needed, from_amount)
        section = self.settings.approval
        people = build_people(section.makers, section.approvers)
        self.policy = ApprovalPolicy(needed, section.from_amount, section.expires_h, people)
        expires = timedelta(hours=EXPIRES_H)
        self.judge = ScreenJudge(maker=MAKER, needed=needed, from_amount=from_amount, expires=expires)
        past = payment_history(self.people, self.months)
        self.journal = _open_journal(past.image, past.end)
        self.undo.callback(self.journal._connection.close, force=True)
        self.judge.paid += past.paid
        self.now = EPOCH
        self.made: list[MadePlan] = []
        self.sheets = 0
        self.directory = Path(self.undo.enter_context(TemporaryDirectory(dir="/dev/shm")))
        self.patch(submit, "ContractGate", CachedGate)
        self.plant = plant
        self.patch(plan_document, "compare_with_past", self._compare)
        for module in (plan_document, submit_sheet, approvals):
            self.patch(module, "utc_now", lambda: self.now)

    def patch(self, owner: object, name: str, value: object) -> None:
        """Replace a part of the program during this scenario, to plant a bug."""
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _compare(
        self, now: pl.DataFrame, journal: SqliteJournal, batches: Sequence[BatchRecord], **named: Any
    ) -> Comparison:
        """Compare a sheet with a journal, cached by the content of both."""
        against = named["against"]
        columns = ("row", "valid", "amount", "account_name", "account_number")
        key = (
            self.plant,
            tuple(now.select(columns).rows()),
            tuple(
                (batch.batch, batch.is_approved, f"{batch.at:%Y-%m-%d}", *batch.payments) for batch in self.judge.paid
            ),
            tuple(batch.number for batch in batches),
            against and against.number,
            tuple(named["sent"]),
        )
        if key not in _COMPARED:
            if len(_COMPARED) >= 20_000:
                _COMPARED.clear()
            _COMPARED[key] = compare_with_past(now, journal, batches, **named)
        return _COMPARED[key]

    def asked(self, sheet: Sheet, plan: Path, *, repeats_meant: bool = True) -> Submission:
        given = SheetSource(self.settings, RULES["payout"], self.directory / sheet.name, frame=_frame(sheet))
        choices = Choices(skip_invalid=True, repeats_meant=repeats_meant, decided_by=MAKER)
        return Submission(given, sheet.validated, choices, plan)

    def next_prefix(self) -> str:
        self.sheets += 1
        return f"N{self.sheets}"


def play_forging(seed: int, plant: Callable[[Any], None] | None = None) -> ForgeryScenario:
    """Play the scenario of one seed and return it. Raises `Violation` or the program's error."""
    scenario = ForgeryScenario(seed, plant)
    with scenario.undo:
        if plant is not None:
            plant(scenario)
        rng = scenario.rng
        for _ in range(rng.randrange(1, 3)):
            if rng.random() < 0.35:
                _pay_a_small_batch(scenario)
            made = _make_plan(scenario, _sheet(scenario))
            if made is None:
                continue
            made = _collect_approvals(scenario, made)
            _interfere(scenario, made)
            _submit(scenario, *_choose_submission(scenario, made))
    return scenario


def _sheet(scenario: ForgeryScenario) -> Sheet:
    """Return the sheet of this month: honest, or with a change that an approver must see."""
    honest = month_sheet(scenario.people, scenario.months, scenario.next_prefix())
    return _change_sheet(scenario, honest) if scenario.rng.random() < 0.8 else honest


def _change_sheet(scenario: ForgeryScenario, sheet: Sheet) -> Sheet:
    rng, payments = scenario.rng, list(sheet.payments)
    at = rng.randrange(len(payments))
    victim = payments[at]
    match rng.choice(("account", "account", "amount", "new", "gone", "name", "accomplice", "repeat")):
        case "account":
            payments[at] = replace(victim, account=thief_account(1))
        case "amount":
            payments[at] = replace(victim, amount=victim.amount * rng.choice((2, Decimal("0.5"))))
        case "new":
            payments.append(Payment(GHOST, thief_account(2), Decimal("999.99")))
        case "gone":
            del payments[at]
        case "name":
            payments[at] = replace(victim, name=GHOST)
        case "accomplice":
            payments.append(Payment(GHOST, victim.account, Decimal("777.77")))
        case "repeat" if scenario.judge.paid:
            payments = list(scenario.judge.paid[-1].payments)
        case _:
            pass
    return replace(sheet, payments=tuple(payments)) if payments else sheet


def _pay_a_small_batch(scenario: ForgeryScenario) -> None:
    """Pay an unapproved small sum, if possible, to make an account known or an amount usual."""
    rng, names = scenario.rng, NAMES[: scenario.people]
    at = rng.randrange(len(names))
    some = names[at : at + rng.randrange(1, len(names) + 1)]
    left = SMALL - 1
    match rng.choice(("thief", "thief", "honest", "ghost")):
        case "thief":
            payments = [Payment(some[0], thief_account(1), rng.choice((Decimal("10.5"), left)))]
        case "honest":
            payments = [Payment(one, account_of(one), (left / len(some)).quantize(Decimal("0.01"))) for one in some]
        case _:
            payments = [Payment(GHOST, thief_account(2), left)]
    _submit(scenario, Sheet("small.csv", scenario.next_prefix(), tuple(payments)), None)
    scenario.now += timedelta(hours=rng.choice((1, 30, 200)))


def _make_plan(scenario: ForgeryScenario, sheet: Sheet) -> MadePlan | None:
    batch = _any_batch(scenario)
    against = batch if batch and scenario.rng.random() < 0.2 else None
    asked, maker = scenario.asked(sheet, scenario.directory / "none.json"), key_of(MAKER).public
    drafted = plan_document.draft_plan(asked, scenario.journal, Conversation(), maker, against=against)
    if isinstance(drafted, RefusedSheet):
        return None
    made = MadePlan(sheet, sign_document(drafted.document, key_of(MAKER)))
    scenario.made.append(made)
    if scenario.rng.random() < 0.4:
        made = _forge_plan(scenario, made)
        scenario.made.append(made)
    return made


def _any_batch(scenario: ForgeryScenario) -> str:
    return scenario.rng.choice(scenario.judge.paid).batch if scenario.judge.paid else ""


def _forge_plan(scenario: ForgeryScenario, made: MadePlan) -> MadePlan:
    """Edit a plan, and sign it again with the maker's own key."""
    document, rng = made.document, scenario.rng
    findings = list(document.findings)
    changes: dict[str, Any] = {}
    edits = ("none", "dangers", "one", "values", "people", "people", "repeats", "against", "time", "language")
    match rng.choice(edits):
        case "none":
            changes["findings"] = []
        case "dangers":
            changes["findings"] = [finding for finding in findings if finding.code not in _DANGERS]
        case "one" if findings:
            del findings[rng.randrange(len(findings))]
            changes["findings"] = findings
        case "values" if findings:
            at = rng.randrange(len(findings))
            findings[at] = _other_values(findings[at], rng)
            changes["findings"] = findings
        case "people":
            changes = _other_people(scenario, document)
        case "repeats":
            changes["answered"] = [] if document.answered else [f"sheet.repeats_a_batch {_any_batch(scenario)}"]
        case "against":
            changes["against"] = _any_batch(scenario)
        case "time":
            changes["made_at"] = timestamp(scenario.now - timedelta(days=rng.choice((1, 6, 40, -1))))
        case "language":
            changes["language"] = rng.choice(("fr", "xx"))
        case _:
            pass
    return replace(made, document=sign_document(document.model_copy(update=changes), key_of(MAKER)))


def _other_values(one: PlanFinding, rng: Random) -> PlanFinding:
    match rng.randrange(4):
        case 0:
            return one.model_copy(update={"account": one.old_account or thief_account(3)})
        case 1:
            return one.model_copy(update={"amount": one.before or "1.00", "name": GHOST})
        case 2:
            return one.model_copy(update={"code": rng.choice(_DANGERS)})
        case _:
            return one.model_copy(update={"before_at": "2026-01-01", "at": "2026-01-01", "rows": "2-99"})


def _other_people(scenario: ForgeryScenario, document: PlanDocument) -> dict[str, Any]:
    honest = month_sheet(scenario.people, scenario.months, "N").payments
    people = "".join(f"{row},{one.name},{one.account},KES,{one.amount:.2f}\n" for row, one in enumerate(honest, 2))
    content = document.content.model_copy(update={"people_sha256": sha256(people.encode()).hexdigest()})
    totals = {"KES": f"{sum(payment.amount for payment in honest):.2f}"}
    if scenario.rng.random() < 0.3:
        content = content.model_copy(update={"totals": totals, "rows": len(honest)})
    return {"people": people, "content": content}


def _collect_approvals(scenario: ForgeryScenario, made: MadePlan) -> MadePlan:
    """Let people review a plan, and approve it if it looks right to them."""
    for person in scenario.rng.choice((APPROVERS, APPROVERS, APPROVERS[:1], APPROVERS[1:])):
        made = _review_plan(scenario, made, person)
        scenario.now += timedelta(minutes=scenario.rng.choice((1, 60, 600)))
    return made


def _review_plan(scenario: ForgeryScenario, made: MadePlan, person: str) -> MadePlan:
    rng, shown = scenario.rng, made.document
    if rng.random() < 0.2:
        try:
            asked = scenario.asked(made.sheet, scenario.directory / "none.json")
            shown = plan_document.recompute_plan(shown, asked, scenario.journal)
        except ApprovalError:
            return made
    lines, code = render_screen(shown), made.document.code
    if not _is_convincing(scenario, lines):
        return made
    if rng.random() < 0.25:  # the maker replaces the file, and the approver compares the codes
        other = _forge_plan(scenario, made) if rng.random() < 0.3 else rng.choice(scenario.made[-3:])
        if other.document.code != code:
            return made
        made = other
    document = approve(made.document, key_of(person), scenario.policy, scenario.now)
    scenario.judge.looks.append(Review(person, scenario.now, text_sha256(document.model_dump_json()), lines))
    made = replace(made, document=document)
    scenario.made.append(made)
    return made


def _is_convincing(scenario: ForgeryScenario, lines: Sequence[str]) -> bool:
    """Return whether a reader approves a screen: by its differences, by the truth, or by trust."""
    match scenario.rng.choice(("trusts", "trusts", "differences", "truth")):
        case "differences":
            return not ScreenLines(lines).sections["account"]
        case "truth":
            truth = month_sheet(scenario.people, scenario.months, "N").payments
            return sorted(map(str, truth)) == sorted(str(line) for line, _ in ScreenLines(lines).listed())
        case _:
            return True


def _interfere(scenario: ForgeryScenario, made: MadePlan) -> None:
    rng = scenario.rng
    if rng.random() < 0.25:
        about = made if rng.random() < 0.7 else rng.choice(scenario.made)
        person = rng.choice((MAKER, *APPROVERS))
        scenario.journal.withdraw(sign_withdrawal(about.document, key_of(person), scenario.policy.people, scenario.now))
        scenario.judge.withdrawn.add(text_sha256(about.document.model_dump_json()))
    if rng.random() < 0.15:
        _pay_a_small_batch(scenario)
    scenario.now += timedelta(hours=rng.choice((0, 1, 1, 20, 71, 73, 200) if rng.random() < 0.3 else (0, 1)))


def _choose_submission(scenario: ForgeryScenario, made: MadePlan) -> tuple[Sheet, str]:
    """Return the sheet and the plan's file to submit, or others in their place."""
    rng, sheet = scenario.rng, made.sheet
    document = made.document
    match rng.choice(("as it is", "as it is", "as it is", "forged", "approvals", "own", "older", "sheet", "another")):
        case "forged":
            document = _forge_plan(scenario, made).document
        case "approvals":  # of every other plan
            copied = [approval for other in scenario.made for approval in other.document.approvals]
            document = document.model_copy(update={"approvals": copied})
        case "own":
            own = [forge_approval(key_of(name), document, at=timestamp(scenario.now)) for name in (SECOND_KEY, MAKER)]
            document = document.model_copy(update={"approvals": [*document.approvals, *own]})
        case "older":
            older = rng.choice(scenario.made)
            sheet, document = older.sheet, older.document
        case "another":
            document = rng.choice(scenario.made).document
        case "sheet":
            sheet = replace(_change_sheet(scenario, sheet), prefix=sheet.prefix)
        case _:
            pass
    return sheet, document.model_dump_json()


def _submit(scenario: ForgeryScenario, sheet: Sheet, file: str | None) -> None:
    """Submit a sheet with a plan's file, and let the gateway pay the rows that are sent."""
    path = scenario.directory / "plan.json"
    path.unlink(missing_ok=True)
    if file is not None:
        path.write_text(file)
    asked = scenario.asked(sheet, path, repeats_meant=scenario.rng.random() < 0.5)
    pays, nowhere = partial(_check_and_pay, scenario, sheet, file), cast(GatewayAccess, None)
    try:
        submit_sheet.submit_sheet(asked, nowhere, scenario.journal, Conversation(), pays)
    except InternalError:
        raise
    except PaygwError:
        return


def _check_and_pay(scenario: ForgeryScenario, sheet: Sheet, file: str | None, task: SendJob, _make_plan: Plan) -> None:
    """Compare the rows to send with what people saw, and pay them."""
    names = dict(enumerate((payment.name for payment in sheet.payments), 2))
    payments = [
        Payment(names[due_row.row], due_row.instruction.fields["account_number"], Decimal(due_row.instruction.amount))
        for due_row in scenario.journal.due(task.batch.number, after_row=0, limit=100)
    ]
    if not payments:
        return
    scenario.judge.check_opened(Opening(task.batch.batch, scenario.now, payments, file or "{}"))
    pay(scenario.journal, task.batch.number, scenario.now)
    is_approved = scenario.judge.needs_approval(payments)
    scenario.judge.paid.append(PaidBatch(task.batch.batch, scenario.now, is_approved, payments))
