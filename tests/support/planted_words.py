"""A translation that rewords every sentence, so that code which parses sentences fails."""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from gettext import NullTranslations

import pytest

_PLACEHOLDER = re.compile(r"(\{[^{}]*\}|%\(\w+\)s|%%|<[^>]*>)")
_OTHER_SIGNS = str.maketrans({"-": "~", ":": ";", "`": "'", ".": "!", ",": "/", "(": "[", ")": "]"})


def reword(template: str) -> str:
    """Return a template with different letters and punctuation, and its placeholders in reverse order."""
    begin, middle, end = _parts(template)
    pieces = _PLACEHOLDER.split(middle)
    words = [text if at % 2 else codecs.encode(text, "rot13").translate(_OTHER_SIGNS) for at, text in enumerate(pieces)]
    return f"{begin}\u2039{''.join(words if '<' in middle else reversed(words))}\u203a{end}"


def _parts(template: str) -> tuple[str, str, str]:
    """Return the parts that stay unchanged on both sides: spaces, and comment characters."""
    middle = template.lstrip("# ")
    begin = template[: len(template) - len(middle)]
    return begin, middle.rstrip(), middle[len(middle.rstrip()) :]


class RewordedCatalogue(NullTranslations):
    def gettext(self, message: str) -> str:
        return reword(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return reword(msgid1 if n == 1 else msgid2)


@contextmanager
def reworded_catalogue() -> Iterator[None]:
    planted = RewordedCatalogue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paygw_batch.language._catalogue", lambda _name: planted)
        yield
