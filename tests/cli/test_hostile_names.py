"""Names and values from outside can't move a terminal's cursor, hide lines or reverse text."""

import os
import pty
import re
import unicodedata
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from threading import Thread
from unittest.mock import patch

import pytest

from paygw_batch.cli.main import cli
from tests.support.approving import key, policy
from tests.support.program import HEADING, Program, kenyan_rows, sandbox_toml

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[1A\u202e\nPaid: all.\r\x9b31m\u2066[red]\x08[/]"
"""Escape sequences for the window title and the screen, text directions, line breaks, and markup of a library."""
MARKED = r"\x1b]0;owned\x07\x1b[2J\x1b[1A\u202e\nPaid: all.\r\x9b31m\u2066[red]\x08[]"
"""Its visible form in the name of a sheet, without the slash."""
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K")
"""The sequences that the program itself sends to a terminal: colours, and the moves of a progress bar."""


def run_in_terminal(program: Program, *arguments: str | Path, **environ: str) -> tuple[str, int]:
    ours, theirs = pty.openpty()
    env = {**program.environ, "TERM": "xterm-256color", "COLUMNS": "500", **environ}
    env.pop("NO_COLOR")
    sent: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # Linux reports EIO when the other end is closed.
            while chunk := os.read(ours, 65536):
                sent.append(chunk)

    reader = Thread(target=read)
    reader.start()
    encoding = environ.get("PYTHONIOENCODING", "utf-8")
    with ExitStack() as stack:
        terminal = stack.enter_context(open(theirs, "w", encoding=encoding, closefd=False))
        stack.enter_context(redirect_stdout(terminal))
        stack.enter_context(redirect_stderr(terminal))
        stack.enter_context(patch.dict(os.environ, env))
        stack.enter_context(chdir(program.home))
        with pytest.raises(SystemExit) as ended:
            cli(["--config", str(program.config), *map(str, arguments)], prog_name="paygw-batch")
    os.close(theirs)
    reader.join()
    os.close(ours)
    return b"".join(sent).decode(), int(ended.value.code or 0)


def assert_harmless(sent: str) -> None:
    text = OWN.sub("", sent.replace("\r\n", "\n"))
    # A progress bar returns to the start of its line before clearing it.
    text = text.replace("\r", "", sent.count("\r\x1b[2K") + sent.count("\r\x1b[1A"))
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    bad = {sign for sign in text if unicodedata.category(sign) in hidden and sign not in "\n\t"}
    assert not bad, f"{bad} in {sent!r}"
    assert "\nPaid: all." not in text


@pytest.fixture(scope="module")
def hostile_machine(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Set up a machine with hostile sheets: one paid, one with defects, and one with rows in doubt and rejected."""
    home = tmp_path_factory.mktemp("desk")
    home.chmod(0o700)
    program = Program(home, home / "paygw.toml")
    program.config.write_text(sandbox_toml() + policy(home).replace('KES = "1000"', 'KES = "100000000"'))
    key(home, "ada")
    program.sheet(kenyan_rows(2), hostile_name("paid"))
    program.sheet(["KE\u202e,PAY-1,1,KES,J,254712345678,+254712345678"], hostile_name("defects"))
    doubtful = [*kenyan_rows(1, amount="9006", prefix="D"), *kenyan_rows(1, amount="9001", prefix="R")]
    program.sheet(doubtful, hostile_name("doubt"))
    return program


def hostile_name(what: str, ending: str = "csv") -> str:
    return f"{what}{HOSTILE.replace('/', '')}.{ending}"


def test_hostile_sheet_name_is_escaped_when_paid(hostile_machine: Program) -> None:
    for command in (("submit", "--dry-run"), ("submit",), ("resume",), ("retry",)):
        sent, code = run_in_terminal(hostile_machine, *command, hostile_name("paid"))
        assert_harmless(sent)
        assert code == 0, sent
    assert len(hostile_machine.record()) == 2
    sent, code = run_in_terminal(hostile_machine, "submit", hostile_name("doubt"))
    assert_harmless(sent)
    assert code == 5
    doubtful = hostile_name("doubt")
    for options in (
        ("--sort", "sheet"),
        (hostile_name("paid"),),
        (doubtful, "--history"),
        (doubtful, "--in-doubt"),
        (),
    ):
        sent, code = run_in_terminal(hostile_machine, "status", *options)
        assert_harmless(sent)
        assert MARKED in sent.replace("\r\n", "") or "--in-doubt" in options
    framed = [line for line in OWN.sub("", sent).splitlines() if line.startswith(("│", "┃"))]
    assert framed
    assert len({len(line) for line in framed[:2]}) == 1, "columns fit the escaped names"


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", hostile_name("defects")),
        ("validate", hostile_name("defects"), "--rejects", hostile_name("rejects")),
        ("validate", hostile_name("absent")),
        ("validate", hostile_name("absent", "xyz")),
        ("validate", "config.csv", "--worksheet", HOSTILE),
        ("submit", hostile_name("defects")),
        ("submit", hostile_name("paid"), "--expect-total", HOSTILE),
        ("submit", hostile_name("paid"), "--expect-rows", HOSTILE),
        ("submit", hostile_name("paid"), "--out", hostile_name("absent") + "/x.csv"),
        ("collect", hostile_name("paid")),
        ("plan", hostile_name("paid"), "--out", hostile_name("plan", "json"), "--key", "ada.pem"),
        ("approve", hostile_name("plan", "json")),
        ("approve", hostile_name("absent", "json"), "--key", "ada.pem"),
        ("plan", hostile_name("paid"), "--out", hostile_name("plan", "json"), "--key", hostile_name("key", "pem")),
        ("reconcile", hostile_name("paid"), "--out", hostile_name("again")),
        ("reconcile", HOSTILE, "--out", "again.csv"),
        ("resolve", "row", hostile_name("paid"), "2", "--as", "paid", "--evidence", HOSTILE),
        ("resolve", "statement", hostile_name("paid"), hostile_name("absent")),
        ("resume", HOSTILE),
        ("status", HOSTILE),
        ("retry", HOSTILE, "--row", HOSTILE),
        ("run-folder", HOSTILE),
        ("run-folder", "drop", "--settle-s", "0"),
        ("backup", hostile_name("copy", "sqlite3")),
        ("template", "KE", "--out", hostile_name("template")),
        ("template", HOSTILE, "--out", "t.csv"),
        ("sign", hostile_name("paid"), "--explain"),
        ("sign", hostile_name("paid"), "--order-id", HOSTILE),
        ("sandbox", "--behaviour", hostile_name("absent", "toml")),
        ("doctor",),
        ("verify",),
        ("listen", "--port", HOSTILE),
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("status", f"--{HOSTILE}"),
        ("status", "a", HOSTILE),
        ("--journal", f"{HOSTILE.replace('/', '')}/j.sqlite3", "status"),
        ("--config", hostile_name("absent", "toml"), "status"),
        ("--json", "validate", hostile_name("defects")),
        ("--json", "status", HOSTILE),
    ],
    ids=lambda arguments: "-".join(word for word in arguments if word.isalnum()),
)
def test_commands_escape_control_characters_for_terminal(hostile_machine: Program, arguments: tuple[str, ...]) -> None:
    drop = hostile_machine.home / "drop"
    drop.mkdir(exist_ok=True)
    (drop / hostile_name("dropped")).write_text("\n".join([HEADING, *kenyan_rows(1, prefix="DROP")]) + "\n")
    sent, code = run_in_terminal(hostile_machine, *arguments)
    assert_harmless(sent)
    assert code != 1, sent


@pytest.mark.parametrize(
    "variable",
    [
        *(
            "CONCURRENCY",
            "BASE_URL",
            "ENDPOINT_ID",
            "SIGNATURE_PROFILE",
            "\x1b[2J",
            "PRIVATE_KEY",
            "PROXY",
            "CODE_PAGE",
        ),
        *("COLUMN_PROFILE", "JOURNAL"),
    ],
)
def test_environment_values_are_escaped_on_terminal(hostile_machine: Program, variable: str) -> None:
    command = "status" if variable in {"CONCURRENCY", "JOURNAL"} else "doctor"
    sent, code = run_in_terminal(hostile_machine, command, **{f"PAYGW_{variable}": HOSTILE.replace("/", "")})
    assert_harmless(sent)
    assert code != 1, sent


def test_undecodable_file_name_is_escaped_on_terminal(program: Program) -> None:
    raw = os.fsencode(program.home) + b"/caf\xe9.csv"
    Path(os.fsdecode(raw)).write_text("\n".join([HEADING, *kenyan_rows(1)]) + "\n")
    name = os.fsdecode(raw)
    for words in (("validate", name, "--rejects", os.fsdecode(raw + b".csv")), ("submit", name)):
        sent, code = run_in_terminal(program, *words)
        assert code == 0, sent
    assert r"caf\udce9.reconciliation.csv" in sent


def test_unencodable_text_is_shown_with_escapes(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1), "薪資.csv")
    sent, code = run_in_terminal(program, "submit", sheet, PYTHONIOENCODING="ascii")
    assert (code, r"\u85aa\u8cc7.reconciliation.csv" in sent) == (0, True), sent


def test_terminal_escapes_control_characters_in_gateway_reply(program: Program) -> None:
    behaviour = program.home / "behaviour.toml"
    behaviour.write_text('[default]\nstatus = "odd\\u001b[2J\\u202e"\nmessage = "\\u001b]0;owned\\u0007"\n')
    program.config.write_text(sandbox_toml() + f'\n[sandbox]\nbehaviour = "{behaviour}"\n')
    sheet = program.sheet(kenyan_rows(1))
    for command in (("submit", sheet), ("status", sheet), ("resume", sheet), ("status", sheet, "--row", "2")):
        sent, code = run_in_terminal(program, *command)
        assert_harmless(sent)
        assert code == 5, sent
