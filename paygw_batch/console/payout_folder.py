"""Stores a payout in preparation in a folder: its sheet, corrections, check result and plan.

Each file is written atomically, so a killed process leaves the previous version. No file stores the payout's
progress, which is derived from the files, the journal and the run's process.
"""

import filecmp
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Self

from paygw_batch.approval.plan_document import PlanDocument, read_plan
from paygw_batch.approval.signed_document import write_document
from paygw_batch.core.batch import ControlTotals
from paygw_batch.core.choices import Choices
from paygw_batch.errors import QuestionKind, UsageError
from paygw_batch.files import write_atomically
from paygw_batch.journal import make_directory
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import Reading
from paygw_batch.sheet.check.corrections import Corrections, read_corrections, write_corrections
from paygw_batch.sheet.read.guesses import HeadingSuggestion

_ID_BYTES = 8
_MAX_NAME_LENGTH = 100
_CHECK_RESULT_FILE = "checked.json"
FINDINGS_FILE = "found.parquet"
"""The file with all defects and warnings: `row, column, value, code, message, correction, is_defect`."""
HEADINGS_QUESTION = "headings"
"""Asks which column each heading stands for. All other questions are in `errors.QuestionKind`."""
ROWS_FILE = "rows.parquet"
"""The file with the sender's corrected table: `row`, then the table's own columns."""


@dataclass(frozen=True, slots=True)
class UploadedSheet:
    """An uploaded sheet: who uploaded it and when, and how to read it.

    `like` is the name of the earlier payout whose answers were reused, or empty. `answered` holds the keys of the
    questions that the maker answered. `sent_back` says who sent the plan back and why, or is empty. `stated_rows` and
    `stated_sums` are the control totals that the maker entered, and `title` is the name that the maker gave the payout.
    `look_again` lists rows that were left out of an earlier file and have changed in this one.
    """

    name: str
    by: str
    at: str
    worksheet: str | None = None
    reference: str | None = None
    encoding: str | None = None
    numbers: str | None = None
    names: str | None = None
    like: str = ""
    answered: Sequence[str] = ()
    sent_back: str = ""
    stated_rows: int | None = None
    stated_sums: Mapping[str, str] = field(default_factory=dict)
    look_again: Sequence[int] = ()
    title: str = ""
    is_one_of_several: bool = False

    @property
    def display_name(self) -> str:
        """The payout's title or file name, followed by the worksheet if a person chose one."""
        name = self.title or self.name
        return f"{name} [{self.worksheet}]" if self.worksheet else name

    @property
    def reading(self) -> Reading:
        """How to read the sheet, without its corrections."""
        return Reading(**{name: getattr(self, name) for name in QuestionKind})

    @property
    def choices(self) -> Choices:
        sums = {name: Decimal(amount) for name, amount in self.stated_sums.items()}
        expected = ControlTotals(self.stated_rows, sums)
        return Choices(skip_invalid=True, answered=self.answered, expected=expected, decided_by=self.by)


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of defect or warning, with its explanation and the number of rows affected."""

    code: str
    label: str
    sentence: str
    suggestion: str
    rows: int
    is_defect: bool


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question to the maker about a sheet. `people` holds a sentence about each person concerned."""

    key: str
    message: str
    people: Sequence[str]
    question: str
    is_answered: bool


@dataclass(frozen=True, slots=True)
class CheckedSheet:
    """The result of checking a readable sheet with its corrections."""

    batch: str
    rows: int
    payable: int
    """The number of rows that can be paid. `known` of them belong to an earlier payout and are not sent again."""
    known: int
    rows_to_mend: int
    is_ready: bool
    """Whether the plan can be signed as soon as it `is_drafted`. Only a check of the whole file drafts a plan."""
    is_drafted: bool
    questions: Sequence[AskedQuestion]
    left_out: Sequence[int]
    mended: Sequence[tuple[int, str]]
    kinds: Sequence[FindingKind]
    wrong_totals: Sequence[str]
    """A sentence about each control total that does not match the sheet."""
    totals: Sequence[tuple[str, int, str]]
    """The number of rows to be sent and their sum, as (currency, rows, sum)."""
    of_sheet: Sequence[str]
    notes: Sequence[str]
    columns: Sequence[str]
    headings: Mapping[str, str]
    """The sender's own heading for each column."""
    guesses: Sequence[HeadingSuggestion]
    known_columns: Sequence[str]
    worksheet: str = ""
    other_worksheets: Sequence[tuple[str, int | None]] = ()
    """The worksheets of the workbook, as in `Sheet`."""
    batches: int = -1
    """The number of batches in the journal at the time of the check, or -1 if an earlier version checked the sheet."""


@dataclass(frozen=True, slots=True)
class UnreadableSheet:
    """The result of checking a sheet that cannot be read. `message` says why.

    If only an answer is missing, `asks` is its field in `UploadedSheet` (see `errors.QuestionKind`) or
    `HEADINGS_QUESTION`. Then `question` is the question, and `choices` are the possible answers or a suggestion.
    `samples` are texts from the sheet, read according to the first choice. For `HEADINGS_QUESTION`, `message` lists the
    columns without a heading.
    """

    message: str
    hint: str
    guesses: Sequence[HeadingSuggestion]
    known_columns: Sequence[str]
    asks: str = ""
    question: str = ""
    choices: Sequence[str] = ()
    samples: Sequence[str] = ()


class NamedFolder:
    """A private folder for one document or sheet. Its name is a random hexadecimal `number`."""

    MARKER_FILE: ClassVar[str]
    """The file that is written last. A folder without this file is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def find(cls, directory: Path, name: str) -> Self | None:
        """Return the folder called `name` in `directory`, or None if it does not exist."""
        path = directory / name
        return cls(path) if is_folder_name(name) and (path / cls.MARKER_FILE).exists() else None

    @classmethod
    def list_newest_first(cls, directory: Path, sort_key: Callable[[Self], Any]) -> Sequence[Self]:
        """Return the folders in a directory, sorted by descending `sort_key`. Omits folders whose key is None."""
        keyed_folders = list[tuple[Any, Self]]()
        with suppress(FileNotFoundError):
            for path in [path for path in directory.iterdir() if (path / cls.MARKER_FILE).exists()]:
                with suppress(FileNotFoundError):  # Another request may have removed or moved the folder.
                    keyed_folders.append((sort_key(folder := cls(path)), folder))
        keyed_folders = [entry for entry in keyed_folders if entry[0] is not None]
        return [folder for _, folder in sorted(keyed_folders, key=itemgetter(0), reverse=True)]

    @property
    def number(self) -> str:
        return self.path.name

    def write_json(self, name: str, value: Any) -> None:
        """Write a dataclass as JSON to the file `name`."""
        write_atomically(self.path / name, json.dumps(asdict(value), ensure_ascii=False).encode())

    def remove(self) -> None:
        """Remove the folder and its files. Does nothing if it has already been removed."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)


class PayoutFolder(NamedFolder):
    """The folder of a payout in preparation. Create one object per request, because it caches `upload.json`."""

    MARKER_FILE = "upload.json"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._upload = b""

    @property
    def uploaded(self) -> UploadedSheet:
        return UploadedSheet(**json.loads(self._upload_bytes()))

    def _upload_bytes(self) -> bytes:
        self._upload = self._upload or (self.path / "upload.json").read_bytes()
        return self._upload

    @property
    def sheet(self) -> Path:
        """The path of the sheet, which has the sender's file name."""
        return self.path / "sheet" / self.uploaded.name

    @property
    def corrections_file(self) -> Path:
        return self.path / "mending.json"

    @property
    def version(self) -> str:
        """A digest of the upload, its reading options and its corrections. Forms send it back."""
        corrections = self.corrections_file.read_bytes() if self.corrections_file.exists() else b""
        digests = (hashlib.sha256(part).digest() for part in (self._upload_bytes(), corrections))
        return hashlib.sha256(b"".join(digests)).hexdigest()[:32]

    @property
    def was_read(self) -> bool:
        """Whether the current file has been read successfully."""
        return (self.path / ROWS_FILE).exists()

    @property
    def cache(self) -> Path:
        return self.path / "read"

    def reading_key(self, corrections: Corrections) -> str:
        """Return a cache key made from the sheet and how it is read. Identical keys mean identical cells."""
        uploaded = self.uploaded
        return json.dumps(
            [corrections.sheet_sha256, uploaded.name, uploaded.worksheet, uploaded.encoding, dict(corrections.columns)]
        )

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    def write_upload(self, uploaded: UploadedSheet) -> None:
        self._upload = json.dumps(asdict(uploaded), ensure_ascii=False).encode()
        write_atomically(self.path / "upload.json", self._upload)

    @property
    def corrections(self) -> Corrections | None:
        """The corrections, or None if the sheet was never read."""
        return read_corrections(self.corrections_file) if self.corrections_file.exists() else None

    def replace_corrections(self, corrections: Corrections) -> None:
        """Replace the corrections. Removes the check result and the plan, which no longer apply."""
        self.remove_plan()
        self.remove_check_result()
        write_corrections(corrections, self.corrections_file)

    def has_sheet(self, name: str, source: Path) -> bool:
        """Return whether the sheet is called `name` and has the same content as the file `source`."""
        return self.uploaded.name == plain_file_name(name) and filecmp.cmp(self.sheet, source, shallow=False)

    def replace_sheet(self, name: str, source: Path) -> None:
        """Replace the sheet with the file `source` and remove all corrections.

        Records the rows left out of the previous file, so that the maker checks them again. If this process is killed,
        the folder holds one of the two files, without corrections.
        """
        old_sheet, name, corrections = self.sheet, plain_file_name(name), self.corrections
        left_out = [] if corrections is None else sorted(row.row for row in corrections.left_out)
        self.remove_plan()
        self.remove_check_result()
        self.write_upload(replace(self.uploaded, look_again=left_out))
        for path in (self.path / ROWS_FILE, self.path / FINDINGS_FILE, self.corrections_file):
            path.unlink(missing_ok=True)
        move_upload(source, old_sheet.with_name(name))
        self.write_upload(replace(self.uploaded, name=name))
        if old_sheet.name != name:
            old_sheet.unlink()

    def remove_plan(self, sent_back: str = "") -> None:
        """Remove the plan, its approvals and the draft. `sent_back` says who sent the plan back and why."""
        self.plan_file.unlink(missing_ok=True)
        (self.path / "draft.json").unlink(missing_ok=True)
        self.write_upload(replace(self.uploaded, sent_back=sent_back))

    def remove_check_result(self) -> None:
        """Remove the check result, so that the next request rechecks the sheet."""
        (self.path / _CHECK_RESULT_FILE).unlink(missing_ok=True)

    @property
    def check_result(self) -> CheckedSheet | UnreadableSheet | None:
        """The check result of the current sheet, or None if it has not been checked yet."""
        try:
            content = json.loads((self.path / _CHECK_RESULT_FILE).read_bytes())
        except FileNotFoundError:
            return None
        guesses = [HeadingSuggestion(**guess) for guess in content.pop("guesses")]
        if "message" in content:
            return UnreadableSheet(guesses=guesses, **content)
        kinds, questions = content.pop("kinds"), content.pop("questions")
        return CheckedSheet(
            guesses=guesses,
            kinds=[FindingKind(**kind) for kind in kinds],
            questions=[AskedQuestion(**question) for question in questions],
            **content,
        )

    @property
    def headings(self) -> set[str]:
        """The sender's own headings. Empty if the sheet was not read."""
        return set(result.headings.values()) if isinstance(result := self.check_result, CheckedSheet) else set()

    @property
    def batch_and_upload(self) -> tuple[str, UploadedSheet | None]:
        """The batch id (empty if the sheet was not read) and the upload. Cached until a file changes."""
        try:
            stats = [(self.path / name).stat() for name in (_CHECK_RESULT_FILE, self.MARKER_FILE)]
            return _read_batch_and_upload(self.path, *((stat.st_ino, stat.st_mtime_ns) for stat in stats))
        except FileNotFoundError:  # The sheet has not been checked yet, or was removed.
            return "", None

    def write_check_result(self, result: CheckedSheet | UnreadableSheet) -> None:
        """Write the check result. The files that it refers to must be written first."""
        self.write_json(_CHECK_RESULT_FILE, result)

    @property
    def draft(self) -> PlanDocument | None:
        """The unsigned plan, or None if the sheet cannot be paid yet."""
        return _load_plan(self.path / "draft.json")

    def write_draft(self, document: PlanDocument) -> None:
        write_document(document, self.path / "draft.json")

    @property
    def plan(self) -> PlanDocument | None:
        """The signed plan with its approvals, or None."""
        return _load_plan(self.plan_file)

    @property
    def plan_digest(self) -> str:
        """The digest of the signed plan, or empty if there is none. Cached until the file changes."""
        try:
            stat = self.plan_file.stat()
        except FileNotFoundError:
            return ""
        return _plan_digest(self.plan_file, (stat.st_ino, stat.st_mtime_ns))


@lru_cache(maxsize=10_000)
def _plan_digest(path: Path, _version: tuple[int, int]) -> str:
    return read_plan(path).digest()


def _load_plan(path: Path) -> PlanDocument | None:
    return read_plan(path) if path.exists() else None


def create_payout_folder(directory: Path, uploaded: UploadedSheet, source: Path, folder_name: str) -> PayoutFolder:
    """Create the folder `folder_name` for an uploaded sheet and move the file `source` into it."""
    name = plain_file_name(uploaded.name)
    path = create_folder(directory, folder_name)
    (path / "sheet").mkdir(mode=0o700)
    move_upload(source, path / "sheet" / name)
    folder = PayoutFolder(path)
    folder.write_upload(replace(uploaded, name=name))
    return folder


def random_folder_name() -> str:
    return secrets.token_hex(_ID_BYTES)


def create_folder(directory: Path, name: str | None = None) -> Path:
    """Create an empty folder, with a random name if `name` is None."""
    make_directory(directory)
    path = directory / (name or random_folder_name())
    path.mkdir(mode=0o700)
    return path


def is_folder_name(name: str) -> bool:
    """Return whether `name` is a valid folder name. A valid name cannot lead to another directory."""
    return len(name) == 2 * _ID_BYTES and set(name) <= set("0123456789abcdef")


def move_upload(source: Path, target: Path) -> None:
    os.replace(source, target)  # noqa: PTH105 (`os.replace` overwrites on every platform)
    target.chmod(0o600)


def plain_file_name(name: str) -> str:
    """Return the last component of a path. Raises `UsageError` if it cannot be used as a sheet's name.

    Browsers send any name that the sender's system allows, even one with a path or with invisible characters.
    """
    last_part = name.replace("\\", "/").rpartition("/")[2].strip()
    is_plain = last_part.isprintable() and not last_part.startswith(".") and 0 < len(last_part) <= _MAX_NAME_LENGTH
    if not is_plain or len(last_part.encode()) > 2 * _MAX_NAME_LENGTH:
        raise UsageError(
            say(
                "A file name must have at most {most} ordinary characters and must not begin with a dot.",
                most=_MAX_NAME_LENGTH,
            ),
            hint=say("Rename the file."),
        )
    return last_part


def payout_folders(directory: Path) -> Sequence[PayoutFolder]:
    """Return the folders of all payouts prepared in the console, newest first, including started ones."""
    return PayoutFolder.list_newest_first(directory, lambda folder: folder.path.stat().st_mtime_ns)


def uploads_by_batch(directory: Path) -> Mapping[str, UploadedSheet]:
    """Return the uploads of all payouts prepared in the console, by batch id."""
    uploads = dict(folder.batch_and_upload for folder in payout_folders(directory))
    return {batch: uploaded for batch, uploaded in uploads.items() if uploaded is not None and batch}


@lru_cache(maxsize=10_000)
def _read_batch_and_upload(path: Path, *_versions: tuple[int, int]) -> tuple[str, UploadedSheet]:
    folder = PayoutFolder(path)
    result = folder.check_result
    return result.batch if isinstance(result, CheckedSheet) else "", folder.uploaded
