"""Makers who correct sheets: any cell, more or fewer rows, lists pasted twice, references used again.

The judge counts payments by person and payment run, not by order id. Makers answer questions truthfully: a person is
new if nobody was to be paid for them in this run before, and a repeat is meant if the roster says so. Everybody on a
sent sheet has been paid, or was named in a refusal.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import polars as pl

from paygw_batch.core.choices import Choices
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import SheetError
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.sheet.check import validate as checking
from paygw_batch.sheet.check.repeats import REWRITTEN
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.submit.open_questions import PAYEE_TWICE, USED_REFERENCE, OpenQuestion, UsedReference
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from tests.promise.simulation.judge import Violation
from tests.promise.simulation.sheets import RULES
from tests.support.scripted_scenario import NOW, ScriptedGateway, build_engine, reply, run

COLUMNS = ("country", "client_orderid", "staff_number", "amount", "currency", "account_name", "account_number", "phone")
_NAMES = ("Amina Otieno", "Brian Kip", "Carol Njeri", "Amina Otieno", "David Mutua", "Esther Akinyi")
"""Names, of which two people share one."""


@dataclass(frozen=True, slots=True)
class Line:
    person: int
    order_id: str
    amount: int
    name: str
    account: int


class CorrectionScenario:
    """One payroll office: its people, the journal, the gateway, and the payments of each person by payment run."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = Random(seed)  # noqa: S311 (a seed is the scenario)
        self.undo = ExitStack()
        self.journal = in_memory_journal()
        self.now = NOW
        self.people = rng.randrange(2, len(_NAMES) + 1)
        self.has_ids, self.has_staff = rng.random() < 0.3, rng.random() < 0.4
        self.meant = {person: 2 if rng.random() < 0.15 and not self.has_ids else 1 for person in range(self.people + 2)}
        self.paid: Counter[tuple[int, str]] = Counter()
        """The gateway's payments by person and payment run, which the makers know too."""

    def patch(self, owner: object, name: str, value: object) -> None:
        """Replace a part of the program during this scenario, to plant a bug."""
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def line(self, person: int, run_name: str) -> Line:
        name = _NAMES[person % len(_NAMES)]
        return Line(person, f"{run_name}-{person + 1:05}", 1000 + 10 * person, name, 700_000 + person)

    def sheet(self, run_name: str) -> list[Line]:
        return [self.line(person, run_name) for person in range(self.people) for _ in range(self.meant[person])]


def play_corrections(seed: int, plant: Callable[[Any], None] | None = None) -> CorrectionScenario:
    scenario = CorrectionScenario(seed)
    with scenario.undo:
        if plant is not None:
            plant(scenario)
        run_name = "october"
        lines = scenario.sheet(run_name)
        for step in range(scenario.rng.randrange(2, 6)):
            if step and scenario.rng.random() < 0.15:
                run_name, lines = "november", scenario.sheet("november")
            if step and scenario.rng.random() < 0.85:
                lines = _correct_sheet(scenario, lines, run_name)
            if REWRITTEN in _submit(scenario, lines, run_name):  # the sentence names the intended ids
                lines = [replace(line, order_id=scenario.line(line.person, run_name).order_id) for line in lines]
            scenario.now += timedelta(hours=scenario.rng.choice((1, 30)))
    return scenario


def _correct_sheet(scenario: CorrectionScenario, lines: Sequence[Line], run_name: str) -> list[Line]:
    rng, changed = scenario.rng, list(lines)
    at = rng.randrange(len(changed))
    one = changed[at]
    match rng.choice(("cell", "less", "more", "twice", "row twice", "order", "ids", "staff")):
        case "cell":
            sums = {"amount": one.amount + 5}, {"account": one.account + 1000}
            changes: Any = (*sums, {"name": one.name.upper()}, {"name": f"{one.name} Kamau"})
            changed[at] = replace(one, **rng.choice(changes))
        case "less":
            changed = [*changed[:at], *changed[at + 1 :]] or changed
        case "more":
            changed.append(scenario.line(scenario.people + rng.randrange(2), run_name))
        case "twice":
            changed += changed
        case "row twice":
            changed.append(one)
        case "order":
            rng.shuffle(changed)
        case "ids":
            changed = [_read_as_number(line) if rng.random() < 0.5 else line for line in changed]
        case "staff":
            scenario.has_staff = not scenario.has_staff
    return changed


def _read_as_number(line: Line) -> Line:
    """Return a row whose order id a spreadsheet read as a number, unless PAY-7 and PAY-007 may be two people's."""
    is_as_meant = (line.amount, line.account) == (1000 + 10 * line.person, 700_000 + line.person)
    return replace(line, order_id=re.sub("-0+", "-", line.order_id)) if is_as_meant else line


def _validate_lines(scenario: CorrectionScenario, lines: Sequence[Line], run_name: str) -> Validated:
    found = [(one, f"S-{one.person}", f"{one.amount}.00", f"254712{one.account:06}") for one in lines]
    texts = [("KE", one.order_id, who, amount, "KES", one.name, to, f"+{to}") for one, who, amount, to in found]
    left_out = ["client_orderid"] * (not scenario.has_ids) + ["staff_number"] * (not scenario.has_staff)
    frame = pl.DataFrame(texts, schema=dict.fromkeys(COLUMNS, pl.String), orient="row").drop(left_out)
    frame = frame.with_row_index("row", offset=2).with_columns(pl.col("row").cast(pl.UInt32))
    sheet = Sheet("pay.csv", "0" * 64, frame, {name: name for name in frame.columns[1:]}, ())
    return validate(sheet, RULES["payout"], reference=run_name)


def _submit(scenario: CorrectionScenario, lines: Sequence[Line], run_name: str) -> Collection[str]:
    """Submit a sheet as a maker does: answer questions, review the result, and return the defects' codes."""
    rng = scenario.rng
    amend, skips = rng.random() < 0.3, rng.random() < 0.3
    try:
        checked, choices = _validate_lines(scenario, lines, run_name), Choices(amend=amend)
        plan = plan_submission(checked, scenario.journal, choices, now=lambda: scenario.now, quarantine_h=24)
    except SheetError:
        return ()
    codes = frozenset(plan.validated.defects["code"])
    if (skips or not codes) and all(
        _answer_truthfully(scenario, question, lines, run_name) for question in plan.questions
    ):
        _send(scenario, plan, lines, run_name)
    return codes


def _answer_truthfully(scenario: CorrectionScenario, asked: OpenQuestion, lines: Sequence[Line], run_name: str) -> bool:
    if not asked.question:
        return False
    if asked.code == PAYEE_TWICE:
        return all(count <= scenario.meant[person] for person, count in Counter(line.person for line in lines).items())
    if asked.code == USED_REFERENCE:
        named = {normalise_spelling(name) for name in asked.names}
        people = {line.person for line in lines if normalise_spelling(line.name) in named}
        return not any(scenario.paid[person, run_name] for person in people if _is_asked(asked, person, lines))
    return True  # the same people are paid in every payment run


def _is_asked(asked: OpenQuestion, person: int, lines: Sequence[Line]) -> bool:
    rows = {row for row, _, _, _ in asked.people}
    return any(line.person == person and row in rows for row, line in enumerate(lines, 2))


def _send(scenario: CorrectionScenario, plan: Plan, lines: Sequence[Line], run_name: str) -> None:
    people = {row: line.person for row, line in enumerate(lines, 2)}
    instructions = plan.validated.instructions.select("row", "client_orderid").rows()
    person_of = {order_id: people[row] for row, order_id in instructions}
    rejected: set[str] = set()

    def answer(order_id: str, _times: int) -> Any:
        if scenario.rng.random() < 0.15:
            rejected.add(order_id)
            return reply("declined")
        return reply("approved")

    gateway = ScriptedGateway(answer)
    batch = open_planned_batch(
        plan, scenario.journal, RULES["payout"], sheet_path=Path("pay.csv"), now=lambda: scenario.now, is_answered=True
    )
    run(build_engine(scenario.journal, gateway), batch)
    # I1: nobody is paid more often in a payment run than meant, whatever the order ids are.
    for sent in gateway.arrived:
        if sent in rejected:
            continue
        person = person_of[sent if sent in person_of else sent.rpartition("-r")[0]]
        scenario.paid[person, run_name] += 1
        if scenario.paid[person, run_name] > scenario.meant[person]:
            raise Violation("I1", f"person {person} was paid {scenario.paid[person, run_name]} times in {run_name}")
    _check_for_lost_rows(plan, gateway.arrived)


def _check_for_lost_rows(plan: Plan, arrived: Sequence[str]) -> None:
    """I3: each valid row was sent, now or before."""
    known = {one.row for one in plan.known}
    for row, order_id in plan.validated.instructions.select("row", "client_orderid").rows():
        is_sent = any(sent == order_id or sent.startswith(f"{order_id}-r") for sent in arrived)
        if plan.existing is None and row not in known and not is_sent:
            raise Violation("I3", f"row {row} was opened, and not sent")


def derive_ids_from_rows(scenario: CorrectionScenario) -> None:
    """Derive order ids from whole rows, and ask nothing about a used reference."""

    def of_content(instructions: pl.DataFrame, _staff: pl.Series | None) -> pl.DataFrame:
        content = instructions["content"]
        return instructions.select("row", payee=content, content=content.cast(pl.Binary))

    scenario.patch(checking, "payee_digests", of_content)
    skip_reference_question(scenario)


def skip_reference_question(scenario: CorrectionScenario) -> None:
    """Pay everybody who is new under a used reference."""
    scenario.patch(UsedReference, "question", lambda *_: None)
