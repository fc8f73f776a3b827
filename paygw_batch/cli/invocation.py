"""Defines the options that all commands share, before or after the command, and the types of paths and numbers."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from paygw_batch.language import ENGLISH, languages, say, use


class NamedFile(click.Path):
    """The path of a file or folder. An empty path is refused: in a shell, it is a variable that was never set.

    Python would take an empty path as the current directory, which nobody asked for.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail like click (exit code 2) if it is empty."""
        if not os.fsdecode(value).strip():
            self.fail(say("the path is empty. Name the file or folder."), param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """An integer within bounds. People understand its name in messages, unlike click's name."""

    @property
    def name(self) -> str:  # type: ignore[override]  # an attribute in the base class
        return say("whole number")


class Number(click.FloatRange):
    """A number within bounds."""

    @property
    def name(self) -> str:  # type: ignore[override]  # as above
        return say("number")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options before the command, which all commands share."""

    config: Path | None
    journal: Path | None
    as_json: bool
    quiet: bool
    verbose: bool


def _speak(_context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        use(name)


def with_language_first(words: Sequence[str]) -> list[str]:
    """Return a command line with its language option first, so that help and errors use that language, too."""
    chosen = [word.removeprefix("--lang=") for word in words if word.startswith("--lang=")]
    chosen += [name for word, name in pairwise(words) if word == "--lang"]
    return [*(f"--lang={name}" for name in chosen if name in languages()), *words]


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
                callback=_speak,
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


def also_after(command: click.Command) -> click.Command:
    """Let a command and its subcommands take the program's options too, and return the command.

    Writing these options at the end is the most common slip. A value at the end replaces the one before the command.
    The help of a command does not show them.
    """
    own: dict[str, Any] = {"expose_value": False, "hidden": True}
    options = [
        click.Option(["--config"], type=NamedFile(), callback=_instead, **own),
        click.Option(["--journal"], type=NamedFile(), callback=_instead, **own),
        click.Option(["--lang"], type=click.Choice(languages()), callback=_speak, is_eager=True, **own),
        click.Option(["--json", "as_json"], is_flag=True, callback=_instead, is_eager=True, **own),
        click.Option(["-q", "--quiet"], is_flag=True, callback=_instead, **own),
        click.Option(["-v", "--verbose"], is_flag=True, callback=_instead, **own),
    ]
    used = {name for parameter in command.params for name in parameter.opts}
    command.params.extend(option for option in options if used.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            also_after(below)
    return command


def _instead(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or parameter.name is None:
        return
    root = context.find_root()
    root.params[parameter.name] = value  # errors are shown as these parameters say
    if isinstance(context.obj, Invocation):
        context.obj = replace(context.obj, **{parameter.name: value})
