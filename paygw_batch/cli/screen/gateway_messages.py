"""Shows the gateway's messages for `status`: those that wait for a person, and the number of each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import assert_never

from paygw_batch.actions.batch_status import BatchStatus
from paygw_batch.cli.screen.screen import SHOWN_LINES, Screen
from paygw_batch.core.evidence import Finding
from paygw_batch.core.shown_states import counted_finding, shown_state, state_words
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, WaitingEvidence
from paygw_batch.language import mark_all, say, say_count

_OWN = frozenset({"number", "batch"})
"""Fields of waiting evidence that are not in the JSON."""


def show_evidence(found: BatchStatus, screen: Screen) -> list[dict[str, object]]:
    """Show the evidence about a batch; return the messages that wait for a person, as in --json."""
    show_counts(say("Messages of the gateway about its rows"), found.evidence, screen)
    waiting = found.waiting
    if waiting:
        screen.table(
            say("Messages from the gateway that need a person (they changed nothing)"),
            mark_all("row", "order id", "state", "said", "why it waits", "at"),
            [_line(one) for one in waiting[:SHOWN_LINES]],
        )
        _show_next(waiting, found.record, screen)
    return [{name: value for name, value in asdict(one).items() if name not in _OWN} for one in waiting]


def show_replies(journal: JournalReader, record: BatchRecord, row: int, screen: Screen) -> list[dict[str, object]]:
    """Show the stored raw replies about a row; return them as in --json.

    Raises `UsageError` if the batch has no such row.
    """
    found = next(journal.rows(record.number, numbers={row}), None)
    if found is None:
        raise UsageError(
            say("Batch {batch} has no row {row}.", batch=record.batch, row=row),
            hint=say("The header is row 1, as in a spreadsheet."),
        )
    replies = journal.replies(found.instruction)
    screen.say(
        say_count(
            found.attempt,
            "Row {row} is {state}, after {count} attempt.",
            "Row {row} is {state}, after {count} attempts.",
            row=row,
            state=state_words(shown_state(found.state)),
        )
    )
    if not replies:
        screen.say(say("No reply is kept: none came, or the row was paid at once."))
    for one in replies:
        screen.say(say("Attempt {attempt}, reply recorded at {at}:", attempt=one.attempt, at=one.at))
        for line in (*one.reply.head.splitlines(), "", *_text(one.reply.body).splitlines()):
            screen.say(f"    {line}")
    return [
        {"attempt": one.attempt, "at": one.at, "head": one.reply.head, "body": _text(one.reply.body)} for one in replies
    ]


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def show_counts(what: str, counts: Mapping[str, int], screen: Screen) -> None:
    """Show the number of messages of each kind."""
    if counts:
        told = ", ".join(counted_finding(count, finding) for finding, count in counts.items())
        screen.say(say("{what}: {counts}.", what=what, counts=told))


def _line(one: WaitingEvidence) -> tuple[str | int, ...]:
    said = one.said or "-"
    return one.row, one.client_orderid, one.state.value, said, _why(one.finding), one.taken_at


def _show_next(waiting: Sequence[WaitingEvidence], record: BatchRecord, screen: Screen) -> None:
    screen.say_more(len(waiting))
    screen.say(
        say(
            "Ask the gateway whether they are true, then record what happened to each row: "
            "`paygw-batch resolve row {batch} N --evidence TEXT --as paid`, rejected or not-received.",
            batch=record.batch,
        )
    )


def _why(finding: Finding) -> str:
    """Return why evidence waits, in plain words."""
    match finding:
        case Finding.TO_CONFIRM:
            return say("nothing proves who sent it")
        case Finding.AMBIGUOUS:
            return say("several attempts or rows have this order id")
        case Finding.UNMATCHED:
            return say("it names another amount or currency, or none")
        case Finding.NOT_FOUND:
            return say("the gateway does not know the order")
        case (
            Finding.MOVED
            | Finding.REPEATED
            | Finding.LATE
            | Finding.CONTRADICTING
            | Finding.SUPERSEDED
            | Finding.UNLISTED
            | Finding.FORGED
            | Finding.UNKNOWN_ORDER
            | Finding.UNREADABLE
            | Finding.RESOLVED
        ):
            return state_words(finding.value)
        case _:
            assert_never(finding)
