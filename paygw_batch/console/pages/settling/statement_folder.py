"""Keeps one of the gateway's statements in a folder: the file as received, and its lines as another process read it."""

import filecmp
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paygw_batch.actions.payout_folder import NamedFolder, move_in, new_named_folder
from paygw_batch.actions.settle_rows import AskedStatement, as_of_time, read_for_later, statement_read
from paygw_batch.console.sheet_process import limit_this_process, run_within_limits
from paygw_batch.errors import PaygwError, SheetError
from paygw_batch.files import write_whole
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.statements import signature_place

_PROGRAM = "from paygw_batch.console.pages.settling.statement_folder import main; main()"


@dataclass(frozen=True, slots=True)
class UploadedStatement:
    """A statement as it was uploaded for a batch: by whom, when, and how that person knows it is the gateway's.

    `as_of` is its time, for lines without one; empty if nobody stated it.
    """

    batch: str
    name: str
    by: str
    at: str
    words: str
    as_of: str


@dataclass(frozen=True, slots=True)
class UsedStatement:
    """The order drafted from a statement, and the code of the page that showed it."""

    by: str
    code: str
    order: str


class StatementFolder(NamedFolder):
    """The folder of one statement."""

    FIRST = "uploaded.json"

    @property
    def uploaded(self) -> UploadedStatement:
        """The statement as it was uploaded."""
        return UploadedStatement(**json.loads((self.path / "uploaded.json").read_bytes()))

    @property
    def file(self) -> Path:
        """The file as it was received, under the name that its sender gave it."""
        return self.path / "file" / self.uploaded.name

    def has_file(self, uploaded: UploadedStatement, content: Path) -> bool:
        """Whether the same person has already uploaded the file `content` here, with the same words."""
        return replace(uploaded, at=self.uploaded.at) == self.uploaded and filecmp.cmp(
            self.file, content, shallow=False
        )

    @property
    def used(self) -> UsedStatement | None:
        """The click that turned the statement into an order; None if there was none."""
        path = self.path / "used.json"
        return UsedStatement(**json.loads(path.read_bytes())) if path.exists() else None

    def note_used(self, used: UsedStatement) -> None:
        """Record the click that turned the statement into an order, so that a second one leads there."""
        write_whole(self.path / "used.json", json.dumps(asdict(used), ensure_ascii=False).encode())

    def keep_signature(self, signature: bytes) -> None:
        """Keep the file's signature beside it."""
        write_whole(signature_place(self.file), signature)

    @property
    def lines_file(self) -> Path:
        """The file with the statement's lines; missing if it cannot be read."""
        return self.path / "lines.json"

    @property
    def error_file(self) -> Path:
        """The file that says why the statement cannot be read; missing if it can."""
        return self.path / "error.txt"

    def asked(self, by: str) -> AskedStatement:
        """Return the statement to carry out for `by`: its matching lines, even if others do not match."""
        uploaded = self.uploaded
        statement = statement_read(self.lines_file.read_text(encoding="utf-8"))
        as_of = as_of_time(uploaded.as_of, say("The time")) if uploaded.as_of else None
        return AskedStatement(statement, by, uploaded.words or None, as_of, matching_only=True)


def new_statement_folder(
    directory: Path, content: Path, uploaded: UploadedStatement, number: str | None = None
) -> StatementFolder:
    """Create the folder `number` for an uploaded statement, and move the file `content` into it."""
    path = new_named_folder(directory, number)
    (path / "file").mkdir(mode=0o700)
    move_in(content, path / "file" / uploaded.name)
    write_whole(path / "uploaded.json", json.dumps(asdict(uploaded), ensure_ascii=False).encode())
    return StatementFolder(path)


def statement_folders(directory: Path, batch: str) -> Iterator[StatementFolder]:
    """Yield the statements uploaded for a batch, newest first."""
    found: list[tuple[UploadedStatement, StatementFolder]] = []
    for folder in StatementFolder.all_in(directory):
        with suppress(FileNotFoundError):  # another click may have removed it meanwhile
            found.append((folder.uploaded, folder))
    found.sort(key=lambda one: one[0].at, reverse=True)
    yield from (folder for uploaded, folder in found if uploaded.batch == batch)


def read_in_process(folder: StatementFolder, settings: Settings, *, config: Path, environ: Mapping[str, str]) -> None:
    """Read a statement in another process. Raises `SheetError` if it cannot be read."""
    if not run_within_limits(_PROGRAM, [str(folder.path)], settings, config=config, environ=environ):
        raise SheetError(
            say("The statement is too large: reading it needs more memory or time than is allowed."),
            hint=say("Split it, and upload the parts."),
        )
    if folder.error_file.exists():
        raise SheetError(
            folder.error_file.read_text(encoding="utf-8"),
            hint=say("Nothing was settled. Correct the file, and upload it again."),
        )


def main() -> None:
    """Read one statement; the arguments are configuration, journal and folder."""
    settings = limit_this_process()
    read_statement_of(StatementFolder(Path(sys.argv[3])), settings)


def read_statement_of(folder: StatementFolder, settings: Settings) -> None:
    """Write a statement's lines beside it, or why it cannot be read."""
    try:
        write_whole(folder.lines_file, read_for_later(settings, folder.file).encode())
    except PaygwError as error:
        write_whole(folder.error_file, error.message.encode())
