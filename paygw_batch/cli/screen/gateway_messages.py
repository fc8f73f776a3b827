"""Shows the gateway's messages for `status`: those that wait for a person, and how many there are of each kind."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.actions.batch_status import BatchStatus
from paygw_batch.core.evidence import Finding
from paygw_batch.core.shown_states import shown_state
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, WaitingEvidence

SHOWN_MESSAGES = 20


def show_evidence(found: BatchStatus, screen: Screen) -> list[dict[str, object]]:
    """Show the evidence about a batch; return the messages that wait for a person, as --json has them."""
    show_counts("Messages of the gateway about its rows", found.evidence, screen)
    waiting = found.waiting
    if waiting:
        screen.table(
            "Messages of the gateway that wait for a person: they changed nothing",
            ("row", "order id", "state", "said", "why it waits", "at"),
            [_line(one) for one in waiting[:SHOWN_MESSAGES]],
        )
        _show_next(waiting, found.record, screen)
    return [
        {
            "row": one.row,
            "client_orderid": one.client_orderid,
            "state": one.state.value,
            "finding": one.finding.value,
            "said": one.said,
            "source": one.source.value,
            "taken_at": one.taken_at,
        }
        for one in waiting
    ]


def show_replies(journal: JournalReader, record: BatchRecord, row: int, screen: Screen) -> list[dict[str, object]]:
    """Show the raw replies that are kept about a row; return them as --json has them.

    Raises `UsageError` for a row that the batch does not have.
    """
    found = next(journal.rows(record.number, numbers={row}), None)
    if found is None:
        raise UsageError(f"Batch {record.batch} has no row {row}.", hint="The header is row 1, as in a spreadsheet.")
    replies = journal.replies(found.instruction)
    state = shown_state(found.state).replace("_", " ")
    attempts = f"{found.attempt} {'attempt' if found.attempt == 1 else 'attempts'}"
    screen.say(f"Row {row} is {state}, after {attempts}.")
    if not replies:
        screen.say("No reply is kept: none came, or the row was paid at once. Earlier versions kept none.")
    for one in replies:
        screen.say(f"Attempt {one.attempt}, reply recorded at {one.at}:")
        for line in (*one.reply.head.splitlines(), "", *_text(one.reply.body).splitlines()):
            screen.say(f"    {line}")
    return [
        {"attempt": one.attempt, "at": one.at, "head": one.reply.head, "body": _text(one.reply.body)} for one in replies
    ]


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def show_counts(what: str, counts: Mapping[str, int], screen: Screen) -> None:
    """Say how many messages of each kind there are."""
    if counts:
        told = ", ".join(f"{count:,} {finding.replace('_', ' ')}" for finding, count in counts.items())
        screen.say(f"{what}: {told}.")


def _line(one: WaitingEvidence) -> tuple[str | int, ...]:
    said = one.said or "-"
    return one.row, one.client_orderid, one.state.value, said, _why(one.finding), one.taken_at


def _show_next(waiting: Sequence[WaitingEvidence], record: BatchRecord, screen: Screen) -> None:
    if len(waiting) > SHOWN_MESSAGES:
        screen.say(f"... and {len(waiting) - SHOWN_MESSAGES:,} more: --json lists all of them.")
    screen.say(
        "Find out at the gateway whether they are true; then "
        f"`paygw-batch resolve {record.batch} --row N --evidence TEXT --as` what became of the row."
    )


def _why(finding: Finding) -> str:
    """Return why evidence waits, in plain words."""
    match finding:
        case Finding.TO_CONFIRM:
            return "nothing proves who sent it"
        case Finding.AMBIGUOUS:
            return "several attempts or rows go by this order id"
        case Finding.UNMATCHED:
            return "it names another amount or currency, or none"
        case Finding.NOT_FOUND:
            return "the gateway does not know the order"
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
            | Finding.CARRIED_OUT
            | Finding.CLOCK
            | Finding.ORDER
        ):
            return finding.value.replace("_", " ")
        case _:
            assert_never(finding)
