"""Translations of the catalogue, and a search for English words in French text."""

import re
import runpy
from functools import cache
from gettext import GNUTranslations
from pathlib import Path
from string import Formatter
from typing import Any

from tests.support.program import ROOT

ENGLISH_WORDS = re.compile(r"(?i)\b(?:the|is|are|was|were|rows?|and|this|nothing|with|sheets?|batch|of)\b")


NOT_SENTENCES = re.compile(r"`[^`]*`|\S*/\S*|\w+(?:[._/]\w+)+|--[\w-]+|paygw-batch\b.*|\b[A-Z]{3,}\b")
"""Matches commands, codes, file names, options, and their placeholders."""


def find_english(text: str) -> list[str]:
    """Return the English that is left in a French text: pieces of source sentences, and words that are not French."""
    with (ROOT / "paygw_batch/languages/fr.mo").open("rb") as file:
        translations = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    pieces = set()
    for message, output in translations.items():
        template = message[0] if isinstance(message, tuple) else message
        piece = max((part for part, *_ in Formatter().parse(template)), key=len, default="").strip()
        if len(piece.split()) > 2 and piece not in output:
            pieces.add(piece)
    plain = NOT_SENTENCES.sub(" ", text.replace("Declined by the sandbox.", ""))
    return [piece for piece in pieces if piece in text] + [
        line for line in plain.splitlines() if ENGLISH_WORDS.search(line)
    ]


TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tooling/catalogue.py"))


@cache
def messages() -> tuple[tuple[Any, str], ...]:
    """Return the sentences of the source, each with its file. This takes about a second."""
    return tuple(TOOL["messages"]())
