"""Guesses the columns of a sheet from profiles, from words in headings, and from cells.

A person checks each guess, and no guess decides what is paid.
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
from paygw_batch.files import write_whole
from paygw_batch.language import say
from paygw_batch.sheet.read.headings import NOT_OURS, SAMPLES, SeenHeading, fold
from paygw_batch.sheet.read.profiles import profile_names, read_profile

_NEAR = 0.85
_NEVER = frozenset(
    re.findall(
        r"\w+",
        """
    gross basic base brut bank banque branch agence department departement employer employeur tax impot deduction
    deductions retenue retenues date birth naissance manager project projet hours heures days jours rate taux
    overtime allowance prime id matricule number no numero n code bonus advance avance
    """,
    )
)
"""Words that change the meaning of the word beside them in a heading."""
_WORDS: Mapping[str, str] = MappingProxyType(
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
"""A word of a heading, without accents -> the column that it means. The first match in this order counts."""
_MOSTLY_DIGITS = frozenset({"phone", "account_number"})
"""Columns of numbers. In their headings, "number" and "no." are part of the name."""
_NUMBER_WORDS = frozenset({"number", "no", "numero", "n"})


@dataclass(frozen=True, slots=True)
class GuessedHeading:
    """A heading of a sheet and the column that it may mean. If `is_known`, the heading is read as that column.

    A `column` that is not known is a guess, which a person checks; `NOT_OURS` means that there is none. `other` is the
    column that would have been guessed if no other heading had it. `samples` are the first texts below the heading.
    """

    heading: str
    column: str
    is_known: bool
    other: str = ""
    samples: Sequence[str] = ()


def guessed(headings: Sequence[SeenHeading], columns: Sequence[str]) -> Sequence[GuessedHeading]:
    """Return the known or guessed column of each heading of a sheet. No column is guessed twice."""
    certain = {seen.column for seen in headings if seen.column is not None}
    taken = {NOT_OURS}
    guesses = []
    for seen in headings:
        near = seen.column or suggested(seen.heading, columns, seen.samples) or NOT_OURS
        column = NOT_OURS if near in taken or (seen.column is None and near in certain) else near
        taken.add(column)
        other = near if near != column else ""
        guesses.append(GuessedHeading(seen.heading, column, seen.column is not None, other, seen.samples[:SAMPLES]))
    return guesses


def suggested(heading: str, columns: Sequence[str], samples: Sequence[str] = ()) -> str | None:
    """Return the one of `columns` that a heading may mean, or None.

    A profile with this heading is the best guess. The next best are the cells, if all are of one kind, then a similar
    spelling, and last the words of the heading.
    """
    in_profiles = {column for name, column in _known_headings() if name == fold(heading)}
    if in_profiles:
        possible = in_profiles.intersection(columns)
        return possible.pop() if len(possible) == 1 else None
    guesses = (_by_cells(samples), _by_spelling(heading, columns), _by_words(heading))
    return next((guess for guess in guesses if guess in columns), None)


@cache
def _known_headings() -> tuple[tuple[str, str], ...]:
    profiles = [read_profile(name) for name in profile_names()]
    return tuple((fold(heading), column) for profile in profiles for heading, column in profile.items())


def _by_spelling(heading: str, columns: Sequence[str]) -> str | None:
    by_name = {fold(column): column for column in columns} | dict(_known_headings())
    near = get_close_matches(fold(re.sub(r"\(.*?\)", "", heading)), by_name, n=1, cutoff=_NEAR)
    return by_name[near[0]] if near else None


def _by_words(heading: str) -> str | None:
    bare = "".join(c for c in unicodedata.normalize("NFKD", heading.casefold()) if not unicodedata.combining(c))
    words = re.findall(r"[^\W\d_]+", bare)
    for word, column in _WORDS.items():
        spoiling = _NEVER - _NUMBER_WORDS if column in _MOSTLY_DIGITS else _NEVER
        if word in words and spoiling.isdisjoint(words):
            return column
    return None


def _by_cells(samples: Sequence[str]) -> str | None:
    cells = [cell.strip() for cell in samples if cell.strip()]
    kinds = _kinds_of_cells()
    return next((column for column, fits in kinds.items() if cells and all(map(fits, cells))), None)


@cache
def _kinds_of_cells() -> Mapping[str, Callable[[str], bool]]:
    countries, numbers = read_countries(config_dir()), read_numbers(config_dir())
    currencies = {country.currency for country in countries.values()}
    ways = "|".join(f"{plan.dialling_code}{plan.pattern}" for plan in numbers.values())
    inside = "|".join(f"{plan.trunk_prefix}{plan.pattern}" for plan in numbers.values() if plan.trunk_prefix)
    phone = re.compile(rf"(?:\+|00)?(?:{ways})|(?:{inside})")
    return {
        COUNTRY_COLUMN: lambda cell: cell.upper() in countries,
        "currency": lambda cell: cell.upper() in currencies,
        "phone": lambda cell: phone.fullmatch(re.sub(r"[ ().'-]", "", cell)) is not None,
    }


def write_heading_map(path: Path, file: str, headings: Sequence[SeenHeading], columns: Sequence[str]) -> None:
    """Write the headings of `file` to `path`, each with its column or a suggestion, if there is one.

    No column is suggested twice. Raises `OutputError`.
    """
    lines: dict[str, str] = {}
    for guess in guessed(headings, columns):
        remark = "  # " + say("{near}, like another one?", near=guess.other) if guess.other else ""
        lines.setdefault(fold(guess.heading), f"{_quoted(guess.heading)} = {_quoted(guess.column)}{remark}")
    text = "\n".join(
        [
            generator_marks.HEADINGS,
            say(
                "# The headings of {file}, and the column that each means. Check every line, correct",
                file=_one_line(file),
            ),
            say("# it if it is wrong, and name this file: --column-profile {name}", name=_one_line(path.name)),
            say('# "" is a column that is not used; it is copied to the reconciliation. No column may appear twice.'),
            say("# The columns: {columns}.", columns=", ".join(columns)),
            "",
            "[columns]",
            *lines.values(),
            "",
        ]
    )
    write_whole(path, text.encode())


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which is written like a string of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
