"""Remembers in a cookie the language that a person has chosen for the pages."""

from collections.abc import Mapping

from paygw_batch.language import language, languages, mark, say, speaking

LANGUAGE_COOKIE = "language"
_OWN_NAME = mark("English")
"""Each catalogue translates it by the name of its own language."""


def language_of(cookies: Mapping[str, str]) -> str:
    """Return the language that a browser has chosen; that of the process where it has chosen none that is there."""
    chosen = cookies.get(LANGUAGE_COOKIE, "")
    return chosen if chosen in languages() else language()


def own_names() -> Mapping[str, str]:
    """Return the code of each language, with its name in that language."""
    found = {}
    for code in languages():
        with speaking(code):
            found[code] = say(_OWN_NAME)
    return found
