"""Translates the states and codes in the journal into the reader's language.

The journal stores a code and its values as JSON, because facts are hashed and replayed, and must not depend on a
language. Any other text is the gateway's or a person's, and is shown unchanged.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from paygw_batch.core.lifecycle import State
from paygw_batch.language import format_number, mark, mark_all, mark_count, say, say_count

CODED = "["
"""The first character of a kept text that is a code and its values."""
LOGIN = " (login "
"""The text between a person's name and login in the journal's record of who decided."""
_encode = json.JSONEncoder(ensure_ascii=False).encode
_TEXT, _DUPLICATE, _AGREED = "text", "duplicate", "agreed"
_TEMPLATES: Mapping[tuple[str, int], str] = MappingProxyType(
    {
        (_DUPLICATE, 1): mark("possible duplicate of attempt {attempt}"),
        (_DUPLICATE, 2): mark("{message} [possible duplicate of attempt {attempt}]"),
        ("interrupted", 0): mark("The run ended before it recorded an answer; the request may have been sent."),
        ("unknown", 0): mark("No one knows what happened to the request: it may have been paid."),
        ("unknown", 1): mark("No one knows what happened to the request ({cause}): it may have been paid."),
        ("not_sent", 0): mark("Nothing was sent."),
        ("not_sent", 1): mark("Nothing was sent ({cause})."),
        ("resolved_paid", 2): mark("Resolved as paid by {by}: {evidence}"),
        ("resolved_rejected", 2): mark("Resolved as rejected by {by}: {evidence}"),
        ("resolved_not_received", 2): mark("Resolved as not received by {by}: {evidence}"),
        ("released", 1): mark("Released for another attempt by {by}."),
        ("returned", 1): mark("The money came back: {evidence}"),
        ("replaced", 2): mark("Replaced by row {row} of batch {batch}."),
        ("one_row", 1): mark("1 row of {sheet}"),
        ("rows", 2): mark("{rows} rows of {sheet}"),
        ("next_attempt", 1): mark("next attempt as {order_id}"),
        ("notification", 1): mark("By a notification of the gateway (fact {number})."),
        ("enquiry", 1): mark("By the gateway's answer to an enquiry (fact {number})."),
        ("statement", 1): mark("By a statement of the gateway (fact {number})."),
        ("forgotten_before", 2): mark("the payees of {rows} rows, all from before {before}"),
        ("forgotten_before", 1): mark("the payee of 1 row, from before {before}"),
        ("forgotten_person", 1): mark("one person in {rows} rows"),
        ("forgotten_person", 0): mark("one person in 1 row"),
        ("stopped_by_person", 0): mark("A person stopped the run."),
        ("by_row", 2): mark("by row {row} of batch {batch}"),
        (_AGREED, 4): mark("{by}, by order {digest}, prepared by {maker}, approved by {approvers}"),
        ("prepared", 2): mark("prepared by {name} at {at}"),
        ("approved", 3): mark("approved by {name} at {at} (plan {digest})"),
    }
)
"""The sentences by code and number of values, which fill the placeholders. `journal/state.sql` writes the first."""
_FOR_OFFICERS: Mapping[str, str] = MappingProxyType(
    {
        "unknown": _TEMPLATES["unknown", 0],
        "not_sent": _TEMPLATES["not_sent", 0],
        _AGREED: mark("{by}, prepared by {maker}, approved by {approvers}"),
        "replaced": mark("Replaced by row {row} of another payout."),
        "by_row": mark("by row {row} of another payout"),
        "notification": mark("By a notification of the gateway."),
        "enquiry": mark("By the gateway's answer to an enquiry."),
        "statement": mark("By a statement of the gateway."),
    }
)
"""The sentences for officers, by code, where the usual one has a code or a number that is of no use to them."""


def encode_record(code: str, *values: str | int | None) -> str:
    """Encode a code and its values for the journal. Missing values are None."""
    cleaned = (value.replace("\0", "?") if isinstance(value, str) else value for value in values)
    return _encode([code, *cleaned])


STOPPED_BY_PERSON = encode_record("stopped_by_person")
"""The reason of a shared run that a person stopped, as the journal keeps it."""


def encode_text(text: str) -> str:
    """Encode a text from the gateway or a person for the journal: unchanged, unless it looks like a code."""
    return encode_record(_TEXT, text) if text.startswith(CODED) else text


def decode_record(text: str) -> tuple[str, Sequence[Any]]:
    """Return the code and the values of a stored text. The code of a text from the gateway or a person is `text`."""
    if not text.startswith(CODED):
        return _TEXT, (text,)
    code, *values = json.loads(text)
    return code, [value for value in values if value is not None]


def render_record(text: str, *, is_for_officers: bool = False) -> str:
    """Render a stored text in the chosen language. For officers, codes, logins and digests are omitted."""
    code, values = decode_record(text)
    if code == _TEXT:
        return str(values[0])
    template = _TEMPLATES[code, len(values)]
    names = re.findall(r"\{(\w+)\}", template)
    if code == _DUPLICATE:
        values = [*(render_record(value, is_for_officers=is_for_officers) for value in values[:-1]), values[-1]]
    filled = {
        name: format_decider(value, is_for_officers=is_for_officers) if name == "by" else value
        for name, value in zip(names, values, strict=True)
    }
    return say(_FOR_OFFICERS.get(code, template) if is_for_officers else template, **filled)


def format_decider(by: str, *, is_for_officers: bool = False) -> str:
    """Describe who decided, in the chosen language: a person, or one who carried out an order of others."""
    if _is_order_decision(by):
        return render_record(by, is_for_officers=is_for_officers)
    return decider_name(by) if is_for_officers else by


def parse_agreement(by: str) -> tuple[str, str] | None:
    """Return who prepared and approved the order behind a decision, or None if one person decided."""
    if not _is_order_decision(by):
        return None
    _, (_, _, maker, approvers) = decode_record(by)
    return maker, approvers


def decider_name(by: str) -> str:
    """Return the name (or the login, if there is none) of the person who decided or carried out an order."""
    person = str(decode_record(by)[1][0]) if _is_order_decision(by) else by
    return person.rpartition(LOGIN)[0] or person


def _is_order_decision(by: str) -> bool:
    """Return whether a decision was made by an order. A person's own decision always ends with the login."""
    return by.startswith(f'["{_AGREED}", ') and by.endswith("]")


_ACTION_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "opened": mark("Started"),
        "approved": mark("Prepared or approved"),
        "resolved_paid": mark("Settled as paid"),
        "resolved_rejected": mark("Settled as rejected"),
        "resolved_not_received": mark("Settled as never received"),
        "released": mark("To be tried again"),
        "returned": mark("Came back"),
        "replaced": mark("Replaced by another payout"),
        "forgotten": mark("Forgotten"),
    }
)


def action_label(kind: str) -> str:
    """Return the label of a person's action on a batch or row."""
    return say(_ACTION_LABELS[kind])


INVALID = "invalid"
"""The state of a row with defects. Such a row is not an instruction, and the state machine has no such state."""

STATES = (INVALID, "ready", "in_flight", "in_doubt", "accepted", "paid", "rejected", "returned")
"""The states in which a row can be shown, as the interface lists them. `in_flight` is a row whose process is alive."""

DISPLAYED_IN_DOUBT = frozenset({State.IN_DOUBT, State.IN_FLIGHT})
"""The states that are shown to people as in doubt (see `display_state`)."""


_STATES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "paid": (mark("paid"), mark_count("{count:,} paid")),
        "accepted": (mark("with the gateway"), mark_count("{count:,} with the gateway")),
        "rejected": (mark("rejected"), mark_count("{count:,} rejected")),
        "returned": (mark("returned"), mark_count("{count:,} returned")),
        "in_doubt": (mark("in doubt"), mark_count("{count:,} in doubt")),
        "in_flight": (mark("being sent"), mark_count("{count:,} being sent")),
        "ready": (mark("not sent yet"), mark_count("{count:,} not sent yet")),
        INVALID: (mark("left out"), mark_count("{count:,} left out")),
    }
)
"""The words for each state, and those for a number of rows in it, on pages and a terminal alike."""
_OTHER_CODES = mark_all("replaced", "held", "not sent", "unknown", "not received", "payout", "payin")
"""Other words for our codes, for the catalogue."""


def state_label(state: str) -> str:
    """Return the label of a state or of another code."""
    return say(_STATES[state][0] if state in _STATES else state.replace("_", " "))


def format_state_count(count: int, state: str) -> str:
    """Format a number of rows in a state: `3 in doubt`."""
    return say_count(count, _STATES[state][1])


_FINDINGS = {
    "moved": mark_count("{count:,} moved"),
    "repeated": mark_count("{count:,} repeated"),
    "late": mark_count("{count:,} late"),
    "contradicting": mark_count("{count:,} contradicting"),
    "to_confirm": mark_count("{count:,} to confirm"),
    "ambiguous": mark_count("{count:,} ambiguous"),
}


def format_finding_count(count: int, finding: str) -> str:
    """Format a number of messages with a finding: `2 contradicting`."""
    template = _FINDINGS.get(finding)
    return f"{format_number(count)} {state_label(finding)}" if template is None else say_count(count, template)


def display_state(state: State) -> str:
    """Return the state of an instruction as shown to people.

    Outside its run, a row in flight is shown as in doubt. A replaced row is no longer part of its batch.
    """
    match state:
        case State.IN_FLIGHT:
            return State.IN_DOUBT.value
        case State.REPLACED:
            return INVALID
        case _:
            return state.value
