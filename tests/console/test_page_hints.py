"""Tests that hints name no command, option or setting, and that templates use exactly their handler's values."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from jinja2 import meta, nodes

import paygw_batch
from paygw_batch import errors
from paygw_batch.console.rendering import TEMPLATES, create_environment
from paygw_batch.errors import ApprovalError, JournalError, JournalHeld, PaygwError, SheetError, SheetQuestion
from paygw_batch.extras import COMMANDS
from tests.support.catalogue import messages

PACKAGE = Path(paygw_batch.__file__).parent
OF_TERMINALS = (
    *("cli", "sandbox", "listener", "journal", "cluster", "notices", "opening/open_journal.py"),
    "console/console_app.py",
    *(f"{module.replace('.', '/')}.py" for module in COMMANDS.values()),
)
"""What no page asks for."""
COMMAND = re.compile(
    r"`|(?<![\w-])--[a-z]|\.toml|\[[a-z.]+\]|PAYGW_|quarantine_h"
    r"|\b(?:limits|submission|sheet|statement|approval|journal|console|gateway|retry)\.[a-z_]{3,}"
)


OF_PAGES = (
    *("console/", "core/", "countries/", "approval/", "engine/quarantine.py", "settle/", "show/", "sheet/check/"),
    "submit/",
)
ELSEWHERE = (
    "show/next_step.py",
    "sheet/check/catalogue.py",
    *("console/console_app.py", "console/console_command.py", "console/invite_command.py"),
    *("approval/approval_keys.py", "approval/policy.py", "countries/data.py", "settle/settle_rows.py"),
    *(f"submit/{module}.py" for module in ("approvals", "results", "send", "submission", "submit_sheet")),
)
"""What a terminal or a report says in words that pages do not share and mistakes in the data files of countries."""
OF_ERRORS = re.compile(
    r"Make a new |To approve it, run `|`paygw-batch \S+ (?:BATCH|\{placeholder\})"
    r"|\[approval\] (?:needed|lists) |config/"
)
"""Hints that are attributes of a class of documents, and a mistake in the configuration, which no page gets past."""


def raised_hints() -> Iterator[tuple[str, str, ast.Call]]:
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith(OF_TERMINALS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for keyword in node.keywords:
                    if keyword.arg == "hint":
                        texts = (node.value for node in ast.walk(keyword.value) if isinstance(node, ast.Constant))
                        yield place, " ".join(map(str, texts)), node


def is_for_terminal(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Name)
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    argument = arguments.get("for_terminal")
    if isinstance(argument, ast.Constant):
        return bool(argument.value)
    kind = getattr(errors, call.func.id, PaygwError)
    return "option" in arguments or kind.for_terminal or call.func.id == SheetQuestion.__name__


def test_only_terminal_hints_mention_commands() -> None:
    commands = [(place, text, call) for place, text, call in raised_hints() if COMMAND.search(text)]
    assert [(place, text) for place, text, call in commands if not is_for_terminal(call)] == []


def page_messages() -> Iterator[tuple[str, str]]:
    """Yield the messages that pages may show with their files, without hints and messages for terminals."""
    given_as_hints = " ".join(text for _, text, _ in raised_hints())
    for message, place in messages():
        text = message if isinstance(message, str) else message[1]
        is_of_pages = place.removeprefix("paygw_batch/").startswith(OF_PAGES) and not place.endswith(ELSEWHERE)
        if is_of_pages and text not in given_as_hints:
            yield place, text


def test_page_texts_mention_no_command_or_setting() -> None:
    shown = [(place, text) for place, text in page_messages() if not OF_ERRORS.match(text)]
    assert [(place, text) for place, text in shown if COMMAND.search(text)] == []


def test_page_shows_only_hints_without_commands() -> None:
    for error, hint in (
        (SheetError("x", hint="Save it again."), "Save it again."),
        (SheetError("x", hint="Leave --sheet out.", option="--sheet"), ""),
        *((ApprovalError("x", hint="Make another."), ""), (JournalError("x"), ""), (errors.UsageError("x"), "")),
        (ApprovalError("x", hint="Open the page again.", for_terminal=False), "Open the page again."),
        (JournalHeld("x"), "Wait until that has finished, then try again."),
    ):
        assert error.page_hint == hint


PARTS = {"base.html", "parts.html", "reading_parts.html", "agreement.html"}
"""Templates that other templates include or extend."""


def template_values(module: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield the templates that a module renders with the names of their values. `frame` has those of every page."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    returned = {key for value in returns if isinstance(value, ast.Dict) for key in keys_of(value)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr="page"), [ast.Constant(str(template))], keywords):
                names = {keyword.arg for keyword in keywords} - {"status"}
                yield template, {name for name in names if name} | (returned if None in names else set())
            case ast.Assign([ast.Name("page_values")], ast.Dict()):
                yield "frame", set(keys_of(node.value))
            case _:
                pass


def keys_of(value: ast.expr | None) -> Iterator[str]:
    assert isinstance(value, ast.Dict)
    yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


VALUES = dict(given for module in TEMPLATES.parent.rglob("*.py") for given in template_values(module))
FRAME = VALUES.pop("frame")


def template_names(template: str) -> tuple[set[str], set[str]]:
    environment = create_environment()
    tree = environment.parse((TEMPLATES / template).read_text(encoding="utf-8"))
    used = meta.find_undeclared_variables(tree) - environment.globals.keys() - {"self"}
    imported = (name for node in tree.find_all(nodes.FromImport) for name in node.names)
    defined = {node.name for node in tree.find_all(nodes.Macro)}
    defined |= {name if isinstance(name, str) else name[1] for name in imported}
    defined |= {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
    for other in meta.find_referenced_templates(tree):
        others = template_names(str(other))
        used, defined = used | others[0], defined | others[1]
    return used, defined


UNSHOWN = {"payout_live.html": {"after", "seen"}}
"""Values that only the enclosing page shows."""


def test_templates_use_exactly_the_values_given() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == VALUES.keys() | PARTS
    for template, values in VALUES.items():
        used, defined = template_names(template)
        assert used - defined - FRAME == values - UNSHOWN.get(template, set()) - defined, template
