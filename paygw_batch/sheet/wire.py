"""Valid rows as the wire wants them: the columns of an instruction, and those that the reconciliation shows."""

import polars as pl

from paygw_batch.countries.rules import CountryRule, FieldKind, Form, FormField
from paygw_batch.errors import InternalError
from paygw_batch.sheet.amounts import minor_value
from paygw_batch.sheet.numbers import NUMBER_KINDS, NumberColumn

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
SHOWN_COLUMNS = ("account_name", "account_number", "phone", "purpose")
"""What the reconciliation shows of a valid row in another form than the sheet's."""

_OF_EVERY_FORM = frozenset(
    {FieldKind.ORDER_ID, FieldKind.AMOUNT, FieldKind.CURRENCY, FieldKind.PURPOSE, FieldKind.CALLBACK_URL}
)
"""What an instruction holds beside its `fields`, or what only the configuration knows."""


def wire_columns(rule: CountryRule) -> list[pl.Expr]:
    """Return the expressions that turn valid, prepared rows of one country into instructions.

    Result: `INSTRUCTION_COLUMNS` (`row` UInt32, `minor` Int64, else String) and, as `shown:NAME`, `SHOWN_COLUMNS`.
    """
    if rule.form is None:
        raise InternalError(f"a row for {rule.code} was taken for valid, which has no form")
    fields = [
        field for field in rule.form.fields if field.kind not in _OF_EVERY_FORM and field.name not in rule.omitted
    ]
    minor = minor_value("amount", rule.minor_units)
    as_sent = _json_object(rule, fields, with_defaults=True)
    decided = _json_object(rule, fields, with_defaults=False)
    content = pl.concat_str(
        pl.lit(f"{rule.code} {rule.currency} "), minor.cast(pl.String), pl.lit(f" {rule.form.name} "), decided
    )
    return [
        pl.col("row"),
        pl.col("client_orderid"),
        pl.lit(rule.code).alias("country"),
        pl.lit(rule.currency).alias("currency"),
        pl.col("amount"),
        minor.alias("minor"),
        pl.lit(rule.form.name).alias("form"),
        as_sent.alias("fields"),
        _payee(rule, fields).alias("payee"),
        content.alias("content"),
        *_shown(rule, rule.form),
    ]


def _value(rule: CountryRule, field: FormField) -> pl.Expr:
    if field.kind in NUMBER_KINDS:
        return NumberColumn.of(rule, field.name, field.kind).wire
    if field.kind is FieldKind.COUNTRY:
        return pl.lit(rule.code)
    return pl.col(field.name)


def _json_object(rule: CountryRule, fields: list[FormField], *, with_defaults: bool) -> pl.Expr:
    """Return the fields that have a value as a JSON object of strings.

    What the configuration fills in is no decision about the payment: without it (`with_defaults=False`), the same order
    is the same content whatever the configuration says today.
    """
    members = []
    for field in fields:
        value = _value(rule, field)
        if with_defaults and field.name in rule.defaults:
            value = value.fill_null(pl.lit(rule.defaults[field.name]))
        if field.kind is FieldKind.TEXT:
            value = value.str.replace_all("\\", "\\\\", literal=True).str.replace_all('"', '\\"', literal=True)
        members.append(pl.concat_str(pl.lit(f'"{field.name}":"'), value, pl.lit('"')))
    return pl.concat_str(pl.lit("{"), pl.concat_str(*members, separator=",", ignore_nulls=True), pl.lit("}"))


def _payee(rule: CountryRule, fields: list[FormField]) -> pl.Expr:
    """Return the account or the phone number that the money goes to."""
    for kind in (FieldKind.WALLET, FieldKind.LOCAL_PHONE, FieldKind.INTERNATIONAL_PHONE):
        for field in fields:
            if field.kind is kind:
                return _value(rule, field)
    raise InternalError(f"the form of {rule.code} has no field that says who is paid")


def is_receiver_form(form: Form | None) -> bool:
    """Return whether a form names its payee in the receiver's columns."""
    return form is not None and any(field.name == "receiver_phone" for field in form.fields)


def _shown(rule: CountryRule, form: Form) -> list[pl.Expr]:
    by_name = {field.name: field for field in form.fields}
    shown = {name: _value(rule, by_name[name]) for name in SHOWN_COLUMNS[:3] if name in by_name}
    if is_receiver_form(form):
        shown = {"account_name": _RECEIVER_NAME, "phone": _value(rule, by_name["receiver_phone"])}
    shown["purpose"] = pl.lit(rule.purpose, pl.String)
    return [shown.get(name, pl.lit(None, pl.String)).alias(f"shown:{name}") for name in SHOWN_COLUMNS]


_RECEIVER_NAME = pl.concat_str("receiver_first_name", "receiver_last_name", separator=" ", ignore_nulls=True)


def columns_as_written(rule: CountryRule | None) -> list[pl.Expr]:
    """Return the expressions for the same columns of rows that are not valid: the sheet's own text.

    A currency that is left out is the country's here too, so that every amount is counted in some currency.
    """
    currency = pl.col("currency")
    own = {name: pl.col(name) for name in SHOWN_COLUMNS}
    if rule is not None:
        currency = currency.fill_null(pl.lit(rule.currency))
        if is_receiver_form(rule.form):
            name = pl.when(_RECEIVER_NAME != "").then(_RECEIVER_NAME)
            own |= {"account_name": name, "account_number": pl.lit(None, pl.String), "phone": pl.col("receiver_phone")}
    return [
        pl.col("row"),
        pl.col("client_orderid"),
        pl.col("country"),
        currency.alias("currency"),
        pl.col("amount"),
        *(text.alias(f"shown:{name}") for name, text in own.items()),
    ]
