"""Write docs/man/ from the commands: a manual page for each, as the wheel installs them.

python tooling/man_pages.py            # writes the pages
python tooling/man_pages.py --check    # exit 1 where the folder is not what would be written
"""

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path

import click
from click_man.man import ManPage

from paygw_batch.cli.help_texts import EXAMPLES, EXIT_CODES, name_of
from paygw_batch.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/man"
PROGRAM = "paygw-batch"


def pages() -> Mapping[str, str]:
    """Return the text of every page by its file name."""
    return {f"{_name(context)}.1": _page(context) for context in _contexts(cli, PROGRAM, None)}


def _contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """Yield a context for a command and for each one below it: click-man does not see commands that are loaded late."""
    context = click.Context(command, info_name=name, parent=parent, **cli.context_settings)
    yield context
    for below, found in _below(context):
        yield from _contexts(found, below, context)


def _below(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if found is not None:
                yield name, found


def _page(context: click.Context) -> str:
    command = context.command
    page = ManPage(context.command_path)
    page.version = version(PROGRAM)
    page.date = ""  # a page is the same whenever it is made
    page.short_help = _roff(_short(context.info_name, command))
    page.synopsis = " ".join(command.collect_usage_pieces(context))
    page.description = _roff(cleandoc(command.help or ""))
    options = (one for one in command.get_params(context) if isinstance(one, click.Option))
    page.options = [(one[0], _roff(one[1])) for option in options if (one := option.get_help_record(context))]
    sections = (
        _commands(context), _environment(command), _examples(context), _exit_status(), _see_also(context),
    )  # fmt: skip
    return str(page) + "".join(f"{line}\n" for section in sections for line in section)


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _short(name: str | None, command: click.Command) -> str:
    """Return what a command does, without the full stop: the first line of a page has none."""
    return (COMMANDS.get(name or "") or command.short_help or command.get_short_help_str(100)).removesuffix(".")


def _roff(text: str) -> str:
    """Return a text in which nothing is a command of roff, and a hyphen can be copied."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


def _commands(context: click.Context) -> Iterator[str]:
    """Yield the commands below one, each with the name of its page."""
    below = list(_below(context))
    if below:
        yield ".SH COMMANDS"
    for name, command in below:
        yield from (".TP", rf"\fB{_roff(f'{_name(context)}-{name}')}\fP(1)", _roff(_short(name, command)))


def _examples(context: click.Context) -> Iterator[str]:
    examples = EXAMPLES.get(name_of(context), {})
    if examples:
        yield ".SH EXAMPLES"
    for purpose, line in examples.items():
        yield from (".TP", _roff(purpose), _roff(line))


def _exit_status() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", rf"\fB{code}\fP", _roff(meaning))


def _environment(command: click.Command) -> Iterator[str]:
    named = [option for option in command.params if isinstance(option, click.Option) and option.envvar]
    if named:
        yield ".SH ENVIRONMENT"
    for option in named:
        yield from (".TP", rf"\fB{option.envvar}\fP", _roff(f"As {option.opts[0]}, which has precedence."))


def _see_also(context: click.Context) -> Iterator[str]:
    if context.parent is None:
        return
    before = ", ".join(option.opts[0] for option in cli.params)
    yield ".SH SEE ALSO"
    yield rf"\fB{_roff(PROGRAM)}\fP(1) has the options that are before the command: {_roff(before)}."


def main(arguments: list[str]) -> int:
    """Write the pages, or say whether the folder has them."""
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*")} if TARGET.exists() else {}
    if "--check" in arguments:
        return 0 if there == made else 1
    TARGET.mkdir(exist_ok=True)
    for name in there.keys() - made.keys():
        (TARGET / name).unlink()
    for name, text in made.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
