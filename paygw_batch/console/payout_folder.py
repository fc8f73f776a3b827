"""Keeps one payout in preparation in a folder: the sheet as received, its corrections, the check's results, its plan.

Each file is written whole or not at all, so a killed process leaves the previous file. No file stores how far the
payout has come: that follows from the files, the journal, and the process of the run.
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
from paygw_batch.errors import Asked, UsageError
from paygw_batch.files import write_whole
from paygw_batch.journal import make_directory
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import Reading
from paygw_batch.sheet.check.mending import Mending, read_mending, write_mending
from paygw_batch.sheet.read.guesses import GuessedHeading

_ID_BYTES = 8
_MAX_NAME = 100
_CHECKED = "checked.json"
FOUND = "found.parquet"
"""The file of all defects and warnings: `row, column, value, code, message, correction, is_defect`."""
HEADINGS = "headings"
"""The name of the question about the meaning of the headings. All other questions are in `errors.Asked`."""
ROWS = "rows.parquet"
"""The file of the sender's own table with all corrections: `row`, then the table's columns."""


@dataclass(frozen=True, slots=True)
class UploadedSheet:
    """A sheet as it was uploaded: by whom, when, and how to read it.

    `like` is the name of the earlier payout whose answers were taken over, or empty. `answered` has the keys of the
    questions that the maker answered. `sent_back` says who sent the plan back and why, or is empty. `stated_rows` and
    `stated_sums` are the control totals that the maker typed, and `title` is the maker's name for the payout.
    `look_again` has the numbers of rows that were left out of an earlier file, and have other content in this file.
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

    @property
    def called(self) -> str:
        """The name of the payout: the title that its maker gave it, or the name of the file."""
        return self.title or self.name

    @property
    def reading(self) -> Reading:
        """How to read the sheet, without its corrections."""
        return Reading(**{name: getattr(self, name) for name in Asked})

    @property
    def choices(self) -> Choices:
        """The maker's decisions about the sheet."""
        sums = {name: Decimal(amount) for name, amount in self.stated_sums.items()}
        expected = ControlTotals(self.stated_rows, sums)
        return Choices(skip_invalid=True, answered=self.answered, expected=expected, decided_by=self.by)


@dataclass(frozen=True, slots=True)
class FoundKind:
    """A kind of defect or warning in a sheet, its explanation, and the number of rows that have it."""

    code: str
    label: str
    sentence: str
    suggestion: str
    rows: int
    is_defect: bool


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question about a sheet that its maker must answer (`OpenQuestion`). `people` has a sentence for each person."""

    key: str
    message: str
    people: Sequence[str]
    question: str
    is_answered: bool


@dataclass(frozen=True, slots=True)
class CheckedSheet:
    """The result of checking a readable sheet, with all corrections."""

    batch: str
    rows: int
    payable: int
    """The number of rows that can be paid. `known` of them are in an earlier payout, and are not sent again."""
    known: int
    rows_to_mend: int
    is_ready: bool
    """Whether its plan can be signed, once the plan `is_drafted`. Only a check of the whole file drafts a plan."""
    is_drafted: bool
    questions: Sequence[AskedQuestion]
    left_out: Sequence[int]
    mended: Sequence[tuple[int, str]]
    """The row and the column of each corrected cell."""
    kinds: Sequence[FoundKind]
    wrong_totals: Sequence[str]
    """A sentence for each control total that the sheet does not match."""
    totals: Sequence[tuple[str, int, str]]
    """The number and the sum of the rows that would be sent, as (currency, rows, sum)."""
    of_sheet: Sequence[str]
    """The warnings about the whole sheet."""
    notes: Sequence[str]
    columns: Sequence[str]
    headings: Mapping[str, str]
    """The sender's own heading for each column."""
    guesses: Sequence[GuessedHeading]
    known_columns: Sequence[str]
    """The columns that a heading can be assigned to."""


@dataclass(frozen=True, slots=True)
class UnreadableSheet:
    """The result of checking a sheet that cannot be read. `message` says why.

    If only an answer is missing, `asks` is its name in `UploadedSheet` (of `errors.Asked`), or `HEADINGS`. Then
    `question` asks for the answer, and `choices` are the possible answers or a suggestion. `samples` are texts of the
    sheet, read according to the first choice. For `HEADINGS`, `message` lists the columns without a heading.
    """

    message: str
    hint: str
    guesses: Sequence[GuessedHeading]
    known_columns: Sequence[str]
    asks: str = ""
    question: str = ""
    choices: Sequence[str] = ()
    samples: Sequence[str] = ()


class NamedFolder:
    """A private folder in which the pages keep one piece of work. `number` is its random name, in hex."""

    FIRST: ClassVar[str]
    """The name of the file that is written last. A folder without this file is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def named(cls, directory: Path, number: str) -> Self | None:
        """Return the folder with this name; None if there is none."""
        path = directory / number
        return cls(path) if is_folder_name(number) and (path / cls.FIRST).exists() else None

    @classmethod
    def newest_first(cls, directory: Path, moment: Callable[[Self], Any]) -> Sequence[Self]:
        """Return the folders in a directory, sorted by `moment`. A folder is left out if its `moment` is None."""
        dated = list[tuple[Any, Self]]()
        with suppress(FileNotFoundError):
            for path in [path for path in directory.iterdir() if (path / cls.FIRST).exists()]:
                with suppress(FileNotFoundError):  # another visit may have removed or moved the folder
                    dated.append((moment(folder := cls(path)), folder))
        dated = [entry for entry in dated if entry[0] is not None]
        return [folder for _, folder in sorted(dated, key=itemgetter(0), reverse=True)]

    @property
    def number(self) -> str:
        return self.path.name

    def write_json(self, name: str, value: Any) -> None:
        """Write a dataclass as the file `name`."""
        write_whole(self.path / name, json.dumps(asdict(value), ensure_ascii=False).encode())

    def remove(self) -> None:
        """Remove the folder with all its files, even if another visit is removing it too."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)


class PayoutFolder(NamedFolder):
    """The folder of one payout in preparation. An object belongs to one visit: it reads `upload.json` only once."""

    FIRST = "upload.json"

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
        """The path of the sheet, under the name that its sender gave it."""
        return self.path / "sheet" / self.uploaded.name

    @property
    def mending_file(self) -> Path:
        return self.path / "mending.json"

    @property
    def version(self) -> str:
        """A digest of the upload, its reading and its corrections. A form has the version that its page showed."""
        mending = self.mending_file.read_bytes() if self.mending_file.exists() else b""
        digests = (hashlib.sha256(part).digest() for part in (self._upload_bytes(), mending))
        return hashlib.sha256(b"".join(digests)).hexdigest()[:32]

    @property
    def was_read(self) -> bool:
        """Whether the present file has been read successfully before."""
        return (self.path / ROWS).exists()

    @property
    def kept(self) -> Path:
        """The path of the folder that keeps the sheet as it was read."""
        return self.path / "read"

    def reading(self, mending: Mending) -> str:
        """Return a text that differs if the cells may differ: it names the bytes of the sheet and how they are read."""
        uploaded = self.uploaded
        return json.dumps(
            [mending.sheet_sha256, uploaded.name, uploaded.worksheet, uploaded.encoding, dict(mending.columns)]
        )

    @property
    def plan_file(self) -> Path:
        """The path of the plan that the maker signed."""
        return self.path / "plan.json"

    def note(self, uploaded: UploadedSheet) -> None:
        """Record how to read the sheet, and the maker's statements about it."""
        self._upload = json.dumps(asdict(uploaded), ensure_ascii=False).encode()
        write_whole(self.path / "upload.json", self._upload)

    @property
    def mending(self) -> Mending | None:
        """The corrections; None if the sheet was never read."""
        return read_mending(self.mending_file) if self.mending_file.exists() else None

    def mend(self, mending: Mending) -> None:
        """Replace the corrections. The check's result and the plan, which are about old cells, are removed first."""
        self.forget_plan()
        self.forget_check()
        write_mending(mending, self.mending_file)

    def has_sheet(self, name: str, content: Path) -> bool:
        """Return whether the sheet has this name and the content of the file `content`."""
        return self.uploaded.name == plain_file_name(name) and filecmp.cmp(self.sheet, content, shallow=False)

    def replace_sheet(self, name: str, content: Path) -> None:
        """Replace the sheet with the file `content`, and remove all corrections.

        The rows left out of the previous file are noted, for the maker to look at them again. If this process is
        killed meanwhile, the folder has one of the two files, without corrections.
        """
        before, name, mending = self.sheet, plain_file_name(name), self.mending
        left_out = [] if mending is None else sorted(row.row for row in mending.left_out)
        self.forget_plan()
        self.forget_check()
        self.note(replace(self.uploaded, look_again=left_out))
        for result in (self.path / ROWS, self.path / FOUND, self.mending_file):
            result.unlink(missing_ok=True)
        move_in(content, before.with_name(name))
        self.note(replace(self.uploaded, name=name))
        if before.name != name:
            before.unlink()

    def forget_plan(self, sent_back: str = "") -> None:
        """Remove the plan and its approvals. `sent_back` says who sent the plan back and why, or is empty."""
        self.plan_file.unlink(missing_ok=True)
        (self.path / "draft.json").unlink(missing_ok=True)
        self.note(replace(self.uploaded, sent_back=sent_back))

    def forget_check(self) -> None:
        """Remove the result of the check, so that the next visit checks the sheet again."""
        (self.path / _CHECKED).unlink(missing_ok=True)

    @property
    def checked(self) -> CheckedSheet | UnreadableSheet | None:
        """The result of the check of the present sheet; None until it is checked."""
        try:
            content = json.loads((self.path / _CHECKED).read_bytes())
        except FileNotFoundError:
            return None
        guesses = [GuessedHeading(**guess) for guess in content.pop("guesses")]
        if "message" in content:
            return UnreadableSheet(guesses=guesses, **content)
        kinds, questions = content.pop("kinds"), content.pop("questions")
        return CheckedSheet(
            guesses=guesses,
            kinds=[FoundKind(**kind) for kind in kinds],
            questions=[AskedQuestion(**question) for question in questions],
            **content,
        )

    @property
    def headings(self) -> set[str]:
        """The sender's own headings; empty if the sheet could not be read."""
        return set(result.headings.values()) if isinstance(result := self.checked, CheckedSheet) else set()

    @property
    def named_by_batch(self) -> tuple[str, UploadedSheet | None]:
        """The batch of the checked sheet, and the sheet as uploaded. The batch is empty if the sheet was not read.

        The files are read again only if they changed, because one page names many payouts.
        """
        try:
            files = [(self.path / name).stat() for name in (_CHECKED, self.FIRST)]
            return _named_by_batch(self.path, *((file.st_ino, file.st_mtime_ns) for file in files))
        except FileNotFoundError:  # not checked yet, or removed meanwhile
            return "", None

    def write_checked(self, result: CheckedSheet | UnreadableSheet) -> None:
        """Write the result of the check. Call this after writing the files that the result refers to."""
        self.write_json(_CHECKED, result)

    @property
    def draft(self) -> PlanDocument | None:
        """The plan before its maker signs it; None if the sheet cannot be paid yet."""
        return _plan(self.path / "draft.json")

    def write_draft(self, document: PlanDocument) -> None:
        write_document(document, self.path / "draft.json")

    @property
    def plan(self) -> PlanDocument | None:
        """The plan signed by its maker, with its approvals; None if no plan is signed."""
        return _plan(self.plan_file)


def _plan(path: Path) -> PlanDocument | None:
    return read_plan(path) if path.exists() else None


def new_folder(directory: Path, uploaded: UploadedSheet, content: Path, number: str) -> PayoutFolder:
    """Create the folder `number` for an uploaded sheet, and move the file `content` into it."""
    name = plain_file_name(uploaded.name)
    path = new_named_folder(directory, number)
    (path / "sheet").mkdir(mode=0o700)
    move_in(content, path / "sheet" / name)
    folder = PayoutFolder(path)
    folder.note(replace(uploaded, name=name))
    return folder


def new_folder_name() -> str:
    """Return a random name for a folder."""
    return secrets.token_hex(_ID_BYTES)


def new_named_folder(directory: Path, number: str | None = None) -> Path:
    """Create an empty folder named `number`, or with a random name if it is None."""
    make_directory(directory)
    path = directory / (number or new_folder_name())
    path.mkdir(mode=0o700)
    return path


def is_folder_name(number: str) -> bool:
    """Return whether `number` can name such a folder. This is checked before any look-up, so no path leads outside."""
    return len(number) == 2 * _ID_BYTES and set(number) <= set("0123456789abcdef")


def move_in(content: Path, path: Path) -> None:
    """Move a received file to `path`, and make the file private."""
    os.replace(content, path)  # noqa: PTH105 (as written)
    path.chmod(0o600)


def plain_file_name(name: str) -> str:
    """Return the last part of a file name. Raises `UsageError` if a sheet cannot have this name.

    A browser sends any name that the sender's system allows. No part of it may lead out of the folder, or look like
    another name.
    """
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    is_plain = last.isprintable() and not last.startswith(".") and 0 < len(last) <= _MAX_NAME
    if not is_plain or len(last.encode()) > 2 * _MAX_NAME:
        raise UsageError(
            say("A sheet needs a plain file name of at most {most} characters.", most=_MAX_NAME),
            hint=say("Rename the file."),
        )
    return last


def all_folders(directory: Path) -> Sequence[PayoutFolder]:
    """Return the folders of all payouts prepared on these pages, the newest first, even if they were started."""
    return PayoutFolder.newest_first(directory, lambda folder: folder.path.stat().st_mtime_ns)


def uploads_by_batch(directory: Path) -> Mapping[str, UploadedSheet]:
    """Return the uploaded sheet of each payout prepared on these pages, by its batch."""
    uploads = dict(folder.named_by_batch for folder in all_folders(directory))
    return {batch: uploaded for batch, uploaded in uploads.items() if uploaded is not None and batch}


@lru_cache(maxsize=10_000)
def _named_by_batch(path: Path, *_versions: tuple[int, int]) -> tuple[str, UploadedSheet]:
    folder = PayoutFolder(path)
    checked = folder.checked
    return checked.batch if isinstance(checked, CheckedSheet) else "", folder.uploaded
