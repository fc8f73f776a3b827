"""Makers who correct sheets: any cell of any row, rows more and less, lists pasted twice, references used again.

The judge counts what the gateway took by person and pay run, not by order id. Makers answer questions as they know it:
a person is new if nobody was to be paid for that person in this run before, and a repeat is meant if the roster says
so. Whoever is on a sheet that was sent has been paid, or has been named in a refusal.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import polars as pl

from paygw_batch.core.choices import Choices
from paygw_batch.core.text import spelled_alike
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.errors import SheetError
from paygw_batch.journal import journal as journal_of_all
from paygw_batch.journal.file_place import in_memory_journal
from paygw_batch.sheet.check import validate as checking
from paygw_batch.sheet.check.repeats import REWRITTEN
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.submit import plan as submit
from paygw_batch.submit.open_questions import PAYEE_TWICE, USED_REFERENCE, OpenQuestion, UsedReference
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from tests.promise.simulation.judge import Violation
from tests.support.scripted_world import NOW, ScriptedGateway, an_engine, reply, run

COLUMNS = ("country", "client_orderid", "staff_number", "amount", "currency", "account_name", "account_number", "phone")
_NAMES = ("Amina Otieno", "Brian Kip", "Carol Njeri", "Amina Otieno", "David Mutua", "Esther Akinyi")
"""Two people have one name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a sheet, and the number of the person whom its maker means."""

    person: int
    order_id: str
    amount: int
    name: str
    account: int


class CorrectingWorld:
    """One payroll office: its people, the journal, the gateway, and what each person got in each pay run."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = Random(seed)  # noqa: S311 (a seed is the world)
        self.undo = ExitStack()
        self.journal = in_memory_journal()
        self.now = NOW
        self.people = rng.randrange(2, len(_NAMES) + 1)
        self.has_ids, self.has_staff = rng.random() < 0.3, rng.random() < 0.4
        self.meant = {person: 2 if rng.random() < 0.15 and not self.has_ids else 1 for person in range(self.people + 2)}
        self.paid: Counter[tuple[int, str]] = Counter()
        """Payments that the gateway took, by person and pay run: what makers know as well."""

    def patch(self, owner: object, name: str, value: object) -> None:
        """Replace something of the program for as long as this world lasts: how bugs are planted."""
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def line(self, person: int, run_name: str) -> Line:
        name = _NAMES[person % len(_NAMES)]
        return Line(person, f"{run_name}-{person + 1:05}", 1000 + 10 * person, name, 700_000 + person)

    def sheet(self, run_name: str) -> list[Line]:
        return [self.line(person, run_name) for person in range(self.people) for _ in range(self.meant[person])]


def play_corrections(seed: int, plant: Callable[[Any], None] | None = None) -> CorrectingWorld:
    """Play the world of one seed, and return it at its end. Raises `Violation` or what the program raised."""
    world = CorrectingWorld(seed)
    with world.undo:
        if plant is not None:
            plant(world)
        run_name = "october"
        lines = world.sheet(run_name)
        for step in range(world.rng.randrange(2, 6)):
            if step and world.rng.random() < 0.15:
                run_name, lines = "november", world.sheet("november")
            if step and world.rng.random() < 0.85:
                lines = _corrected(world, lines, run_name)
            if REWRITTEN in _submit(world, lines, run_name):  # the sentence says which ids were meant
                lines = [replace(one, order_id=world.line(one.person, run_name).order_id) for one in lines]
            world.now += timedelta(hours=world.rng.choice((1, 30)))
    return world


def _corrected(world: CorrectingWorld, lines: Sequence[Line], run_name: str) -> list[Line]:
    """Return the sheet after one correction, as its maker might save it."""
    rng, found = world.rng, list(lines)
    at = rng.randrange(len(found))
    one = found[at]
    match rng.choice(("cell", "less", "more", "twice", "row twice", "order", "ids", "staff")):
        case "cell":
            found[at] = _other_cell(rng, one)
        case "less":
            found = [*found[:at], *found[at + 1 :]] or found
        case "more":
            found.append(world.line(world.people + rng.randrange(2), run_name))
        case "twice":
            found += found
        case "row twice":
            found.append(one)
        case "order":
            rng.shuffle(found)
        case "ids":
            found = [_without_zeros(other) if rng.random() < 0.5 else other for other in found]
        case "staff":
            world.has_staff = not world.has_staff
    return found


def _other_cell(rng: Random, one: Line) -> Line:
    return rng.choice(
        (
            replace(one, amount=one.amount + 5),
            replace(one, account=one.account + 1000),
            replace(one, name=one.name.upper()),
            replace(one, name=f"{one.name} Kamau"),
        )
    )


def _without_zeros(one: Line) -> Line:
    """Return a row whose order id a spreadsheet has read as a number."""
    left, _, number = one.order_id.rpartition("-")
    return replace(one, order_id=f"{left}-{number.lstrip('0')}")


@cache
def _rules() -> Rules:
    return load_rules("payout", {"KE": OperatorTerms(purpose="WALLET")})


def _validated(world: CorrectingWorld, lines: Sequence[Line], run_name: str) -> Validated:
    texts = [
        (
            "KE",
            one.order_id,
            f"S-{one.person}",
            f"{one.amount}.00",
            "KES",
            one.name,
            f"254712{one.account:06}",
            f"+254712{one.account:06}",
        )
        for one in lines
    ]
    left_out = {
        name
        for name, is_there in (("client_orderid", world.has_ids), ("staff_number", world.has_staff))
        if not is_there
    }
    frame = pl.DataFrame(texts, schema=dict.fromkeys(COLUMNS, pl.String), orient="row").drop(left_out)
    frame = frame.with_row_index("row", offset=2).with_columns(pl.col("row").cast(pl.UInt32))
    headers = {name: name for name in frame.columns[1:]}
    sheet = Sheet("pay.csv", "0" * 64, frame, headers, ())
    return validate(sheet, _rules(), reference=run_name)


def _submit(world: CorrectingWorld, lines: Sequence[Line], run_name: str) -> Collection[str]:
    """Submit a sheet as a maker does: answer what is asked, look at what came of it, and return the defects' codes."""
    rng = world.rng
    amend, skips = rng.random() < 0.3, rng.random() < 0.3
    try:
        plan = plan_submission(
            _validated(world, lines, run_name),
            world.journal,
            Choices(amend=amend),
            now=lambda: world.now,
            quarantine_h=24,
        )
    except SheetError:
        return ()
    codes = frozenset(plan.validated.defects["code"])
    if (skips or not codes) and all(_is_so(world, one, lines, run_name) for one in plan.questions):
        _send(world, plan, lines, run_name)
    return codes


def _is_so(world: CorrectingWorld, asked: OpenQuestion, lines: Sequence[Line], run_name: str) -> bool:
    """Answer a question as its maker knows it."""
    if not asked.question:
        return False
    if asked.code == PAYEE_TWICE:
        rows = Counter(one.person for one in lines)
        return all(count <= world.meant[person] for person, count in rows.items())
    if asked.code == USED_REFERENCE:
        named = {spelled_alike(name) for name in asked.names}
        people = {one.person for one in lines if spelled_alike(one.name) in named}
        return not any(world.paid[person, run_name] for person in people if _is_asked(asked, person, lines))
    return True  # the same people are paid in every pay run


def _is_asked(asked: OpenQuestion, person: int, lines: Sequence[Line]) -> bool:
    rows = {row for row, _, _, _ in asked.people}
    return any(one.person == person and row in rows for row, one in enumerate(lines, 2))


def _send(world: CorrectingWorld, plan: Plan, lines: Sequence[Line], run_name: str) -> None:
    people = {row: one.person for row, one in enumerate(lines, 2)}
    instructions = plan.validated.instructions.select("row", "client_orderid").rows()
    person_of = {order_id: people[row] for row, order_id in instructions}
    rejected: set[str] = set()

    def answer(order_id: str, _times: int) -> Any:
        if world.rng.random() < 0.15:
            rejected.add(order_id)
            return reply("declined")
        return reply("approved")

    gateway = ScriptedGateway(answer)
    batch = open_planned_batch(
        plan, world.journal, _rules(), sheet_path=Path("pay.csv"), now=lambda: world.now, is_answered=True
    )
    run(an_engine(world.journal, gateway), batch)
    _judge(world, gateway.arrived, person_of, rejected, run_name)
    _look_for_lost_rows(plan, gateway.arrived)


def _judge(
    world: CorrectingWorld,
    arrived: Sequence[str],
    person_of: Mapping[str, int],
    rejected: Collection[str],
    run_name: str,
) -> None:
    """I1: nobody is paid more often in a pay run than meant, whatever the order ids are."""
    for sent in arrived:
        order_id = sent if sent in person_of else sent.rpartition("-r")[0]
        if sent in rejected:
            continue
        person = person_of[order_id]
        world.paid[person, run_name] += 1
        if world.paid[person, run_name] > world.meant[person]:
            raise Violation("I1", f"person {person} was paid {world.paid[person, run_name]} times in {run_name}")


def _look_for_lost_rows(plan: Plan, arrived: Sequence[str]) -> None:
    """I3: each row that is valid was sent now, or before."""
    known = {one.row for one in plan.known}
    for row, order_id in plan.validated.instructions.select("row", "client_orderid").rows():
        is_sent = any(sent == order_id or sent.startswith(f"{order_id}-r") for sent in arrived)
        if plan.existing is None and row not in known and not is_sent:
            raise Violation("I3", f"row {row} was opened, and not sent")


# What is planted.


def whole_rows_are_keys(world: CorrectingWorld) -> None:
    """Make order ids of the whole content of a row, and ask nothing about a reference that was used."""

    def of_content(instructions: pl.DataFrame, _staff: pl.Series | None) -> pl.DataFrame:
        content = instructions["content"]
        return instructions.select("row", payee=content, content=content.cast(pl.Binary))

    world.patch(checking, "payees_of", of_content)
    references_are_not_asked_about(world)


def references_are_not_asked_about(world: CorrectingWorld) -> None:
    """Pay whoever is new under a used reference."""
    world.patch(UsedReference, "question", lambda *_: None)


def repeats_are_not_asked_about(world: CorrectingWorld) -> None:
    """Pay whoever is on several rows."""
    world.patch(submit, "paid_twice", lambda *_: None)


def one_of_several_is_amended(world: CorrectingWorld) -> None:
    """Let a row take the place of another payment of its payee."""
    world.patch(submit._PaymentRun, "is_single", lambda *_: True)


def rewritten_ids_are_others(world: CorrectingWorld) -> None:
    """Take an id that a spreadsheet rewrote for another one."""
    world.patch(journal_of_all, "differ_by_damage_alone", lambda *_: False)
