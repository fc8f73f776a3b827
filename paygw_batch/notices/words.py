"""Writes the texts of notices: e-mails as text and HTML, and the bodies for webhooks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, assert_never

from paygw_batch.clock import format_minute
from paygw_batch.core.money import format_amount
from paygw_batch.core.shown_states import STATES, state_label
from paygw_batch.core.text import escape_for_terminal
from paygw_batch.journal import Occasion, StoredNotice
from paygw_batch.language import mark, say, say_count
from paygw_batch.show.page import template_environment


class FailureKind(StrEnum):
    """Why a notice could not be sent."""

    NOT_REACHED = "not_reached"
    NO_ANSWER = "no_answer"
    UNTRUSTED = "untrusted"
    NOT_ENCRYPTED = "not_encrypted"
    SIGN_IN = "sign_in"
    REFUSED = "refused"
    BROKEN = "broken"
    NOT_CONFIGURED = "not_configured"


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """A failure to send a notice. `reply_code` is the server's, or 0 if there was no reply."""

    kind: FailureKind
    reply_code: int = 0

    @property
    def code(self) -> str:
        """The code stored in the outbox, such as `refused 550`. The server's own message is never stored."""
        return f"{self.kind} {self.reply_code}" if self.reply_code else self.kind.value

    @classmethod
    def from_code(cls, code: str) -> Self:
        """Parse a stored code. An unknown kind becomes `BROKEN`."""
        kind, _, reply_code = code.partition(" ")
        known_kind = FailureKind(kind) if kind in frozenset(FailureKind) else FailureKind.BROKEN
        return cls(known_kind, int(reply_code) if reply_code.isdecimal() else 0)


_FAILURE_MESSAGES = {
    FailureKind.NOT_REACHED: mark("the server cannot be reached"),
    FailureKind.NO_ANSWER: mark("the server did not answer in time"),
    FailureKind.UNTRUSTED: mark("the server's certificate is not trusted, or is for another name"),
    FailureKind.NOT_ENCRYPTED: mark("the server does not offer an encrypted connection"),
    FailureKind.SIGN_IN: mark("the server rejected the user name or password"),
    FailureKind.REFUSED: mark("the server rejected the message"),
    FailureKind.BROKEN: mark("the connection was lost"),
    FailureKind.NOT_CONFIGURED: mark("the channel is no longer configured"),
}
OCCASION_LABELS = {
    Occasion.RUN_ENDED: mark("a run ended"),
    Occasion.SHEET_REFUSED: mark("a sheet was refused"),
    Occasion.PLAN_WAITS: mark("a plan is waiting for approval"),
    Occasion.IN_DOUBT: mark("rows are in doubt"),
    Occasion.CONTRADICTED: mark("the gateway contradicts the journal"),
    Occasion.WORKER_DIED: mark("a worker stopped unexpectedly"),
    Occasion.RUNS_OUT: mark("a full disk or an expiring key"),
}


@dataclass(frozen=True, slots=True)
class NoticeText:
    """The text of a notice. Each line of `table` holds a state, its number of rows, and their sums."""

    title: str
    sentences: Sequence[str]
    table: Sequence[tuple[str, str, str]]
    link: str
    is_anonymous: bool = True
    """Whether the notice contains no personal data."""


def describe_failure(code: str) -> str:
    """Describe a failure code from the outbox in the current language."""
    failure = DeliveryFailure.from_code(code)
    suffix = f" ({failure.reply_code})" if failure.reply_code else ""
    return f"{say(_FAILURE_MESSAGES[failure.kind])}{suffix}"


def notice_text(notice: StoredNotice, content: Mapping[str, Any], *, has_attachment: bool = False) -> NoticeText:
    """Return the text of a notice in the current language. With `has_attachment`, mention the attached rejects."""
    sentences = [*_notice_sentences(notice.occasion, content)]
    if has_attachment:
        sentences.append(say("The rows with defects are attached. They contain payees' data."))
    return NoticeText(
        escape_for_terminal(_notice_title(notice.occasion, content)),
        [escape_for_terminal(sentence) for sentence in sentences],
        list(_table_lines(content)),
        str(content.get("link", "")),
        is_anonymous=not has_attachment,
    )


def mail_text(text: NoticeText) -> str:
    return template_environment().get_template("notice.txt").render(words=text)


def mail_html(text: NoticeText) -> str:
    """Return the HTML of an e-mail, which loads no external content."""
    return template_environment().get_template("notice.html").render(words=text)


def webhook_body(notice: StoredNotice, content: Mapping[str, Any], format_name: str) -> bytes:
    """Return the body for a webhook in the format `standard`, `slack` or `teams`."""
    if format_name == "standard":
        body = {"type": notice.occasion.value, "timestamp": notice.written_at, "data": content}
        return json.dumps(body, ensure_ascii=False).encode()
    text = (
        template_environment()
        .get_template(f"notice.{format_name}.json")
        .render(words=notice_text(notice, content), open_it=say("Open"))
    )
    return text.encode()


def _notice_title(occasion: Occasion, content: Mapping[str, Any]) -> str:
    sheet = content.get("sheet", "")
    match occasion:
        case Occasion.RUN_ENDED:
            return say("{sheet}: the run has ended", sheet=sheet)
        case Occasion.SHEET_REFUSED:
            return say("{sheet} was refused", sheet=sheet)
        case Occasion.PLAN_WAITS:
            return say("{sheet} is waiting for approval", sheet=sheet)
        case Occasion.IN_DOUBT:
            return say("{sheet}: rows are in doubt", sheet=sheet)
        case Occasion.CONTRADICTED:
            return say("{sheet}: the gateway contradicts the journal", sheet=sheet)
        case Occasion.WORKER_DIED:
            return say("A worker on {host} stopped unexpectedly", host=content["host"])
        case Occasion.RUNS_OUT:
            return _shortage_title(content)
        case _:
            assert_never(occasion)


def _notice_sentences(occasion: Occasion, content: Mapping[str, Any]) -> Iterator[str]:
    match occasion:
        case Occasion.RUN_ENDED:
            yield from _run_sentences(content)
        case Occasion.SHEET_REFUSED:
            yield from _refused_sheet_sentences(content)
        case Occasion.PLAN_WAITS:
            yield from _plan_sentences(content)
        case Occasion.IN_DOUBT:
            yield say_count(
                content["rows_in_doubt"],
                "{count:,} row has been in doubt for more than {hours:g} hours. The gateway may have paid it.",
                "{count:,} rows have been in doubt for more than {hours:g} hours. The gateway may have paid them.",
                hours=content["hours"],
            )
            yield say("Ask the gateway what happened to them, then settle them.")
            yield say("The oldest was sent at {time} (UTC).", time=format_minute(content["oldest"]))
        case Occasion.CONTRADICTED:
            yield say_count(
                content["messages"],
                "{count:,} message about this batch contradicts the journal. It had no effect.",
                "{count:,} messages about this batch contradict the journal. They had no effect.",
            )
            yield say("The latest arrived at {time} (UTC).", time=format_minute(content["at"]))
            yield say("Ask the gateway what happened to these rows, then settle them.")
        case Occasion.WORKER_DIED:
            yield say(
                "Process {pid} was last seen at {time} (UTC) and did not shut down normally.",
                pid=content["pid"],
                time=format_minute(content["seen_at"]),
            )
            if content["batch"]:
                yield say(
                    "It was sending batch {batch}. Its rows in flight are in doubt. Other workers send the rest.",
                    batch=content["batch"],
                )
            yield say("Check that host, then restart the worker.")
        case Occasion.RUNS_OUT:
            yield from _shortage_sentences(content)
        case _:
            assert_never(occasion)


def _run_sentences(content: Mapping[str, Any]) -> Iterator[str]:
    states = content["states"]
    if in_doubt := states.get("in_doubt", 0):
        yield say_count(
            in_doubt,
            "{count:,} row is in doubt. Ask the gateway what happened to it, then settle it.",
            "{count:,} rows are in doubt. Ask the gateway what happened to them, then settle them.",
        )
    if ready_count := states.get("ready", 0):
        yield say_count(
            ready_count,
            "{count:,} row has not been sent. Start the run again.",
            "{count:,} rows have not been sent. Start the run again.",
        )
    yield say("Figures as of {time} (UTC).", time=format_minute(content["at"]))


def _refused_sheet_sentences(content: Mapping[str, Any]) -> Iterator[str]:
    yield say("None of its rows were sent.")
    if content["defects"]:
        yield say_count(content["defects"], "{count:,} row has defects.", "{count:,} rows have defects.")
    if content["answer"]:
        yield say("The reasons are in the file {file}.", file=content["answer"])
    yield say("Correct the sheet, then submit it again. Rows that were paid will not be paid again.")


def _plan_sentences(content: Mapping[str, Any]) -> Iterator[str]:
    sums = ", ".join(f"{currency} {format_amount(amount)}" for currency, amount in content["totals"].items())
    yield say("{maker} asks for your approval: {sums}.", maker=content["maker"], sums=sums)
    yield say_count(content["rows"], "The sheet has {count:,} row.", "The sheet has {count:,} rows.")
    yield say_count(content["needed"], "{count} approval is needed.", "{count} approvals are needed.")
    yield say("Compare the code {code} with {maker} before you approve.", code=content["code"], maker=content["maker"])


def _shortage_title(content: Mapping[str, Any]) -> str:
    if content["what"] == "disk":
        return say("The journal's disk on {host} is nearly full", host=content["host"])
    return say("The private key has expired") if content["has_ended"] else say("The private key expires soon")


def _shortage_sentences(content: Mapping[str, Any]) -> Iterator[str]:
    if content["what"] == "disk":
        yield say("It has {mib:,.1f} MiB free, which is too little for a run.", mib=content["free_bytes"] / 2**20)
        yield say("Free some space, then start the run again.")
        return
    yield say("Key: {place}. It is valid until {date}.", place=content["place"], date=content["until"])
    yield say("Create a new key and send its public key to the gateway's operator.")


def _table_lines(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    states: Mapping[str, int] = content.get("states", {})
    for state in STATES:
        if count := states.get(state, 0):
            sums = [
                f"{currency} {format_amount(by_state[state])}"
                for currency, by_state in content["totals"].items()
                if state in by_state
            ]
            yield state_label(state), f"{count:,}", ", ".join(sums)
