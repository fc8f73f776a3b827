"""Builds instructions from valid rows: request fields, order ids, the batch id, and columns for the journal.

Rows become Python objects only when they are stored.
"""

import hashlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import polars as pl

from paygw_batch.core.batch import BILLION, PAYEE_FIELD_SUFFIXES, InstructionTotals, payee_tag
from paygw_batch.core.text import repair_order_id
from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import KINDS, NUMBER_KINDS, Checking
from paygw_batch.countries.rules import CountryRule, FieldKind, Form, FormField
from paygw_batch.errors import InternalError, UsageError
from paygw_batch.language import say
from paygw_batch.sheet.amounts import minor_value
from paygw_batch.sheet.clean import NumberColumn, bare_column, purpose_code
from paygw_batch.sheet.columns import operation_columns
from paygw_batch.sheet.model import LINE_COLUMNS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
INSTRUCTION_COLUMNS = (
    *("row", "client_orderid", "country", "currency", "amount"),
    *("minor", "form", "fields", "payee", "content"),
)
"""The fields of `journal.values.NewInstruction`, in order."""
SHOWN_COLUMNS = ("account_name", "account_number", "phone")
"""Columns that the reconciliation reformats or fills in from other columns."""
WIRE_COLUMNS = ("minor", "form", "content", "own_fields")
"""The columns that are computed for a valid row in addition to `SHOWN_COLUMNS`."""
_MINOR_DIGITS = 19
"""The maximum number of digits of a 64-bit number."""
_FORM_NAME_WIDTH = 12
_MINOR_OFFSET = len("KE KES ")
_HEAD_LENGTH = len("KE KES  ") + _MINOR_DIGITS + _FORM_NAME_WIDTH
"""The fixed length of the head of `content`. The fields follow it."""


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One of `SHOWN_COLUMNS`, for valid, cleaned rows.

    `text` is computed for all rows, and replaced by `other` where `is_plain` is false. `is_plain` and `other` are None
    if `text` always applies.
    """

    name: str
    text: pl.Expr
    is_plain: pl.Expr | None = None
    other: pl.Expr | None = None


def shown_columns(rule: CountryRule, form: Form) -> list[ShownColumn]:
    """Return the `SHOWN_COLUMNS` of one country's valid, cleaned rows, as they are sent."""
    fields = {field.name: field for field in _instruction_fields(rule, form)}
    columns = []
    for name, sources in _source_fields(form).items():
        values = [_field_value(rule, fields[source]) for source in sources if source in fields]
        # A field with the column's own name takes precedence.
        field = fields.get(name)
        if field is not None and field.kind in NUMBER_KINDS:
            phone = NumberColumn.for_field(rule, name, field.kind)
            columns.append(ShownColumn(name, pl.col(bare_column(phone.source)), phone.is_in_sent_form, phone.as_sent))
        else:
            columns.append(ShownColumn(name, _field_value(rule, field) if field is not None else _join_texts(values)))
    return columns


def wire_columns(rule: CountryRule, form: Form) -> list[pl.Expr]:
    """Return expressions for `row` (UInt32) and `WIRE_COLUMNS` (`minor` Int64, the rest String) of one country.

    Rows must be valid and cleaned. `content` holds what a person decided: country, currency, amount, form and the
    fields of the form. It omits values filled in from the configuration, so a changed configuration does not
    change it. If `own_fields` is null, exactly the fields in `content` are sent.
    """
    fields, minor = _instruction_fields(rule, form), minor_value("amount", rule.minor_units)
    head = (f"{rule.code} {rule.currency} ", f" {form.name:<{_FORM_NAME_WIDTH}}")
    if len("".join(head)) + _MINOR_DIGITS != _HEAD_LENGTH:
        raise InternalError(f"{rule.code}, {rule.currency} and {form.name} do not fit the head of a content")
    head_parts = (pl.lit(head[0]), minor.cast(pl.String).str.zfill(_MINOR_DIGITS), pl.lit(head[1]))
    differs = any(field.name in rule.defaults for field in fields)
    own_fields = pl.concat_str(_json_object(rule, fields, with_defaults=True)) if differs else pl.lit(None, pl.String)
    content = pl.concat_str(*head_parts, *_json_object(rule, fields, with_defaults=False)).alias("content")
    form_name = pl.lit(form.name).alias("form")
    return [pl.col("row"), minor.alias("minor"), form_name, content, own_fields.alias("own_fields")]


def _instruction_fields(rule: CountryRule, form: Form) -> list[FormField]:
    """Return the form's fields that instructions contain, including the purpose only if rows may choose it."""
    return [
        field
        for field in form.fields
        if field.name not in rule.omitted
        and (not KINDS[field.kind].is_outside_fields or (field.kind is FieldKind.PURPOSE and rule.purposes))
    ]


def _field_value(rule: CountryRule, field: FormField) -> pl.Expr:
    if field.kind in NUMBER_KINDS:
        return NumberColumn.for_field(rule, field.name, field.kind).as_sent
    if field.kind is FieldKind.COUNTRY:
        return pl.lit(rule.code)
    if field.kind is FieldKind.PURPOSE:
        return purpose_code(rule)
    return pl.col(field.name)


def _sent_fields(wire: pl.DataFrame) -> pl.Series:
    """Return the fields to send. Fields that are the same as in `content` share its memory."""
    fields, own_fields = wire["content"].str.slice(_HEAD_LENGTH), wire["own_fields"]
    indices = own_fields.is_not_null().arg_true()
    return (fields.scatter(indices, own_fields.gather(indices)) if indices.len() else fields).alias("fields")


def _json_object(rule: CountryRule, fields: list[FormField], *, with_defaults: bool) -> list[pl.Expr]:
    """Return the parts of a JSON object with all fields that have a value (or a default, if `with_defaults`)."""
    members = [_json_member(rule, field, with_default=with_defaults) for field in fields]
    if all(is_always_present for _, is_always_present in members):  # one concatenation copies each string only once
        pieces_and_commas = [piece for pieces, _ in members for piece in (pl.lit(","), *pieces)]
        return [pl.lit("{"), *pieces_and_commas[1:], pl.lit("}")]
    content = pl.concat_str(*(pl.concat_str(pieces) for pieces, _ in members), separator=",", ignore_nulls=True)
    return [pl.lit("{"), content, pl.lit("}")]


def _json_member(rule: CountryRule, field: FormField, *, with_default: bool) -> tuple[list[pl.Expr], bool]:
    """Return the parts of a JSON member (null in rows without it), and whether every row has it."""
    value = _field_value(rule, field)
    is_required = field.name in rule.required and field.name not in rule.defaults
    is_always_present = field.kind is FieldKind.COUNTRY or (is_required and field.kind is not FieldKind.PURPOSE)
    if with_default and field.name in rule.defaults:
        value, is_always_present = value.fill_null(pl.lit(rule.defaults[field.name])), True
    if KINDS[field.kind].checking is Checking.TEXT:  # only text fields can have quotation marks or backslashes
        value = value.str.replace_all(r'(["\\])', r"\${1}")
    return [pl.lit(f'"{field.name}":"'), value, pl.lit('"')], is_always_present


def _source_fields(form: Form | None) -> Mapping[str, tuple[str, ...]]:
    """Map each of `SHOWN_COLUMNS` to the fields that fill it, by default the field of the same name."""
    if form is None:
        return {name: (name,) for name in SHOWN_COLUMNS}
    names = {field.name for field in form.fields}
    return {name: (name,) if name in names else () for name in SHOWN_COLUMNS} | dict(form.shown)


def _join_texts(values: list[pl.Expr]) -> pl.Expr:
    if len(values) > 1:
        return pl.concat_str(values, separator=" ", ignore_nulls=True)
    return values[0] if values else pl.lit(None, pl.String)


def received_columns(rule: CountryRule | None) -> list[pl.Expr]:
    """Return expressions for `SHOWN_COLUMNS` as received, for invalid rows."""
    columns = []
    for name, sources in _source_fields(rule.form if rule is not None else None).items():
        text = _join_texts([pl.col(source) for source in sources])
        columns.append(pl.when(text != "").then(text).alias(name) if len(sources) > 1 else text.alias(name))
    return columns


def build_instructions(lines: pl.DataFrame, wire: pl.DataFrame) -> pl.DataFrame:
    """Build instructions from the valid `lines` (as in `Validated.rows`). `wire` holds their `WIRE_COLUMNS`."""
    valid = lines.filter("valid") if not lines["valid"].all() else lines
    if not valid["row"].equals(wire["row"]):
        raise InternalError("the rows on the wire are not the valid rows")
    payee = payee_column(valid)
    added_columns = [*wire.select("minor", "form", "content"), _sent_fields(wire), payee]
    instructions = valid.hstack(added_columns).select(INSTRUCTION_COLUMNS)
    consistency = instructions.select(
        (pl.col("fields").str.contains(pl.concat_str(pl.lit('"'), "payee", pl.lit('"')), literal=True)).all(),
        (pl.col("content").str.slice(_MINOR_OFFSET, _MINOR_DIGITS).cast(pl.Int64) == pl.col("minor")).all(),
    )
    if payee.null_count() or not all(consistency.row(0)):
        raise InternalError("what is sent for a row does not name the payee and the amount that are shown for it")
    return instructions


def payee_column(valid: pl.DataFrame) -> pl.Series:
    """Return the payee of each valid line: the account, or the phone if the form has no account."""
    account = valid["account_number"]
    payee = account.zip_with(account.is_not_null(), valid["phone"]) if account.null_count() else account
    return payee.alias("payee")


_REFERENCE = r"^[\x21-\x7e](?:[\x20-\x7e]{0,88}[\x21-\x7e])?$"


def payee_digests(instructions: pl.DataFrame, staff_number: pl.Series | None) -> pl.DataFrame:
    """Return `row`, `payee`, and a digest of `content`, which orders the payments to a payee.

    A payee is identified by staff number, if any, otherwise by country and account. The digest is the start of a
    SHA-256, because polars hashes differ between versions.
    """
    account = pl.format("{} {}", "country", "payee")
    payees = instructions.select("row", payee=account)
    if staff_number is not None and staff_number.null_count() < staff_number.len():
        staff_payees = [None if text is None else f"staff {repair_order_id(text)}" for text in staff_number]
        payees = payees.with_columns(payee=pl.coalesce(pl.Series(staff_payees, dtype=pl.String), "payee"))
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in instructions["content"]]
    return payees.with_columns(content=pl.Series(digests, dtype=pl.Binary))


def derive_order_ids(payees: pl.DataFrame, reference: str) -> pl.DataFrame:
    """Derive an order id `REFERENCE-PAYEE-N` for each row of `payee_digests`.

    The result has the columns `row` and `client_orderid`. N counts a payee's payments. It does not depend on other
    payees' rows or on positions in the sheet, so editing or moving rows does not change other ids. Raises `UsageError`
    for a reference that is not 1 to 90 printable ASCII characters.
    """
    if not pl.Series([reference]).str.contains(_REFERENCE).item():
        raise UsageError(
            say("The payment run reference must be 1 to 90 printable ASCII characters."),
            hint=say("For example, payroll-2026-11."),
        )
    numbered = payees.select("row", "payee").with_columns(number=pl.lit(1, pl.Int64))
    if (repeated := payees.filter(pl.col("payee").is_duplicated())).height:
        position = pl.int_range(1, pl.len() + 1).over("payee")
        repeated = repeated.sort("payee", "content", "row").select("row", position=position)
        numbered = numbered.join(repeated, on="row", how="left", maintain_order="left")
        numbered = numbered.with_columns(number=pl.coalesce("position", "number"))
    payee_tags = pl.Series([payee_tag(reference, payee) for payee in numbered["payee"]], dtype=pl.String)
    return numbered.select("row", client_orderid=pl.format("{}-{}-{}", pl.lit(reference), payee_tags, "number"))


_CONFIGURED_COLUMN = "purpose"
_BATCH_ID_DIGITS = 16


class _HashingWriter(io.RawIOBase):
    """A file that hashes the bytes written to it."""

    def __init__(self, digest: "hashlib._Hash") -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        self._digest.update(data)
        return memoryview(data).nbytes


class BatchDigest:
    """Computes a sheet's batch id (16 hex digits) from its content and operation.

    The id depends on row numbers, validity, order ids, all texts, the names of `unknown` columns, and the operation, so
    collections and payouts never share one. It does not depend on a purpose from the configuration, our messages, the
    file's name and format, the order of known columns, or columns that are not in `filled_columns`.
    """

    def __init__(self, operation: str, unknown: Collection[str], filled_columns: Collection[str]) -> None:
        self._line_columns = [name for name in LINE_COLUMNS if name != _CONFIGURED_COLUMN]
        covered = sheet_columns().renamed.union(self._line_columns)
        extra = [name for name in operation_columns(operation) if name not in covered and name in filled_columns]
        self._raw_columns = [*map(pl.col, unknown), *(pl.col(name).alias(f"sheet:{name}") for name in extra)]
        self._digest = hashlib.sha256(b"" if operation == "payout" else f"{operation}:".encode())
        columns = [*self._line_columns, *unknown, *(f"sheet:{name}" for name in extra)]
        self._digest.update(repr(columns).encode())
        self._file = cast("IO[bytes]", _HashingWriter(self._digest))

    def add(self, lines: pl.DataFrame, raw: pl.DataFrame) -> None:
        """Add the next rows: their `lines` (`LINE_COLUMNS`), and the rows as received (`raw`)."""
        content = lines.select(self._line_columns).hstack(raw.select(self._raw_columns).get_columns())
        content.write_csv(self._file, include_header=False, separator="\x1f", quote_style="never")

    @property
    def batch(self) -> str:
        """The batch id, complete after all rows have been added."""
        return self._digest.hexdigest()[:_BATCH_ID_DIGITS]


_CANONICAL_COLUMNS = (
    *("number", "row", "client_orderid", "country", "currency", "minor", "replaces", "amount", "form", "fields"),
    *("payee", "content"),
)
"""The columns whose values form an instruction's canonical text, in order (`journal/new_batch.py`)."""
_FIELD = "[a-z0-9_]"
_PAYEE_FIELD_START = rf'"{_FIELD}*(?:{"|".join(PAYEE_FIELD_SUFFIXES)})":"'
_OTHER_FIELD = rf'"{_FIELD}+":"(?:[^"\\]|\\.)*"'
"""The start of a field in JSON that names a payee, and any other whole field. Quotation marks in values are escaped."""
_ROWS_AT_ONCE = 10_000
_TEXT_END = "\0\n\0"
"""The end of a canonical text. A value could contain the same bytes, so the digest also counts texts and values."""


class InstructionColumns:
    """Adapts `Validated.instructions` to the journal's `NewInstructions`."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __len__(self) -> int:
        return self._frame.height

    def __iter__(self) -> Iterator[Any]:
        """Yield the instructions as tuples of `NewInstruction` values."""
        return self._frame.iter_rows()

    def canonical_texts(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield each instruction's canonical text: its values joined by NUL. Instruction numbers start at `first`."""
        replaces = pl.col("row").replace_strict(replaced, default=None, return_dtype=pl.Int64).cast(pl.String)
        for rows in self._frame.iter_slices(_ROWS_AT_ONCE):
            lines = rows.with_columns(
                # polars counts in 32 bits, and a sum with `pl.len()` would wrap at 4,294,967,296.
                number=pl.int_range(first, first + rows.height, dtype=pl.Int64),
                replaces=(replaces if replaced else pl.lit(None, pl.String)).fill_null("None"),
            )
            buffer = io.BytesIO()
            # No quotation marks are needed: NUL separates the values, and no value contains NUL.
            lines.select(_CANONICAL_COLUMNS).write_csv(
                buffer, include_header=False, separator="\0", line_terminator=_TEXT_END, quote_style="never"
            )
            yield from buffer.getvalue().split(_TEXT_END.encode())[:-1]
            first += rows.height

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals by country and currency. Their `first` and `last` are row indexes in the frame."""
        position, minor = pl.col("position"), pl.col("minor")
        numbered = self._frame.select("country", "currency", "minor").with_row_index("position")
        totals = numbered.group_by("country", "currency").agg(
            rows=pl.len(),
            billions=(minor // BILLION).sum(),
            rest=(minor % BILLION).sum(),
            first=position.min(),
            last=position.max(),
        )
        return {(country, currency): InstructionTotals(*total) for country, currency, *total in totals.iter_rows()}

    def payee_words(self) -> Iterable[str]:
        """Return the values that identify each instruction's payee, joined by non-word characters."""
        return self._frame["fields"].str.replace_all(_PAYEE_FIELD_START, " ").str.replace_all(_OTHER_FIELD, "")

    def have_ascii_ids(self) -> bool:
        ids = self._frame["client_orderid"]
        return bool((ids.str.len_bytes() == ids.str.len_chars()).all())

    def shortened_rows(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return the values of each instruction, with shortened content.

        Fields at the end of the content are removed, and `mark` is added in front. Content that already begins with
        `mark` becomes None.
        """
        content, fields = pl.col("content"), pl.col("fields")
        # Content with empty fields gets the mark too, although nothing is stripped.
        shortened = pl.concat_str(pl.lit(mark), content.str.strip_suffix(fields))
        stored = pl.when(content.str.ends_with(fields)).then(shortened).otherwise(content)
        return self._frame.with_columns(content=pl.when(~content.str.starts_with(mark)).then(stored)).iter_rows()


ROWS_PER_PAGE = 20_000


def to_pages(frame: pl.DataFrame) -> Iterator[bytes]:
    """Yield a frame as compressed Arrow IPC files of at most `ROWS_PER_PAGE` rows. An empty frame has one page."""
    for part in frame.iter_slices(ROWS_PER_PAGE) if frame.height else [frame]:
        page = io.BytesIO()
        part.write_ipc(page, compression="zstd")
        yield page.getvalue()


class Pager:
    """Splits a frame that arrives in parts into the pages that `to_pages` would yield for the whole frame."""

    def __init__(self) -> None:
        self._remainder: pl.DataFrame | None = None

    def add_rows(self, part: pl.DataFrame) -> list[bytes]:
        """Add the next rows and return the pages that are now full."""
        rows = part if self._remainder is None else pl.concat([self._remainder, part])
        full_height = rows.height - rows.height % ROWS_PER_PAGE
        self._remainder = rows.slice(full_height).rechunk()
        return list(to_pages(rows.head(full_height))) if full_height else []

    def remaining_pages(self) -> list[bytes]:
        """Return the remaining rows as a last page, if there are any."""
        return list(to_pages(self._remainder)) if self._remainder is not None and self._remainder.height else []


def from_pages(pages: Iterable[bytes]) -> pl.DataFrame:
    """Restore the frame from the pages of `to_pages`. Raises `InternalError` if there are none."""
    parts = [pl.read_ipc(io.BytesIO(page)) for page in pages]
    if not parts:
        raise InternalError("a batch of the journal has no page of its sheet")
    return pl.concat(parts)
