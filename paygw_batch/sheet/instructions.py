"""Makes instructions from valid rows: the fields of a request, order ids, the batch id, and columns for the journal.

No Python object is made for a row before it is stored.
"""

import hashlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import polars as pl

from paygw_batch.core.batch import BILLION, NAMES_A_PAYEE, InstructionTotals, payee_mark
from paygw_batch.core.text import without_damage
from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import KINDS, NUMBER_KINDS, Checking
from paygw_batch.countries.rules import CountryRule, FieldKind, Form, FormField
from paygw_batch.errors import InternalError, UsageError
from paygw_batch.language import say
from paygw_batch.sheet.amounts import minor_value
from paygw_batch.sheet.clean import PhoneColumn, bare, chosen_purpose
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.model import LINE_COLUMNS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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
"""The columns of `journal.values.NewInstruction`, in its order."""
SHOWN_COLUMNS = ("account_name", "account_number", "phone")
"""Columns that the reconciliation shows in another form than the sheet, or fills from other columns."""
WIRE_COLUMNS = ("minor", "form", "content", "own_fields")
"""The columns that the country's rules compute for a valid row, beside `SHOWN_COLUMNS`."""

_MINOR_DIGITS = 19
"""The maximum number of digits in 64 bits."""
_FORM_LETTERS = 12
_MINOR_AT = len("KE KES ")
_HEAD_LETTERS = len("KE KES  ") + _MINOR_DIGITS + _FORM_LETTERS
"""The length of the head of a content. It is fixed, so the fields always start at the same place."""


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One of `SHOWN_COLUMNS`, for valid rows with cleaned values.

    `text` is computed for all rows. Where `is_plain` is false, `other` replaces it (None: `text` is right everywhere).
    """

    name: str
    text: pl.Expr
    is_plain: pl.Expr | None = None
    other: pl.Expr | None = None


def shown_columns(rule: CountryRule, form: Form) -> list[ShownColumn]:
    """Return `SHOWN_COLUMNS` for valid, cleaned rows of one country, with their values as sent."""
    fields = {field.name: field for field in _own_fields(rule, form)}
    columns = []
    for name, sources in _sources(form).items():
        values = [_value(rule, fields[source]) for source in sources if source in fields]
        # If the country has a field of exactly this name, that field is used instead.
        field = fields.get(name)
        if field is not None and field.kind in NUMBER_KINDS:
            number = PhoneColumn.of(rule, name, field.kind)
            columns.append(ShownColumn(name, pl.col(bare(number.source)), number.is_as_sent, number.wire))
        else:
            columns.append(ShownColumn(name, _value(rule, field) if field is not None else _joined(values)))
    return columns


def wire_columns(rule: CountryRule, form: Form) -> list[pl.Expr]:
    """Return the expressions that turn valid, cleaned rows of one country into the fields of a request.

    The result has `row` (UInt32) and `WIRE_COLUMNS` (`minor` Int64, the rest String). `content` contains every decision
    of a person: country, currency, amount, form and the fields of the form. A value that the configuration fills in is
    no decision about the payment, so the content does not depend on today's configuration. `own_fields` is null if
    exactly the fields in the content are sent; then `_fields` cuts them out of it.
    """
    fields, minor = _own_fields(rule, form), minor_value("amount", rule.minor_units)
    head = (f"{rule.code} {rule.currency} ", f" {form.name:<{_FORM_LETTERS}}")
    if len("".join(head)) + _MINOR_DIGITS != _HEAD_LETTERS:
        raise InternalError(f"{rule.code}, {rule.currency} and {form.name} do not fit the head of a content")
    order = (pl.lit(head[0]), minor.cast(pl.String).str.zfill(_MINOR_DIGITS), pl.lit(head[1]))
    filled_in = any(field.name in rule.defaults for field in fields)
    own_fields = pl.concat_str(_json_object(rule, fields, with_defaults=True)) if filled_in else pl.lit(None, pl.String)
    content = pl.concat_str(*order, *_json_object(rule, fields, with_defaults=False))
    return [
        *(pl.col("row"), minor.alias("minor"), pl.lit(form.name).alias("form")),
        *(content.alias("content"), own_fields.alias("own_fields")),
    ]


def _own_fields(rule: CountryRule, form: Form) -> list[FormField]:
    """Return the fields that an instruction holds. The purpose is one of them only if a row may choose it."""
    return [
        field
        for field in form.fields
        if field.name not in rule.omitted
        and (not KINDS[field.kind].is_instructed or (field.kind is FieldKind.PURPOSE and rule.purposes))
    ]


def _value(rule: CountryRule, field: FormField) -> pl.Expr:
    if field.kind in NUMBER_KINDS:
        return PhoneColumn.of(rule, field.name, field.kind).wire
    if field.kind is FieldKind.COUNTRY:
        return pl.lit(rule.code)
    if field.kind is FieldKind.PURPOSE:
        return chosen_purpose(rule)
    return pl.col(field.name)


def _fields(wire: pl.DataFrame) -> pl.Series:
    """Return the fields that are sent: slices of the content that share its memory, which is most of a batch's."""
    fields, own_fields = wire["content"].str.slice(_HEAD_LETTERS), wire["own_fields"]
    at = own_fields.is_not_null().arg_true()
    return (fields.scatter(at, own_fields.gather(at)) if at.len() else fields).alias("fields")


def _json_object(rule: CountryRule, fields: list[FormField], *, with_defaults: bool) -> list[pl.Expr]:
    """Return the pieces of a JSON object of texts, with the fields that have a value or a default."""
    members = [_json_member(rule, field, with_default=with_defaults) for field in fields]
    if all(always for _, always in members):  # a single concatenation copies each text only once
        pieces_and_commas = [piece for pieces, _ in members for piece in (pl.lit(","), *pieces)]
        return [pl.lit("{"), *pieces_and_commas[1:], pl.lit("}")]
    joined = pl.concat_str(*(pl.concat_str(pieces) for pieces, _ in members), separator=",", ignore_nulls=True)
    return [pl.lit("{"), joined, pl.lit("}")]


def _json_member(rule: CountryRule, field: FormField, *, with_default: bool) -> tuple[list[pl.Expr], bool]:
    """Return the pieces of one member of a JSON object (null in rows without it), and whether every row has it."""
    value = _value(rule, field)
    is_needed = field.name in rule.required and field.name not in rule.defaults
    always = field.kind is FieldKind.COUNTRY or (is_needed and field.kind is not FieldKind.PURPOSE)
    if with_default and field.name in rule.defaults:
        value, always = value.fill_null(pl.lit(rule.defaults[field.name])), True
    if KINDS[field.kind].checking is Checking.TEXT:  # only texts can have quotation marks or backslashes
        value = value.str.replace_all(r'(["\\])', r"\${1}")
    return [pl.lit(f'"{field.name}":"'), value, pl.lit('"')], always


def _sources(form: Form | None) -> Mapping[str, tuple[str, ...]]:
    """Return the fields that fill each of `SHOWN_COLUMNS`: those that the form states, or the field of that name."""
    if form is None:
        return {name: (name,) for name in SHOWN_COLUMNS}
    names = {field.name for field in form.fields}
    return {name: (name,) if name in names else () for name in SHOWN_COLUMNS} | dict(form.shown)


def _joined(values: list[pl.Expr]) -> pl.Expr:
    if len(values) > 1:
        return pl.concat_str(values, separator=" ", ignore_nulls=True)
    return values[0] if values else pl.lit(None, pl.String)


def shown_as_written(rule: CountryRule | None) -> list[pl.Expr]:
    """Return the expressions for `SHOWN_COLUMNS` of invalid rows: the sheet's own text."""
    columns = []
    for name, sources in _sources(rule.form if rule is not None else None).items():
        text = _joined([pl.col(source) for source in sources])
        columns.append(pl.when(text != "").then(text).alias(name) if len(sources) > 1 else text.alias(name))
    return columns


def instructions_of(lines: pl.DataFrame, wire: pl.DataFrame) -> pl.DataFrame:
    """Return the instructions of the valid `lines` (as in `Validated.rows`). `wire` has their `WIRE_COLUMNS`."""
    valid = lines.filter("valid") if not lines["valid"].all() else lines
    if not valid["row"].equals(wire["row"]):
        raise InternalError("the rows on the wire are not the valid rows")
    payee = payee_of(valid)
    further = [*wire.select("minor", "form", "content"), _fields(wire), payee]
    instructions = valid.hstack(further).select(INSTRUCTION_COLUMNS)
    agree = instructions.select(
        (pl.col("fields").str.contains(pl.concat_str(pl.lit('"'), "payee", pl.lit('"')), literal=True)).all(),
        (pl.col("content").str.slice(_MINOR_AT, _MINOR_DIGITS).cast(pl.Int64) == pl.col("minor")).all(),
    )
    if payee.null_count() or not all(agree.row(0)):
        raise InternalError("what is sent for a row does not name the payee and the amount that are shown for it")
    return instructions


def payee_of(valid: pl.DataFrame) -> pl.Series:
    """Return the `payee` of valid lines: the account, or the phone if the form has no account."""
    account = valid["account_number"]
    payee = account.zip_with(account.is_not_null(), valid["phone"]) if account.null_count() else account
    return payee.alias("payee")


_REFERENCE = r"^[\x21-\x7e](?:[\x20-\x7e]{0,88}[\x21-\x7e])?$"


def payees_of(instructions: pl.DataFrame, staff_number: pl.Series | None) -> pl.DataFrame:
    """Return whom each instruction pays: `row`, `payee`, and the digest `content` that orders one payee's payments.

    A payee is a staff number, or else an account in a country. The digest is a part of a SHA-256, because polars' own
    hashes differ between its versions.
    """
    account = pl.format("{} {}", "country", "payee")
    payee = instructions.select("row", payee=account)
    if staff_number is not None and staff_number.null_count() < staff_number.len():
        staff = [None if text is None else f"staff {without_damage(text)}" for text in staff_number]
        payee = payee.with_columns(payee=pl.coalesce(pl.Series(staff, dtype=pl.String), "payee"))
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in instructions["content"]]
    return payee.with_columns(content=pl.Series(digests, dtype=pl.Binary))


def derived_ids(paid: pl.DataFrame, reference: str) -> pl.DataFrame:
    """Return an order id `REFERENCE-PAYEE-N` for every row of `payees_of`, in the columns `row` and `client_orderid`.

    N counts the payments to one payee. Their order does not depend on other rows or on places in the sheet, so editing,
    adding or moving rows of other payees changes no id. Raises `UsageError` for a reference that is not 1 to 90
    printable ASCII characters.
    """
    if not pl.Series([reference]).str.contains(_REFERENCE).item():
        raise UsageError(
            say("The reference of a payment run has 1 to 90 printable ASCII characters."),
            hint=say("Such as payroll-2026-11."),
        )
    single = paid.select("row", "payee").with_columns(number=pl.lit(1, pl.Int64))
    if (several := paid.filter(pl.col("payee").is_duplicated())).height:
        several = several.sort("payee", "content", "row").select(
            "row", other=pl.int_range(1, pl.len() + 1).over("payee")
        )
        single = single.join(several, on="row", how="left", maintain_order="left")
        single = single.with_columns(number=pl.coalesce("other", "number"))
    marks = pl.Series([payee_mark(reference, payee) for payee in single["payee"]], dtype=pl.String)
    return single.select("row", client_orderid=pl.format("{}-{}-{}", pl.lit(reference), marks, "number"))


_NOT_SAID = "purpose"
_DIGITS = 16


class _HashedText(io.RawIOBase):
    """Hashes the bytes that are written to it, and keeps none of them."""

    def __init__(self, digest: "hashlib._Hash") -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, text: "ReadableBuffer", /) -> int:
        self._digest.update(text)
        return memoryview(text).nbytes


class BatchDigest:
    """Computes the batch id, 16 hex digits, from a sheet's content and its operation.

    The id depends on row numbers, validity, order ids, every text, the names of `unknown` columns, and the operation,
    so that a batch of collections never has the id of a batch of payouts. The id does not depend on a purpose that the
    configuration fills in, our own sentences, the file's name and format, the order of known columns, or empty columns
    (`held` has the columns with a value in some row).
    """

    def __init__(self, operation: str, unknown: Collection[str], held: Collection[str]) -> None:
        self._lines = [name for name in LINE_COLUMNS if name != _NOT_SAID]
        shown = sheet_columns().shown_otherwise.union(self._lines)
        further = [name for name in columns_of_operation(operation) if name not in shown and name in held]
        self._raw = [*map(pl.col, unknown), *(pl.col(name).alias(f"sheet:{name}") for name in further)]
        self._digest = hashlib.sha256(b"" if operation == "payout" else f"{operation}:".encode())
        columns = [*self._lines, *unknown, *(f"sheet:{name}" for name in further)]
        self._digest.update(repr(columns).encode())
        self._text = cast("IO[bytes]", _HashedText(self._digest))

    def add(self, lines: pl.DataFrame, raw: pl.DataFrame) -> None:
        """Add the next rows to the digest: `lines` (`LINE_COLUMNS`), and the same rows as received."""
        content = lines.select(self._lines).hstack(raw.select(self._raw).get_columns())
        content.write_csv(self._text, include_header=False, separator="\x1f", quote_style="never")

    @property
    def batch(self) -> str:
        """The id of the batch, once all rows are added."""
        return self._digest.hexdigest()[:_DIGITS]


_CANONICAL = (
    *("number", "row", "client_orderid", "country", "currency", "minor", "replaces", "amount", "form", "fields"),
    *("payee", "content"),
)
"""The values of an instruction's canonical text, in its order (`journal/new_batch.py`)."""

_FIELD = "[a-z0-9_]"
_TO_A_PAYEE = rf'"{_FIELD}*(?:{"|".join(NAMES_A_PAYEE)})":"'
_OTHER_FIELD = rf'"{_FIELD}+":"(?:[^"\\]|\\.)*"'
"""In the JSON of fields, the name of a field that names a payee, and any other field as a whole.

No quotation mark in a value is followed by a colon and another quotation mark, because each has a backslash before it.
"""
_ROWS_AT_ONCE = 10_000
"""The number of rows whose texts are in memory at a time."""


_END = "\0\n\0"
"""Ends a text. A value that is a single line break would look the same, so the digest counts texts and values."""


class InstructionColumns:
    """Rows of `Validated.instructions` in the form of the journal's `NewInstructions`."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __len__(self) -> int:
        return self._frame.height

    def __iter__(self) -> Iterator[Any]:
        """Yield each instruction as a tuple of the values of a `NewInstruction`."""
        return self._frame.iter_rows()

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield the canonical text of each instruction, numbered from `first`, with NUL between the values."""
        replaces = pl.col("row").replace_strict(replaced, default=None, return_dtype=pl.Int64).cast(pl.String)
        for rows in self._frame.iter_slices(_ROWS_AT_ONCE):
            texts = rows.with_columns(
                # `pl.len()` is not used, because polars counts in 32 bits, and a sum would wrap at 4,294,967,296.
                number=pl.int_range(first, first + rows.height, dtype=pl.Int64),
                replaces=(replaces if replaced else pl.lit(None, pl.String)).fill_null("None"),
            )
            buffer = io.BytesIO()
            # No quotation marks are needed: NUL separates the values, and no value contains NUL.
            texts.select(_CANONICAL).write_csv(
                buffer, include_header=False, separator="\0", line_terminator=_END, quote_style="never"
            )
            yield from buffer.getvalue().split(_END.encode())[:-1]
            first += rows.height

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals of each country and currency. Places in them count from the first of these instructions."""
        place, minor = pl.col("place"), pl.col("minor")
        placed = self._frame.select("country", "currency", "minor").with_row_index("place")
        counted = placed.group_by("country", "currency").agg(
            rows=pl.len(),
            billions=(minor // BILLION).sum(),
            rest=(minor % BILLION).sum(),
            first=place.min(),
            last=place.max(),
        )
        return {(country, currency): InstructionTotals(*total) for country, currency, *total in counted.iter_rows()}

    def payee_words(self) -> Iterable[str]:
        """Return the texts that name the payee of each instruction, separated by neither letters nor digits."""
        return self._frame["fields"].str.replace_all(_TO_A_PAYEE, " ").str.replace_all(_OTHER_FIELD, "")

    def have_ascii_ids(self) -> bool:
        """Whether all order ids are ASCII."""
        ids = self._frame["client_orderid"]
        return bool((ids.str.len_bytes() == ids.str.len_chars()).all())

    def shortened(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return the values of each instruction.

        A content that ends with the fields is cut before them, and gets `mark` in front. A content that begins with the
        mark is replaced by None.
        """
        content, fields = pl.col("content"), pl.col("fields")
        # A content whose fields are empty loses nothing, and gets the mark as well.
        cut = pl.concat_str(pl.lit(mark), content.str.strip_suffix(fields))
        stored = pl.when(content.str.ends_with(fields)).then(cut).otherwise(content)
        return self._frame.with_columns(content=pl.when(~content.str.starts_with(mark)).then(stored)).iter_rows()


ROWS_A_PAGE = 20_000


def to_pages(frame: pl.DataFrame) -> Iterator[bytes]:
    """Yield the frame as compressed Arrow IPC files of at most `ROWS_A_PAGE` rows. An empty frame has one page."""
    parts = frame.iter_slices(ROWS_A_PAGE) if frame.height else [frame]
    for part in parts:
        page = io.BytesIO()
        part.write_ipc(page, compression="zstd")
        yield page.getvalue()


class Pager:
    """Makes pages of a frame that comes in parts. The pages are the same as those of the whole frame."""

    def __init__(self) -> None:
        self._rest: pl.DataFrame | None = None

    def take(self, part: pl.DataFrame) -> list[bytes]:
        """Add the next rows, and return the pages that are full by now."""
        rows = part if self._rest is None else pl.concat([self._rest, part])
        full = rows.height - rows.height % ROWS_A_PAGE
        self._rest = rows.slice(full).rechunk()
        return list(to_pages(rows.head(full))) if full else []

    def last(self) -> list[bytes]:
        """Return a page of the remaining rows, if there are any."""
        return list(to_pages(self._rest)) if self._rest is not None and self._rest.height else []


def from_pages(pages: Iterable[bytes]) -> pl.DataFrame:
    """Return the frame that `to_pages` turned into these pages. Raises `InternalError` when there is no page."""
    parts = [pl.read_ipc(io.BytesIO(page)) for page in pages]
    if not parts:
        raise InternalError("a batch of the journal has no page of its sheet")
    return pl.concat(parts)
