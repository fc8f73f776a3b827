"""A translation that words everything otherwise: whoever reads a sentence back finds nothing of it."""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from gettext import NullTranslations

import pytest

_PLACEHOLDER = re.compile(r"(\{[^{}]*\}|%\(\w+\)s|%%|<[^>]*>)")
_OTHER_SIGNS = str.maketrans({"-": "~", ":": ";", "`": "'", ".": "!", ",": "/", "(": "[", ")": "]"})


def reworded(template: str) -> str:
    """Return a template with other letters and signs, its placeholders in the opposite order."""
    begin, middle, end = _parts(template)
    pieces = _PLACEHOLDER.split(middle)
    words = [text if at % 2 else codecs.encode(text, "rot13").translate(_OTHER_SIGNS) for at, text in enumerate(pieces)]
    return f"{begin}\u2039{''.join(words if '<' in middle else reversed(words))}\u203a{end}"


def _parts(template: str) -> tuple[str, str, str]:
    """Return what is left as it is on both sides: blanks, and the sign of a comment."""
    middle = template.lstrip("# ")
    begin = template[: len(template) - len(middle)]
    return begin, middle.rstrip(), middle[len(middle.rstrip()) :]


class Planted(NullTranslations):
    """A catalogue with another wording of every sentence."""

    def gettext(self, message: str) -> str:
        return reworded(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return reworded(msgid1 if n == 1 else msgid2)


@contextmanager
def in_other_words() -> Iterator[None]:
    """Word everything otherwise for a while, in whichever language."""
    planted = Planted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paygw_batch.language._catalogue", lambda _name: planted)
        yield
