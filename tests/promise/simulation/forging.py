"""Worlds in which a maker means harm, and forges plans with the own key; approvers read their screens alone.

Plan -> forge -> screen -> approve or withdraw -> submit -> journal: all of it is what ships (`draft_plan`, `own_view`,
`approve`, `submit_sheet`, the journal), in memory. The gateway pays at once.
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

from paygw_batch.approval.approval_keys import ApprovalKey, people_of
from paygw_batch.approval.plan_document import Approved, PlanDocument, PlanFinding
from paygw_batch.approval.signed_document import Approval, ApprovalPolicy, approve, signed
from paygw_batch.clock import timestamp
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Concluded, Intended
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import ApprovalError, InternalError, PaygwError
from paygw_batch.journal.file_place import database_of
from paygw_batch.journal.left import NothingLeft
from paygw_batch.journal.sqlite.connect import configure
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, Entry, Identity, Link
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob
from paygw_batch.opening.given_sheet import GivenSheet
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import withdrawn_with
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import sheet_of
from paygw_batch.submit import approvals, submit_sheet
from paygw_batch.submit import plan as submit
from paygw_batch.submit import submission as plan_document
from paygw_batch.submit.changes import Comparison, compare_with_past
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from paygw_batch.submit.submission import Conversation, RefusedSheet, Submission
from tests.promise.simulation.approvals import key_of
from tests.promise.simulation.remembered import REMEMBERED
from tests.promise.simulation.screens import (
    Look,
    Opening,
    PaidBatch,
    Payment,
    ScreenJudge,
    Seen,
    screen_of,
    text_sha256,
)
from tests.promise.simulation.sheets import RULES, GateOnce
from tests.promise.simulation.world import EPOCH

MAKER, SECOND_KEY = "amina", "amina's second"
APPROVERS = ("brian", "carol")
EXPIRES_H = 72
SMALL = Decimal(900)
"""The sum from which on approval is needed, in half of the worlds: no salary is below it, and a trick may be."""
NAMES = ("Jane Wanjiku", "Otieno Ouma", "Amani Njoroge", "Grace Achieng", "Peter Mwangi", "Zuri Kamau", "Ghost Writer")
GHOST = NAMES[-1]
_HEADINGS = ("country", "client_orderid", "amount", "currency", "account_name", "account_number", "phone")
_DANGERS = ("payee.account", "payee.amount", "payee.new", "payee.gone")
_ENDPOINT = "unset/unset"

Row = tuple[str, str, Payment]
"""Order id, sheet, payment."""


def account_of(name: str) -> str:
    """Return the true account of a person."""
    return f"25471234{NAMES.index(name):04}"


def thief(number: int) -> str:
    """Return an account of those who mean harm."""
    return f"25472999{number:04}"


def salary(name: str, month: int) -> Decimal:
    """Return what a person gets in a month: never the same twice, and never far from the last."""
    return Decimal(1000 + 150 * NAMES.index(name) + month * 3) + Decimal("0.25")


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet of payments under order ids of its own."""

    name: str
    prefix: str
    payments: tuple[Payment, ...]

    @property
    def validated(self) -> Validated:
        """The sheet as the program reads it."""
        return _validated(self)

    @property
    def total(self) -> Decimal:
        """The sum of its payments."""
        return sum((one.amount for one in self.payments), Decimal())


@lru_cache(maxsize=8_192)
def _validated(sheet: Sheet) -> Validated:
    return validate(sheet_of(_frame(sheet), ReadOptions(operation="payout"), name=sheet.name), RULES["payout"])


def _frame(sheet: Sheet) -> pl.DataFrame:
    lines = [
        ("KE", f"{sheet.prefix}-{row}", f"{one.amount:.2f}", "KES", one.name, one.account, f"+{one.account}")
        for row, one in enumerate(sheet.payments, 2)
    ]
    return pl.DataFrame(lines, schema=dict.fromkeys(_HEADINGS, pl.String), orient="row")


@cache
def _settings(needed: int, from_amount: Decimal) -> Settings:
    approvers = {name: key_of(name).public.text for name in APPROVERS} | {MAKER: key_of(SECOND_KEY).public.text}
    section = {
        "needed": needed,
        "from_amount": {"KES": str(from_amount)},
        "expires_h": EXPIRES_H,
        "makers": {MAKER: key_of(MAKER).public.text},
        "approvers": approvers,
    }
    return Settings.model_validate({"approval": section})


@cache
def _policy(needed: int, from_amount: Decimal) -> ApprovalPolicy:
    section = _settings(needed, from_amount).approval
    people = people_of(section.makers, section.approvers)
    return ApprovalPolicy(needed, section.from_amount, section.expires_h, people)


# The past: months that were paid honestly, the same for many worlds.


@dataclass(frozen=True, slots=True)
class Past:
    """A journal with some honest months, and what they paid."""

    image: bytes
    end: Link
    paid: tuple[PaidBatch, ...]


def month_sheet(people: int, month: int, prefix: str) -> Sheet:
    """Return what a month is meant to pay."""
    return Sheet(
        "payroll.csv", prefix, tuple(Payment(one, account_of(one), salary(one, month)) for one in NAMES[:people])
    )


@cache
def past_of(people: int, months: int) -> Past:
    """Return the past of a company of so many people."""
    identity = Identity("6" * 32, _ENDPOINT, "2026-01-01T00:00:00.000Z", ":memory:")
    journal = _opened(database_of(identity), identity.start)
    paid = []
    for month in range(months):
        at = EPOCH - timedelta(days=30 * (months - month))
        sheet = month_sheet(people, month, f"M{month}")
        plan = plan_submission(sheet.validated, journal, Choices(), now=partial(_same, at), quarantine_h=24)
        record = open_planned_batch(
            plan,
            journal,
            RULES["payout"],
            sheet_path=Path("/payroll.csv"),
            now=partial(_same, at),
            approved=Approved("", (f"approved by brian at {timestamp(at)} (plan {'0' * 16})",)),
        )
        pay(journal, record.number, at)
        paid.append(PaidBatch(record.batch, at, True, sheet.payments))
    return Past(journal._connection.serialize("main"), journal._end, tuple(paid))


def _same(at: datetime) -> datetime:
    return at


def _opened(image: bytes, end: Link) -> SqliteJournal:
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image)
    configure(connection)
    return SqliteJournal(connection, Path(":memory:"), end=end, left=NothingLeft(), lock=ExitStack(), notes=())


def pay(journal: SqliteJournal, batch: int, at: datetime) -> None:
    """Let the gateway pay everything that is due."""
    when, entries = timestamp(at), []
    for due in journal.due(batch, after_row=0, limit=100):
        intended = Intended(due.order_id, f"{due.number:032x}", int(at.timestamp()), None)
        paid = Concluded(Outcome(OutcomeKind.PAID))
        entries += [Entry(due.number, 1, intended, when), Entry(due.number, 1, paid, when)]
    journal.append(entries)


# The world of one seed.

MAX_COMPARED = 20_000
_COMPARED: dict[object, Comparison] = {}
"""What comparing a sheet with a journal came to, for all worlds of a process: worlds ask the same very often."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as its file is, and the sheet that it is about."""

    sheet: Sheet
    document: PlanDocument


class ForgingWorld:
    """Everything that one seed decides."""

    def __init__(self, seed: int, plant: object = None) -> None:
        self.rng = rng = Random(f"forging {seed}")  # noqa: S311 (dice, not secrets)
        self.undo = ExitStack()
        self.people, self.months = rng.randrange(2, 5), rng.randrange(3)
        needed, from_amount = rng.choice((1, 2)), rng.choice((Decimal(0), SMALL))
        self.settings, self.policy = _settings(needed, from_amount), _policy(needed, from_amount)
        self.judge = ScreenJudge(
            maker=MAKER, needed=needed, from_amount=from_amount, expires=timedelta(hours=EXPIRES_H)
        )
        past = past_of(self.people, self.months)
        self.journal = _opened(past.image, past.end)
        self.undo.callback(self.journal._connection.close, force=True)
        self.judge.paid += past.paid
        self.now = EPOCH
        self.made: list[Made] = []
        self.sheets = 0
        self.directory = Path(self.undo.enter_context(TemporaryDirectory(dir="/dev/shm")))
        for owner, name, value in REMEMBERED:
            self.patch(owner, name, value)
        self.patch(submit, "ContractGate", GateOnce)
        self.plant = plant
        self.patch(plan_document, "compare_with_past", self._compare)
        self.patch(plan_document, "utc_now", lambda: self.now)
        self.patch(submit_sheet, "utc_now", lambda: self.now)
        self.patch(approvals, "utc_now", lambda: self.now)

    def patch(self, owner: object, name: str, value: object) -> None:
        """Replace something of the program for as long as this world lasts: how bugs are planted."""
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _compare(
        self, now: pl.DataFrame, journal: SqliteJournal, batches: Sequence[BatchRecord], **named: Any
    ) -> Comparison:
        """Compare a sheet with a journal once: by all that both say."""
        against = named["against"]
        columns = ("row", "valid", "amount", "account_name", "account_number")
        key = (
            self.plant,
            tuple(now.select(columns).rows()),
            tuple((one.batch, one.is_approved, f"{one.at:%Y-%m-%d}", *one.payments) for one in self.judge.paid),
            tuple(one.number for one in batches),
            against and against.number,
        )
        if key not in _COMPARED:
            if len(_COMPARED) >= MAX_COMPARED:
                _COMPARED.clear()
            _COMPARED[key] = compare_with_past(now, journal, batches, **named)
        return _COMPARED[key]

    def asked(self, sheet: Sheet, plan: Path, *, repeats_meant: bool = True) -> Submission:
        """Return the submission of a sheet by the maker."""
        given = GivenSheet(self.settings, RULES["payout"], self.directory / sheet.name, frame=_frame(sheet))
        choices = Choices(skip_invalid=True, repeats_meant=repeats_meant, decided_by=MAKER)
        return Submission(given, sheet.validated, choices, plan)

    def next_prefix(self) -> str:
        """Return the beginning of order ids that no sheet had."""
        self.sheets += 1
        return f"N{self.sheets}"


def play_forging(seed: int, plant: Callable[[Any], None] | None = None) -> ForgingWorld:
    """Play the world of one seed, and return it at its end. Raises `Violation` or what the program raised."""
    world = ForgingWorld(seed, plant)
    with world.undo:
        if plant is not None:
            plant(world)
        rng = world.rng
        for _ in range(rng.randrange(1, 3)):
            if rng.random() < 0.35:
                _pay_a_small_batch(world)
            made = _plan(world, _sheet(world))
            if made is None:
                continue
            made = _approved(world, made)
            _something_between(world, made)
            _submit(world, *_to_submit(world, made))
    return world


# The maker.


def _sheet(world: ForgingWorld) -> Sheet:
    """Return the sheet of this month: honest, or with something in it that an approver has to see."""
    rng = world.rng
    honest = month_sheet(world.people, world.months, world.next_prefix())
    return _with_a_change(world, honest) if rng.random() < 0.8 else honest


def _with_a_change(world: ForgingWorld, sheet: Sheet) -> Sheet:
    rng, payments = world.rng, list(sheet.payments)
    at = rng.randrange(len(payments))
    victim = payments[at]
    match rng.choice(("account", "account", "amount", "new", "gone", "name", "accomplice", "repeat")):
        case "account":
            payments[at] = replace(victim, account=thief(1))
        case "amount":
            payments[at] = replace(victim, amount=victim.amount * rng.choice((2, Decimal("0.5"))))
        case "new":
            payments.append(Payment(GHOST, thief(2), Decimal("999.99")))
        case "gone":
            del payments[at]
        case "name":
            payments[at] = replace(victim, name=GHOST)
        case "accomplice":
            payments.append(Payment(GHOST, victim.account, Decimal("777.77")))
        case "repeat" if world.judge.paid:
            payments = list(world.judge.paid[-1].payments)
        case _:
            pass
    return replace(sheet, payments=tuple(payments)) if payments else sheet


def _pay_a_small_batch(world: ForgingWorld) -> None:
    """Pay a sum that nobody else sees, if there is one: to make an account known, or an amount usual."""
    rng, names = world.rng, NAMES[: world.people]
    at = rng.randrange(len(names))
    some = names[at : at + rng.randrange(1, len(names) + 1)]
    left = SMALL - 1
    match rng.choice(("thief", "thief", "honest", "ghost")):
        case "thief":
            payments = [Payment(some[0], thief(1), rng.choice((Decimal("10.5"), left)))]
        case "honest":
            payments = [Payment(one, account_of(one), (left / len(some)).quantize(Decimal("0.01"))) for one in some]
        case _:
            payments = [Payment(GHOST, thief(2), left)]
    _submit(world, Sheet("small.csv", world.next_prefix(), tuple(payments)), None)
    world.now += timedelta(hours=rng.choice((1, 30, 200)))


def _plan(world: ForgingWorld, sheet: Sheet) -> Made | None:
    against = rng_batch if (rng_batch := _any_batch(world)) and world.rng.random() < 0.2 else None
    drafted = plan_document.draft_plan(
        world.asked(sheet, world.directory / "none.json"),
        world.journal,
        Conversation(),
        key_of(MAKER).public,
        against=against,
    )
    if isinstance(drafted, RefusedSheet):
        return None
    made = Made(sheet, signed(drafted.document, key_of(MAKER)))
    world.made.append(made)
    if world.rng.random() < 0.4:
        made = _forged(world, made)
        world.made.append(made)
    return made


def _any_batch(world: ForgingWorld) -> str:
    return world.rng.choice(world.judge.paid).batch if world.judge.paid else ""


def _forged(world: ForgingWorld, made: Made) -> Made:
    """Edit a plan, and sign it again with the maker's own key."""
    document, rng = made.document, world.rng
    findings = list(document.findings)
    changes: dict[str, Any] = {}
    match rng.choice(
        ("none", "dangers", "one", "values", "people", "people", "repeats", "against", "time", "language")
    ):
        case "none":
            changes["findings"] = []
        case "dangers":
            changes["findings"] = [one for one in findings if one.code not in _DANGERS]
        case "one" if findings:
            del findings[rng.randrange(len(findings))]
            changes["findings"] = findings
        case "values" if findings:
            at = rng.randrange(len(findings))
            findings[at] = _other_values(findings[at], rng)
            changes["findings"] = findings
        case "people":
            changes = _other_people(world, document)
        case "repeats":
            changes["answered"] = [] if document.answered else [f"sheet.repeats_a_batch {_any_batch(world)}"]
        case "against":
            changes["against"] = _any_batch(world)
        case "time":
            changes["made_at"] = timestamp(world.now - timedelta(days=rng.choice((1, 6, 40, -1))))
        case "language":
            changes["language"] = rng.choice(("fr", "xx"))
        case _:
            pass
    return replace(made, document=signed(document.model_copy(update=changes), key_of(MAKER)))


def _other_values(one: PlanFinding, rng: Random) -> PlanFinding:
    match rng.randrange(4):
        case 0:
            return one.model_copy(update={"account": one.old_account or thief(3)})
        case 1:
            return one.model_copy(update={"amount": one.before or "1.00", "name": GHOST})
        case 2:
            return one.model_copy(update={"code": rng.choice(_DANGERS)})
        case _:
            return one.model_copy(update={"before_at": "2026-01-01", "at": "2026-01-01", "rows": "2-99"})


def _other_people(world: ForgingWorld, document: PlanDocument) -> dict[str, Any]:
    """Show the true accounts and amounts, whoever is paid."""
    honest = month_sheet(world.people, world.months, "N").payments
    people = "".join(f"{row},{one.name},{one.account},KES,{one.amount:.2f}\n" for row, one in enumerate(honest, 2))
    content = document.content.model_copy(update={"people_sha256": sha256(people.encode()).hexdigest()})
    totals = {"KES": f"{sum(one.amount for one in honest):.2f}"}
    if world.rng.random() < 0.3:
        content = content.model_copy(update={"totals": totals, "rows": len(honest)})
    return {"people": people, "content": content}


# Those who approve.


def _approved(world: ForgingWorld, made: Made) -> Made:
    """Let people look, and approve what looks right to them."""
    people = world.rng.choice((APPROVERS, APPROVERS, APPROVERS[:1], APPROVERS[1:]))
    for person in people:
        made = _look(world, made, person)
        world.now += timedelta(minutes=world.rng.choice((1, 60, 600)))
    return made


def _look(world: ForgingWorld, made: Made, person: str) -> Made:
    rng, shown = world.rng, made.document
    if rng.random() < 0.2:
        try:
            asked = world.asked(made.sheet, world.directory / "none.json")
            shown = plan_document.own_view(shown, asked, world.journal)
        except ApprovalError:
            return made
    lines, code = screen_of(shown), made.document.code
    if not _looks_right(world, lines):
        return made
    if rng.random() < 0.25:  # the maker puts another file in its place, and the approver compares the codes
        other = _forged(world, made) if rng.random() < 0.3 else rng.choice(world.made[-3:])
        if other.document.code != code:
            return made
        made = other
    document = approve(made.document, key_of(person), world.policy, world.now)
    world.judge.looks.append(Look(person, world.now, text_sha256(document.model_dump_json()), lines))
    made = replace(made, document=document)
    world.made.append(made)
    return made


def _looks_right(world: ForgingWorld, lines: Sequence[str]) -> bool:
    """Whether a reader approves of a screen: one who reads the differences, one who knows the truth, one who trusts."""
    match world.rng.choice(("trusts", "trusts", "differences", "truth")):
        case "differences":
            return not Seen(lines).sections["account"]
        case "truth":
            truth = month_sheet(world.people, world.months, "N").payments
            return sorted(map(str, truth)) == sorted(str(one) for one, _ in Seen(lines).listed())
        case _:
            return True


# Between approval and submission.


def _something_between(world: ForgingWorld, made: Made) -> None:
    rng = world.rng
    if rng.random() < 0.25:
        about = made if rng.random() < 0.7 else rng.choice(world.made)
        person = rng.choice((MAKER, *APPROVERS))
        world.journal.withdraw(withdrawn_with(about.document, key_of(person), world.policy.people, world.now))
        world.judge.withdrawn.add(text_sha256(about.document.model_dump_json()))
    if rng.random() < 0.15:
        _pay_a_small_batch(world)
    world.now += timedelta(hours=rng.choice((0, 1, 1, 20, 71, 73, 200) if rng.random() < 0.3 else (0, 1)))


def _to_submit(world: ForgingWorld, made: Made) -> tuple[Sheet, str]:
    """Return the sheet to submit and the plan's file, or others in their place."""
    rng, sheet = world.rng, made.sheet
    document = made.document
    match rng.choice(("as it is", "as it is", "as it is", "forged", "approvals", "own", "older", "sheet", "another")):
        case "forged":
            document = _forged(world, made).document
        case "approvals":  # of every other plan
            copied = [one for other in world.made for one in other.document.approvals]
            document = document.model_copy(update={"approvals": copied})
        case "own":
            document = _approved_by_its_maker(document, world)
        case "older":
            older = rng.choice(world.made)
            sheet, document = older.sheet, older.document
        case "another":
            document = rng.choice(world.made).document
        case "sheet":
            sheet = replace(_with_a_change(world, sheet), prefix=sheet.prefix)
        case _:
            pass
    return sheet, document.model_dump_json()


def _approved_by_its_maker(document: PlanDocument, world: ForgingWorld) -> PlanDocument:
    own = [_approval(document, key_of(name), world.now) for name in (SECOND_KEY, MAKER)]
    return document.model_copy(update={"approvals": [*document.approvals, *own]})


def _approval(document: PlanDocument, key: ApprovalKey, now: datetime) -> Approval:
    at = timestamp(now)
    return Approval(key=key.public.text, approved_at=at, signature=key.sign(document.approval_text(key.public, at)))


def _submit(world: ForgingWorld, sheet: Sheet, file: str | None) -> None:
    """Submit a sheet with the file of a plan, and let the gateway pay what leaves."""
    path = world.directory / "plan.json"
    path.unlink(missing_ok=True)
    if file is not None:
        path.write_text(file)
    asked = world.asked(sheet, path, repeats_meant=world.rng.random() < 0.5)
    try:
        submit_sheet.submit_sheet(
            asked, cast(GatewayAccess, None), world.journal, Conversation(), partial(_send, world, sheet, file)
        )
    except InternalError:
        raise
    except PaygwError:
        return


def _send(world: ForgingWorld, sheet: Sheet, file: str | None, task: SendJob, _plan: Plan) -> None:
    """Hold what leaves against what people saw, and pay it."""
    names = dict(enumerate((one.name for one in sheet.payments), 2))
    payments = [
        Payment(names[one.row], one.instruction.fields["account_number"], Decimal(one.instruction.amount))
        for one in world.journal.due(task.batch.number, after_row=0, limit=100)
    ]
    if not payments:
        return
    world.judge.look_at_opened(Opening(task.batch.batch, world.now, payments, file or "{}"))
    pay(world.journal, task.batch.number, world.now)
    is_approved = world.judge.needs_approval(payments)
    world.judge.paid.append(PaidBatch(task.batch.batch, world.now, is_approved, payments))
