"""Translates states and codes in the journal into the reader's language.

The journal stores a code and its values as JSON, because facts are hashed and replayed, and must not depend on a
language. Any other text is from the gateway or a person, and is shown unchanged.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from paygw_batch.core.lifecycle import State
from paygw_batch.language import format_number, mark, mark_all, mark_count, say, say_count

CODE_START = "["
"""The first character of stored text that is a code with values."""
LOGIN = " (login "
"""The separator between a person's name and login in the journal."""
_encode = json.JSONEncoder(ensure_ascii=False).encode
_TEXT, _DUPLICATE, _AGREED = "text", "duplicate", "agreed"
_TEMPLATES: Mapping[tuple[str, int], str] = MappingProxyType(
    {
        (_DUPLICATE, 1): mark("possible duplicate of attempt {attempt}"),
        (_DUPLICATE, 2): mark("{message} [possible duplicate of attempt {attempt}]"),
        ("interrupted", 0): mark("The run ended before it recorded an answer. The request may have been sent."),
        ("unknown", 0): mark("No one knows what happened to the request. The row may have been paid."),
        ("unknown", 1): mark("No one knows what happened to the request ({cause}). The row may have been paid."),
        ("not_sent", 0): mark("Nothing was sent."),
        ("not_sent", 1): mark("Nothing was sent ({cause})."),
        ("resolved_paid", 2): mark("Settled by {by} as paid: {evidence}"),
        ("resolved_rejected", 2): mark("Settled by {by} as rejected: {evidence}"),
        ("resolved_not_received", 2): mark("Settled by {by} as not received: {evidence}"),
        ("released", 1): mark("Released by {by}, to be sent again."),
        ("returned", 1): mark("The money was returned: {evidence}"),
        ("replaced", 2): mark("Replaced by row {row} of batch {batch}."),
        ("one_row", 1): mark("1 row of {sheet}"),
        ("rows", 2): mark("{rows} rows of {sheet}"),
        ("next_attempt", 1): mark("next attempt as {order_id}"),
        ("notification", 1): mark("Reported by a notification from the gateway (fact {number})."),
        ("enquiry", 1): mark("Reported by the gateway's answer to an enquiry (fact {number})."),
        ("statement", 1): mark("Reported by a statement from the gateway (fact {number})."),
        ("forgotten_before", 2): mark("the payees of {rows} rows in batches that ended before {before}"),
        ("forgotten_before", 1): mark("the payee of 1 row, in a batch that ended before {before}"),
        ("forgotten_person", 1): mark("one person in {rows} rows"),
        ("forgotten_person", 0): mark("one person in 1 row"),
        ("stopped_by_person", 0): mark("A person stopped the run."),
        ("by_row", 2): mark("by row {row} of batch {batch}"),
        (_AGREED, 4): mark("{by}, by order {digest}, prepared by {maker}, approved by {approvers}"),
        ("prepared", 2): mark("prepared by {name} at {at}"),
        ("approved", 3): mark("approved by {name} at {at} (plan {digest})"),
    }
)
"""The messages by code and number of values for their placeholders. `journal/state.sql` writes the first two."""
_OFFICER_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "unknown": _TEMPLATES["unknown", 0],
        "not_sent": _TEMPLATES["not_sent", 0],
        _AGREED: mark("{by}, prepared by {maker}, approved by {approvers}"),
        "replaced": mark("Replaced by row {row} of another payout."),
        "by_row": mark("by row {row} of another payout"),
        "notification": mark("Reported by a notification from the gateway."),
        "enquiry": mark("Reported by the gateway's answer to an enquiry."),
        "statement": mark("Reported by a statement from the gateway."),
    }
)
"""The messages for officers, by code, without details that they do not need."""


def encode_record(code: str, *values: str | int | None) -> str:
    """Encode a code and its values for the journal. A missing value is None."""
    clean_values = (value.replace("\0", "?") if isinstance(value, str) else value for value in values)
    return _encode([code, *clean_values])


STOPPED_BY_PERSON = encode_record("stopped_by_person")
"""The reason stored for a shared run that a person stopped."""


def encode_text(text: str) -> str:
    """Encode text from the gateway or a person for the journal. Only text that looks like a code is changed."""
    return encode_record(_TEXT, text) if text.startswith(CODE_START) else text


def decode_record(text: str) -> tuple[str, Sequence[Any]]:
    """Return the code and values of stored text. Text from the gateway or a person has the code `_TEXT`."""
    if not text.startswith(CODE_START):
        return _TEXT, (text,)
    code, *values = json.loads(text)
    return code, [value for value in values if value is not None]


def render_record(text: str, *, is_for_officers: bool = False) -> str:
    """Render stored text in the current language. For officers, codes, logins and digests are omitted."""
    code, values = decode_record(text)
    if code == _TEXT:
        return str(values[0])
    template = _TEMPLATES[code, len(values)]
    placeholders = re.findall(r"\{(\w+)\}", template)
    if code == _DUPLICATE:
        values = [*(render_record(value, is_for_officers=is_for_officers) for value in values[:-1]), values[-1]]
    named_values = {
        name: format_decider(value, is_for_officers=is_for_officers) if name == "by" else value
        for name, value in zip(placeholders, values, strict=True)
    }
    return say(_OFFICER_TEMPLATES.get(code, template) if is_for_officers else template, **named_values)


def format_decider(decider: str, *, is_for_officers: bool = False) -> str:
    """Describe in the current language who decided: one person, or several through a signed order."""
    if _is_decided_by_order(decider):
        return render_record(decider, is_for_officers=is_for_officers)
    return decider_name(decider) if is_for_officers else decider


def parse_agreement(decider: str) -> tuple[str, str] | None:
    """Return who prepared and who approved an order, or None if one person decided."""
    if not _is_decided_by_order(decider):
        return None
    _, (_, _, maker, approvers) = decode_record(decider)
    return maker, approvers


def decider_name(decider: str) -> str:
    """Return the name (or login, if there is none) of the person who decided or carried out an order."""
    person = str(decode_record(decider)[1][0]) if _is_decided_by_order(decider) else decider
    return person.rpartition(LOGIN)[0] or person


def _is_decided_by_order(decider: str) -> bool:
    return decider.startswith(f'["{_AGREED}", ') and decider.endswith("]")


_ACTION_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "opened": mark("Started"),
        "approved": mark("Prepared or approved"),
        "resolved_paid": mark("Settled as paid"),
        "resolved_rejected": mark("Settled as rejected"),
        "resolved_not_received": mark("Settled as never received"),
        "released": mark("Released to be sent again"),
        "returned": mark("Money returned"),
        "replaced": mark("Replaced by another payout"),
        "forgotten": mark("Forgotten"),
    }
)


def action_label(kind: str) -> str:
    """Return the label of a person's action on a batch or row."""
    return say(_ACTION_LABELS[kind])


INVALID = "invalid"
"""The state shown for a row with defects, which is not an instruction and not in the state machine."""

STATES = (INVALID, "ready", "in_flight", "in_doubt", "accepted", "paid", "rejected", "returned")
"""The states in which a row can be shown. A row is shown as `in_flight` only if its process is alive."""

DISPLAYED_IN_DOUBT = frozenset({State.IN_DOUBT, State.IN_FLIGHT})
"""The states that are shown as in doubt (see `display_state`)."""

_STATE_TEMPLATES: Mapping[str, tuple[str, str]] = MappingProxyType(
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
"""Each state's label, and its template for a number of rows."""
HELD = "held"
"""The state in which a ready or rejected row is shown if evidence holds it, so that no run sends it."""
_OTHER_CODES = mark_all("replaced", "held", "not sent", "unknown", "not received", "payout", "payin")
"""Other codes with labels, for the catalogue."""


def state_label(state: str) -> str:
    """Return the label of a state or of another code."""
    return say(_STATE_TEMPLATES[state][0] if state in _STATE_TEMPLATES else state.replace("_", " "))


def format_state_count(count: int, state: str) -> str:
    """Format a number of rows in a state: `3 in doubt`."""
    return say_count(count, _STATE_TEMPLATES[state][1])


_FINDING_TEMPLATES = {
    "moved": mark_count("{count:,} changed a row"),
    "repeated": mark_count("{count:,} repeated"),
    "late": mark_count("{count:,} late"),
    "contradicting": mark_count("{count:,} contradicting"),
    "to_confirm": mark_count("{count:,} to confirm"),
    "ambiguous": mark_count("{count:,} ambiguous"),
}


def format_finding_count(count: int, finding: str) -> str:
    """Format a number of claims with a finding: `2 contradicting`."""
    template = _FINDING_TEMPLATES.get(finding)
    return f"{format_number(count)} {state_label(finding)}" if template is None else say_count(count, template)


def display_state(state: State) -> str:
    """Return the state in which an instruction is displayed.

    Outside its run, a row in flight is displayed as in doubt. A replaced row is displayed as invalid.
    """
    match state:
        case State.IN_FLIGHT:
            return State.IN_DOUBT.value
        case State.REPLACED:
            return INVALID
        case _:
            return state.value
