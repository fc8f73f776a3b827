"""`init`: configuration, key, letter and journal of a new endpoint; nothing is asked where nobody can answer."""

import json
import os
import pty
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from paygw_batch.settings.configuration import load_settings
from tests.support.program import Program

NEEDED = (
    *("--base-url", "https://gateway.example/base", "--endpoint-id", "77", "--consumer-key", 'merchant "x" \\ é'),
    *("--server-callback-url", "https://merchant.example/callback"),
)


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A new user: an empty directory, where nothing was ever configured."""
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    return Program(tmp_path, tmp_path / ".config" / "paygw-batch" / "paygw.toml")


def init(user: Program, *words: str | Path, **environ: str) -> dict[str, Any]:
    result = user.run("--json", "init", *words, config=False, **environ)
    summary: dict[str, Any] = json.loads(result.stdout)
    assert summary["exit_code"] == result.exit_code, result.stderr
    return summary


def files(home: Path) -> set[str]:
    """All but what only looking at a journal leaves beside it."""
    every = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    return {name for name in every if not name.endswith((".lock", "-wal", "-shm"))}


def mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def refused(user: Program, *words: str | Path, code: int = 2, **environ: str) -> str:
    """Run `init`, which must make nothing, and return what it says."""
    before = files(user.home)
    result: Result = user.run("init", *words, config=False, **environ)
    assert result.exit_code == code, result.output
    assert files(user.home) == before
    return result.stderr


def test_init_options_make_private_files(nobody: Program) -> None:
    made = init(nobody, *NEEDED, "--country", "KE=WALLET", "--country", "tz")
    assert made["exit_code"] == 0
    assert made["configuration"] == str(nobody.config)
    key = Path(made["private_key"])
    journal = Path(made["journal"]["path"])
    assert {mode(path) for path in (nobody.config, key, journal)} == {0o600}
    assert key == nobody.config.parent / "keys" / "merchant.pem"
    assert journal.is_relative_to(nobody.home / "state")
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, RSAPrivateKey)
    assert private.key_size >= 2048
    assert made["public_key"].startswith("-----BEGIN PUBLIC KEY-----")
    assert made["missing"] == ["gateway.signature_profile", "outcomes", "countries.TZ.payout.purpose"]


def test_init_writes_given_answers_to_configuration(nobody: Program) -> None:
    words = ("--outcome", "a b=paid", "--outcome", "no=rejected", "--signature-profile", "raw-body")
    more = ("--proxy", "http://proxy.example:3128", "--ca-bundle", "ca.pem", "--country", "KE=A/B")
    init(nobody, *NEEDED, *words, *more)
    settings = load_settings(nobody.config, environ={})
    gateway = settings.gateway
    assert (gateway.base_url, gateway.endpoint_id) == ("https://gateway.example/base", "77")
    assert gateway.consumer_key == 'merchant "x" \\ é'
    assert gateway.signature_profile == "raw-body"
    assert (gateway.proxy, gateway.ca_bundle) == ("http://proxy.example:3128", nobody.home / "ca.pem")
    assert settings.outcomes == {"a b": "paid", "no": "rejected"}
    assert settings.countries["KE"].payout.purpose == "A/B"
    assert settings.missing_to_send() == []


def test_every_other_command_reads_the_users_own_configuration(nobody: Program) -> None:
    init(nobody, *NEEDED)
    checks = json.loads(nobody.run("--json", "doctor", config=False).stdout)["checks"]
    assert "missing: gateway.signature_profile, outcomes" in [check["found"] for check in checks]
    assert nobody.run("status", config=False).exit_code == 0


def test_init_sandbox_pays_with_next_command(nobody: Program) -> None:
    made = init(nobody, "--sandbox")
    assert made["example_sheet"] == "sandbox-payroll.csv"
    assert Path(made["journal"]["path"]).is_relative_to(nobody.home / "state")
    assert (mode(made["configuration"]), mode("sandbox-payroll.csv")) == (0o600, 0o600)
    paid = json.loads(nobody.run("--json", "submit", "sandbox-payroll.csv", config=False).stdout)
    assert paid["states"] == {"paid": 14}
    assert paid.get("warning_list", []) == []


def test_init_sandbox_keeps_existing_sheet(nobody: Program) -> None:
    (nobody.home / "sandbox-payroll.csv").write_text("mine")
    assert init(nobody, "--sandbox")["example_sheet"] is None
    assert (nobody.home / "sandbox-payroll.csv").read_text() == "mine"


def test_init_writes_to_named_places(nobody: Program) -> None:
    place, journal = nobody.home / "new" / "my.toml", nobody.home / "kept" / "j.sqlite3"
    result = nobody.run("--config", place, "--journal", journal, "init", "--sandbox", config=False)
    assert result.exit_code == 0, result.stderr
    assert f"paygw-batch --config {place} submit sandbox-payroll.csv" in " ".join(result.stdout.split())
    assert journal.exists()
    assert load_settings(place, environ={}).journal_path() == journal
    assert not nobody.config.exists()


def test_init_force_replaces_configuration_and_keeps_key(nobody: Program) -> None:
    first = init(nobody, *NEEDED)
    before = nobody.config.read_text()
    assert "There is already a configuration at" in refused(nobody, *NEEDED)
    assert nobody.config.read_text() == before
    again = init(nobody, *NEEDED, "--country", "KE=X", "--force")
    assert again["fingerprint"] == first["fingerprint"]
    assert again["journal"]["made"] is False
    assert nobody.config.read_text() != before


@pytest.mark.parametrize("name", ["journal.sqlite3", "journal.sqlite3.lock", "merchant.pem"])
def test_force_replaces_neither_journal_nor_key(nobody: Program, name: str) -> None:
    init(nobody, *NEEDED)
    found = next(path for path in nobody.home.rglob(name))
    content = found.read_bytes()
    result = nobody.run(
        "--config",
        found,
        "init",
        *NEEDED,
        "--private-key",
        nobody.config.parent / "keys" / "merchant.pem",
        "--force",
        config=False,
    )
    assert result.exit_code == 2
    assert found.read_bytes() == content


@pytest.mark.parametrize("as_json", [True, False])
def test_init_without_terminal_names_missing_options(nobody: Program, *, as_json: bool) -> None:
    before = files(nobody.home)
    words = ["--json"] if as_json else []
    result = nobody.run(*words, "init", "--endpoint-id", "77", config=False)
    assert result.exit_code == 2
    assert re.search("--base-url, --consumer-key, --server-callback-url", result.stderr)
    assert "--endpoint-id" not in result.stderr
    assert files(nobody.home) == before
    if as_json:
        assert json.loads(result.stdout)["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--country", "KY"), "did you mean KE?"),
        (("--outcome", "approved"), "approved=paid"),
        (("--outcome", "approved=perhaps"), "outcomes.approved"),
        (("--base-url", "http://gateway.example"), "unencrypted"),
        (("--base-url", "sandbox"), "init --sandbox"),
        (("--base-url", "not an address"), "gateway.base_url"),
        (("--server-callback-url", "merchant.example"), "--server-callback-url"),
        (("--consumer-key", "two\nlines"), "control character"),
        (("--private-key-passphrase-env", "HOME_OF_NOTHING"), "HOME_OF_NOTHING"),
        (("--sandbox",), "--sandbox and --base-url cannot be combined"),
        (("--letter", "."), "."),
    ],
)
def test_init_with_unusable_value_makes_nothing(nobody: Program, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(nobody, *NEEDED, *words)


def test_init_refuses_world_readable_key(nobody: Program) -> None:
    first = init(nobody, *NEEDED)
    key = Path(first["private_key"])
    key.chmod(0o644)
    told = refused(nobody, *NEEDED, "--force", "--private-key", key)
    assert "chmod 600" in told


def test_init_encrypts_key_with_named_passphrase(nobody: Program) -> None:
    secret = nobody.home / "passphrase"
    secret.write_text("s3cret words\n")
    secret.chmod(0o600)
    made = init(nobody, *NEEDED, "--private-key-passphrase-file", secret)
    pem = Path(made["private_key"]).read_bytes()
    assert b"ENCRYPTED" in pem
    assert isinstance(load_pem_private_key(pem, b"s3cret words"), RSAPrivateKey)
    assert "s3cret" not in nobody.config.read_text() + json.dumps(made)
    other = nobody.home / "other.toml"
    words = ("init", *NEEDED, "--private-key", "by-variable.pem", "--private-key-passphrase-env", "PAYGW_KEY_WORDS")
    result = nobody.run("--config", other, *words, config=False, PAYGW_KEY_WORDS="another")
    assert result.exit_code == 0, result.stderr
    assert isinstance(load_pem_private_key((nobody.home / "by-variable.pem").read_bytes(), b"another"), RSAPrivateKey)


def test_init_makes_no_second_journal_for_endpoint(nobody: Program) -> None:
    init(nobody, *NEEDED)
    other = nobody.home / "other" / "my.toml"
    before = files(nobody.home)
    second = nobody.run("--config", other, "--journal", nobody.home / "second.sqlite3", "init", *NEEDED, config=False)
    assert second.exit_code == 7
    assert "already has a journal" in second.stderr
    assert files(nobody.home) == before


def test_letter_contains_key_and_open_questions(nobody: Program) -> None:
    letter = nobody.home / "letter.txt"
    made = init(nobody, *NEEDED, "--country", "KE", "--country", "SN=ORANGE", "--country", "ZA", "--letter", letter)
    text = made["letter"]
    assert letter.read_text() == text
    assert mode(letter) == 0o600
    assert made["public_key"] in text
    assert made["fingerprint"] in text
    for known in ("77", 'merchant "x"', "https://merchant.example/callback", "KE, SN, ZA"):
        assert known in text
    flat = " ".join(text.split())
    assert "of payouts to KE?" in flat
    assert "shows no payout to SN." in flat
    for asked in ("gateway.signature_profile", "[outcomes]", "[reply]", "[notifications]", "quarantine_h", "optional"):
        assert asked in flat
    assert [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] == list(range(1, 14))


def test_letter_omits_questions_already_answered(nobody: Program) -> None:
    words = ("--signature-profile", "json-params", "--outcome", "ok=paid", "--country", "KE=WALLET")
    made = init(nobody, *NEEDED, *words)
    assert made["missing"] == []
    for known in ("RFC 5849", "[outcomes]", "exact `purpose`", "shows no payout"):
        assert known not in made["letter"]
    assert "--first 1" in made["message"]


def test_init_shows_only_public_key(nobody: Program) -> None:
    shown = nobody.run("init", *NEEDED, config=False).stdout
    assert "-----BEGIN PUBLIC KEY-----" in shown
    assert "PRIVATE" not in shown
    assert str(nobody.config) in " ".join(shown.split())


def test_init_at_terminal_asks_missing_values(nobody: Program) -> None:
    answers = "https://gateway.example\n77\nmerchant\nhttps://merchant.example/cb\nKE, TZ\nraw-body\n\n"
    shown = at_a_terminal(nobody, answers, "init")
    for question in ("base address", "endpoint id", "consumer key", "notifications", "Countries", "passphrase"):
        assert question in shown
    settings = load_settings(nobody.config, environ={})
    assert (settings.gateway.endpoint_id, settings.gateway.signature_profile) == ("77", "raw-body")
    assert list(settings.countries) == ["KE", "TZ"]
    assert "-----BEGIN PUBLIC KEY-----" in shown


def test_init_checks_each_answer_at_prompt(nobody: Program) -> None:
    answers = (
        "gateway.example\nhttps://gateway.example\n..\n77\nmerchant\nnowhere\nhttps://merchant.example/cb\n"
        "Kenia\nKenya, Tanzania\njson\njson-params\nnosuch.txt\n\n"
    )
    shown = at_a_terminal(nobody, answers, "init")
    assert shown.count("Error: ") == 6
    settings = load_settings(nobody.config, environ={})
    assert list(settings.countries) == ["KE", "TZ"]
    assert settings.gateway.signature_profile == "json-params"


def test_failed_init_prints_command_to_repeat(nobody: Program) -> None:
    secret = nobody.home / "secret.txt"
    secret.write_text("words\n")
    secret.chmod(0o644)
    answers = f"https://gateway.example\n77\nmy login\nhttps://merchant.example/cb\nKenya\n\n{secret}\n"
    shown = at_a_terminal(nobody, answers, "init", exit_code=2)
    (command,) = re.findall(r"^  paygw-batch (.*)$", shown, re.MULTILINE)
    assert not nobody.config.exists()
    secret.chmod(0o600)
    assert nobody.run(*shlex.split(command), config=False).exit_code == 0
    assert load_settings(nobody.config, environ={}).gateway.consumer_key == "my login"


@pytest.mark.long
def test_init_refuses_existing_configuration_before_asking(nobody: Program) -> None:
    init(nobody, *NEEDED)
    shown = at_a_terminal(nobody, "", "init", exit_code=2)
    assert "There is already a configuration" in shown
    assert "base address" not in shown


def at_a_terminal(user: Program, answers: str, *words: str, exit_code: int = 0) -> str:
    """Run the program at a terminal of its own, type the answers, and return all that the screen showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "paygw_batch", *words]
    environ = {**os.environ, **user.environ}
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=user.home, env=environ)
    os.close(theirs)
    os.write(ours, answers.encode())
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    assert running.wait() == exit_code, shown.decode()
    return shown.decode().replace("\r\n", "\n")
