"""Finds a person's next step for a row or batch, with commands. The console words the same steps differently."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import EvidenceSource
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import DISPLAYED_IN_DOUBT, INVALID
from paygw_batch.countries.rules import Operation
from paygw_batch.engine.quarantine import JournalClock, Quarantine
from paygw_batch.journal import BatchRecord, Hold, JournalReader, RowState
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.settle.resolve import quarantine_end

_TRANSLATED_WORDS = mark_all("notification", "enquiry", "statement", "person", "reply", "witness", "pay", "collect")
"""The names of evidence sources and the verbs of operations, which are translated when they are shown."""
HELD_FOR_OFFICERS = mark("A message from the gateway contradicts this row's state, so no run will send it.")
LONG_ACCEPTED_H = 24
"""Hours after which someone must ask the gateway about an accepted row that has no final answer."""
ATTENTION_STATES = frozenset({State.IN_FLIGHT, State.IN_DOUBT, State.REJECTED, State.RETURNED, State.ACCEPTED})
"""The states in which a row may need attention. Accepted rows need it only after `LONG_ACCEPTED_H`."""


class RowStep(StrEnum):
    """The next step for a row."""

    RESOLVE_HELD = "resolve_held"
    RESOLVE_DOUBT = "resolve_doubt"
    RESOLVE_ACCEPTED = "resolve_accepted"
    WAIT_FOR_RUN = "wait_for_run"
    RETRY_AFTER_PERSON = "retry_after_person"
    """Only a person, not the gateway, reported that the row was rejected."""
    RETRY = "retry"
    SEND = "send"
    PAY_AGAIN = "pay_anew"


@dataclass(frozen=True, slots=True)
class NextStep:
    """A person's next step for a row.

    `batch` is the id of its batch, possibly shortened. `verb` is the operation's verb, such as `pay`. `hold` is the
    evidence that holds the row. `not_before` is when the row may be sent again, or empty if it may be now.
    """

    kind: RowStep
    batch: str
    row: RowState
    verb: str
    not_before: str = ""
    hold: Hold | None = None

    @property
    def orders(self) -> str:
        """The order ids to ask the gateway about. Evidence may name an attempt other than the latest."""
        return ", ".join(self.hold.order_ids if self.hold else ()) or self.row.sent_orderid or self.row.client_orderid


def next_step(
    row: RowState, *, batch: str, verb: str, quarantine: Quarantine, now: datetime, hold: Hold | None = None
) -> NextStep | None:
    """Return a person's next step for a row, or None if there is nothing to do."""
    kind = RowStep.RESOLVE_HELD if hold is not None else _row_step(row, now)
    if kind is None:
        return None
    ends_at = quarantine_end(row, quarantine, hold)
    return NextStep(kind, batch, row, verb, "" if ends_at is None or now >= ends_at else timestamp(ends_at), hold)


def _row_step(row: RowState, now: datetime) -> RowStep | None:
    match row.state:
        case State.IN_DOUBT:
            return RowStep.RESOLVE_DOUBT
        case State.IN_FLIGHT:
            return RowStep.WAIT_FOR_RUN
        case State.ACCEPTED:
            is_overdue = row.intended_at is not None and row.intended_at <= overdue_cutoff(now)
            return RowStep.RESOLVE_ACCEPTED if is_overdue else None
        case State.REJECTED:
            return RowStep.RETRY_AFTER_PERSON if row.quarantined_since else RowStep.RETRY
        case State.READY:
            return RowStep.SEND
        case State.RETURNED:
            return RowStep.PAY_AGAIN
        case State.PAID | State.REPLACED:
            return None
        case _:
            assert_never(row.state)


def overdue_cutoff(now: datetime) -> str:
    """Return the cutoff: accepted rows that were sent before it are overdue at `now`."""
    return timestamp(now - timedelta(hours=LONG_ACCEPTED_H))


def describe_hold(hold: Hold) -> str:
    if hold.source is EvidenceSource.WITNESS:
        return say(
            "Held: its order was sent, but the journal has lost the record of this (evidence {number}). No run will "
            "send it.",
            number=hold.number,
        )
    values = {"source": say(hold.source.value), "time": hold.taken_at, "number": hold.number}
    if hold.said == OutcomeKind.PAID:
        return say(
            "Held: the {source} of {time} says that this row is paid (evidence {number}). No run will send it.",
            **values,
        )
    if hold.said == OutcomeKind.REJECTED:
        return say(
            "Held: the {source} of {time} says that order {orders} was rejected, although this journal had not sent "
            "it (evidence {number}). No run will send it.",
            orders=", ".join(hold.order_ids),
            **values,
        )
    return say(
        "Held: the {source} of {time} says that the gateway already has this row (evidence {number}). No run will send "
        "it.",
        **values,
    )


def describe_step(step: NextStep) -> str:
    row, earlier_attempt = step.row, step.row.possible_duplicate_of
    duplicate_warning = ""
    if earlier_attempt is not None:
        duplicate_warning = say(
            " It may repeat attempt {attempt}. First make sure that this attempt was not paid.", attempt=earlier_attempt
        )
    template = mark("then run `paygw-batch resolve row {batch} {row} --evidence TEXT --as`")
    if step.hold is not None and row.state is State.REJECTED:
        template = mark(
            "then run `paygw-batch retry {batch} --row {row}`, which does not send a held row, and `paygw-batch "
            "resolve row {batch} {row} --evidence TEXT --as`"
        )
    return say(
        _STEP_SENTENCES[step.kind],
        held="" if step.hold is None else f"{describe_hold(step.hold)} ",
        verb=say(step.verb),
        batch=step.batch,
        row=row.row,
        orders=step.orders,
        intended_at=row.intended_at,
        resolve=say(template, batch=step.batch, row=row.row),
        later=say(" (not before {time})", time=step.not_before) if step.not_before else "",
        again=duplicate_warning,
    )


_STEP_SENTENCES: Mapping[RowStep, str] = {
    RowStep.RESOLVE_HELD: mark(
        "{held}Do not {verb} this row in any other way. Ask the gateway what happened to order {orders}, {resolve} "
        "paid, rejected (`retry` can then send it again) or, if the gateway never received it, not-received{later}."
    ),
    RowStep.RESOLVE_DOUBT: mark(
        "Do not {verb} this row in any other way. Ask the gateway what happened to order {orders}, sent at "
        "{intended_at}, {resolve} paid, rejected or, if the gateway never received it, not-received{later}."
    ),
    RowStep.RESOLVE_ACCEPTED: mark(
        "The gateway accepted this row at {intended_at}, but has not given a final answer. Ask about order {orders}, "
        "{resolve} paid or rejected."
    ),
    RowStep.WAIT_FOR_RUN: mark(
        "A run is sending this row. If no run is active, run `paygw-batch resume {batch}` to mark the row as in doubt."
    ),
    RowStep.RETRY_AFTER_PERSON: mark(
        "A person, not the gateway, reported this row as rejected. It may have been paid anyway. Check with the "
        "gateway. Then run `paygw-batch retry {batch} --row {row}`, or correct the row and submit the sheet as "
        "before with --amend{later}."
    ),
    RowStep.RETRY: mark(
        "The gateway's answer is final: no payment was made. If the payment can succeed now, run `paygw-batch retry "
        "{batch} --row {row}`. If the sheet was wrong, correct the row and submit the sheet as before with "
        "--amend."
    ),
    RowStep.SEND: mark("To send this row, run `paygw-batch resume {batch}`.{again}"),
    RowStep.PAY_AGAIN: mark(
        "The money came back. Find out why, and {verb} this row in a new sheet, under another order id."
    ),
}


def batch_steps(
    states: Mapping[str, int], batch: str, *, contradictions: int, waiting: int, interrupted: bool
) -> Iterator[str]:
    """Describe the next steps for a batch, with the commands to run. `states` does not count held rows."""
    if states.get(State.IN_DOUBT):
        yield say(
            "Rows in doubt may have been paid and are never sent again automatically. To see what to do about each, "
            "run `paygw-batch status {batch}`.",
            batch=batch,
        )
    if contradictions:
        yield say_count(
            contradictions,
            "{count} message contradicts the journal. To see this message and the rows that it holds, run `paygw-batch "
            "status`.",
            "{count} messages contradict the journal. To see these messages and the rows that they hold, run "
            "`paygw-batch status`.",
        )
    if waiting:
        yield say_count(
            waiting,
            "{count:,} message from the gateway needs a decision. To see it, run `paygw-batch status {batch}`.",
            "{count:,} messages from the gateway need a decision. To see them, run `paygw-batch status {batch}`.",
            batch=batch,
        )
    if interrupted:
        yield say("Interrupted: run the same command again to continue.")
    elif states.get(State.READY):
        yield say("To send the rows that have not been sent yet, run `paygw-batch resume {batch}`.", batch=batch)
    if states.get(State.REJECTED):
        yield say("To retry rejected rows, run `paygw-batch retry {batch}`.", batch=batch)


@dataclass(frozen=True, slots=True)
class StateStep:
    """A person's next step for all rows in one state, with its commands."""

    sentence: str
    commands: Sequence[str] = ()


def state_step(state: str, batch: BatchRecord, operation: Operation, *, first_row: int) -> StateStep:
    """Return the next step for all rows displayed in `state`. One of the commands may be for `first_row` only."""
    sheet, worksheet = shlex.quote(batch.sheet_path or batch.sheet_name), batch.sheet_name.rpartition(" [")[2]
    if worksheet.endswith("]"):
        sheet += f" --worksheet {shlex.quote(worksheet[:-1])}"
    if batch.reference:
        sheet += f" --reference {shlex.quote(batch.reference)}"
    match state:
        case State.IN_DOUBT:
            return StateStep(
                say(
                    "The gateway may have carried out these orders. Do not {verb} them in any other way. The first "
                    "command writes the questions for the gateway. The second records the answers.",
                    verb=say(operation.verb),
                ),
                (
                    f"paygw-batch status {batch.batch} --in-doubt --out questions.csv",
                    f"paygw-batch resolve statement {batch.batch} answers.csv",
                ),
            )
        case State.REJECTED:
            return StateStep(
                say(
                    "The gateway's answer is final. If the payments can succeed now, run the first command to send all "
                    "of them again, or the second to send one. If the sheet was wrong, correct these rows and run the "
                    "third."
                ),
                (
                    f"paygw-batch retry {batch.batch}",
                    f"paygw-batch retry {batch.batch} --row {first_row}",
                    f"paygw-batch {operation.command} {sheet} --amend",
                ),
            )
        case State.RETURNED:
            return StateStep(
                say(
                    "The money came back. Find out why, and {verb} these rows in a new sheet, under different order "
                    "ids.",
                    verb=say(operation.verb),
                )
            )
        case State.READY:
            return StateStep(say("Not sent yet. This command sends them."), (f"paygw-batch resume {batch.batch}",))
        case _ if state == INVALID:
            option = "" if operation.command == "submit" else f"--{operation.command} "
            return StateStep(
                say(
                    "These rows have defects, so they were not sent. This command writes them to a file. Correct that "
                    "file and submit it."
                ),
                (f"paygw-batch validate {option}{sheet} --rejects mended.xlsx",),
            )
        case _:
            return StateStep(
                say("The gateway may already have these orders. A person must record what happened to each.")
            )


def next_steps(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int], *, verb: str, quarantine_h: float
) -> Mapping[int, str]:
    """Return the next step for each of `rows` that is in doubt, held, or rejected by a person.

    The texts do not depend on the current time. They give the steps as of when the batch was opened, and mention
    a quarantine even after it has ended.
    """
    holds, opened_at = journal.holds(batch.number), datetime.fromisoformat(batch.opened_at)
    quarantine, steps = JournalClock.read(journal, opened_at).quarantine(quarantine_h), {}
    for row in journal.rows(batch.number, numbers=rows):
        hold = holds.get(row.row)
        if hold is None and row.state not in DISPLAYED_IN_DOUBT and row.quarantined_since is None:
            continue
        step = next_step(row, batch=batch.batch, verb=verb, quarantine=quarantine, now=opened_at, hold=hold)
        if step is not None:
            steps[row.row] = describe_step(step)
    return steps


def order_steps(arguments: str) -> str:
    """Describe how two people make an order. `arguments` are passed to `paygw-batch order`."""
    return say(
        "To write an order, run `paygw-batch order {words} --out ORDER.json --key KEY`. Another person approves it "
        "with `paygw-batch approve ORDER.json --key KEY`. Then carry it out with `paygw-batch carry-out ORDER.json`.",
        words=arguments,
    )
