"""Writes templates: empty sheets with the columns that the chosen countries need.

The worksheet of payees is empty, and the help sheet has an example for each column. So no example has to be deleted
before the sheet is submitted, and none can be paid by mistake.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from decimal import Decimal
from pathlib import Path
from typing import Any

from paygw_batch.core import generator_marks
from paygw_batch.countries.form_columns import COMMON_COLUMNS, COUNTRY_COLUMN
from paygw_batch.countries.kinds import KINDS, MAX_ORDER_ID_CHARACTERS, MAX_TEXT_CHARACTERS, NUMBER_KINDS
from paygw_batch.countries.rules import CountryRule, FieldKind, FormField
from paygw_batch.errors import OutputError
from paygw_batch.files import check_writable, write_atomically
from paygw_batch.language import mark, say
from paygw_batch.sheet.clean import NumberColumn
from paygw_batch.sheet.columns import HELP_TITLE, known_columns
from paygw_batch.sheet.formats import table_format, workbook_options
from paygw_batch.sheet.write.table import row_height_points

_EXAMPLE_AMOUNT = Decimal("1500.50")
_FILLED_BY_RULES = frozenset({FieldKind.COUNTRY, FieldKind.OPERATOR_URL})
GUIDE_HEADINGS = (mark("Column"), mark("Country"), mark("Required"), mark("What to write"), mark("Example"))


@dataclass(frozen=True, slots=True)
class ColumnGuide:
    """How to fill in a column. `example` is a valid value, or empty if the cell should be empty.

    `width` is the column's width in a template, in characters, or 0 if another guide to the column sets it.
    """

    column: str
    countries: tuple[str, ...]
    is_required: bool
    help_text: str
    example: str
    width: int = attribute(default=0, compare=False)

    @property
    def cells(self) -> tuple[str, ...]:
        """The guide as a row of a table with the headings `GUIDE_HEADINGS`."""
        return (
            self.column,
            ", ".join(self.countries),
            say("yes") if self.is_required else say("no"),
            self.help_text,
            self.example,
        )


def build_guides(rules: Sequence[CountryRule]) -> list[ColumnGuide]:
    """Build guides to the columns that these countries use, in column order.

    Each rule must have a form. Columns that the rules fill in (`ipaddress`, `receiver_country_code`) are omitted.
    Countries with the same instructions share a guide.
    """
    all_guides = [guide for rule in rules for guide in _country_guides(rule)]
    names = {guide.column for guide in all_guides}
    leave_empty = say("Leave it empty.")
    all_guides += [
        ColumnGuide(name, (rule.code,), is_required=False, help_text=leave_empty, example="")
        for rule in rules
        for name in names & rule.omitted
    ]
    guides = [guide for column in known_columns() if column in names for guide in all_guides if guide.column == column]
    countries_by_guide: dict[ColumnGuide, list[str]] = {}
    for guide in guides:
        countries_by_guide.setdefault(replace(guide, countries=()), []).extend(guide.countries)
    return [replace(guide, countries=tuple(countries)) for guide, countries in countries_by_guide.items()]


def guided_columns(column_guides: Sequence[ColumnGuide]) -> list[str]:
    """Return the guides' columns in order, without duplicates."""
    return list(dict.fromkeys(guide.column for guide in column_guides))


def _country_guides(rule: CountryRule) -> Iterator[ColumnGuide]:
    yield ColumnGuide(
        COUNTRY_COLUMN,
        (rule.code,),
        is_required=True,
        help_text=say("{code}, for {name}.", code=rule.code, name=say(rule.name)),
        example=rule.code,
        width=KINDS[FieldKind.COUNTRY].width,
    )
    for field in rule.form.fields if rule.form is not None else ():
        if not field.from_sheet or field.name in rule.omitted or field.kind in _FILLED_BY_RULES:
            continue
        if field.name in rule.defaults or (field.kind is FieldKind.PURPOSE and rule.purpose is None):
            continue
        kind = KINDS[field.kind]
        help_text, example = _field_help(rule, field)
        yield ColumnGuide(
            field.name, (rule.code,), field.name in rule.required and not kind.is_filled, help_text, example, kind.width
        )


def _field_help(rule: CountryRule, field: FormField) -> tuple[str, str]:
    if field.kind in NUMBER_KINDS:
        return _number_help(rule, field)
    match field.kind:
        case FieldKind.AMOUNT:
            return _amount_help(rule)
        case FieldKind.CURRENCY:
            return say("{currency}, or empty.", currency=rule.currency), rule.currency
        case FieldKind.PURPOSE:
            return say("{purpose}, or empty.", purpose=rule.purpose), rule.purpose or ""
        case _:
            kind = KINDS[field.kind]
            max_characters = rule.max_characters.get(field.name, MAX_TEXT_CHARACTERS)
            help_text = say(kind.words, order_id_characters=MAX_ORDER_ID_CHARACTERS, text_characters=max_characters)
            return help_text, kind.example[:max_characters].strip()


def _amount_help(rule: CountryRule) -> tuple[str, str]:
    decimals = rule.decimals
    help_text = (
        say(
            "An amount in {currency} greater than zero, in digits only, with a decimal point and at most {units} "
            "decimal places. Do not use thousands separators.",
            currency=rule.currency,
            units=decimals,
        )
        if decimals
        else say(
            "An amount in {currency} greater than zero, without decimal places. Do not use thousands separators.",
            currency=rule.currency,
        )
    )
    example = _EXAMPLE_AMOUNT if decimals > 1 else _EXAMPLE_AMOUNT.to_integral_value()
    if rule.min_amount is not None:
        help_text += " " + say("At least {amount:f}.", amount=rule.min_amount)
        example = max(example, rule.min_amount)
    if rule.max_amount is not None:
        help_text += " " + say("At most {amount:f}.", amount=rule.max_amount)
        example = min(example, rule.max_amount)
    return help_text, f"{example:f}"


def _number_help(rule: CountryRule, field: FormField) -> tuple[str, str]:
    numbers = rule.numbers
    phrase = mark("An {demonym} mobile number") if rule.demonym[0] in "AEIOU" else mark("A {demonym} mobile number")
    international, national = f"+{numbers.dialling_code}{numbers.example}", f"{numbers.trunk_prefix}{numbers.example}"
    is_account = field.kind is FieldKind.WALLET and rule.bank_account_pattern is not None
    template = (
        mark("{number}, in international ({abroad}) or national format ({inside}), or a bank account.")
        if is_account
        else mark("{number}, in international ({abroad}) or national format ({inside}).")
    )
    description = say(phrase, demonym=say(rule.demonym))
    help_text = say(template, number=description, abroad=international, inside=national)
    return help_text, NumberColumn.for_field(rule, field.name, field.kind).example


_LAST_ROW = 1_048_576
_INSTRUCTIONS = (
    mark(
        "Enter one payment per row on the worksheet Payees, below its headings. Its cells are formatted as text, so "
        "leading zeros are kept."
    ),
    mark("You can add your own columns. They are copied to the reconciliation. Columns can be in any order."),
    mark("To check the file, run paygw-batch validate with its name. It lists the problems row by row."),
    mark("This worksheet is never read as payments, so its examples are never paid."),
)
_DROP_DOWN_COLUMNS = tuple(name for name, kind in COMMON_COLUMNS.items() if KINDS[kind].is_filled)
_HELP_WIDTHS = (22, 16, 9, 98, 34)


def write_template(rules: Sequence[CountryRule], path: Path) -> list[ColumnGuide]:
    """Write a template (.xlsx or .csv) for these countries, and return the guides to its columns.

    An .xlsx file has text cells, drop-down lists and a help sheet. A .csv file has only headings. An existing file is
    never overwritten, because someone may have filled it in. Raises `OutputError`.
    """
    check_writable(path)
    if path.suffix.lower() not in {".xlsx", ".csv"}:
        raise OutputError(
            say("{name}: a template must be a .xlsx or .csv file.", name=path.name),
            hint=say("Use one of these extensions."),
        )
    table_format(path)
    if path.exists():
        raise OutputError(
            say("{path} already exists.", path=path),
            hint=say("Choose a new file. Someone may have filled in this one."),
        )
    column_guides = build_guides(rules)
    is_csv = path.suffix.lower() == ".csv"
    header_line = f"{','.join(guided_columns(column_guides))}\n".encode()
    write_atomically(path, header_line if is_csv else _build_workbook(rules, column_guides))
    return column_guides


def _build_workbook(rules: Sequence[CountryRule], column_guides: Sequence[ColumnGuide]) -> bytes:
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    file = io.BytesIO()
    with Workbook(file, workbook_options()) as workbook:
        payees, help_sheet = workbook.add_worksheet(say("Payees")), workbook.add_worksheet(say("Help"))
        _add_columns(workbook, payees, column_guides)
        _add_help(workbook, help_sheet, rules, column_guides)
        _add_drop_down_lists(workbook, payees, column_guides)
    return file.getvalue()


def _add_columns(workbook: Any, sheet: Any, column_guides: Sequence[ColumnGuide]) -> None:
    """Write the headings (bold for required columns), and format the cells below them as text."""
    text_format = workbook.add_format({"num_format": "@"})
    required_format = workbook.add_format({"num_format": "@", "bold": True, "bg_color": "#DDEBF7", "bottom": 1})
    optional_format = workbook.add_format({"num_format": "@", "italic": True, "bg_color": "#F2F2F2", "bottom": 1})
    for index, column in enumerate(guided_columns(column_guides)):
        guides = [guide for guide in column_guides if guide.column == column]
        is_required = any(guide.is_required for guide in guides)
        sheet.set_column(index, index, max(guide.width for guide in guides), text_format)
        sheet.write_string(0, index, column, required_format if is_required else optional_format)
    sheet.freeze_panes(1, 0)
    sheet.ignore_errors({"number_stored_as_text": f"A1:XFD{_LAST_ROW}"})


def _add_help(workbook: Any, sheet: Any, rules: Sequence[CountryRule], column_guides: Sequence[ColumnGuide]) -> None:
    title_format = workbook.add_format({"bold": True, "font_size": 14})
    heading_format = workbook.add_format({"bold": True, "bg_color": "#DDEBF7", "bottom": 1})
    cell_format = workbook.add_format({"text_wrap": True, "valign": "top", "num_format": "@"})
    sheet.write_string(0, 0, say(HELP_TITLE), title_format)
    sheet.write_string(0, len(_HELP_WIDTHS) - 1, generator_marks.HELP, workbook.add_format({"font_color": "#808080"}))
    notes = [f"{rule.code}: {say(note)}" for rule in rules for note in (*rule.notes, *rule.confused_codes.values())]
    for row, sentence in enumerate((*map(say, _INSTRUCTIONS), *notes), start=1):
        sheet.write_string(row, 0, sentence)
    heading_row = len(_INSTRUCTIONS) + len(notes) + 2
    for index, (heading, width) in enumerate(zip(GUIDE_HEADINGS, _HELP_WIDTHS, strict=True)):
        sheet.set_column(index, index, width)
        sheet.write_string(heading_row, index, say(heading), heading_format)
    for row, guide in enumerate(column_guides, start=heading_row + 1):
        sheet.set_row(row, row_height_points(guide.cells, _HELP_WIDTHS))
        for index, cell in enumerate(guide.cells):
            sheet.write_string(row, index, cell, cell_format)
    sheet.freeze_panes(heading_row + 1, 0)
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)


def _add_drop_down_lists(workbook: Any, payees: Any, column_guides: Sequence[ColumnGuide]) -> None:
    lists = workbook.add_worksheet("Lists")
    lists.hide()
    for index, column in enumerate(_DROP_DOWN_COLUMNS):
        examples = [guide.example for guide in column_guides if guide.column == column and guide.example]
        values = list(dict.fromkeys(examples))
        if not values:
            continue
        for row, value in enumerate(values):
            lists.write_string(row, index, value)
        letter = "ABC"[index]
        column_index = guided_columns(column_guides).index(column)
        validation = {
            "validate": "list",
            "source": f"=Lists!${letter}$1:${letter}${len(values)}",
            "error_title": column,
            "error_message": say("Choose one from the list. The worksheet Help explains the choices."),
        }
        payees.data_validation(1, column_index, _LAST_ROW - 1, column_index, validation)


def write_example(rules: Sequence[CountryRule], path: Path) -> None:
    """Write a CSV sheet with an example row for each rule. Each rule must have a form."""
    column_guides = build_guides(rules)
    file = io.StringIO()
    writer = csv.DictWriter(file, guided_columns(column_guides), restval="", lineterminator="\n")
    writer.writeheader()
    for rule in rules:
        row = {guide.column: guide.example for guide in column_guides if rule.code in guide.countries}
        writer.writerow({**row, "client_orderid": f"EXAMPLE-{rule.code}"})
    write_atomically(path, file.getvalue().encode())
