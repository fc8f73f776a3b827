"""Reads a statement, a CSV file or a workbook with the gateway's states of orders, and checks its proof.

A signature beside the file, or a folder that only a transfer writes, proves that the statement is the gateway's.
Without a proof, it is a claim of the person who brings it. The proof covers the very bytes that are read as lines.
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

from paygw_batch.approval.approval_keys import PublicKey, read_pem_public_key
from paygw_batch.approval.policy import policy_of
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import ConfigurationError, SheetError, StatementError
from paygw_batch.files import read_regular
from paygw_batch.language import mark, say
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.clean import unguarded_names
from paygw_batch.sheet.read.delimited import first_lines
from paygw_batch.sheet.read.frame import cleaned_rows
from paygw_batch.sheet.read.headings import fold
from paygw_batch.sheet.read.text import to_utf8
from paygw_batch.sheet.read.xlsx import cells_of, content_of, header_of, warnings_in
from paygw_batch.sheet.read.xlsx_cells import Row, Workbook
from paygw_batch.trusted_files import Others, read_trusted

SIGNATURE_ENDING = ".sig"
MAX_SIGNATURE_BYTES = 16 * 1024
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class StatementProof(StrEnum):
    """The proof that a statement is the gateway's, or why there is none. A person vouches for an unproven one."""

    SIGNED = "signed"
    FOLDER = "folder"
    UNASKED = "unasked"
    NO_SIGNATURE = "no_signature"
    ELSEWHERE = "elsewhere"
    OTHER_FILE = "other_file"
    OPEN_FOLDER = "open_folder"

    @property
    def is_proven(self) -> bool:
        """Whether the statement is proven to be the gateway's."""
        return self in {StatementProof.SIGNED, StatementProof.FOLDER}


_SENTENCES = {
    StatementProof.SIGNED: mark("The gateway's signature proves the statement."),
    StatementProof.FOLDER: mark("The transfer's folder proves the statement."),
    StatementProof.UNASKED: mark("The statement counts only as a person's word: no proof of statements is configured."),
    StatementProof.NO_SIGNATURE: mark("The statement counts only as a person's word: there is no signature beside it."),
    StatementProof.ELSEWHERE: mark(
        "The statement counts only as a person's word: the transfer's folder does not hold this file."
    ),
    StatementProof.OTHER_FILE: mark(
        "The statement counts only as a person's word: its file in the transfer's folder is a link, has a second "
        "name, does not belong to the folder's owner, or can be changed by others."
    ),
    StatementProof.OPEN_FOLDER: mark(
        "The statement counts only as a person's word: the transfer's folder, or one above it, is a link or can be "
        "changed by others."
    ),
}


def proof_sentence(proof: StatementProof) -> str:
    return say(_SENTENCES[proof])


@dataclass(frozen=True, slots=True)
class SignedStatements:
    """The rule that a statement is the gateway's if the file `statement.csv.sig` beside it has a valid signature.

    `verifies` gets the signature and the bytes of the statement.
    """

    verifies: Callable[[bytes, bytes], bool]

    def proof_of(self, file: Path, content: bytes) -> StatementProof:
        """Return the proof of a statement. Raises `SheetError` if a signature does not match the statement."""
        beside = file.with_name(f"{file.name}{SIGNATURE_ENDING}")
        signature = _read(beside)
        if signature is None:
            return StatementProof.NO_SIGNATURE
        if any(self.verifies(spelling, content) for spelling in _spellings(signature)):
            return StatementProof.SIGNED
        raise SheetError(
            say("{signature} is not the gateway's signature of {name}.", signature=beside.name, name=file.name),
            hint=say(
                "One of them was changed, or another key signed it. Nothing was settled. Get both from the gateway "
                "again."
            ),
        )


@dataclass(frozen=True, slots=True)
class TransferFolder:
    """The rule that a statement is the gateway's if the folder at `path`, written by a transfer, has its bytes."""

    path: Path

    def proof_of(self, file: Path, content: bytes) -> StatementProof:
        """Return the proof of a statement by its name and bytes. `file` itself may be anywhere."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return StatementProof.OPEN_FOLDER
        try:
            about = os.fstat(folder)
            if self.problem() is not None:
                return StatementProof.OPEN_FOLDER
            return _in_folder(folder, about.st_uid, file.name, content)
        finally:
            os.close(folder)

    def problem(self) -> str | None:
        """Return why the folder proves nothing. None: it is a real folder, and only its owner can put files there."""
        try:
            about = self.path.lstat()
            above = [folder.stat() for folder in (self.path.parent.resolve(), *self.path.parent.resolve().parents)]
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            return say("{path} cannot be read: {reason}.", path=self.path, reason=reason)
        if not stat.S_ISDIR(about.st_mode):
            return say("{path} is not a folder, or is a link to one.", path=self.path)
        if about.st_mode & _OTHERS_WRITE:
            return say("{path} can be changed by its group or by everyone: chmod go-w.", path=self.path)
        for status in above:
            if status.st_uid not in {0, about.st_uid} or (
                status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
            ):
                return say("A folder above {path} can be changed by someone other than its owner.", path=self.path)
        return None

    @property
    def is_ours(self) -> bool:
        """Whether the folder belongs to the account of this process, whose users can then put files there."""
        return self.path.lstat().st_uid == os.geteuid()


StatementRule = SignedStatements | TransferFolder


def _in_folder(folder: int, owner: int, name: str, content: bytes) -> StatementProof:
    """Return the proof by a file in a folder. The file must be the owner's, have one name, and be closed to others."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return StatementProof.ELSEWHERE
    except OSError:
        return StatementProof.OTHER_FILE
    with os.fdopen(handle, "rb") as stream:
        about = os.fstat(handle)
        is_own = stat.S_ISREG(about.st_mode) and about.st_uid == owner and about.st_nlink == 1
        if not is_own or about.st_mode & _OTHERS_WRITE:
            return StatementProof.OTHER_FILE
        return StatementProof.FOLDER if stream.read(len(content) + 1) == content else StatementProof.ELSEWHERE


def _read(path: Path) -> bytes | None:
    """Return the bytes of a signature, or None if there is no such file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        raise SheetError(say("{path} cannot be read: {reason}.", path=path, reason=reason)) from None
    with os.fdopen(handle, "rb") as stream:
        return stream.read(MAX_SIGNATURE_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""


def _spellings(signature: bytes) -> list[bytes]:
    """Return a signature as it is and, if it is base64, also decoded."""
    try:
        return [signature, base64.b64decode(b"".join(signature.split()), validate=True)]
    except (binascii.Error, ValueError):
        return [signature]


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_EAST = timedelta(hours=14)
_WEST = timedelta(hours=12)
"""The offsets of the time zones in which a date begins first and ends last."""
_MILLISECOND = timedelta(milliseconds=1)
WRITTEN = "2026-11-20T14:05:00Z, 2026-11-20T17:05:00+03:00 or 2026-11-20"
"""How a person may write a time."""
_CELL_HINT = mark("Ask for the statement as CSV, or with these cells as text.")
FIRST_BYTES = b"PK\x03\x04"
"""The bytes with which a workbook begins. No CSV file begins with them."""
MAX_STATEMENT_BYTES = 256 * 1024 * 1024
MAX_MINOR_UNITS = 4
_NEEDED = ("order_id", "amount", "currency")


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stated time, as a span that is as long as the unit: from `start` up to and without `end`, both in UTC."""

    start: datetime
    end: datetime


def read_time(text: str) -> TimeSpan | None:
    """Return the time that `text` states, or None if the text is not clear.

    Accepted are ISO 8601 with a zone, down to minutes or finer, and a date alone, which is that day in any time zone.
    """
    try:
        if _DATE.fullmatch(text):
            day = datetime.fromisoformat(text).replace(tzinfo=UTC)
            return TimeSpan(day - _EAST, day + timedelta(days=1) + _WEST)
        if (match := _TIME.fullmatch(text)) is None:
            return None
        seconds, fraction = match.group(1), match.group(2)
        unit = timedelta(seconds=1) if seconds else timedelta(minutes=1)
        if fraction:
            unit = max(timedelta(microseconds=10 ** (7 - len(fraction))), _MILLISECOND)
        # `fromisoformat` accepts only three or six digits of a second.
        plain = text.replace(fraction, f"{fraction:0<7}", 1) if fraction else text
        start = datetime.fromisoformat(plain).astimezone(UTC)
        start -= timedelta(microseconds=start.microsecond % 1000)
        return TimeSpan(start, start + unit)
    except (ValueError, OverflowError):
        return None


def workbook_lines(
    data: bytes, file: str, max_bytes: int, aliases: Mapping[str, str]
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the header and each line below it that is not empty, with its row number. All are equally long.

    Raises `StatementError` if no visible worksheet has a header, several have one, or the value of a cell is lost.
    """
    ours = _known(aliases)

    def is_header(headings: Sequence[str]) -> bool:
        return set(_NEEDED) <= {ours.get(fold(heading)) for heading in headings}

    def used(header: Row) -> Mapping[int, str]:
        names = (ours.get(fold(heading)) for heading in cells_of(header))
        return {at: name for at, name in enumerate(names, start=1) if name is not None}

    workbook = Workbook(data, file=file, max_bytes=max_bytes)
    parts = [part for part in workbook.worksheets() if not part.hidden]
    fitting = [part for part in parts if header_of(workbook, part, is_header)[0].header is not None]
    if len(fitting) != 1:
        raise _unclear(file, [part.name for part in fitting])
    content = content_of(workbook, fitting[0], is_header, used)
    if content.header is None:
        return
    headings = cells_of(content.header)
    if doubt := next((cell for cell in content.doubts if cell[1] <= len(headings)), None):
        row, _, _, value = doubt
        cell = {"file": file, "row": row, "value": value}
        sentence = say("{file}, row {row}: {value} is a formula without a value, or a number that was cut.", **cell)
        raise StatementError(sentence, hint=say(_CELL_HINT))
    if (odd := warnings_in(content)).height:
        sentence = say(
            "{file}, row {row}: a cell is hidden, struck through or shown as another value in the spreadsheet.",
            file=file,
            row=odd["row"][0] or content.header.number,
        )
        raise StatementError(sentence, hint=say(_CELL_HINT))
    yield content.header.number, headings
    for number, *cells in content.below([str(at) for at in range(len(headings))]).fill_null("").iter_rows():
        if any(cell.strip() for cell in cells):
            yield number, cells


def _unclear(file: str, fitting: Sequence[str]) -> StatementError:
    if fitting:
        names = ", ".join(repr(name) for name in fitting)
        return StatementError(
            say("{file}: several worksheets look like a statement: {names}.", file=file, names=names),
            hint=say("Save the right one as CSV."),
        )
    return _without_columns(say("{file} has no worksheet with the columns order_id, amount and currency.", file=file))


def _without_columns(sentence: str) -> StatementError:
    return StatementError(
        sentence,
        hint=say("`[statement.columns]` in the configuration says which of the gateway's headings is which column."),
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
"""Our columns of a statement, each with the headings by which it is known.

`status` has the gateway's words, and `answer` ours. `time` is when the line was true. `sent_at` is when the attempt
that the line is about left, as in the question list.
"""


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One line of a statement, about one order. `amount` is None if `amount_text` is not an amount.

    Either `status` (the gateway's own word) or `answer` (`paid`, `rejected`, `not-received`, or empty for no answer
    yet) is a text, and the other is None. `time` and `sent_at` are as they are written, or empty if the line states
    none.
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
    """A statement as received. `sha256` is the digest of the file, and `proof` says whether it is the gateway's."""

    name: str
    sha256: str
    lines: Sequence[StatementLine]
    proof: StatementProof = StatementProof.UNASKED


def read_statement(
    path: Path, aliases: Mapping[str, str], *, encoding: str | None, rule: StatementRule | None = None
) -> Statement:
    """Return the statement in a CSV file or a workbook. `aliases` maps the file's own headings to ours (`HEADINGS`).

    `rule` proves that the statement is the gateway's; without a rule it is unproven. Raises `StatementError` if the
    file cannot be read, lacks a column, has a column twice, or has a line with more or fewer fields than the header.
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
            hint=say("Split it by days."),
        )
    proof = StatementProof.UNASKED if rule is None else rule.proof_of(path, data)
    if data.startswith(FIRST_BYTES):
        rows = workbook_lines(data, path.name, MAX_STATEMENT_BYTES, aliases)
    else:
        rows = _text_lines(to_utf8(data, encoding=encoding, file=path.name), aliases, path.name)
    lines = list(_lines(rows, aliases, path.name))
    if not lines:
        raise StatementError(say("{name} has a header and no line below it.", name=path.name))
    return Statement(path.name, hashlib.sha256(data).hexdigest(), lines, proof)


def _text_lines(data: bytes, aliases: Mapping[str, str], file: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the header and each line below it that is not empty, with its row number."""
    ours = _known(aliases)
    ways = [(line, delimiter, unguarded_names(cells)) for line in first_lines(data) for delimiter, cells in line.ways]
    if not ways:
        raise StatementError(say("{name} is empty.", name=file))
    start, delimiter, headings = max(ways, key=lambda way: sum(fold(heading) in ours for heading in way[2]))
    yield start.row, headings
    reader = csv.reader(io.StringIO(data[start.offset :].decode(), newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if any("\n" in cell for cell in cells):  # a stray quotation mark could hide a line that says otherwise
                raise csv.Error(say("a value goes over several lines"))  # noqa: TRY301 (said like the reader's own)
            if len(cells) < len(headings) or any(cell.strip() for cell in cells[len(headings) :]):
                raise StatementError(
                    say(
                        "{file}, line {line_num} does not have the {headings} fields of the header, but {cells}.",
                        file=file,
                        line_num=start.row + reader.line_num,
                        cells=len(cells),
                        headings=len(headings),
                    )
                )
            yield start.row + reader.line_num, cells[: len(headings)]
    except csv.Error as error:
        line_num = start.row + reader.line_num
        raise StatementError(
            say("{file}, line {line_num}: this is not CSV ({error}).", file=file, line_num=line_num, error=error)
        ) from None


def _known(aliases: Mapping[str, str]) -> Mapping[str, str]:
    """Return our column for each known heading. Headings are folded."""
    ours = {fold(heading): name for name, known in HEADINGS.items() for heading in known}
    return ours | {fold(heading): name for heading, name in aliases.items()}


def _lines(rows: Iterator[tuple[int, Sequence[str]]], aliases: Mapping[str, str], file: str) -> Iterator[StatementLine]:
    """Yield the lines below the header, which is the first row. Their values are cleaned like those of a sheet."""
    places = _places(next(rows)[1], aliases, file)
    below = list(rows)
    columns = {name: [cells[place] for _, cells in below] for name, place in places.items()}
    for (number, _), row in zip(below, cleaned_rows(columns), strict=True):
        amount = parse_amount(row["amount"], minor_units=MAX_MINOR_UNITS)
        yield StatementLine(
            line=number,
            order_id=row["order_id"],
            # A line counts only if its amount is the order's, so a text with only one possible meaning is no guess.
            amount=amount if amount is not None else parse_amount(row["meant"], minor_units=MAX_MINOR_UNITS),
            amount_text=row["amount"],
            currency=row["currency"].upper(),
            status=row.get("status"),
            answer=row.get("answer"),
            time=row.get("time", ""),
            sent_at=row.get("sent_at", ""),
        )


def _places(headings: Sequence[str], aliases: Mapping[str, str], file: str) -> Mapping[str, int]:
    ours = _known(aliases)
    places: dict[str, int] = {}
    for place, heading in enumerate(headings):
        name = ours.get(fold(heading))
        if name in places:
            raise StatementError(
                say(
                    "{file}: the headings {headings!r} and {heading!r} are both the {name}.",
                    file=file,
                    headings=headings[places[name]],
                    heading=heading,
                    name=name,
                )
            )
        if name is not None:
            places[name] = place
    missing = [name for name in _NEEDED if name not in places]
    if missing:
        sentence = say("{file} has no column {missing}.", file=file, missing=", ".join(missing))
    elif ("status" in places) == ("answer" in places):
        sentence = say(
            "{file} must have either a column status (the gateway's own words) or a column answer (paid, "
            "rejected, not-received).",
            file=file,
        )
    else:
        return places
    raise _without_columns(sentence)


def statement_as_json(statement: Statement) -> str:
    # A `Decimal` is the only kind of value in a statement that JSON does not have.
    return json.dumps(asdict(statement), default=str, ensure_ascii=False)


def statement_of_json(text: str) -> Statement:
    members = json.loads(text)
    lines = [
        StatementLine(**{**line, "amount": None if line["amount"] is None else Decimal(line["amount"])})
        for line in members["lines"]
    ]
    return Statement(members["name"], members["sha256"], lines, StatementProof(members["proof"]))


def statement_rule(settings: Settings) -> StatementRule | None:
    """Return the rule by which statements are proven, or None. Raises `ConfigurationError` for an unusable key."""
    if (folder := settings.evidence.folder) is not None:
        return TransferFolder(folder)
    return None if settings.evidence.statement_key is None else SignedStatements(statement_key(settings).verifies)


def statement_key(settings: Settings) -> PublicKey:
    """Return the key that signs the gateway's statements. Raises `ConfigurationError` for a key that proves nothing."""
    path, name = settings.evidence.statement_key, "[evidence] statement_key"
    if path is None:
        raise ConfigurationError(say("{name} is not set.", name=name))
    key = read_pem_public_key(read_trusted(path, f"{name} {path}", Others.MAY_READ))
    if key is None:
        raise ConfigurationError(
            say("{name} {path} does not contain a usable public key.", name=name, path=path),
            hint=say("It is a PEM file with an RSA key of 2048 bits or more, or an Ed25519 or P-256 key."),
        )
    policy = policy_of(settings)
    owner = None if policy is None else policy.people.owner_of(key)
    if owner is not None:
        raise ConfigurationError(
            say("{name} {path} is a key of {owner}, who prepares or approves.", name=name, path=path, owner=owner.name),
            hint=say("Only the gateway may have the private half of this key."),
        )
    return key


def statement_in(settings: Settings, file: Path) -> Statement:
    """Return the statement in a file, with its proof. Raises `SheetError` if it cannot be read."""
    rule = statement_rule(settings)
    return read_statement(file, settings.statement.columns, encoding=settings.sheet.encoding, rule=rule)


def statement_with_digest(settings: Settings, name: str, sha256: str, folders: Iterable[Path]) -> Statement | None:
    """Return the statement with this name and digest from one of `folders` or from the transfer's folder, or None."""
    own, bare = settings.evidence.folder, Path(name).name
    for folder in (*folders, *(() if own is None else (own,))):
        file = folder / bare
        if bare and file.is_file() and _digest(file) == sha256:
            return statement_in(settings, file)
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
