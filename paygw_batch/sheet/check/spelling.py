"""Interprets amounts, countries and currencies as an office writes them, after a person has confirmed the meaning.

Only cells that would be defects are interpreted. A valid cell keeps its meaning, whatever the answer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import QuestionKind, SheetQuestion
from paygw_batch.language import language_context, languages, say, say_count
from paygw_batch.sheet.amounts import amount_correction, amount_pattern, is_currency_word
from paygw_batch.sheet.clean import clean_columns
from paygw_batch.sheet.findings import DEFECT_SCHEMA, Findings, empty_findings, format_row_ranges, shortened_value
from paygw_batch.sheet.model import Sheet, Validated

COMMA, POINT = "comma", "point"
"""The decimal separator in amounts. The other one, and spaces, separate thousands."""
WORDS = "words"
"""The answer that countries and currencies are written as words."""
AS_WRITTEN = "as-written"
"""The answer that cells are meant as written, so they remain defects."""
_AMOUNT_CODES = frozenset({"amount.format", "amount.decimals"})
_WORD_CODES = frozenset({"country.unknown", "currency.mismatch"})
_MIN_SIMILAR_CELLS = 3
"""A spelling is common if half of the column uses it, or a quarter of it and at least this many cells."""
_MAX_SAMPLES = 8
_MAX_GUESSED = 1_000
"""The maximum number of distinct texts to compare with every country, which is slow."""
_MIN_SIMILARITY = 0.8
"""Kenia is like Kenya, but Zimbabwe is not like Zambia."""
_NUMBER_WITH_POINT = r"^[0-9]+\.[0-9]+$"


@dataclass(frozen=True, slots=True)
class Answers:
    """A person's answers so far. Answers that have not been given are None.

    `is_text` is true for a text file. In a workbook, 12.345 may be a number instead of text with a thousands separator.
    """

    numbers: str | None
    names: str | None
    is_text: bool


def country_code(text: pl.Expr, rules: Rules) -> pl.Expr:
    """Return the code of the country with this name (in any supported language, with or without accents), or null."""
    return _fold_letters(text).replace_strict(_codes_by_name(rules), default=None, return_dtype=pl.String)


def nearest_country(text: pl.Expr, rules: Rules) -> pl.Expr:
    """Return the code of the country with the most similar name, or null. This is only a guess."""
    codes = _codes_by_name(rules)

    def find_nearest(texts: pl.Series) -> pl.Series:
        distinct = texts.drop_nulls().unique(maintain_order=True).head(_MAX_GUESSED)
        matches = {word: get_close_matches(word, codes, 1, _MIN_SIMILARITY) for word in distinct}
        guesses = {word: codes[names[0]] for word, names in matches.items() if names}
        return texts.replace_strict(guesses, default=None, return_dtype=pl.String)

    return _fold_letters(text).map_batches(find_nearest, return_dtype=pl.String)


def _codes_by_name(rules: Rules) -> Mapping[str, str]:
    """Map normalised country names in all supported languages to codes."""
    codes = {rule.name: code for code, rule in rules.items()}
    for language in languages():
        with language_context(language):
            codes |= {say(rule.name): code for code, rule in rules.items()}
    folded = pl.select(name=_fold_letters(pl.Series(list(codes)))).to_series()
    return dict(zip(folded, codes.values(), strict=True))


def _fold_letters(text: pl.Expr | pl.Series) -> pl.Expr:
    expression = pl.lit(text) if isinstance(text, pl.Series) else text
    return expression.str.normalize("NFKD").str.to_lowercase().str.replace_all(r"[^\pL]", "")


def interpreted_cells(sheet: Sheet, rules: Rules, answers: Answers) -> pl.DataFrame:
    """Return the cells whose meaning differs from their text (`DEFECT_SCHEMA`, with the meaning as `correction`)."""
    if answers.names != WORDS and answers.numbers not in {COMMA, POINT}:
        return empty_findings()
    columns = [name for name in ("row", "country", "currency", "amount") if name in sheet.frame.columns]
    cells = sheet.frame.select(columns)
    cleaned = clean_columns(cells, columns).select(columns)
    changed_cells = [empty_findings()]
    if answers.names == WORDS:
        code = country_code(pl.col("country"), rules)
        code = pl.when(~pl.col("country").is_in(list(rules))).then(code)
        changed_cells.append(_changed_cells(cleaned, cells, "country", code))
        cleaned = cleaned.with_columns(country=pl.coalesce(code, "country"))
    for country in cleaned["country"].unique().drop_nulls().sort():
        if (rule := rules.get(country)) is None:
            continue
        rows = cleaned.filter(pl.col("country") == country)
        if answers.names == WORDS and "currency" in columns:
            words = [text for text in rows["currency"].unique().drop_nulls() if is_currency_word(text, rule.currency)]
            currency = pl.when(pl.col("currency").is_in(words)).then(pl.lit(rule.currency))
            changed_cells.append(_changed_cells(rows, cells, "currency", currency))
        if answers.numbers in {COMMA, POINT}:
            changed_cells.append(_changed_cells(rows, cells, "amount", _amount_meaning(rule, answers)))
    return pl.concat(changed_cells).sort("row", maintain_order=True)


def _amount_meaning(rule: CountryRule, answers: Answers) -> pl.Expr:
    text = pl.col("amount")
    is_literal = text.str.contains(amount_pattern(rule.decimals))
    if not answers.is_text:
        is_literal |= text.str.contains(_NUMBER_WITH_POINT)
    return pl.when(~is_literal).then(amount_correction("amount", rule.currency, rule.decimals, answers.numbers or ""))


def _changed_cells(rows: pl.DataFrame, cells: pl.DataFrame, column: str, meaning: pl.Expr) -> pl.DataFrame:
    changed = rows.select("row", text=pl.col(column), correction=meaning)
    changed = changed.filter(pl.col("correction").is_not_null() & (pl.col("correction") != pl.col("text")))
    changed = changed.join(cells.select("row", value=column), on="row", maintain_order="left")
    return changed.with_columns(column=pl.lit(column), code=pl.lit(""), message=pl.lit("")).select(list(DEFECT_SCHEMA))


def replace_cells(frame: pl.DataFrame, cells: pl.DataFrame, source: str) -> pl.DataFrame:
    """Replace `cells` (from `interpreted_cells`) in a sheet's frame with their `value` or `correction` (`source`)."""
    for (column,), part in cells.partition_by("column", as_dict=True).items():
        indices = frame["row"].search_sorted(part["row"])
        frame = frame.with_columns(frame[str(column)].clone().scatter(indices, part[source]))
    return frame


def spelling_question(sheet: Sheet, findings: Findings, rules: Rules, answers: Answers) -> SheetQuestion | None:
    """Return a question if a column's defects look like an office's usual way of writing values, otherwise None."""
    codes = {*findings.counts["code"]}
    if answers.names is None and codes & _WORD_CODES:
        words = interpreted_cells(sheet, rules, replace(answers, names=WORDS, numbers=None))
        if any(_are_common(sheet, part) for part in words.partition_by("column")):
            return _build_question(sheet, QuestionKind.NAMES, words, WORDS)
    if answers.numbers is None and codes & _AMOUNT_CODES:
        amounts = {
            separator: interpreted_cells(sheet, rules, replace(answers, numbers=separator, names=None))
            for separator in (POINT, COMMA)
        }
        separator = max(amounts, key=lambda candidate: amounts[candidate].height)
        if _are_common(sheet, amounts[separator]):
            return _build_question(sheet, QuestionKind.NUMBERS, amounts[separator], separator)
    return None


def _are_common(sheet: Sheet, cells: pl.DataFrame) -> bool:
    if cells.is_empty():
        return False
    text = sheet.frame[cells["column"][0]]
    filled_count = text.len() - text.null_count()
    return 2 * cells.height > filled_count or (cells.height >= _MIN_SIMILAR_CELLS and 4 * cells.height > filled_count)


def _build_question(sheet: Sheet, kind: QuestionKind, cells: pl.DataFrame, answer: str) -> SheetQuestion:
    samples = cells.select("column", shortened_value("value"), "correction").unique(maintain_order=True)
    samples = samples.sort(pl.col("value").str.len_chars(), descending=True, maintain_order=True).head(_MAX_SAMPLES)
    _, value, meaning = samples.row(0)
    return SheetQuestion(
        kind,
        say_count(
            cells.height,
            "{columns}: choose how to read {count:,} cell.",
            "{columns}: choose how to read {count:,} cells.",
            columns=say(" and ").join(sheet.headers[name] for name in cells["column"].unique(maintain_order=True)),
        ),
        hint=say(
            "If {value} means {meaning}, use --{asks} {answer}.", value=value, meaning=meaning, asks=kind, answer=answer
        ),
        question=say("Does {value} mean {meaning}?", value=value, meaning=meaning),
        choices=(answer, AS_WRITTEN),
        samples=[f"{sheet.headers[column]}: {text} = {corrected}" for column, text, corrected in samples.iter_rows()],
    )


def interpretations(validated: Validated) -> Iterator[tuple[str, str, str, str]]:
    """Yield (heading, text, meaning, row ranges) for each interpreted word, and one for all amounts."""
    word = pl.when(pl.col("column") != "amount").then("value")
    for _, cells in validated.interpreted.with_columns(word=word).group_by("column", "word", maintain_order=True):
        column, text, meaning = cells.select("column", shortened_value("value"), "correction").row(0)
        yield validated.sheet.headers[column], text, meaning, format_row_ranges(cells["row"])
