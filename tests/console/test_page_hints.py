"""Tests that hints on pages name no command, option or setting."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import paygw_batch
from paygw_batch import errors
from paygw_batch.errors import (
    ApprovalError,
    JournalError,
    JournalHeld,
    PaygwError,
    SheetError,
    SheetQuestion,
    UsageError,
)
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


OF_PAGES = tuple(
    f"paygw_batch/{room}"
    for room in (
        "console/",
        "core/",
        "countries/",
        "approval/",
        "engine/quarantine.py",
        "settle/",
        "show/",
        "sheet/check/",
        "submit/",
    )
)
ELSEWHERE = (
    "show/next_step.py",
    "sheet/check/catalogue.py",
    *("console/console_app.py", "console/console_command.py", "console/invite_command.py"),
    *("approval/approval_keys.py", "approval/policy.py", "countries/data.py", "settle/settle_rows.py"),
    *(f"submit/{module}.py" for module in ("approvals", "results", "send", "submission", "submit_sheet")),
)
"""What a terminal or a report says in words that pages do not share and mistakes in the data files of countries."""
OF_ERRORS = re.compile(r"Make a new |`paygw-batch \S+ (?:BATCH|\{placeholder\})|\[approval\] (?:needed|lists) |config/")
"""Hints that are attributes of a class of documents, and a mistake in the configuration, which no page gets past."""


def raised_hints() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the location, hint and call of each raised error."""
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
    violations = [
        (place, text) for place, text, call in raised_hints() if COMMAND.search(text) and not is_for_terminal(call)
    ]
    assert violations == []


def page_messages() -> Iterator[tuple[str, str]]:
    """Yield the messages that pages may show with their files, without hints and messages for terminals."""
    given_as_hints = " ".join(text for _, text, _ in raised_hints())
    for message, place in messages():
        text = message if isinstance(message, str) else message[1]
        if place.startswith(OF_PAGES) and not place.endswith(ELSEWHERE) and text not in given_as_hints:
            yield place, text


def test_page_sentences_mention_no_command_or_setting() -> None:
    violations = [
        (place, text) for place, text in page_messages() if COMMAND.search(text) and not OF_ERRORS.match(text)
    ]
    assert violations == []


def test_page_shows_only_hints_without_commands() -> None:
    assert SheetError("x", hint="Save it again.").page_hint == "Save it again."
    assert SheetError("x", hint="Leave --sheet out.", option="--sheet").page_hint == ""
    assert UsageError("x").page_hint == ""
    assert ApprovalError("x", hint="Make another.").page_hint == ""
    assert ApprovalError("x", hint="Open the page again.", for_terminal=False).page_hint == "Open the page again."
    assert JournalError("x").page_hint == ""
    assert JournalHeld("x").page_hint == "Wait until it finishes, then run again."
