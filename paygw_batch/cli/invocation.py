"""Holds the options that all commands share, before a command and after it, and the type of every path."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from paygw_batch.language import ENGLISH, languages, say, use


class NamedFile(click.Path):
    """The path of a file or a folder. An empty one is refused: in a shell, that is a variable that was never set.

    To Python an empty path is the current directory, of which nobody spoke.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails as click does for a wrong value (exit code 2)."""
        if not os.fsdecode(value).strip():
            self.fail(say("the path is empty. Name the file or folder."), param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """A whole number within bounds; click's own name for it is a programmer's."""

    @property
    def name(self) -> str:  # type: ignore[override]  # an attribute in the base class
        """What a person is told that it is."""
        return say("whole number")


class Number(click.FloatRange):
    """A number within bounds."""

    @property
    def name(self) -> str:  # type: ignore[override]  # as above
        """What a person is told that it is."""
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
    """Return a command line with the language that it asks for anywhere in front: help and mistakes are in it too."""
    named = [word.removeprefix("--lang=") for word in words if word.startswith("--lang=")]
    named += [name for word, name in pairwise(words) if word == "--lang"]
    return [*(f"--lang={name}" for name in named if name in languages()), *words]


def program_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the program to its own function."""
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
    """Have a command, and those below it, take the options of the program as well. Their help shows them once, before.

    The commonest slip of a person who types is to write them at the end.
    """
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params.extend(option for option in _after() if taken.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            also_after(below)
    return command


def _after() -> list[click.Option]:
    """Return the options of the program as a command takes them: given there, a value replaces the one before it."""
    own: dict[str, Any] = {"expose_value": False, "hidden": True}
    return [
        click.Option(["--config"], type=NamedFile(), callback=_instead, **own),
        click.Option(["--journal"], type=NamedFile(), callback=_instead, **own),
        click.Option(["--lang"], type=click.Choice(languages()), callback=_speak, is_eager=True, **own),
        click.Option(["--json", "as_json"], is_flag=True, callback=_instead, is_eager=True, **own),
        click.Option(["-q", "--quiet"], is_flag=True, callback=_instead, **own),
        click.Option(["-v", "--verbose"], is_flag=True, callback=_instead, **own),
    ]


def _instead(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or parameter.name is None:
        return
    root = context.find_root()
    root.params[parameter.name] = value  # errors are shown as these say
    if isinstance(context.obj, Invocation):
        context.obj = replace(context.obj, **{parameter.name: value})
