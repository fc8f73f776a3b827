"""Finds the attempt that a line of a statement is about: by its time, or because there is only one."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import Meant, Span, StatedTimes, meant_attempt
from paygw_batch.run.quarantine_clock import AHEAD_AT_MOST_S
from paygw_batch.statement.read import StatementLine
from paygw_batch.statement.stated_time import WRITTEN, TimeSpan, read_time


@dataclass(frozen=True, slots=True)
class LineTime:
    """When a line was true, and of which attempt. `wrong` is why its times cannot be used, where they cannot.

    `own` are the times that the line itself states of when it was true: the gateway's, and no person's.
    """

    times: StatedTimes
    own: StatedTimes
    shown: str
    wrong: str | None = None


def line_time(line: StatementLine, as_of: TimeSpan | None, now: datetime, *, true_by: str = "") -> LineTime:
    """Return the times that hold for a line of a statement that was true `as_of` a time, if one was given.

    `true_by` is when the same file was carried out before, empty where it was not: no line of it can be newer.
    """
    own, sent_at = read_time(line.time), read_time(line.sent_at)
    for text, found in ((line.time, own), (line.sent_at, sent_at)):
        if text and found is None:
            return _wrong(f"The time {text!r} cannot be read without guessing: write it as {WRITTEN}.")
        if found is not None and found.start > now + timedelta(seconds=AHEAD_AT_MOST_S):
            return _wrong(f"The time {text} has not come yet: by our clock it is {timestamp(now)}.")
    true_at = [_span(one) for one in (own, as_of) if one is not None]
    if true_by:
        true_at.append(Span("", true_by))
    before = f"{true_by} at the latest (the file was carried out then)" if true_by else ""
    return LineTime(
        StatedTimes(tuple(true_at), _span(sent_at) if sent_at is not None else None),
        StatedTimes((_span(own),) if own is not None else ()),
        line.time or line.sent_at or ("its time" if as_of is not None else before),
    )


def other_attempt_sentence(line: StatementLine, left_at: str | None, time: LineTime, *, is_sole: bool) -> str | None:
    """Return why a line cannot be about the latest attempt of its row, which left at `left_at`, or None: it is."""
    left = f"the latest attempt left at {left_at}"
    match meant_attempt(time.times, left_at):
        case Meant.EARLIER:
            return f"{line.order_id} at {time.shown}: that is before {left}, so the line cannot be about it."
        case Meant.NONE:
            return f"No attempt of {line.order_id} left at {line.sent_at}: {left}."
        case Meant.UNSAID if not is_sole:
            said = f"{time.shown} leaves it open" if time.shown else "the line does not say"
            return (
                f"{line.order_id} was sent more than once, and {said} which attempt is meant ({left}). Give the time: "
                "in a column time, in the column sent_at of the question list, or for the whole file by --as-of."
            )
        case Meant.LATEST | Meant.UNSAID:
            return None


def _wrong(sentence: str) -> LineTime:
    return LineTime(StatedTimes(), StatedTimes(), "", sentence)


def _span(time: TimeSpan) -> Span:
    return Span(timestamp(time.start), timestamp(time.end))
