"""Finds the attempt that a statement line is about, by its time or as the only one, and compares the money."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from paygw_batch.clock import timestamp
from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import Meant, Span, StatedTimes, meant_attempt
from paygw_batch.core.money import from_minor, with_separators
from paygw_batch.core.shown_states import shown_state, state_words
from paygw_batch.core.text import spelled_alike
from paygw_batch.journal import Clash, RowState
from paygw_batch.language import mark, say
from paygw_batch.run.quarantine_clock import MAX_AHEAD_S
from paygw_batch.statement import WRITTEN, StatementLine, TimeSpan, read_time

DO_NOT_SEND = mark("The payee may have the money: do not send it again, and ask the gateway.")


@dataclass(frozen=True, slots=True)
class LineTime:
    """When a line was true, and of which attempt. `wrong` says why its times cannot be used, if so.

    `own` are the times at which the line itself says it was true: the gateway's statement, not a person's.
    """

    times: StatedTimes
    own: StatedTimes
    shown: str
    wrong: str | None = None


def line_time(line: StatementLine, as_of: TimeSpan | None, now: datetime, *, true_by: str = "") -> LineTime:
    """Return the times of a line in a statement that was true `as_of` a time, if one was given.

    `true_by` is when the same file was first carried out, empty if it was not: none of its lines can be newer.
    """
    own, sent_at = read_time(line.time), read_time(line.sent_at)
    for text, found in ((line.time, own), (line.sent_at, sent_at)):
        if text and found is None:
            return _wrong(
                say(
                    "The time {text!r} is unclear: write it as {written}.",
                    text=text,
                    written=WRITTEN,
                )
            )
        if found is not None and found.start > now + timedelta(seconds=MAX_AHEAD_S):
            return _wrong(say("The time {text} is in the future: our clock says {now}.", text=text, now=timestamp(now)))
    true_at = [_span(one) for one in (own, as_of) if one is not None]
    if true_by:
        true_at.append(Span("", true_by))
    before = say("{time} at the latest (the file was applied then)", time=true_by) if true_by else ""
    return LineTime(
        StatedTimes(tuple(true_at), _span(sent_at) if sent_at is not None else None),
        StatedTimes((_span(own),) if own is not None else ()),
        line.time or line.sent_at or (say("its time") if as_of is not None else before),
    )


def other_attempt_sentence(
    line: StatementLine, left_at: str | None, time: LineTime, *, is_only_attempt: bool, came_first: bool
) -> str | None:
    """Return why a line cannot be about its row's latest attempt, sent at `left_at`; None if it can.

    `came_first`: in the journal's order, its file was read before that attempt was intended. Whatever the clocks said,
    it cannot know of it.
    """
    if came_first:
        return say(
            "{order_id} was sent again after this file was first read, so the line cannot be about the latest attempt.",
            order_id=line.order_id,
        )
    left = say("the latest attempt was sent at {intended_at}", intended_at=left_at)
    match meant_attempt(time.times, left_at):
        case Meant.EARLIER:
            return say(
                "{order_id} at {shown}: that is before {left}, so the line cannot be about it.",
                order_id=line.order_id,
                shown=time.shown,
                left=left,
            )
        case Meant.NONE:
            return say(
                "No attempt of {order_id} was sent at {sent_at}: {left}.",
                order_id=line.order_id,
                sent_at=line.sent_at,
                left=left,
            )
        case Meant.UNSTATED if not is_only_attempt:
            said = say("{shown} does not say", shown=time.shown) if time.shown else say("the line does not say")
            return say(
                "{order_id} was sent more than once, and {said} which attempt is meant ({left}). Give the time: "
                "in a column time, in the column sent_at of the question list, or for the whole file.",
                order_id=line.order_id,
                said=said,
                left=left,
            )
        case Meant.LATEST | Meant.UNSTATED:
            return None


def _wrong(sentence: str) -> LineTime:
    return LineTime(StatedTimes(), StatedTimes(), "", sentence)


def _span(time: TimeSpan) -> Span:
    return Span(timestamp(time.start), timestamp(time.end))


def other_money_sentence(line: StatementLine, row: RowState, minor_units: int) -> str | None:
    """Return a sentence if a line and its row disagree about the money; None if they agree."""
    ours = from_minor(row.minor, minor_units=minor_units)
    if line.currency != row.currency:
        return say(
            "The statement has {order_id} in {currency}; it was sent in {ours}.",
            order_id=line.order_id,
            currency=line.currency or say("no currency"),
            ours=row.currency,
        )
    if line.amount is None:
        return say(
            "The amount {amount_text!r} of {order_id} is not a plain amount, such as {ours}.",
            amount_text=line.amount_text,
            order_id=line.order_id,
            ours=ours,
        )
    if line.amount != Decimal(ours):
        return say(
            "The statement has {order_id} with {stated}; it was sent with {sent}.",
            order_id=line.order_id,
            stated=f"{row.currency} {with_separators(line.amount_text)}",
            sent=f"{row.currency} {with_separators(ours)}",
        )
    return None


def other_order_sentence(order_id: str, clash: Clash | None, *, is_contrary: bool) -> str | None:
    """Return why a line matches no order of the batch; None if another batch has the order.

    `clash` is the order in the journal, None if it has none; `is_contrary` is whether the line holds a row.
    """
    if clash is not None and not is_contrary:
        return None
    if not is_contrary:
        return say(
            "The journal has no order {order_id}: was it sent from elsewhere, or was its id changed?", order_id=order_id
        )
    if clash is None:
        said = say(
            "The journal has no order {order_id}, a later attempt of {first} by its name: it may be an older copy.",
            order_id=order_id,
            first=first_order_id(order_id),
        )
    else:
        said = say(
            "Row {sheet_row} of batch {batch} is {state} in the journal.",
            sheet_row=clash.sheet_row,
            batch=clash.batch,
            state=state_words(shown_state(clash.state)),
        )
    return f"{said} {say(DO_NOT_SEND)}"


def nearest_order_sentence(line: StatementLine, near: Sequence[RowState], minor_units: Mapping[str, int]) -> str:
    """Return the question whether a line that matches no order is about one of `near`, whose ids are almost its own.

    It settles nothing: which payment is meant is for a person to say.
    """
    row = min(near, key=lambda row: other_money_sentence(line, row, minor_units[row.currency]) is not None)
    ours = row.sent_orderid or row.client_orderid
    are_zeros = spelled_alike(line.order_id).replace("0", "") == spelled_alike(ours).replace("0", "")
    return say(
        "The journal has no order {order_id}. The nearest is {near}, {money}: {question}",
        order_id=line.order_id,
        near=ours,
        money=f"{row.currency} {with_separators(from_minor(row.minor, minor_units=minor_units[row.currency]))}",
        question=say("has a spreadsheet dropped the zeros?") if are_zeros else say("has a program changed the id?"),
    )
