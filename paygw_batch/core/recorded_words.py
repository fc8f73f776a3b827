"""Translates the sentences that the journal keeps.

Facts are hashed and replayed, so what is written down is English, whatever language its writer was shown. A person who
looks at it reads it in the chosen language: `recorded` knows the templates of these sentences again.
"""

import re

from paygw_batch.language import ENGLISH, language, mark_all, say

RESOLVED = mark_all(
    "Resolved as paid by {by}: {evidence}",
    "Resolved as rejected by {by}: {evidence}",
    "Resolved as not received by {by}: {evidence}",
)
RELEASED = mark_all("Released for another attempt by {by}.")
_TEMPLATES = (
    *mark_all(
        "{message} [possible duplicate of attempt {attempt}]",
        "possible duplicate of attempt {attempt}",
        "The run ended before it recorded an answer; a request may have left.",
    ),
    *RESOLVED,
    *RELEASED,
    *mark_all(
        "The money came back: {evidence}",
        "Replaced by row {row} of batch {batch}.",
        "No one knows what became of the request ({cause}): it may have been paid.",
        "No one knows what became of the request: it may have been paid.",
        "Nothing left ({cause}).",
        "Nothing left.",
        "1 row of {sheet}",
        "{rows} rows of {sheet}",
        "next attempt as {order_id}",
        "by row {row} of batch {batch}",
        "prepared by {name} at {at}",
        "approved by {name} at {at} (plan {digest})",
    ),
)
"""As `journal/facts` and `run/approval` write them. A test holds them to it."""


def recorded(sentence: str) -> str:
    """Return a sentence of the journal in the chosen language; one of the gateway's or of a person as it is."""
    if language() == ENGLISH:
        return sentence
    for template in _TEMPLATES:
        if found := _pattern(template).fullmatch(sentence):
            values = found.groupdict()
            if "message" in values:
                values["message"] = recorded(values["message"])
            return say(template, **values) if values else say(template)
    return sentence


_DEEDS = mark_all(
    "opened",
    "approved",
    "resolved paid",
    "resolved rejected",
    "resolved not received",
    "released",
    "returned",
    "replaced",
)
"""The words of all acts of people, for the catalogue."""


def deed_words(kind: str) -> str:
    """Return the act of a person on a batch or a row, as people say it."""
    return say(kind.replace("_", " "))


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)  # texts, and names at the odd places
    pattern = (f"(?P<{part}>.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts))
    return re.compile("".join(pattern), re.DOTALL)
