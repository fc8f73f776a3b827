"""Makes instructions of valid rows: the fields of a request, and the columns that the reconciliation shows."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from paygw_batch.countries.kinds import KINDS, NUMBER_KINDS, Checking
from paygw_batch.countries.rules import CountryRule, FieldKind, Form, FormField
from paygw_batch.errors import InternalError
from paygw_batch.sheet.amounts import minor_value
from paygw_batch.sheet.clean import bare
from paygw_batch.sheet.phones import PhoneColumn

INSTRUCTION_COLUMNS = (
    "row",
    "client_orderid",
    "country",
    "currency",
    "amount",
    "minor",
    "form",
    "fields",
    "payee",
    "content",
)
"""The columns of `journal.port.NewInstruction`, in its order."""
SHOWN_COLUMNS = ("account_name", "account_number", "phone")
"""Columns that the reconciliation shows in another form, or from other columns, than the sheet's."""
WIRE_COLUMNS = ("minor", "form", "content", "own_fields")
"""Columns that the country makes of a valid row, beside `SHOWN_COLUMNS`."""

_MINOR_DIGITS = 19
"""The most that 64 bits hold."""
_FORM_LETTERS = 12
_MINOR_AT = len("KE KES ")
_HEAD_LETTERS = len("KE KES  ") + _MINOR_DIGITS + _FORM_LETTERS
"""The head of every content has the same length, so that the fields always start at the same place."""


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One of `SHOWN_COLUMNS` of valid, prepared rows.

    `text` is made for all rows; where `is_plain` does not hold, `other` takes its place (None: everywhere plain).
    """

    name: str
    text: pl.Expr
    is_plain: pl.Expr | None = None
    other: pl.Expr | None = None


def shown_columns(rule: CountryRule, form: Form) -> list[ShownColumn]:
    """Return `SHOWN_COLUMNS` of valid, prepared rows of one country: as they are sent."""
    fields = {field.name: field for field in _own_fields(rule, form)}
    shown = []
    for name, sources in _sources(form).items():
        values = [_value(rule, fields[source]) for source in sources if source in fields]
        # A field of that very name tells it better, where the country has one.
        field = fields.get(name)
        if field is not None and field.kind in NUMBER_KINDS:
            number = PhoneColumn.of(rule, name, field.kind)
            shown.append(ShownColumn(name, pl.col(bare(name)), number.is_as_sent, number.wire))
        else:
            shown.append(ShownColumn(name, _value(rule, field) if field is not None else _joined(values)))
    return shown


def wire_columns(rule: CountryRule, form: Form) -> list[pl.Expr]:
    """Return the expressions that turn valid, prepared rows of one country into the fields of a request.

    Result: `row` (UInt32) and `WIRE_COLUMNS` (`minor` Int64, the rest String).
    """
    minor = minor_value("amount", rule.minor_units)
    return [
        pl.col("row"),
        minor.alias("minor"),
        pl.lit(form.name).alias("form"),
        *_fields_and_content(rule, form, _own_fields(rule, form), minor),
    ]


def _own_fields(rule: CountryRule, form: Form) -> list[FormField]:
    return [field for field in form.fields if not KINDS[field.kind].is_instructed and field.name not in rule.omitted]


def _value(rule: CountryRule, field: FormField) -> pl.Expr:
    if field.kind in NUMBER_KINDS:
        return PhoneColumn.of(rule, field.name, field.kind).wire
    if field.kind is FieldKind.COUNTRY:
        return pl.lit(rule.code)
    return pl.col(field.name)


def _fields_and_content(rule: CountryRule, form: Form, fields: list[FormField], minor: pl.Expr) -> list[pl.Expr]:
    """Return each decision of a person (country, currency, amount, form, its fields), and the fields of the request.

    A value that the configuration fills in is no decision about the payment: the content of an order does not depend on
    today's configuration. `own_fields` is null where the same fields are sent: `_fields` cuts them out of it.
    """
    head = (f"{rule.code} {rule.currency} ", f" {form.name:<{_FORM_LETTERS}}")
    if len("".join(head)) + _MINOR_DIGITS != _HEAD_LETTERS:
        raise InternalError(f"{rule.code}, {rule.currency} and {form.name} do not fit the head of a content")
    order = (pl.lit(head[0]), minor.cast(pl.String).str.zfill(_MINOR_DIGITS), pl.lit(head[1]))
    filled_in = any(field.name in rule.defaults for field in fields)
    own = pl.concat_str(_json_object(rule, fields, with_defaults=True)) if filled_in else pl.lit(None, pl.String)
    content = pl.concat_str(*order, *_json_object(rule, fields, with_defaults=False))
    return [content.alias("content"), own.alias("own_fields")]


def _fields(wire: pl.DataFrame) -> pl.Series:
    """Return the fields that are sent. As slices of the content they share its memory, which is most of a batch's."""
    fields, own = wire["content"].str.slice(_HEAD_LETTERS), wire["own_fields"]
    at = own.is_not_null().arg_true()
    return (fields.scatter(at, own.gather(at)) if at.len() else fields).alias("fields")


def _json_object(rule: CountryRule, fields: list[FormField], *, with_defaults: bool) -> list[pl.Expr]:
    """Return the pieces of a JSON object of strings, with the fields that have a value, or a default."""
    members = [_json_member(rule, field, with_default=with_defaults) for field in fields]
    if all(always for _, always in members):  # one concatenation, and no copy of a copy
        pieces_and_commas = [piece for pieces, _ in members for piece in (pl.lit(","), *pieces)]
        return [pl.lit("{"), *pieces_and_commas[1:], pl.lit("}")]
    joined = pl.concat_str(*(pl.concat_str(pieces) for pieces, _ in members), separator=",", ignore_nulls=True)
    return [pl.lit("{"), joined, pl.lit("}")]


def _json_member(rule: CountryRule, field: FormField, *, with_default: bool) -> tuple[list[pl.Expr], bool]:
    """Return the pieces of one member of a JSON object, and whether every row has it; null where a row does not."""
    value = _value(rule, field)
    always = field.kind is FieldKind.COUNTRY or (field.name in rule.required and field.name not in rule.defaults)
    if with_default and field.name in rule.defaults:
        value, always = value.fill_null(pl.lit(rule.defaults[field.name])), True
    if KINDS[field.kind].checking is Checking.TEXT:  # all others have neither quotation marks nor backslashes
        value = value.str.replace_all(r'(["\\])', r"\${1}")
    return [pl.lit(f'"{field.name}":"'), value, pl.lit('"')], always


def _sources(form: Form | None) -> Mapping[str, tuple[str, ...]]:
    """Return from which fields each of `SHOWN_COLUMNS` is filled: as the form says, else from the one of its name."""
    if form is None:
        return {name: (name,) for name in SHOWN_COLUMNS}
    own = {field.name for field in form.fields}
    return {name: (name,) if name in own else () for name in SHOWN_COLUMNS} | dict(form.shown)


def _joined(values: list[pl.Expr]) -> pl.Expr:
    if len(values) > 1:
        return pl.concat_str(values, separator=" ", ignore_nulls=True)
    return values[0] if values else pl.lit(None, pl.String)


def shown_as_written(rule: CountryRule | None) -> list[pl.Expr]:
    """Return the expressions for `SHOWN_COLUMNS` of rows that are not valid: the sheet's own text."""
    shown = []
    for name, sources in _sources(rule.form if rule is not None else None).items():
        text = _joined([pl.col(source) for source in sources])
        shown.append(pl.when(text != "").then(text).alias(name) if len(sources) > 1 else text.alias(name))
    return shown


def instructions_of(lines: pl.DataFrame, wire: pl.DataFrame) -> pl.DataFrame:
    """Return the instructions of the valid `lines` (as in `Validated.rows`), whose `WIRE_COLUMNS` are `wire`'s rows.

    The payee is the account, or the phone of a form that has no account.
    """
    valid = lines.filter("valid") if not lines["valid"].all() else lines
    if not valid["row"].equals(wire["row"]):
        raise InternalError("the rows on the wire are not the valid rows")
    account = valid["account_number"]
    payee = account.zip_with(account.is_not_null(), valid["phone"]) if account.null_count() else account
    further = [*wire.select("minor", "form", "content"), _fields(wire), payee.alias("payee")]
    instructions = valid.hstack(further).select(INSTRUCTION_COLUMNS)
    agree = instructions.select(
        (pl.col("fields").str.contains(pl.concat_str(pl.lit('"'), "payee", pl.lit('"')), literal=True)).all(),
        (pl.col("content").str.slice(_MINOR_AT, _MINOR_DIGITS).cast(pl.Int64) == pl.col("minor")).all(),
    )
    if payee.null_count() or not all(agree.row(0)):
        raise InternalError("what is sent for a row does not name the payee and the amount that are shown for it")
    return instructions
