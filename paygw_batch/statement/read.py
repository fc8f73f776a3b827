"""Reads a statement: a CSV file or a workbook in which the gateway, or its support, gives the state of orders."""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

from paygw_batch.core.money import parse_amount
from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.read.delimited import DELIMITERS
from paygw_batch.sheet.read.headings import fold
from paygw_batch.sheet.read.text import to_utf8
from paygw_batch.statement.workbook_lines import FIRST_BYTES, workbook_lines

MAX_STATEMENT_BYTES = 256 * 1024 * 1024
MINOR_UNITS_AT_MOST = 4
_NEEDED = ("order_id", "amount", "currency")

_GUARD = re.compile(r"^'(?=[=@+-])")
"""A sign that keeps a spreadsheet from running a cell as a formula (`formulas.py`)."""

HEADINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "order_id": ("order_id", "client_orderid", "sent_orderid"),
        "amount": ("amount",),
        "currency": ("currency",),
        "status": ("status", "gateway_status"),
        "answer": ("answer",),
        "time": ("time",),
        "sent_at": ("sent_at",),
    }
)
"""Our columns of a statement, and the headings each is known by.

`status` holds the gateway's word, `answer` ours. `time` is when the line was true, `sent_at` when the attempt left that
it is about, as the question list has it.
"""


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One line of a statement, about one order. `amount` is None when `amount_text` states none.

    Exactly one of `status` (the gateway's own word) and `answer` (`paid`, `rejected`, `not-received`; empty: no answer
    yet) is a text. `time` and `sent_at` are as they are written, empty where the line states none.
    """

    line: int
    order_id: str
    amount: Decimal | None
    amount_text: str
    currency: str
    status: str | None
    answer: str | None
    time: str = ""
    sent_at: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as received. `sha256` is the digest of the file's bytes."""

    name: str
    sha256: str
    lines: Sequence[StatementLine]


def read_statement(path: Path, aliases: Mapping[str, str], *, code_page: str | None) -> Statement:
    """Return the statement in a CSV file or a workbook; `aliases` maps its own headings to ours (`HEADINGS`).

    Raises `SheetError` when it cannot be read, lacks a column, has one twice, or has a line with other fields than the
    header.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_STATEMENT_BYTES + 1)
    except OSError as error:
        raise SheetError(
            say("{path} cannot be read: {reason}.", path=path, reason=say(error.strerror or "unknown reason").lower())
        ) from None
    if len(data) > MAX_STATEMENT_BYTES:
        raise SheetError(
            say("{name} has more than {mib} MiB.", name=path.name, mib=MAX_STATEMENT_BYTES // 2**20),
            hint=say("Split it by days."),
        )
    if not data:
        raise SheetError(say("{name} is empty.", name=path.name))
    if data.startswith(FIRST_BYTES):
        lines = list(_workbook_lines(data, aliases, path.name))
    else:
        text = to_utf8(data, code_page=code_page, file=path.name).decode()
        lines = list(_lines(text, aliases, path.name))
    if not lines:
        raise SheetError(say("{name} has a header and no line below it.", name=path.name))
    return Statement(path.name, hashlib.sha256(data).hexdigest(), lines)


def _lines(text: str, aliases: Mapping[str, str], file: str) -> Iterator[StatementLine]:
    header = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        headings = next(reader)
        places = _places(headings, aliases, file)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(headings):
                raise SheetError(
                    say(
                        "{file}, line {line_num}: {cells} fields; the header has {headings}.",
                        file=file,
                        line_num=reader.line_num,
                        cells=len(cells),
                        headings=len(headings),
                    )
                )
            yield _line(reader.line_num, {name: cells[place].strip() for name, place in places.items()})
    except csv.Error as error:
        raise SheetError(
            say("{file}, line {line_num}: this is no CSV ({error}).", file=file, line_num=reader.line_num, error=error)
        ) from None


def _workbook_lines(data: bytes, aliases: Mapping[str, str], file: str) -> Iterator[StatementLine]:
    def is_header(headings: Sequence[str]) -> bool:
        ours = _known(aliases)
        return set(_NEEDED) <= {ours.get(fold(heading)) for heading in headings}

    rows = workbook_lines(data, file, MAX_STATEMENT_BYTES, is_header)
    places = _places(next(rows)[1], aliases, file)
    for number, cells in rows:
        yield _line(number, {name: cells[place].strip() for name, place in places.items()})


def _known(aliases: Mapping[str, str]) -> Mapping[str, str]:
    """Return each known heading, folded, with our column for it."""
    ours = {fold(heading): name for name, known in HEADINGS.items() for heading in known}
    return ours | {fold(heading): name for heading, name in aliases.items()}


def _line(number: int, cells: Mapping[str, str]) -> StatementLine:
    return StatementLine(
        line=number,
        order_id=_GUARD.sub("", cells["order_id"]),
        amount=parse_amount(cells["amount"], minor_units=MINOR_UNITS_AT_MOST),
        amount_text=cells["amount"],
        currency=cells["currency"].upper(),
        status=cells.get("status"),
        answer=cells.get("answer"),
        time=cells.get("time", ""),
        sent_at=cells.get("sent_at", ""),
    )


def _places(headings: Sequence[str], aliases: Mapping[str, str], file: str) -> Mapping[str, int]:
    """Return the place of each of our columns."""
    ours = _known(aliases)
    places: dict[str, int] = {}
    for place, heading in enumerate(headings):
        name = ours.get(fold(heading))
        if name in places:
            raise SheetError(
                say(
                    "{file}: the headings {headings!r} and {heading!r} both are the {name}.",
                    file=file,
                    headings=headings[places[name]],
                    heading=heading,
                    name=name,
                )
            )
        if name is not None:
            places[name] = place
    missing = [name for name in _NEEDED if name not in places]
    if not missing and ("status" in places) == ("answer" in places):
        raise SheetError(
            say(
                "{file} must have either a column status (the gateway's own words) or a column answer (paid, "
                "rejected, not-received).",
                file=file,
            ),
            hint=say(
                "`[statement.columns]` in the configuration says which of the gateway's headings is which column."
            ),
        )
    if missing:
        raise SheetError(
            say("{file} has no column {missing}.", file=file, missing=", ".join(missing)),
            hint=say(
                "`[statement.columns]` in the configuration says which of the gateway's headings is which column."
            ),
        )
    return places
