"""Defines the options that all commands share, and parameter types for paths and numbers."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from paygw_batch.language import ENGLISH, languages, say, set_language


class PathType(click.Path):
    """A parameter type for the path of a file or folder, which must not be empty.

    In a shell, an empty path usually comes from an unset variable. Python would treat it as the current directory.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fsdecode(value).strip():
            self.fail(say("the path is empty. Specify the path of a file or folder."), param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """A bounded integer, called "whole number" in messages."""

    @property
    def name(self) -> str:  # type: ignore[override]  # an attribute in the base class
        return say("whole number")


class Number(click.FloatRange):
    """A bounded number, called "number" in messages."""

    @property
    def name(self) -> str:  # type: ignore[override]  # an attribute in the base class
        return say("number")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The values of the options that all commands share."""

    config: Path | None
    journal: Path | None
    as_json: bool
    quiet: bool
    verbose: bool


def _set_language(_context: click.Context, _parameter: click.Parameter, language: str | None) -> None:
    if language is not None:
        set_language(language)


def put_language_first(words: Sequence[str]) -> list[str]:
    """Repeat --lang at the front of the command line, so that help and errors are in that language too."""
    names = [word.removeprefix("--lang=") for word in words if word.startswith("--lang=")]
    names += [name for word, name in pairwise(words) if word == "--lang"]
    return [*(f"--lang={name}" for name in names if name in languages()), *words]


def program_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--config", type=PathType(), envvar="PAYGW_CONFIG", help="Configuration file (TOML)."),
            click.option("--journal", type=PathType(), envvar="PAYGW_JOURNAL", help="Journal file."),
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
                "--json", "as_json", is_flag=True, help="Print the summary as one JSON object on standard output."
            ),
            click.option("-q", "--quiet", is_flag=True, help="Print only what needs action."),
            click.option("-v", "--verbose", is_flag=True, help="Print each step."),
        )
    ):
        command = option(command)
    return command


def add_program_options(command: click.Command) -> click.Command:
    """Add the program's options to a command and its subcommands, and return the command.

    Options after the command override those before it. The command's help does not list them.
    """
    attributes: dict[str, Any] = {"expose_value": False, "hidden": True}
    options = [
        click.Option(["--config"], type=PathType(), callback=_override_option, **attributes),
        click.Option(["--journal"], type=PathType(), callback=_override_option, **attributes),
        click.Option(["--lang"], type=click.Choice(languages()), callback=_set_language, is_eager=True, **attributes),
        click.Option(["--json", "as_json"], is_flag=True, callback=_override_option, is_eager=True, **attributes),
        click.Option(["-q", "--quiet"], is_flag=True, callback=_override_option, **attributes),
        click.Option(["-v", "--verbose"], is_flag=True, callback=_override_option, **attributes),
    ]
    own_names = {name for parameter in command.params for name in parameter.opts}
    command.params.extend(option for option in options if own_names.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_program_options(subcommand)
    return command


def _override_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or parameter.name is None:
        return
    root = context.find_root()
    root.params[parameter.name] = value  # the error handler reads these parameters
    if isinstance(context.obj, Invocation):
        context.obj = replace(context.obj, **{parameter.name: value})
