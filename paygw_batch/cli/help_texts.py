"""Adds the exit codes of every command, and groups of options, to click's help."""

from collections.abc import Mapping
from types import MappingProxyType

import click

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "done: every row is accepted or paid",
        1: "unexpected error",
        2: "usage or configuration",
        3: "the sheet was refused, and nothing of it was sent",
        4: "finished, but some rows are rejected, or left out",
        5: "a person is needed: a row is in doubt, or there is contradicting evidence",
        6: "stopped early, rows are still ready: run again later",
        7: "the journal is missing, held, damaged or not to be trusted",
        8: "approval missing, stale or by the wrong person",
        130: "interrupted: run again to continue",
    }
)
_KEPT_LINES = "\b\n"
"""Keeps click from joining the lines of a paragraph."""

SHEET_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "The sheet": ("worksheet", "column_profile", "reference", "mended", "expect_rows", "expect_total"),
        "What is refused": ("strict", "skip_invalid", "amend", "repeats_meant", "plan"),
        "Sending": ("dry_run", "first", "detach", "concurrency", "rate_per_s", "wait", "by"),
        "Files": ("out", "force"),
    }
)
"""The groups of the options by which a sheet is run, and the parameters of each."""


class SheetCommand(click.Command):
    """A command that runs a sheet: its options are many, and are shown in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group; options without a group are last."""
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        told = {one.name: line for one in options if (line := one.get_help_record(ctx)) is not None}
        for title, names in SHEET_OPTIONS.items():
            with formatter.section(title):
                formatter.write_dl([told.pop(name) for name in names if name in told])
        with formatter.section("Further options"):
            formatter.write_dl(list(told.values()))


def with_exit_codes(command: click.Command) -> click.Command:
    """Have a command, and those below it, end their help with the exit codes."""
    lines = [f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items()]
    command.epilog = f"{_KEPT_LINES}Exit codes:\n" + "\n".join(lines)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            with_exit_codes(below)
    return command
