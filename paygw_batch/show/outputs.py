"""Checks where a command may write. An output may only replace an earlier output of the same kind."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType

from paygw_batch.core import generator_marks
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.files import Output, ProtectedFile, check_outputs, read_head
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import Section
from paygw_batch.settings.user_directories import state_directory
from paygw_batch.sheet.columns import QUESTION_COLUMNS, RECONCILIATION_COLUMNS, REJECTS_COLUMNS
from paygw_batch.sheet.formats import contains_texts, table_format

_HEAD_BYTES = 64 * 1024


class OutputKind(StrEnum):
    """The kind of file that a command writes. Without --force, a file replaces only files of the same kind."""

    RECONCILIATION = "reconciliation"
    REJECTS = "rejects"
    QUESTIONS = "question list"
    REPORT = "report"
    PLAN_PAGE = "page of a plan"
    PLAN = "plan"
    ORDER = "order"
    MAP = "list of headings"
    REMITTANCE = "remittance advice"
    LOG = "log"
    METRICS = "metrics"
    CONFIGURATION = "configuration"
    """A configuration file. It overwrites an existing file, even one written by this program, only with --force."""
    NEW = "new file"
    """A file of any kind that never overwrites an existing one, even with --force."""


NO_INPUTS: Mapping[str, Path | None] = MappingProxyType({})
_OPTIONAL_KINDS = frozenset({OutputKind.LOG, OutputKind.METRICS})
"""Outputs that may fail without stopping the run (docs/decisions/0044)."""
_FIRST_COLUMNS: Mapping[OutputKind, Sequence[str]] = MappingProxyType(
    {
        OutputKind.RECONCILIATION: RECONCILIATION_COLUMNS,
        OutputKind.REJECTS: REJECTS_COLUMNS,
        OutputKind.QUESTIONS: QUESTION_COLUMNS,
    }
)
"""The first columns of each kind of table, in this and earlier versions of the program."""


def _page_pattern(kind: PageKind) -> re.Pattern[bytes]:
    return re.compile(f"<!doctype html>.*{re.escape(kind.generator)}".encode(), re.DOTALL)


_FIRST_BYTES: Mapping[OutputKind, re.Pattern[bytes]] = MappingProxyType(
    {
        # Plans in the first format began with their content instead of a "document" member.
        OutputKind.PLAN: re.compile(
            rb'\{\s*(?:"document": "paygw-batch plan |"content": \{.*"instructions_sha256")', re.DOTALL
        ),
        OutputKind.ORDER: re.compile(rb'\{\s*"document": "paygw-batch (?:forget )?order '),
        OutputKind.LOG: re.compile(rb'\{"at": "[^"]*", "run": "[0-9a-f]+", "command": '),
        OutputKind.METRICS: re.compile(rb"# HELP paygw_"),
        OutputKind.MAP: re.compile(re.escape(generator_marks.HEADINGS).encode()),
        OutputKind.REPORT: _page_pattern(PageKind.REPORT),
        OutputKind.PLAN_PAGE: _page_pattern(PageKind.PLAN),
        OutputKind.REMITTANCE: _page_pattern(PageKind.REMITTANCE),
    }
)
"""Patterns for the beginning of each other kind of file, in every language."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A file that a command may have to write.

    `label` is its option, such as `--out`, and `path` is None if the option was not given. `sheet_or_batch` is the
    sheet or the batch id of the run that writes the file.
    """

    label: str
    path: Path | None
    kind: OutputKind
    sheet_or_batch: Path | str | None = None


@dataclass(frozen=True, slots=True)
class OutputGuard:
    """Prevents a command from overwriting unrelated files. `config` is the configuration file."""

    settings: Settings
    config: Path | None
    force: bool = False

    def check(
        self, *outputs_to_check: RequestedOutput, inputs: Mapping[str, Path | None] = NO_INPUTS, reporting: bool = False
    ) -> None:
        """Raise `OutputError` unless every output may be written. Call this before reading or sending anything.

        `inputs` maps descriptions, such as `the sheet`, to the files that the command reads. With `reporting`, also
        checks the configured log and metrics file.
        """
        section = self.settings.reporting
        requested = [*outputs_to_check]
        if reporting:
            requested.append(RequestedOutput("reporting.log", section.log, OutputKind.LOG))
            requested.append(RequestedOutput("reporting.metrics", section.metrics, OutputKind.METRICS))
        outputs = []
        for output in requested:
            if output.path is not None:
                if output.kind in _FIRST_COLUMNS:
                    table_format(output.path, must_be_readable=output.kind is not OutputKind.RECONCILIATION)
                is_needed = output.kind not in _OPTIONAL_KINDS
                outputs.append(Output(output.label, output.path, _build_recogniser(output.kind), is_needed))
        input_files = [ProtectedFile(description, path) for description, path in inputs.items() if path is not None]
        console_results = [path for output in outputs_to_check for path in self._console_results(output.sheet_or_batch)]
        check_outputs(outputs, [*input_files, *self._protected_files(console_results)], force=self.force)

    def is_own_file(self, path: Path) -> bool:
        """Return whether a file belongs to the program, such as its configuration, a key, the journal or a log."""
        return any(protected.is_overwritten_by(path) for protected in self._own_files())

    def describe_own_file(self, folder: Path) -> str | None:
        """Describe the program file or home directory in `folder`, or return None if there is none."""
        real_folder = Path(os.path.realpath(folder))
        for protected in self._own_files():
            path = Path(os.path.realpath(protected.path))
            if path.is_relative_to(real_folder) or (protected.is_directory and real_folder.is_relative_to(path)):
                return f"{protected.what} ({path})"
        home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 (Path.home raises if there is none)
        return say("this user's home directory") if home.is_relative_to(real_folder) else None

    def _own_files(self) -> Iterator[ProtectedFile]:
        section = self.settings.reporting
        yield from self._protected_files()
        for name, path in (("reporting.log", section.log), ("reporting.metrics", section.metrics)):
            if path is not None:
                yield ProtectedFile(name, path)

    def _console_results(self, source: Path | str | None) -> Iterator[Path]:
        """Yield the path of the reconciliation that a console run writes for a sheet or batch."""
        if isinstance(source, str):
            yield self.settings.console_runs_directory() / f"{source}.reconciliation.csv"
        elif source is not None and (folder := source.parent.parent).parent == self.settings.console_directory():
            yield folder / f"{source.stem}.reconciliation.csv"

    def _protected_files(self, exceptions: Sequence[Path] = ()) -> Iterator[ProtectedFile]:
        settings = self.settings
        journal = settings.journal_path()
        yield ProtectedFile(say("the journal or one of its files"), journal, has_neighbours=True)
        known_journals = settings.known_journals_directory()
        yield ProtectedFile(say("this computer's record of the payments it sent"), known_journals, is_directory=True)
        description = say("a file in the program's own directory")
        yield ProtectedFile(description, state_directory(), is_directory=True, exceptions=exceptions)
        yield ProtectedFile(say("the sandbox's key"), journal.with_name("sandbox-merchant.pem"))
        yield ProtectedFile(say("a sandbox key"), journal.with_name("sandbox-gateway"), has_neighbours=True)
        yield ProtectedFile(say("a sandbox record"), journal.with_name("sandbox-record"), has_neighbours=True)
        yield ProtectedFile(say("a sandbox record"), journal.with_name("sandbox-callbacks.csv"))
        if self.config is not None:
            yield ProtectedFile(say("the configuration file"), self.config)
        for name in Settings.model_fields:
            section = getattr(settings, name)
            if isinstance(section, Section) and name not in {"reporting", "journal"}:
                for key, value in section:
                    if isinstance(value, Path):
                        yield ProtectedFile(say("the file set in {name}.{key}", name=name, key=key), value)


def _build_recogniser(kind: OutputKind) -> Callable[[Path], bool] | None:
    if kind is OutputKind.CONFIGURATION:  # People edit this file, so its content does not show which program wrote it.
        return lambda _path: False
    return None if kind is OutputKind.NEW else partial(_is_own_output, kind)


def _is_own_output(kind: OutputKind, path: Path) -> bool:
    if kind in _FIRST_BYTES:
        return _FIRST_BYTES[kind].match(read_head(path, _HEAD_BYTES)) is not None
    is_marked_copy = kind is OutputKind.REJECTS and contains_texts(path, [f">{generator_marks.PROBLEMS}<"])
    return is_marked_copy or table_format(path).recognise(path, _FIRST_COLUMNS[kind])
