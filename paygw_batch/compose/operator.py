"""Names the operator: the identity that the journal records with each manual decision."""

import os
import pwd

from paygw_batch.errors import UsageError
from paygw_batch.language import say

MAX_WORDS = 2_000
"""How long an evidence or a name may be, in characters."""


def person(name: str | None) -> str:
    """Return who decides: the login of this process, which the environment cannot change, and a name if one is given.

    The login says whose account was used and not who sat there: where people share an account, --by tells them apart,
    on their word.
    """
    try:
        login = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        login = f"uid {os.getuid()}"
    return login if name is None else f"{in_words(name, '--by')} (login {login})"


def in_words(text: str, what: str) -> str:
    """Return a person's words without blanks around them. Raises `UsageError` unless they are one line of text."""
    words = text.strip()
    if not words or not words.isprintable() or len(words) > MAX_WORDS:
        raise UsageError(
            say("{what} must be one line of text, of at most {max_words:,} characters.", what=what, max_words=MAX_WORDS)
        )
    return words
