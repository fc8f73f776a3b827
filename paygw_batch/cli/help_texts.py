"""Shows every command's help in the chosen language, with an example for each option and the exit codes.

The English texts stay beside the commands, in docstrings and `help=`. They are the keys of the catalogue, translated
when help is shown, because `--lang` is only known then. Click's own texts go through our catalogue too.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType

import click
from click import core, exceptions, parser, termui, types

from paygw_batch.language import gettext, mark, mark_all, mark_count, ngettext, say

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: mark("done: every row is accepted or paid"),
        1: mark("unexpected error"),
        2: mark("usage or configuration"),
        3: mark("the sheet was refused, and none of it was sent"),
        4: mark("finished, but some rows are rejected, or left out"),
        5: mark("a person is needed: a row is in doubt, or there is contradicting evidence"),
        6: mark("stopped early, rows are still ready: run again later"),
        7: mark("the journal is missing, held, damaged or not to be trusted"),
        8: mark("approval missing, stale or by the wrong person"),
        130: mark("interrupted: run again to continue"),
    }
)
_OF_CLICK = mark_all("Show this message and exit.", "Show the version and exit.")
"""The sentences that click adds to the help of commands."""

SHEET_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        mark("The sheet"): (
            "reference",
            "worksheet",
            "encoding",
            "column_profile",
            "mended",
            "expect_rows",
            "expect_total",
        ),
        mark("What is refused"): ("strict", "skip_invalid", "amend", "repeats_meant", "plan"),
        mark("Sending"): ("dry_run", "first", "detach", "urgent", "concurrency", "rate_per_s", "wait", "by"),
        mark("Files"): ("out", "for_excel", "force"),
    }
)
"""The option groups of a command that runs a sheet, and the parameters in each."""


def section_title(title: str) -> str:
    """Return the title of a help section; click adds a colon, and French needs a space before it."""
    return say("{title}:", title=say(title)).removesuffix(":")


def paragraphs(text: str | None) -> tuple[str, ...]:
    """Return the paragraphs of a docstring, each on one line, as in the catalogue's keys."""
    return tuple(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n") if part.strip())


class HelpCommand(click.Command):
    """A command whose help is in the chosen language, and ends with examples and the exit codes."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line; its words are typed, so they are not translated."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)), say("Usage: "))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Write the paragraphs of the command's docstring."""
        for paragraph in paragraphs(self.help):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(say(paragraph))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each option."""
        with formatter.section(section_title(mark("Options"))):
            formatter.write_dl(list(self.option_lines(ctx).values()))

    def option_lines(self, ctx: click.Context) -> dict[str | None, tuple[str, str]]:
        """Return the words and the help of each option, by parameter name."""
        return dict(self._option_lines(ctx))

    def _option_lines(self, ctx: click.Context) -> Iterator[tuple[str | None, tuple[str, str]]]:
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option):
                continue
            shown = copy.copy(option)
            sentences = [say(option.help or "")]
            if option.required:
                sentences.append(say("Required."))
            if option.show_default:
                sentences.append(say("Default: {value}.", value=option.get_default(ctx)))
            shown.help, shown.required, shown.show_default = " ".join(sentences), False, False
            if (line := shown.get_help_record(ctx)) is not None:
                yield option.name, line

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples of the command, and the exit codes."""
        # Loaded with the first help that is shown, not with every command.
        from paygw_batch.cli.help_examples import EXAMPLES  # noqa: PLC0415

        if examples := EXAMPLES.get(name_of(ctx)):
            with formatter.section(section_title(mark("Examples"))):
                for example in examples:
                    formatter.write_text(say(example.purpose))
                    with formatter.indentation():
                        formatter.write(f"{'':>{formatter.current_indent}}{example.line}\n")
        with formatter.section(section_title(mark("Exit codes"))):
            formatter.write_dl([(f"{code:>3}", say(meaning)) for code, meaning in EXIT_CODES.items()])


class HelpGroup(HelpCommand, click.Group):
    """A command with subcommands, whose help is in the chosen language."""

    command_class = HelpCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called command; an unknown name is answered with the known ones."""
        if self.commands and args[0] not in self.commands and not ctx.resilient_parsing:
            if near := get_close_matches(args[0], self.commands, n=1):
                ctx.fail(say("No such command {name!r}. Did you mean {near!r}?", name=args[0], near=near[0]))
            known = ", ".join(f"{ctx.info_name} {name}" for name in self.commands)
            ctx.fail(say("No such command {name!r}. There are: {known}.", name=args[0], known=known))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each option and for each command."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Write one line for each command."""
        with formatter.section(section_title(mark("Commands"))):
            formatter.write_dl([(name, say(below.short_help or "")) for name, below in self.commands.items()])


class SheetCommand(HelpCommand):
    """A command that runs a sheet; its many options are shown in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group, those without a group last."""
        lines = self.option_lines(ctx)
        for title, names in SHEET_OPTIONS.items():
            with formatter.section(section_title(title)):
                formatter.write_dl([lines.pop(name) for name in names if name in lines])
        with formatter.section(section_title(mark("Further options"))):
            formatter.write_dl(list(lines.values()))


def name_of(ctx: click.Context) -> str:
    """Return the words of a command without the program's name: `resolve row`; empty for the program itself."""
    if ctx.parent is None:
        return ""
    return f"{name_of(ctx.parent)} {ctx.info_name}".strip()


_SAID = mark_all(
    "Error: {message}",
    "Try '{command} {option}' for help.",
    "Invalid value: {message}",
    "Invalid value for {param_hint}: {message}",
    "Missing argument",
    "Missing option",
    "Missing command.",
    "No such option {name!r}.",
    "No such command {name!r}.",
    "Option {name!r} does not take a value.",
    "{value!r} is not a valid {number_type}.",
    "{value} is not in the range {range}.",
    "Choose from:\n\t{choices}",
)
"""Click's messages about an unreadable command line, for the catalogue."""
_COUNTED = (
    mark_count("Did you mean {possibility}?", "(Did you mean one of: {possibilities}?)"),
    mark_count("Got unexpected extra argument ({args})", "Got unexpected extra arguments ({args})"),
    mark_count("Option {name!r} requires an argument.", "Option {name!r} requires {nargs} arguments."),
    mark_count("{value!r} is not {choice}.", "{value!r} is not one of {choices}."),
)


def speak_our_languages() -> None:
    """Make click translate through our catalogue; by default it looks for the system's."""
    for module in (core, exceptions, parser, termui, types):
        for name, ours in (("_", gettext), ("ngettext", ngettext)):
            if hasattr(module, name):
                setattr(module, name, ours)
