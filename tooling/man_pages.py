"""Write docs/man/ from the commands: a manual page for each, as the wheel installs them.

python tooling/man_pages.py            # write the pages
python tooling/man_pages.py --check    # exit 1 if the folder is out of date
"""

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path

import click
from click_man.man import ManPage

from paygw_batch.cli.help_texts import EXAMPLES, EXIT_CODES, command_words
from paygw_batch.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/man"
PROGRAM = "paygw-batch"


def render_pages() -> Mapping[str, str]:
    """Return the text of every page by its file name."""
    return {f"{_page_name(context)}.1": _render_page(context) for context in _command_contexts(cli, PROGRAM, None)}


def _command_contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """Yield a context for a command and for each subcommand, because click-man misses lazily loaded commands."""
    context = click.Context(command, info_name=name, parent=parent, **cli.context_settings)
    yield context
    for below, result in _subcommands(context):
        yield from _command_contexts(result, below, context)


def _subcommands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            result = group.get_command(context, name)
            if result is not None:
                yield name, result


def _render_page(context: click.Context) -> str:
    command = context.command
    page = ManPage(context.command_path)
    page.version = version(PROGRAM)
    page.date = ""  # pages must not depend on the date
    page.short_help = _escape_roff(_short_help(context.info_name, command))
    page.synopsis = " ".join(command.collect_usage_pieces(context))
    page.description = _escape_roff(cleandoc(command.help or ""))
    options = (item for item in command.get_params(context) if isinstance(item, click.Option))
    page.options = [(item[0], _escape_roff(item[1])) for option in options if (item := option.get_help_record(context))]
    sections = (
        _command_list(context), _environment(command), _examples(context), _exit_status(), _see_also(context),
    )  # fmt: skip
    return str(page) + "".join(f"{line}\n" for section in sections for line in section)


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _short_help(name: str | None, command: click.Command) -> str:
    """Return the short help of a command without its full stop, for the first line of a page."""
    return (COMMANDS.get(name or "") or command.short_help or command.get_short_help_str(100)).removesuffix(".")


def _escape_roff(text: str) -> str:
    """Escape a text for roff, so that it contains no command and hyphens can be copied."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


def _command_list(context: click.Context) -> Iterator[str]:
    """Yield the subcommands of a command, each with the name of its page."""
    below = list(_subcommands(context))
    if below:
        yield ".SH COMMANDS"
    for name, command in below:
        yield from (
            ".TP",
            rf"\fB{_escape_roff(f'{_page_name(context)}-{name}')}\fP(1)",
            _escape_roff(_short_help(name, command)),
        )


def _examples(context: click.Context) -> Iterator[str]:
    examples = EXAMPLES.get(command_words(context), {})
    if examples:
        yield ".SH EXAMPLES"
    for purpose, line in examples.items():
        yield from (".TP", _escape_roff(purpose), _escape_roff(line))


def _exit_status() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", rf"\fB{code}\fP", _escape_roff(meaning))


def _environment(command: click.Command) -> Iterator[str]:
    named = [option for option in command.params if isinstance(option, click.Option) and option.envvar]
    if named:
        yield ".SH ENVIRONMENT"
    for option in named:
        yield from (".TP", rf"\fB{option.envvar}\fP", _escape_roff(f"As {option.opts[0]}, which has precedence."))


def _see_also(context: click.Context) -> Iterator[str]:
    if context.parent is None:
        return
    before = ", ".join(option.opts[0] for option in cli.params)
    yield ".SH SEE ALSO"
    yield rf"\fB{_escape_roff(PROGRAM)}\fP(1) has the options that are before the command: {_escape_roff(before)}."


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    created = render_pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*")} if TARGET.exists() else {}
    if "--check" in arguments:
        return 0 if there == created else 1
    TARGET.mkdir(exist_ok=True)
    for name in there.keys() - created.keys():
        (TARGET / name).unlink()
    for name, text in created.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
