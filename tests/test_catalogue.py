"""The catalogues are complete: each sentence of the source is translated, and the compiled files are current."""

from pathlib import Path
from typing import Any

import pytest

from paygw_batch.console.visits import ActRefused, PageNotFound, PageOutdated
from paygw_batch.language import ENGLISH, languages
from tests.support.catalogue import TOOL, messages

FOLDER: Path = TOOL["LANGUAGES"]


@pytest.fixture(scope="module", params=[name for name in languages() if name != ENGLISH])
def catalogue(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, TOOL["updated_catalogue"](request.param)


def test_translations_are_complete_certain_and_keep_placeholders(catalogue: tuple[str, Any]) -> None:
    assert TOOL["find_problems"](catalogue[1]) == [], "`python tooling/catalogue.py` adds new sentences to the .po file"


def test_language_files_match_source(catalogue: tuple[str, Any]) -> None:
    name, updated_catalogue = catalogue
    assert (FOLDER / f"{name}.po").read_bytes() == TOOL["format_po"](updated_catalogue), (
        "run `python tooling/catalogue.py`"
    )
    assert (FOLDER / f"{name}.mo").read_bytes() == TOOL["compile_mo"](updated_catalogue), (
        "run `python tooling/catalogue.py`"
    )


def test_untranslated_sentence_is_detected(catalogue: tuple[str, Any]) -> None:
    _, updated_catalogue = catalogue
    updated_catalogue.add("A sentence that nobody has translated.", "")
    updated_catalogue.add("{count:,} rows", "{count} lignes")
    updated_catalogue.add("A doubtful one.", "Une phrase douteuse.", flags=["fuzzy"])
    result = TOOL["find_problems"](updated_catalogue)
    for message in ("A sentence that nobody has translated.", "{count:,} rows", "A doubtful one."):
        updated_catalogue.delete(message)
    assert result == [
        "not translated: A sentence that nobody has translated.",
        "other placeholders: {count:,} rows",
        "not translated: A doubtful one.",
    ]


def test_catalogue_finds_sentences_marked_in_every_way() -> None:
    result = {message for message, _ in messages()}
    assert "{column} is missing." in result  # worded
    assert ("{count:,} row", "{count:,} rows") in result  # say_count
    assert ("{count:,} in doubt", "{count:,} in doubt") in result  # mark_count
    assert "Gateway reference" in result  # mark
    assert "what is known" in result  # say_all
    assert "in flight" in result  # mark_all
    assert "unknown country" in result  # the meaning of a code
    assert "The journal is damaged." in result  # the docstring of an error
    assert "Wait until it finishes, then run again." in result  # its hint
    assert {error().message for error in (ActRefused, PageNotFound, PageOutdated)} <= result  # the pages' errors
    assert "Kenya" in result  # the data of countries
