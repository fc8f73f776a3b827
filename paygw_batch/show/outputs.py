"""Checks where a command may write: a file may replace an older output of the same kind, and nothing else."""

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
from paygw_batch.files import Output, ProtectedFile, check_outputs, head_of
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import Section
from paygw_batch.settings.user_directories import state_directory
from paygw_batch.sheet.columns import QUESTION_COLUMNS, RECONCILIATION_COLUMNS, REJECTS_COLUMNS
from paygw_batch.sheet.formats import has_strings, table_format

_HEAD_BYTES = 64 * 1024


class OutputKind(StrEnum):
    """The kinds of files that a command writes. Without --force, a file is replaced only by a file of the same kind."""

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
    """A configuration file. It replaces an existing file only with --force, even a file that this program wrote."""
    NEW = "new file"
    """A file of any kind. It never replaces an existing file, even with --force."""


NOTHING_READ: Mapping[str, Path | None] = MappingProxyType({})
_NOT_NEEDED = frozenset({OutputKind.LOG, OutputKind.METRICS})
"""The outputs without which a run continues if they cannot be written: docs/decisions/0044."""
_COLUMNS: Mapping[OutputKind, Sequence[str]] = MappingProxyType(
    {
        OutputKind.RECONCILIATION: RECONCILIATION_COLUMNS,
        OutputKind.REJECTS: REJECTS_COLUMNS,
        OutputKind.QUESTIONS: QUESTION_COLUMNS,
    }
)
"""The first columns by which a table is recognised as an output of this program, of earlier versions too."""


def _page(kind: PageKind) -> re.Pattern[bytes]:
    return re.compile(f"<!doctype html>.*{re.escape(kind.generator)}".encode(), re.DOTALL)


_MARKS: Mapping[OutputKind, re.Pattern[bytes]] = MappingProxyType(
    {
        # Plans in the first format began with their content, without a "document" member.
        OutputKind.PLAN: re.compile(
            rb'\{\s*(?:"document": "paygw-batch plan |"content": \{.*"instructions_sha256")', re.DOTALL
        ),
        OutputKind.ORDER: re.compile(rb'\{\s*"document": "paygw-batch (?:forget )?order '),
        OutputKind.LOG: re.compile(rb'\{"at": "[^"]*", "run": "[0-9a-f]+", "command": '),
        OutputKind.METRICS: re.compile(rb"# HELP paygw_"),
        OutputKind.MAP: re.compile(re.escape(generator_marks.HEADINGS).encode()),
        OutputKind.REPORT: _page(PageKind.REPORT),
        OutputKind.PLAN_PAGE: _page(PageKind.PLAN),
        OutputKind.REMITTANCE: _page(PageKind.REMITTANCE),
    }
)
"""The patterns that the other files begin with, in any language."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A file that a command may have to write.

    `named` is the option that asks for it, such as `--out`, and `path` is None if the option was not given. `run_of` is
    the sheet, or the id of the batch, that a run with this output sends.
    """

    named: str
    path: Path | None
    kind: OutputKind
    run_of: Path | str | None = None


@dataclass(frozen=True, slots=True)
class OutputGuard:
    """Keeps a command from replacing files that it must not replace. `config` is the configuration file."""

    settings: Settings
    config: Path | None
    force: bool = False

    def check(
        self, *wanted: RequestedOutput, inputs: Mapping[str, Path | None] = NOTHING_READ, reporting: bool = False
    ) -> None:
        """Raise `OutputError` unless every wanted file may be written. Call this before anything is read or sent.

        `inputs` has the path of each file that the command reads, by its name in words (`the sheet`). With `reporting`,
        the log and the metrics file of the configuration are checked as well.
        """
        section = self.settings.reporting
        requested = [*wanted]
        if reporting:
            requested.append(RequestedOutput("reporting.log", section.log, OutputKind.LOG))
            requested.append(RequestedOutput("reporting.metrics", section.metrics, OutputKind.METRICS))
        outputs = []
        for output in requested:
            if output.path is not None:
                if output.kind in _COLUMNS:
                    table_format(output.path, is_read_again=output.kind is not OutputKind.RECONCILIATION)
                needed = output.kind not in _NOT_NEEDED
                outputs.append(Output(output.named, output.path, _recogniser(output.kind), needed))
        read = [ProtectedFile(words, path) for words, path in inputs.items() if path is not None]
        results = [place for output in wanted for place in self._console_results(output.run_of)]
        check_outputs(outputs, [*read, *self._kept(results)], force=self.force)

    def is_own(self, path: Path) -> bool:
        """Return whether a file is one of the program's own: its configuration, a key, the journal, a log."""
        return any(protected.is_hit_by(path) for protected in self._own())

    def own_in(self, folder: Path) -> str | None:
        """Return words for an own file or the home directory in a folder, at any depth; None if it has neither."""
        within = Path(os.path.realpath(folder))
        for protected in self._own():
            its = Path(os.path.realpath(protected.path))
            if its.is_relative_to(within) or (protected.is_directory and within.is_relative_to(its)):
                return f"{protected.what} ({its})"
        home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 (Path.home raises if there is none)
        return say("this user's home directory") if home.is_relative_to(within) else None

    def _own(self) -> Iterator[ProtectedFile]:
        section = self.settings.reporting
        yield from self._kept()
        for name, path in (("reporting.log", section.log), ("reporting.metrics", section.metrics)):
            if path is not None:
                yield ProtectedFile(name, path)

    def _console_results(self, run_of: Path | str | None) -> Iterator[Path]:
        """Yield the path of a console run's results: in the payout's folder, or named after the batch."""
        if isinstance(run_of, str):
            yield self.settings.console_runs_directory() / f"{run_of}.reconciliation.csv"
        elif run_of is not None and (folder := run_of.parent.parent).parent == self.settings.console_directory():
            yield folder / f"{run_of.stem}.reconciliation.csv"

    def _kept(self, results: Sequence[Path] = ()) -> Iterator[ProtectedFile]:
        settings = self.settings
        journal = settings.journal_path()
        yield ProtectedFile(say("the journal or one of its files"), journal, has_neighbours=True)
        journals = settings.known_journals_directory()
        yield ProtectedFile(say("this computer's record of the payments it sent"), journals, is_directory=True)
        words = say("a file of the program's own directory")
        yield ProtectedFile(words, state_directory(), is_directory=True, but_for=results)
        yield ProtectedFile(say("the sandbox's key"), journal.with_name("sandbox-merchant.pem"))
        yield ProtectedFile(say("a key of the sandbox"), journal.with_name("sandbox-gateway"), has_neighbours=True)
        yield ProtectedFile(say("a record of the sandbox"), journal.with_name("sandbox-record"), has_neighbours=True)
        yield ProtectedFile(say("a record of the sandbox"), journal.with_name("sandbox-callbacks.csv"))
        if self.config is not None:
            yield ProtectedFile(say("the configuration file"), self.config)
        for name in Settings.model_fields:
            section = getattr(settings, name)
            if isinstance(section, Section) and name not in {"reporting", "journal"}:
                for key, value in section:
                    if isinstance(value, Path):
                        yield ProtectedFile(say("the file of {name}.{key}", name=name, key=key), value)


def _recogniser(kind: OutputKind) -> Callable[[Path], bool] | None:
    if kind is OutputKind.CONFIGURATION:  # people edit this file, so its content does not show who wrote it
        return lambda _path: False
    return None if kind is OutputKind.NEW else partial(_is_ours, kind)


def _is_ours(kind: OutputKind, path: Path) -> bool:
    """Return whether the content of the file at `path` shows that this program wrote it as an output of `kind`."""
    if kind in _MARKS:
        return _MARKS[kind].match(head_of(path, _HEAD_BYTES)) is not None
    is_copy = kind is OutputKind.REJECTS and has_strings(path, [f">{generator_marks.PROBLEMS}<"])
    return is_copy or table_format(path).recognise(path, _COLUMNS[kind])
