"""Defines the options that all commands share, and the types of paths and numbers."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from paygw_batch.language import ENGLISH, languages, say, set_language


class NamedFile(click.Path):
    """The path of a file or folder, which must not be empty.

    In a shell, an empty path usually comes from an unset variable. Python would use the current directory instead.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails like click (exit code 2) if it is empty."""
        if not os.fsdecode(value).strip():
            self.fail(say("the path is empty. Give the path of the file or folder."), param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """An integer within bounds, with a plainer name in messages than click's type."""

    @property
    def name(self) -> str:  # type: ignore[override]  # an attribute in the base class
        return say("whole number")


class Number(click.FloatRange):
    """A number within bounds, named like `WholeNumber`."""

    @property
    def name(self) -> str:  # type: ignore[override]  # as above
        return say("number")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options that all commands share."""

    config: Path | None
    journal: Path | None
    as_json: bool
    quiet: bool
    verbose: bool


def _set_language(_context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        set_language(name)


def put_language_first(words: Sequence[str]) -> list[str]:
    """Move --lang to the front of the command line, so that help and errors also use that language."""
    languages_given = [word.removeprefix("--lang=") for word in words if word.startswith("--lang=")]
    languages_given += [name for word, name in pairwise(words) if word == "--lang"]
    return [*(f"--lang={name}" for name in languages_given if name in languages()), *words]


def program_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--config", type=NamedFile(), envvar="PAYGW_CONFIG", help="Configuration file (TOML)."),
            click.option("--journal", type=NamedFile(), envvar="PAYGW_JOURNAL", help="Journal file."),
            click.option(
                "--lang",
                envvar="PAYGW_LANG",
                type=click.Choice(languages()),
                default=ENGLISH,
                callback=_set_language,
                expose_value=False,
                is_eager=True,
                help="Language of messages, pages and reports.",
            ),
            click.option(
                "--json", "as_json", is_flag=True, help="Print one JSON object, the summary, on standard output."
            ),
            click.option("-q", "--quiet", is_flag=True, help="Print only what a person must act on."),
            click.option("-v", "--verbose", is_flag=True, help="Print each step."),
        )
    ):
        command = option(command)
    return command


def accept_program_options(command: click.Command) -> click.Command:
    """Add the program's options to a command and its subcommands, and return the command.

    People often write these options after the command. A value there replaces one before the command. The help of a
    command does not list them.
    """
    attributes: dict[str, Any] = {"expose_value": False, "hidden": True}
    options = [
        click.Option(["--config"], type=NamedFile(), callback=_override_option, **attributes),
        click.Option(["--journal"], type=NamedFile(), callback=_override_option, **attributes),
        click.Option(["--lang"], type=click.Choice(languages()), callback=_set_language, is_eager=True, **attributes),
        click.Option(["--json", "as_json"], is_flag=True, callback=_override_option, is_eager=True, **attributes),
        click.Option(["-q", "--quiet"], is_flag=True, callback=_override_option, **attributes),
        click.Option(["-v", "--verbose"], is_flag=True, callback=_override_option, **attributes),
    ]
    match_names = {name for parameter in command.params for name in parameter.opts}
    command.params.extend(option for option in options if match_names.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            accept_program_options(subcommand)
    return command


def _override_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or parameter.name is None:
        return
    root = context.find_root()
    root.params[parameter.name] = value  # errors are shown according to these parameters
    if isinstance(context.obj, Invocation):
        context.obj = replace(context.obj, **{parameter.name: value})
