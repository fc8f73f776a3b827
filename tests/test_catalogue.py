"""The catalogues are whole: each sentence of the source has a translation, and what is compiled is what is written."""

from pathlib import Path
from typing import Any

import pytest

from paygw_batch.console.visits import ActRefused, PageNotFound, PageOutdated
from paygw_batch.language import ENGLISH, languages
from tests.support.catalogue import TOOL, messages

FOLDER: Path = TOOL["LANGUAGES"]


@pytest.fixture(scope="module", params=[name for name in languages() if name != ENGLISH])
def catalogue(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, TOOL["fresh"](request.param)


def test_translations_are_complete_certain_and_keep_placeholders(catalogue: tuple[str, Any]) -> None:
    assert TOOL["problems"](catalogue[1]) == [], "`python tooling/catalogue.py` adds new sentences to the .po file"


def test_language_files_match_source(catalogue: tuple[str, Any]) -> None:
    name, fresh = catalogue
    assert (FOLDER / f"{name}.po").read_bytes() == TOOL["as_po"](fresh), "run `python tooling/catalogue.py`"
    assert (FOLDER / f"{name}.mo").read_bytes() == TOOL["as_mo"](fresh), "run `python tooling/catalogue.py`"


def test_untranslated_sentence_is_detected(catalogue: tuple[str, Any]) -> None:
    _, fresh = catalogue
    fresh.add("A sentence that nobody has translated.", "")
    fresh.add("{count:,} rows", "{count} lignes")
    fresh.add("A doubtful one.", "Une phrase douteuse.", flags=["fuzzy"])
    found = TOOL["problems"](fresh)
    for message in ("A sentence that nobody has translated.", "{count:,} rows", "A doubtful one."):
        fresh.delete(message)
    assert found == [
        "not translated: A sentence that nobody has translated.",
        "other placeholders: {count:,} rows",
        "not translated: A doubtful one.",
    ]


def test_catalogue_finds_sentences_marked_in_every_way() -> None:
    found = {message for message, _ in messages()}
    assert "{column} is missing." in found  # worded
    assert ("{count:,} row", "{count:,} rows") in found  # say_count
    assert ("{count:,} in doubt", "{count:,} in doubt") in found  # mark_count
    assert "Gateway reference" in found  # mark
    assert "what is known" in found  # say_all
    assert "in flight" in found  # mark_all
    assert "unknown country" in found  # the meaning of a code
    assert "The journal is damaged." in found  # the docstring of an error
    assert "Wait until it finishes, then run again." in found  # its hint
    assert {error().message for error in (ActRefused, PageNotFound, PageOutdated)} <= found  # the pages' errors
    assert "Kenya" in found  # the data of countries
