"""The catalogues are complete: each sentence of the source is translated, and the compiled files are current."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.console.visits import ActionRefused, PageNotFound, PageOutdated
from paygw_batch.language import ENGLISH, languages
from tests.support.catalogue import TOOL, messages

FOLDER: Path = TOOL["LANGUAGES"]


@pytest.fixture(scope="module", params=[name for name in languages() if name != ENGLISH])
def catalogue(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, TOOL["updated_catalogue"](request.param)


def test_translations_are_complete_and_compiled(catalogue: tuple[str, Any]) -> None:
    assert TOOL["find_problems"](catalogue[1]) == [], "`python tooling/catalogue.py` adds new sentences to the .po file"
    name, current = catalogue
    made = {"po": TOOL["format_po"](current), "mo": TOOL["compile_mo"](current)}
    for ending, content in made.items():
        assert (FOLDER / f"{name}.{ending}").read_bytes() == content, "run `python tooling/catalogue.py`"


def test_untranslated_message_is_detected(catalogue: tuple[str, Any]) -> None:
    current = deepcopy(catalogue[1])
    current.add("A sentence that nobody has translated.", "")
    current.add("{count:,} rows", "{count} lignes")
    current.add("A doubtful one.", "Une phrase douteuse.", flags=["fuzzy"])
    result = TOOL["find_problems"](current)
    assert result == [
        "not translated: A sentence that nobody has translated.",
        "other placeholders: {count:,} rows",
        "not translated: A doubtful one.",
    ]


def test_catalogue_finds_all_kinds_of_marked_messages() -> None:
    result = {message for message, _ in messages()}
    assert {
        "{column} is missing.",  # worded
        ("{count:,} row", "{count:,} rows"),  # say_count
        ("{count:,} in doubt", "{count:,} in doubt"),  # mark_count
        *("Gateway reference", "what is known", "in flight"),  # mark, say_all, mark_all
        "unknown country",  # the meaning of a code
        *("The journal is damaged.", "Wait until that has finished, then try again."),  # docstring and hint of an error
        *(error().message for error in (ActionRefused, PageNotFound, PageOutdated)),  # the pages' errors
        "Kenya",  # the data of countries
    } <= result
