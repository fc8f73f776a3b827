"""Reads statements (CSV files or workbooks with the gateway's states of orders), and checks their proof.

A signature file next to a statement, or a folder that only a transfer can write to, proves that it is the gateway's.
Without a proof, it is a claim by the person who submits it. The proof covers exactly the bytes that are parsed.
"""

import base64
import binascii
import csv
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from paygw_batch.approval.approval_keys import PublicKey, parse_pem_public_key
from paygw_batch.approval.policy import approval_policy
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import ConfigurationError, SheetError, StatementError
from paygw_batch.files import read_regular
from paygw_batch.language import mark, say
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.clean import unguard_names
from paygw_batch.sheet.read.delimited import first_lines
from paygw_batch.sheet.read.frame import clean_rows
from paygw_batch.sheet.read.headings import fold_heading
from paygw_batch.sheet.read.text import to_utf8
from paygw_batch.sheet.read.xlsx import appearance_warnings, read_content, read_to_header, row_texts
from paygw_batch.sheet.read.xlsx_cells import Row, Workbook
from paygw_batch.trusted_files import OtherUsers, read_trusted_file

SIGNATURE_SUFFIX = ".sig"
MAX_SIGNATURE_BYTES = 16 * 1024
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class StatementProof(StrEnum):
    """How a statement is proven to be from the gateway, or why not. A person vouches for an unproven one."""

    SIGNED = "signed"
    FOLDER = "folder"
    NOT_CONFIGURED = "unasked"
    NO_SIGNATURE = "no_signature"
    NOT_IN_FOLDER = "elsewhere"
    UNSAFE_FILE = "other_file"
    UNSAFE_FOLDER = "open_folder"

    @property
    def is_proven(self) -> bool:
        return self in {StatementProof.SIGNED, StatementProof.FOLDER}


_PROOF_MESSAGES = {
    StatementProof.SIGNED: mark("The statement counts as the gateway's word, because it has the gateway's signature."),
    StatementProof.FOLDER: mark(
        "The statement counts as the gateway's word, because it is in the gateway's transfer folder."
    ),
    StatementProof.NOT_CONFIGURED: mark(
        "The statement counts as a person's word, because no way to prove statements is configured."
    ),
    StatementProof.NO_SIGNATURE: mark(
        "The statement counts as a person's word, because there is no signature next to it."
    ),
    StatementProof.NOT_IN_FOLDER: mark(
        "The statement counts as a person's word, because it is not in the gateway's transfer folder."
    ),
    StatementProof.UNSAFE_FILE: mark(
        "The statement counts as a person's word, because its file in the gateway's transfer folder is a link, "
        "has a second name, belongs to someone other than the folder's owner, or can be changed by others."
    ),
    StatementProof.UNSAFE_FOLDER: mark(
        "The statement counts as a person's word, because the gateway's transfer folder, or a folder above it, is a "
        "link or can be changed by others."
    ),
}


def proof_message(proof: StatementProof) -> str:
    return say(_PROOF_MESSAGES[proof])


@dataclass(frozen=True, slots=True)
class SignedStatements:
    """Proves a statement by a valid signature in a file next to it, such as `statement.csv.sig`."""

    verify: Callable[[bytes, bytes], bool]

    def find_proof(self, file: Path, content: bytes) -> StatementProof:
        """Return how a statement is proven. Raises `SheetError` if its signature does not match."""
        signature_file = file.with_name(f"{file.name}{SIGNATURE_SUFFIX}")
        if (signature := _read_signature(signature_file)) is None:
            return StatementProof.NO_SIGNATURE
        if any(self.verify(candidate, content) for candidate in _decode_signature(signature)):
            return StatementProof.SIGNED
        raise SheetError(
            say("{signature} is not the gateway's signature of {name}.", signature=signature_file.name, name=file.name),
            hint=say(
                "One of these files was changed, or the statement was signed with another key. Nothing was settled. "
                "Ask the gateway for both files again."
            ),
        )


@dataclass(frozen=True, slots=True)
class TransferFolder:
    """Proves a statement by an identical file in the folder `path`, which only a transfer writes to."""

    path: Path

    def find_proof(self, file: Path, content: bytes) -> StatementProof:
        """Return how a file with the same name and content in the folder proves a statement, or why not."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return StatementProof.UNSAFE_FOLDER
        try:
            if self.problem() is not None:
                return StatementProof.UNSAFE_FOLDER
            return _prove_by_folder_file(folder, os.fstat(folder).st_uid, file.name, content)
        finally:
            os.close(folder)

    def problem(self) -> str | None:
        """Return why the folder proves nothing, or None if only its owner can add files to it."""
        try:
            folder_status = self.path.lstat()
            statuses = [folder.stat() for folder in (self.path.parent.resolve(), *self.path.parent.resolve().parents)]
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            return say("{path} cannot be read: {reason}.", path=self.path, reason=reason)
        if not stat.S_ISDIR(folder_status.st_mode):
            return say("{path} is not a folder, or is a link to one.", path=self.path)
        if folder_status.st_mode & _WRITABLE_BY_OTHERS:
            return say("{path} can be changed by its group or by everyone. Run chmod go-w on it.", path=self.path)
        for status in statuses:
            if status.st_uid not in {0, folder_status.st_uid} or (
                status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX
            ):
                return say("A folder above {path} can be changed by someone other than its owner.", path=self.path)
        return None

    @property
    def is_ours(self) -> bool:
        """Whether this process's user owns the folder and so could add files to it."""
        return self.path.lstat().st_uid == os.geteuid()


StatementRule = SignedStatements | TransferFolder


def _prove_by_folder_file(folder: int, owner: int, name: str, content: bytes) -> StatementProof:
    """Return what the file `name` in a folder proves. Only `owner` may write to it, and it must have no other link."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return StatementProof.NOT_IN_FOLDER
    except OSError:
        return StatementProof.UNSAFE_FILE
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == owner and status.st_nlink == 1
        if not is_own or status.st_mode & _WRITABLE_BY_OTHERS:
            return StatementProof.UNSAFE_FILE
        return StatementProof.FOLDER if stream.read(len(content) + 1) == content else StatementProof.NOT_IN_FOLDER


def _read_signature(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        raise SheetError(say("{path} cannot be read: {reason}.", path=path, reason=reason)) from None
    with os.fdopen(handle, "rb") as stream:
        return stream.read(MAX_SIGNATURE_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""


def _decode_signature(signature: bytes) -> list[bytes]:
    """Return a signature as it is and, if it is valid base64, also decoded."""
    try:
        return [signature, base64.b64decode(b"".join(signature.split()), validate=True)]
    except (binascii.Error, ValueError):
        return [signature]


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_EARLIEST_OFFSET = timedelta(hours=14)
_LATEST_OFFSET = timedelta(hours=12)
"""The UTC offsets of the time zones where a date begins first and ends last."""
_MILLISECOND = timedelta(milliseconds=1)
TIME_EXAMPLES = "2026-11-20T14:05:00Z, 2026-11-20T17:05:00+03:00 or 2026-11-20"
"""Examples of the accepted time formats."""
_CELL_HINT = mark("Ask for the statement as CSV, or with these cells as text.")
WORKBOOK_SIGNATURE = b"PK\x03\x04"
"""The first bytes of every workbook. A CSV file cannot begin with them."""
MAX_STATEMENT_BYTES = 256 * 1024 * 1024
MAX_MINOR_UNITS = 4
_REQUIRED_COLUMNS = ("order_id", "amount", "currency")


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The span covered by a stated time, from `start` to `end` (exclusive), both in UTC."""

    start: datetime
    end: datetime


def parse_time_span(text: str) -> TimeSpan | None:
    """Parse a time in a statement. Returns None if it is unclear.

    Accepts ISO 8601 with a time zone, to the minute or finer, or a date, which may be in any time zone.
    """
    try:
        if _DATE.fullmatch(text):
            midnight = datetime.fromisoformat(text).replace(tzinfo=UTC)
            return TimeSpan(midnight - _EARLIEST_OFFSET, midnight + timedelta(days=1) + _LATEST_OFFSET)
        if (match := _TIME.fullmatch(text)) is None:
            return None
        seconds, fraction = match.group(1), match.group(2)
        unit = timedelta(seconds=1) if seconds else timedelta(minutes=1)
        if fraction:
            unit = max(timedelta(microseconds=10 ** (7 - len(fraction))), _MILLISECOND)
        # `fromisoformat` accepts only three or six decimals of a second.
        padded = text.replace(fraction, f"{fraction:0<7}", 1) if fraction else text
        start = datetime.fromisoformat(padded).astimezone(UTC)
        start -= timedelta(microseconds=start.microsecond % 1000)
        return TimeSpan(start, start + unit)
    except (ValueError, OverflowError):
        return None


def workbook_lines(
    data: bytes, file: str, max_bytes: int, aliases: Mapping[str, str]
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the header and each non-empty line below it, with their row numbers. All have the same number of cells.

    Raises `StatementError` if a cell's value was lost, or unless exactly one visible worksheet has a header.
    """
    our_columns = _column_by_heading(aliases)

    def is_header(headings: Sequence[str]) -> bool:
        return set(_REQUIRED_COLUMNS) <= {our_columns.get(fold_heading(heading)) for heading in headings}

    def used_columns(header: Row) -> Mapping[int, str]:
        names = (our_columns.get(fold_heading(heading)) for heading in row_texts(header))
        return {index: name for index, name in enumerate(names, start=1) if name is not None}

    workbook = Workbook(data, file=file, max_bytes=max_bytes)
    worksheets = [part for part in workbook.worksheets() if not part.is_hidden]
    candidates = [part for part in worksheets if read_to_header(workbook, part, is_header)[0].header is not None]
    if len(candidates) != 1:
        raise _worksheet_error(file, [part.name for part in candidates])
    content = read_content(workbook, candidates[0], is_header, used_columns)
    if content.header is None:
        return
    headings = row_texts(content.header)
    if doubtful_cell := next((cell for cell in content.doubts if cell[1] <= len(headings)), None):
        row, _, _, value = doubtful_cell
        cell = {"file": file, "row": row, "value": value}
        message = say("{file}, row {row}: {value} is a formula without a value, or a number that lost digits.", **cell)
        raise StatementError(message, hint=say(_CELL_HINT))
    if (warnings := appearance_warnings(content)).height:
        message = say(
            "{file}, row {row}: a cell is hidden, struck through or shown with a different value in the spreadsheet.",
            file=file,
            row=warnings["row"][0] or content.header.number,
        )
        raise StatementError(message, hint=say(_CELL_HINT))
    yield content.header.number, headings
    for number, *cells in content.rows_below([str(index) for index in range(len(headings))]).fill_null("").iter_rows():
        if any(cell.strip() for cell in cells):
            yield number, cells


def _worksheet_error(file: str, worksheets: Sequence[str]) -> StatementError:
    if worksheets:
        names = ", ".join(repr(name) for name in worksheets)
        return StatementError(
            say("{file}: several worksheets look like a statement: {names}.", file=file, names=names),
            hint=say("Save the right worksheet as CSV."),
        )
    return _columns_error(say("{file} has no worksheet with the columns order_id, amount and currency.", file=file))


def _columns_error(message: str) -> StatementError:
    return StatementError(
        message,
        hint=say("Map the gateway's headings to columns under `[statement.columns]` in the configuration."),
        for_terminal=True,
    )


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
"""The columns of a statement, each with its recognised headings.

`status` contains the gateway's words, and `answer` a person's. `time` is when the line was true, and `sent_at` is when
its attempt was sent, as in the question list.
"""


@dataclass(frozen=True, slots=True)
class StatementLine:
    """A line in a statement, about one order. `amount` is None if `amount_text` is not an amount.

    Either `status` (the gateway's own word) or `answer` (`paid`, `rejected`, `not-received`, or empty if unanswered) is
    set, and the other is None. `time` and `sent_at` are as written, or empty.
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
    """A statement as received. `sha256` is the digest of the file."""

    name: str
    sha256: str
    lines: Sequence[StatementLine]
    proof: StatementProof = StatementProof.NOT_CONFIGURED


def read_statement(
    path: Path, aliases: Mapping[str, str], *, encoding: str | None, rule: StatementRule | None = None
) -> Statement:
    """Read a statement from a CSV file or a workbook. `aliases` maps its headings to our columns (`HEADINGS`).

    `rule` decides whether the statement is proven. Raises `StatementError` if the file cannot be read, has a missing or
    repeated column, or has a line with more or fewer fields than the header.
    """
    try:
        data = read_regular(path, MAX_STATEMENT_BYTES + 1)
    except OSError as error:
        raise StatementError(
            say("{path} cannot be read: {reason}.", path=path, reason=say(error.strerror or "unknown reason").lower()),
            hint=say("Check the path."),
        ) from None
    if len(data) > MAX_STATEMENT_BYTES:
        raise StatementError(
            say("{name} is larger than {mib} MiB.", name=path.name, mib=MAX_STATEMENT_BYTES // 2**20),
            hint=say("Split it by day."),
        )
    proof = StatementProof.NOT_CONFIGURED if rule is None else rule.find_proof(path, data)
    if data.startswith(WORKBOOK_SIGNATURE):
        rows = workbook_lines(data, path.name, MAX_STATEMENT_BYTES, aliases)
    else:
        rows = _text_lines(to_utf8(data, encoding=encoding, file=path.name), aliases, path.name)
    if not (lines := list(_statement_lines(rows, aliases, path.name))):
        raise StatementError(say("{name} has a header but no lines below it.", name=path.name))
    return Statement(path.name, hashlib.sha256(data).hexdigest(), lines, proof)


def _text_lines(data: bytes, aliases: Mapping[str, str], file: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the header and each non-empty line below it, with their row numbers."""
    columns, rows = _column_by_heading(aliases), first_lines(data)
    candidates = [(row, delimiter, unguard_names(cells)) for row in rows for delimiter, cells in row.cells_by_delimiter]
    if not candidates:
        raise StatementError(say("{name} is empty.", name=file))
    header, delimiter, names = max(candidates, key=lambda line: sum(fold_heading(name) in columns for name in line[2]))
    yield header.row, names
    reader = csv.reader(io.StringIO(data[header.offset :].decode(), newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if any("\n" in cell for cell in cells):  # a stray quotation mark could hide lines
                raise csv.Error(say("a value spans several lines"))  # noqa: TRY301 (handled like the reader's own errors)
            if len(cells) < len(names) or any(cell.strip() for cell in cells[len(names) :]):
                raise StatementError(
                    say(
                        "{file}, line {line_num} has {cells} fields, but the header has {headings}.",
                        file=file,
                        line_num=header.row + reader.line_num,
                        cells=len(cells),
                        headings=len(names),
                    )
                )
            yield header.row + reader.line_num, cells[: len(names)]
    except csv.Error as error:
        line_num = header.row + reader.line_num
        raise StatementError(
            say("{file}, line {line_num}: this is not CSV ({error}).", file=file, line_num=line_num, error=error)
        ) from None


def _column_by_heading(aliases: Mapping[str, str]) -> Mapping[str, str]:
    """Return the column for each recognised heading, in folded form."""
    columns = {fold_heading(heading): name for name, headings in HEADINGS.items() for heading in headings}
    return columns | {fold_heading(heading): name for heading, name in aliases.items()}


def _statement_lines(
    rows: Iterator[tuple[int, Sequence[str]]], aliases: Mapping[str, str], file: str
) -> Iterator[StatementLine]:
    """Yield the lines below the header, which is the first of `rows`. Values are cleaned like those of a sheet."""
    positions = _column_positions(next(rows)[1], aliases, file)
    rows_below = list(rows)
    columns = {name: [cells[position] for _, cells in rows_below] for name, position in positions.items()}
    for (number, _), row in zip(rows_below, clean_rows(columns), strict=True):
        amount = parse_amount(row["amount"], minor_units=MAX_MINOR_UNITS)
        yield StatementLine(
            line=number,
            order_id=row["order_id"],
            # A line counts only if its amount equals the order's, so an unambiguous text is safe.
            amount=amount if amount is not None else parse_amount(row["meant"], minor_units=MAX_MINOR_UNITS),
            amount_text=row["amount"],
            currency=row["currency"].upper(),
            status=row.get("status"),
            answer=row.get("answer"),
            time=row.get("time", ""),
            sent_at=row.get("sent_at", ""),
        )


def _column_positions(headings: Sequence[str], aliases: Mapping[str, str], file: str) -> Mapping[str, int]:
    our_columns = _column_by_heading(aliases)
    positions: dict[str, int] = {}
    for position, heading in enumerate(headings):
        name = our_columns.get(fold_heading(heading))
        if name in positions:
            raise StatementError(
                say(
                    "{file}: the headings {headings!r} and {heading!r} both mean the column {name}.",
                    file=file,
                    headings=headings[positions[name]],
                    heading=heading,
                    name=name,
                )
            )
        if name is not None:
            positions[name] = position
    if missing := [name for name in _REQUIRED_COLUMNS if name not in positions]:
        message = say("{file} has no column {missing}.", file=file, missing=", ".join(missing))
    elif ("status" in positions) == ("answer" in positions):
        message = say(
            "{file} must have either a column called status (the gateway's own words) or a column called answer (paid, "
            "rejected or not-received).",
            file=file,
        )
    else:
        return positions
    raise _columns_error(message)


def statement_to_json(statement: Statement) -> str:
    # `default=str` is for `Decimal`, the only type used that JSON lacks.
    return json.dumps(asdict(statement), default=str, ensure_ascii=False)


def statement_from_json(text: str) -> Statement:
    content = json.loads(text)
    lines = [
        StatementLine(**{**line, "amount": None if line["amount"] is None else Decimal(line["amount"])})
        for line in content["lines"]
    ]
    return Statement(content["name"], content["sha256"], lines, StatementProof(content["proof"]))


def statement_rule(settings: Settings) -> StatementRule | None:
    """Return the configured rule for proving statements, if any. Raises `ConfigurationError` for an unusable key."""
    if (folder := settings.evidence.folder) is not None:
        return TransferFolder(folder)
    return None if settings.evidence.statement_key is None else SignedStatements(statement_key(settings).verify)


def statement_key(settings: Settings) -> PublicKey:
    """Load the key that signs statements. Raises `ConfigurationError` if it is unusable or belongs to a person."""
    path, name = settings.evidence.statement_key, "[evidence] statement_key"
    if path is None:
        raise ConfigurationError(say("{name} is not set.", name=name))
    key = parse_pem_public_key(read_trusted_file(path, f"{name} {path}", OtherUsers.MAY_READ))
    if key is None:
        raise ConfigurationError(
            say("{name} {path} does not contain a usable public key.", name=name, path=path),
            hint=say("It must be a PEM file with an RSA key of at least 2048 bits, or an Ed25519 or P-256 key."),
        )
    policy = approval_policy(settings)
    owner = None if policy is None else policy.people.find_owner(key)
    if owner is not None:
        raise ConfigurationError(
            say(
                "{name} {path} is a key of {owner}, who prepares or approves payouts.",
                name=name,
                path=path,
                owner=owner.name,
            ),
            hint=say("Only the gateway may hold the private part of this key."),
        )
    return key


def load_statement(settings: Settings, file: Path) -> Statement:
    """Load a statement and check its proof. Raises `SheetError` if it cannot be read."""
    rule = statement_rule(settings)
    return read_statement(file, settings.statement.columns, encoding=settings.sheet.encoding, rule=rule)


def find_statement(settings: Settings, name: str, sha256: str, folders: Iterable[Path]) -> Statement | None:
    """Return the statement with this name and digest from `folders` or the transfer folder, or None."""
    transfer_folder, file_name = settings.evidence.folder, Path(name).name
    for folder in (*folders, *(() if transfer_folder is None else (transfer_folder,))):
        file = folder / file_name
        if file_name and file.is_file() and _file_digest(file) == sha256:
            return load_statement(settings, file)
    return None


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
