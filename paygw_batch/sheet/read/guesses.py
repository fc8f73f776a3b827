"""Suggests columns for headings, based on profiles, words in headings, and cells.

A person checks every suggestion. None affects payments by itself.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from paygw_batch.core import generator_marks
from paygw_batch.countries.data import config_dir, read_countries, read_numbers
from paygw_batch.countries.form_columns import COUNTRY_COLUMN
from paygw_batch.files import write_atomically
from paygw_batch.language import say
from paygw_batch.sheet.read.headings import IGNORED_HEADING, MAX_SAMPLES, FileHeading, fold_heading
from paygw_batch.sheet.read.profiles import profile_names, read_profile

_MIN_SIMILARITY = 0.85
_MISLEADING_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    gross basic base brut bank banque branch agence department departement employer employeur tax impot deduction
    deductions retenue retenues date birth naissance manager project projet hours heures days jours rate taux
    overtime allowance prime id matricule number no numero n code bonus advance avance
    """,
    )
)
"""Words that change the meaning of other words in a heading."""
_HEADING_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("country", "pays"), "country"),
        **dict.fromkeys(("currency", "devise", "monnaie"), "currency"),
        **dict.fromkeys(("net", "salary", "salaire", "wage", "wages", "amount", "montant", "pay", "paie"), "amount"),
        **dict.fromkeys(("wallet", "account", "compte", "portefeuille"), "account_number"),
        **dict.fromkeys(
            ("phone", "mobile", "cell", "cellphone", "msisdn", "tel", "telephone", "portable", "gsm"), "phone"
        ),
        **dict.fromkeys(("operator", "operateur", "network", "reseau", "channel"), "purpose"),
        **dict.fromkeys(
            ("name", "nom", "noms", "employee", "employe", "payee", "beneficiary", "beneficiaire", "staff"),
            "account_name",
        ),
    }
)
"""A word in a heading, without accents -> the column that it means. The first match applies."""
_NUMBER_COLUMNS = frozenset({"phone", "account_number"})
"""Columns whose headings may contain "number" or "no."."""
_NUMBER_WORDS = frozenset({"number", "no", "numero", "n"})


@dataclass(frozen=True, slots=True)
class HeadingSuggestion:
    """A sheet's heading, and the column that it means (if `is_known`) or may mean.

    A person must check a column that is not known. It is `IGNORED_HEADING` if none was found. `other` is a column that
    was not suggested because another heading has it. `samples` are the first values below the heading.
    """

    heading: str
    column: str
    is_known: bool
    other: str = ""
    samples: Sequence[str] = ()


def suggest_columns(headings: Sequence[FileHeading], columns: Sequence[str]) -> Sequence[HeadingSuggestion]:
    """Return the known or suggested column for each heading. No column is suggested twice."""
    known = {entry.column for entry in headings if entry.column is not None}
    used_columns = {IGNORED_HEADING}
    suggestions = []
    for entry in headings:
        guess = entry.column or suggest_column(entry.heading, columns, entry.samples) or IGNORED_HEADING
        column = IGNORED_HEADING if guess in used_columns or (entry.column is None and guess in known) else guess
        used_columns.add(column)
        other = guess if guess != column else ""
        suggestions.append(
            HeadingSuggestion(entry.heading, column, entry.column is not None, other, entry.samples[:MAX_SAMPLES])
        )
    return suggestions


def suggest_column(heading: str, columns: Sequence[str], samples: Sequence[str]) -> str | None:
    """Return the column that a heading may mean, or None.

    Tried in order: profiles with this heading, cells that all look alike, similar spellings, and words in the heading.
    """
    in_profiles = {column for name, column in _profile_headings() if name == fold_heading(heading)}
    if in_profiles:
        candidates = in_profiles.intersection(columns)
        return candidates.pop() if len(candidates) == 1 else None
    guesses = (_match_cells(samples), _match_spelling(heading, columns), _match_words(heading))
    return next((guess for guess in guesses if guess in columns), None)


@cache
def _profile_headings() -> tuple[tuple[str, str], ...]:
    profiles = [read_profile(name) for name in profile_names()]
    return tuple((fold_heading(heading), column) for profile in profiles for heading, column in profile.items())


def _match_spelling(heading: str, columns: Sequence[str]) -> str | None:
    by_name = {fold_heading(column): column for column in columns} | dict(_profile_headings())
    matches = get_close_matches(fold_heading(re.sub(r"\(.*?\)", "", heading)), by_name, n=1, cutoff=_MIN_SIMILARITY)
    return by_name[matches[0]] if matches else None


def _match_words(heading: str) -> str | None:
    unaccented = "".join(c for c in unicodedata.normalize("NFKD", heading.casefold()) if not unicodedata.combining(c))
    words = re.findall(r"[^\W\d_]+", unaccented)
    for word, column in _HEADING_WORDS.items():
        misleading = _MISLEADING_WORDS - _NUMBER_WORDS if column in _NUMBER_COLUMNS else _MISLEADING_WORDS
        if word in words and misleading.isdisjoint(words):
            return column
    return None


def _match_cells(samples: Sequence[str]) -> str | None:
    cells = [cell.strip() for cell in samples if cell.strip()]
    return next((column for column, matches in _cell_tests().items() if cells and all(map(matches, cells))), None)


@cache
def _cell_tests() -> Mapping[str, Callable[[str], bool]]:
    countries, numbers = read_countries(config_dir()), read_numbers(config_dir())
    currencies = {country.currency for country in countries.values()}
    international = "|".join(f"{entry.dialling_code}{entry.pattern}" for entry in numbers.values())
    national = "|".join(f"{entry.trunk_prefix}{entry.pattern}" for entry in numbers.values() if entry.trunk_prefix)
    phone = re.compile(rf"(?:\+|00)?(?:{international})|(?:{national})")
    return {
        COUNTRY_COLUMN: lambda cell: cell.upper() in countries,
        "currency": lambda cell: cell.upper() in currencies,
        "phone": lambda cell: phone.fullmatch(re.sub(r"[ ().'-]", "", cell)) is not None,
    }


def write_heading_map(path: Path, file: str, headings: Sequence[FileHeading], columns: Sequence[str]) -> None:
    """Write the headings of `file` to `path`, with the known or suggested column of each. Raises `OutputError`."""
    lines: dict[str, str] = {}
    for entry in suggest_columns(headings, columns):
        comment = "  # " + say("{near}? Another heading already has it.", near=entry.other) if entry.other else ""
        lines.setdefault(fold_heading(entry.heading), f"{_quote(entry.heading)} = {_quote(entry.column)}{comment}")
    text = "\n".join(
        [
            generator_marks.HEADINGS,
            say(
                "# The headings of {file}, and the column that each means. Check every line and correct",
                file=_replace_unprintable(file),
            ),
            say("# the wrong ones. Then use this file: --column-profile {name}", name=_replace_unprintable(path.name)),
            say(
                '# "" marks a heading that is not used. Its values are copied to the reconciliation. Each column '
                "can appear only once."
            ),
            say("# The columns: {columns}.", columns=", ".join(columns)),
            "",
            "[columns]",
            *lines.values(),
            "",
        ]
    )
    write_atomically(path, text.encode())


def _quote(text: str) -> str:
    """Quote a string for TOML, which writes it as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _replace_unprintable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
