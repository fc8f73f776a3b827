"""Reads amounts, countries and currencies as an office writes them, once a person has said how.

Only cells that would be defects are read so. A cell that is right as written keeps its meaning, whatever the answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import Asked, SheetQuestion
from paygw_batch.language import languages, say, speaking
from paygw_batch.sheet.amounts import amount_correction, is_own_currency, with_decimals
from paygw_batch.sheet.clean import cleaned
from paygw_batch.sheet.findings import DEFECT_SCHEMA, Findings, no_defects, ranges_of, shown
from paygw_batch.sheet.model import Sheet, Validated

COMMA, POINT = "comma", "point"
"""The decimal sign of amounts. The other sign, and blanks, separate thousands."""
WORDS = "words"
"""The answer that countries and currencies are written as words."""
AS_WRITTEN = "as-written"
"""The answer that cells mean their text, so that each such cell is a defect."""
_AMOUNT_CODES = frozenset({"amount.format", "amount.decimals"})
_WORD_CODES = frozenset({"country.unknown", "currency.mismatch"})
_MIN_CELLS = 3
"""A person is asked if this many cells, in a quarter of a column, are written so, or half of the column is."""
_SAMPLES = 8
"""The number of readings that are shown with the question."""
_NUMBER_WITH_POINT = r"^[0-9]+\.[0-9]+$"


@dataclass(frozen=True, slots=True)
class Spelling:
    """A person's answers so far; None if a question was not asked.

    `is_text` says that the sheet is a text file. In a workbook, 12.345 may be a number, and not a text with thousands.
    """

    numbers: str | None
    names: str | None
    is_text: bool

    @property
    def reads(self) -> bool:
        """Whether the meaning of any cell may differ from its text."""
        return self.names == WORDS or self.numbers in {COMMA, POINT}


def country_code(text: pl.Expr, rules: Rules) -> pl.Expr:
    """Return the code of a country's name in any of our languages, with or without accents, or null for other texts."""
    names = {rule.name: code for code, rule in rules.items()}
    for name in languages():
        with speaking(name):
            names |= {say(rule.name): code for code, rule in rules.items()}
    folded = pl.select(name=_folded(pl.Series(list(names)))).to_series()
    codes = dict(zip(folded, names.values(), strict=True))
    return _folded(text).replace_strict(codes, default=None, return_dtype=pl.String)


def _folded(text: pl.Expr | pl.Series) -> pl.Expr:
    expression = pl.lit(text) if isinstance(text, pl.Series) else text
    return expression.str.normalize("NFKD").str.to_lowercase().str.replace_all(r"[^\pL]", "")


def readings(sheet: Sheet, rules: Rules, spelling: Spelling) -> pl.DataFrame:
    """Return the cells whose meaning differs from their text, as `DEFECT_SCHEMA`. `correction` is the meaning."""
    if not spelling.reads:
        return no_defects()
    names = [name for name in ("row", "country", "currency", "amount") if name in sheet.frame.columns]
    cells = sheet.frame.select(names)
    frame = cleaned(cells, names).select(names)
    parts = [no_defects()]
    if spelling.names == WORDS:
        code = country_code(pl.col("country"), rules)
        code = pl.when(~pl.col("country").is_in(list(rules))).then(code)
        parts.append(_read(frame, cells, "country", code))
        frame = frame.with_columns(country=pl.coalesce(code, "country"))
    for country in frame["country"].unique().drop_nulls().sort():
        if (rule := rules.get(country)) is None:
            continue
        rows = frame.filter(pl.col("country") == country)
        if spelling.names == WORDS and "currency" in names:
            words = [text for text in rows["currency"].unique().drop_nulls() if is_own_currency(text, rule.currency)]
            currency = pl.when(pl.col("currency").is_in(words)).then(pl.lit(rule.currency))
            parts.append(_read(rows, cells, "currency", currency))
        if spelling.numbers in {COMMA, POINT}:
            parts.append(_read(rows, cells, "amount", _amount(rule, spelling)))
    return pl.concat(parts).sort("row", maintain_order=True)


def _amount(rule: CountryRule, spelling: Spelling) -> pl.Expr:
    text = pl.col("amount")
    stays = text.str.contains(with_decimals(rule.decimals))
    if not spelling.is_text:
        stays |= text.str.contains(_NUMBER_WITH_POINT)
    return pl.when(~stays).then(amount_correction("amount", rule.currency, rule.decimals, spelling.numbers or ""))


def _read(rows: pl.DataFrame, cells: pl.DataFrame, column: str, meaning: pl.Expr) -> pl.DataFrame:
    read = rows.select("row", text=pl.col(column), correction=meaning)
    read = read.filter(pl.col("correction").is_not_null() & (pl.col("correction") != pl.col("text")))
    read = read.join(cells.select("row", value=column), on="row", maintain_order="left")
    return read.with_columns(column=pl.lit(column), code=pl.lit(""), message=pl.lit("")).select(list(DEFECT_SCHEMA))


def with_texts(frame: pl.DataFrame, cells: pl.DataFrame, texts: str) -> pl.DataFrame:
    """Return a sheet's frame with other texts in the `cells` of `readings`. `texts` names their column in `cells`."""
    for (column,), part in cells.partition_by("column", as_dict=True).items():
        places = frame["row"].search_sorted(part["row"])
        frame = frame.with_columns(frame[str(column)].clone().scatter(places, part[texts]))
    return frame


def spelling_question(sheet: Sheet, found: Findings, rules: Rules, spelling: Spelling) -> SheetQuestion | None:
    """Return the question about a column with these defects if they look like the office's way of writing, or None."""
    codes = {*found.counts["code"]}
    if spelling.names is None and codes & _WORD_CODES:
        words = readings(sheet, rules, replace(spelling, names=WORDS, numbers=None))
        if any(_is_a_way(sheet, part) for part in words.partition_by("column")):
            return _question(sheet, Asked.NAMES, words, WORDS)
    if spelling.numbers is None and codes & _AMOUNT_CODES:
        amounts = {sign: readings(sheet, rules, replace(spelling, numbers=sign, names=None)) for sign in (POINT, COMMA)}
        sign = max(amounts, key=lambda candidate: amounts[candidate].height)
        if _is_a_way(sheet, amounts[sign]):
            return _question(sheet, Asked.NUMBERS, amounts[sign], sign)
    return None


def _is_a_way(sheet: Sheet, cells: pl.DataFrame) -> bool:
    if cells.is_empty():
        return False
    text = sheet.frame[cells["column"][0]]
    filled = text.len() - text.null_count()
    return 2 * cells.height > filled or (cells.height >= _MIN_CELLS and 4 * cells.height > filled)


def _question(sheet: Sheet, asks: Asked, cells: pl.DataFrame, answer: str) -> SheetQuestion:
    pairs = cells.select("column", shown("value"), "correction").unique(maintain_order=True)
    pairs = pairs.sort(pl.col("value").str.len_chars(), descending=True, maintain_order=True).head(_SAMPLES)
    _, value, meaning = pairs.row(0)
    return SheetQuestion(
        asks,
        say(
            "{columns}: say how {cells} cells are to be read.",
            columns=say(" and ").join(sheet.headers[name] for name in cells["column"].unique(maintain_order=True)),
            cells=cells.height,
        ),
        hint=say(
            "If {value} means {meaning}: --{asks} {answer}.", value=value, meaning=meaning, asks=asks, answer=answer
        ),
        question=say("Does {value} mean {meaning}?", value=value, meaning=meaning),
        choices=(answer, AS_WRITTEN),
        samples=[f"{sheet.headers[column]}: {text} = {read}" for column, text, read in pairs.iter_rows()],
    )


def spellings(validated: Validated) -> Iterator[tuple[str, str, str, str]]:
    """Yield heading, text, meaning and ranges of rows: for each word that was read, and once for all amounts."""
    of_words = pl.when(pl.col("column") != "amount").then("value")
    for _, cells in validated.read.with_columns(word=of_words).group_by("column", "word", maintain_order=True):
        column, text, meaning = cells.select("column", shown("value"), "correction").row(0)
        yield validated.sheet.headers[column], text, meaning, ranges_of(cells["row"])
