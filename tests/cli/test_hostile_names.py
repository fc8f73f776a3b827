"""Names and values from outside, on a terminal: none moves its cursor, hides a line or turns its text around."""

import os
import pty
import re
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Thread
from unittest.mock import patch

import pytest

from paygw_batch.cli.main import cli
from tests.support.approving import key, policy
from tests.support.program import HEADING, Program, kenyan_rows, sandbox_toml

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[1A\u202e\nPaid: all.\r\x9b31m\u2066[red]\x08[/]"
"""Escape sequences (of a window's title, of the screen), other directions, ends of lines, and a library's markup."""
MARK = r"\x1b]0;owned\x07\x1b[2J\x1b[1A\u202e\nPaid: all.\r\x9b31m\u2066[red]\x08[/]"
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K")
"""What the program itself sends to a terminal: colours, and what a progress bar moves by."""


def on_a_terminal(program: Program, *arguments: str | Path, **environ: str) -> tuple[str, int]:
    """Run in a pseudo terminal; return all that it was sent, and the exit code."""
    ours, theirs = pty.openpty()
    env = {**program.environ, "TERM": "xterm-256color", "COLUMNS": "500", **environ}
    env.pop("NO_COLOR")
    sent: list[bytes] = []
    reader = Thread(target=lambda: sent.extend(chunks(ours)))
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


def chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # the other end was closed
            return
        if not chunk:
            return
        yield chunk


def check_harmless(sent: str) -> None:
    text = OWN.sub("", sent.replace("\r\n", "\n"))
    # A progress bar goes back to the start of its line before it deletes it.
    text = text.replace("\r", "", sent.count("\r\x1b[2K") + sent.count("\r\x1b[1A"))
    bad = {
        character
        for character in text
        if (unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and character not in "\n\t")
    }
    assert not bad, f"{bad} in {sent!r}"
    assert "\nPaid: all." not in text


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A machine with hostile sheets: one paid, one with defects, and one with rows in doubt and rejected."""
    home = tmp_path_factory.mktemp("desk")
    home.chmod(0o700)
    program = Program(home, home / "paygw.toml")
    program.config.write_text(sandbox_toml() + policy(home).replace('KES = "1000"', 'KES = "100000000"'))
    key(home, "ada")
    program.sheet(kenyan_rows(2), f"paid{HOSTILE.replace('/', '')}.csv")
    program.sheet(["KE\u202e,PAY-1,1,KES,J,254712345678,+254712345678"], f"defects{HOSTILE.replace('/', '')}.csv")
    doubtful = [*kenyan_rows(1, amount="9006", prefix="D"), *kenyan_rows(1, amount="9001", prefix="R")]
    program.sheet(doubtful, f"doubt{HOSTILE.replace('/', '')}.csv")
    return program


def name(what: str, ending: str = "csv") -> str:
    return f"{what}{HOSTILE.replace('/', '')}.{ending}"


MARKED = MARK.replace("/", "")


def test_sheet_with_hostile_name_is_paid_and_escaped(desk: Program) -> None:
    for command in (("submit", "--dry-run"), ("submit",), ("resume",), ("retry",)):
        sent, code = on_a_terminal(desk, *command, name("paid"))
        check_harmless(sent)
        assert code == 0, sent
    assert len(desk.record()) == 2
    sent, code = on_a_terminal(desk, "submit", name("doubt"))
    check_harmless(sent)
    assert code == 5
    asked: list[tuple[str, ...]] = [
        (),
        (name("paid"),),
        (name("doubt"), "--history"),
        (name("doubt"), "--in-doubt"),
        ("--sort", "sheet"),
    ]
    for options in asked:
        sent, code = on_a_terminal(desk, "status", *options)
        check_harmless(sent)
        assert MARKED in sent.replace("\r\n", "") or "--in-doubt" in options


def test_table_width_fits_escaped_names(desk: Program) -> None:
    on_a_terminal(desk, "submit", name("paid"))
    sent, _ = on_a_terminal(desk, "status")
    lines = OWN.sub("", sent).splitlines()
    framed = [line for line in lines if line.startswith(("│", "┃"))]
    assert framed
    assert len({len(line) for line in framed[:2]}) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", name("defects")),
        ("validate", name("defects"), "--rejects", name("rejects")),
        ("validate", name("absent")),
        ("validate", name("absent", "xyz")),
        ("validate", "config.csv", "--worksheet", HOSTILE),
        ("submit", name("defects")),
        ("submit", name("paid"), "--expect-total", HOSTILE),
        ("submit", name("paid"), "--expect-rows", HOSTILE),
        ("submit", name("paid"), "--out", name("absent") + "/x.csv"),
        ("collect", name("paid")),
        ("plan", name("paid"), "--out", name("plan", "json"), "--key", "ada.pem"),
        ("approve", name("plan", "json")),
        ("approve", name("absent", "json"), "--key", "ada.pem"),
        ("plan", name("paid"), "--out", name("plan", "json"), "--key", name("key", "pem")),
        ("reconcile", name("paid"), "--out", name("again")),
        ("reconcile", HOSTILE, "--out", "again.csv"),
        ("resolve", "row", name("paid"), "2", "--as", "paid", "--evidence", HOSTILE),
        ("resolve", "statement", name("paid"), name("absent")),
        ("resume", HOSTILE),
        ("status", HOSTILE),
        ("retry", HOSTILE, "--row", HOSTILE),
        ("run-folder", HOSTILE),
        ("run-folder", "drop", "--settle-s", "0"),
        ("backup", name("copy", "sqlite3")),
        ("template", "KE", "--out", name("template")),
        ("template", HOSTILE, "--out", "t.csv"),
        ("sign", name("paid"), "--explain"),
        ("sign", name("paid"), "--order-id", HOSTILE),
        ("sandbox", "--behaviour", name("absent", "toml")),
        ("doctor",),
        ("verify",),
        ("listen", "--port", HOSTILE),
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("status", f"--{HOSTILE}"),
        ("status", "a", HOSTILE),
        ("--journal", f"{HOSTILE.replace('/', '')}/j.sqlite3", "status"),
        ("--config", name("absent", "toml"), "status"),
        ("--json", "validate", name("defects")),
        ("--json", "status", HOSTILE),
    ],
    ids=lambda arguments: "-".join(word for word in arguments if word.isalnum()),
)
def test_no_command_passes_control_characters_to_terminal(desk: Program, arguments: tuple[str, ...]) -> None:
    drop = desk.home / "drop"
    drop.mkdir(exist_ok=True)
    (drop / name("dropped")).write_text("\n".join([HEADING, *kenyan_rows(1, prefix="DROP")]) + "\n")
    sent, code = on_a_terminal(desk, *arguments)
    check_harmless(sent)
    assert code != 1, sent


@pytest.mark.parametrize(
    ("variable", "command"),
    [
        ("PAYGW_CONCURRENCY", "status"),
        ("PAYGW_BASE_URL", "doctor"),
        ("PAYGW_ENDPOINT_ID", "doctor"),
        ("PAYGW_SIGNATURE_PROFILE", "doctor"),
        ("PAYGW_\x1b[2J", "doctor"),
        ("PAYGW_PRIVATE_KEY", "doctor"),
        ("PAYGW_PROXY", "doctor"),
        ("PAYGW_CODE_PAGE", "doctor"),
        ("PAYGW_COLUMN_PROFILE", "doctor"),
        ("PAYGW_JOURNAL", "status"),
    ],
)
def test_environment_values_reach_terminal_escaped(desk: Program, variable: str, command: str) -> None:
    sent, code = on_a_terminal(desk, command, **{variable: HOSTILE.replace("/", "")})
    check_harmless(sent)
    assert code != 1, sent


def test_undecodable_file_name_is_shown_escaped(program: Program) -> None:
    raw = os.fsencode(program.home) + b"/caf\xe9.csv"
    Path(os.fsdecode(raw)).write_text("\n".join([HEADING, *kenyan_rows(1)]) + "\n")
    sent, code = on_a_terminal(
        program, "validate", Path(os.fsdecode(raw)), "--rejects", Path(os.fsdecode(raw + b".csv"))
    )
    assert code == 0, sent
    sent, code = on_a_terminal(program, "submit", Path(os.fsdecode(raw)))
    assert code == 0, sent
    assert r"caf\udce9.reconciliation.csv" in sent


def test_unencodable_text_is_shown_with_escapes(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1), "薪資.csv")
    sent, code = on_a_terminal(program, "submit", sheet, PYTHONIOENCODING="ascii")
    assert code == 0, sent
    assert r"\u85aa\u8cc7.reconciliation.csv" in sent


def test_terminal_escapes_control_characters_in_gateway_reply(program: Program) -> None:
    behaviour = program.home / "behaviour.toml"
    behaviour.write_text('[default]\nstatus = "odd\\u001b[2J\\u202e"\nmessage = "\\u001b]0;owned\\u0007"\n')
    program.config.write_text(sandbox_toml() + f'\n[sandbox]\nbehaviour = "{behaviour}"\n')
    sheet = program.sheet(kenyan_rows(1))
    for command in ("submit", "status", "resume"):
        sent, code = on_a_terminal(program, command, sheet)
        check_harmless(sent)
        assert code == 5, sent
