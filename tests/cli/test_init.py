"""`init` creates the configuration, key, letter and journal; `config show` tells each value and its origin."""

import json
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from paygw_batch.settings.configuration import load_settings
from paygw_batch.settings.sections import GatewaySection, SubmissionSection
from tests.cli.conversing import converse
from tests.support.program import Program

NEEDED = (
    *("--base-url", "https://gateway.example/base", "--endpoint-id", "77", "--consumer-key", 'merchant "x" \\ é'),
    *("--server-callback-url", "https://merchant.example/callback"),
)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    return Program(tmp_path, tmp_path / ".config" / "paygw-batch" / "paygw.toml")


def run_json(user: Program, *words: str | Path) -> dict[str, Any]:
    result = user.run("--json", *words, config=False)
    summary: dict[str, Any] = json.loads(result.stdout)
    assert summary["exit_code"] == result.exit_code, result.stderr
    return summary


def run_init(user: Program, *words: str | Path) -> dict[str, Any]:
    return run_json(user, "init", *words)


def file_names(home: Path) -> set[str]:
    """Return all files except those that only reading a journal creates."""
    names = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    return {name for name in names if not name.endswith((".lock", "-wal", "-shm"))}


def file_mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def run_refused(user: Program, *words: str | Path, code: int = 2) -> str:
    """Run a command that must be refused and create nothing, and return its error."""
    before = file_names(user.home)
    result = user.run(*words, config=False)
    assert (result.exit_code, file_names(user.home)) == (code, before), result.output
    return result.stderr


def test_init_creates_private_files(user: Program) -> None:
    summary = run_init(user, *NEEDED, "--country", "KE=WALLET", "--country", "tz")
    assert (summary["exit_code"], summary["configuration"]) == (0, str(user.config))
    key, journal = Path(summary["private_key"]), Path(summary["journal"]["path"])
    assert {file_mode(path) for path in (user.config, key, journal)} == {0o600}
    assert key == user.config.parent / "keys" / "merchant.pem"
    assert journal.is_relative_to(user.home / "state")
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, RSAPrivateKey)
    assert private.key_size >= 2048
    assert summary["public_key"].startswith("-----BEGIN PUBLIC KEY-----")
    assert summary["missing"] == ["gateway.signature_profile", "outcomes", "countries.TZ.payout.purpose"]
    found = " ".join(check["found"] for check in run_json(user, "doctor")["checks"])
    assert "missing: gateway.signature_profile, outcomes" in found
    assert user.run("status", config=False).exit_code == 0


def test_init_writes_given_answers_to_configuration(user: Program) -> None:
    words = ("--outcome", "a b=paid", "--outcome", "no=rejected", "--signature-profile", "raw-body")
    more = ("--proxy", "http://proxy.example:3128", "--ca-bundle", "ca.pem", "--country", "KE=A/B")
    summary = run_init(user, *NEEDED, *words, *more)
    settings = load_settings(user.config, environ={})
    gateway = settings.gateway
    assert (gateway.base_url, gateway.endpoint_id) == ("https://gateway.example/base", "77")
    assert (gateway.consumer_key, gateway.signature_profile) == ('merchant "x" \\ é', "raw-body")
    assert (gateway.proxy, gateway.ca_bundle) == ("http://proxy.example:3128", user.home / "ca.pem")
    assert settings.outcomes == {"a b": "paid", "no": "rejected"}
    assert settings.countries["KE"].payout.purpose == "A/B"
    assert settings.missing_for_sending() == summary["missing"] == []
    assert not re.search(r"RFC 5849|\[outcomes\]|exact `purpose`|shows no payout", summary["letter"])
    assert "--first 1" in summary["message"]


def test_sandbox_can_pay_right_after_init(user: Program) -> None:
    summary = run_init(user, "--sandbox")
    assert summary["example_sheet"] == "sandbox-payroll.csv"
    assert Path(summary["journal"]["path"]).is_relative_to(user.home / "state")
    assert (file_mode(summary["configuration"]), file_mode("sandbox-payroll.csv")) == (0o600, 0o600)
    paid = run_json(user, "submit", "sandbox-payroll.csv")
    assert (paid["states"], paid.get("warning_list", [])) == ({"paid": 14}, [])
    Path("sandbox-payroll.csv").write_text("mine")
    assert run_init(user, "--sandbox", "--force")["example_sheet"] is None
    assert Path("sandbox-payroll.csv").read_text() == "mine"


def test_init_writes_to_given_paths(user: Program) -> None:
    place, journal = user.home / "new" / "my.toml", user.home / "kept" / "j.sqlite3"
    result = user.run("--config", place, "--journal", journal, "init", "--sandbox", config=False)
    assert f"paygw-batch --config {place} submit sandbox-payroll.csv" in " ".join(result.stdout.split())
    assert load_settings(place, environ={}).journal_path() == journal
    assert (journal.exists(), user.config.exists()) == (True, False)


def test_init_force_replaces_configuration_and_keeps_key(user: Program) -> None:
    first = run_init(user, *NEEDED)
    before = user.config.read_text()
    assert "There is already a configuration at" in run_refused(user, "init", *NEEDED)
    assert user.config.read_text() == before
    again = run_init(user, *NEEDED, "--country", "KE=X", "--force")
    assert again["fingerprint"] == first["fingerprint"]
    assert again["journal"]["made"] is False
    assert user.config.read_text() != before


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["journal.sqlite3", "journal.sqlite3.lock", "merchant.pem"])
def test_force_replaces_neither_journal_nor_key(user: Program, name: str) -> None:
    run_init(user, *NEEDED)
    found = next(path for path in user.home.rglob(name))
    content = found.read_bytes()
    key = user.config.parent / "keys" / "merchant.pem"
    run_refused(user, "--config", found, "init", *NEEDED, "--private-key", key, "--force")
    assert found.read_bytes() == content


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_init_without_terminal_lists_missing_options(user: Program, option: str) -> None:
    error_output = run_refused(user, option, "init", "--endpoint-id", "77")
    assert "--base-url, --consumer-key, --server-callback-url" in error_output
    assert "--endpoint-id" not in error_output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--country", "KY"), "Did you mean KE?"),
        (("--outcome", "approved"), "approved=paid"),
        (("--outcome", "approved=perhaps"), "outcomes.approved"),
        (("--base-url", "http://gateway.example"), "unencrypted"),
        (("--base-url", "sandbox"), "init --sandbox"),
        (("--base-url", "not an address"), "gateway.base_url"),
        (("--server-callback-url", "merchant.example"), "--server-callback-url"),
        (("--consumer-key", "two\nlines"), "control character"),
        (("--private-key-passphrase-env", "HOME_OF_NOTHING"), "HOME_OF_NOTHING"),
        (("--sandbox",), "--base-url cannot be used with --sandbox"),
        (("--letter", "."), "."),
    ],
)
def test_init_with_invalid_value_creates_nothing(user: Program, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in run_refused(user, "init", *NEEDED, *words)


def test_init_refuses_world_readable_key(user: Program) -> None:
    key = Path(run_init(user, *NEEDED)["private_key"])
    key.chmod(0o644)
    assert "chmod 600" in run_refused(user, "init", *NEEDED, "--force", "--private-key", key)


def test_init_encrypts_key_with_given_passphrase(user: Program) -> None:
    secret = user.home / "passphrase"
    secret.write_text("s3cret words\n")
    secret.chmod(0o600)
    summary = run_init(user, *NEEDED, "--private-key-passphrase-file", secret)
    pem = Path(summary["private_key"]).read_bytes()
    assert b"ENCRYPTED" in pem
    assert isinstance(load_pem_private_key(pem, b"s3cret words"), RSAPrivateKey)
    assert "s3cret" not in user.config.read_text() + json.dumps(summary)
    other = user.home / "other.toml"
    words = ("init", *NEEDED, "--private-key", "by-variable.pem", "--private-key-passphrase-env", "PAYGW_KEY_WORDS")
    result = user.run("--config", other, *words, config=False, PAYGW_KEY_WORDS="another")
    assert result.exit_code == 0, result.stderr
    assert isinstance(load_pem_private_key((user.home / "by-variable.pem").read_bytes(), b"another"), RSAPrivateKey)


def test_init_refuses_second_journal_for_endpoint(user: Program) -> None:
    run_init(user, *NEEDED)
    other = ("--config", user.home / "other" / "my.toml", "--journal", user.home / "2.sqlite3")
    assert "already has a journal" in run_refused(user, *other, "init", *NEEDED, code=7)


def test_letter_contains_key_and_open_questions(user: Program) -> None:
    letter = user.home / "letter.txt"
    countries = ("--country", "KE", "--country", "SN=ORANGE", "--country", "ZA")
    summary = run_init(user, *NEEDED, *countries, "--letter", letter)
    text = summary["letter"]
    assert (letter.read_text(), file_mode(letter)) == (text, 0o600)
    known = ("77", 'merchant "x"', "https://merchant.example/callback", "KE, SN, ZA")
    assert all(part in text for part in (summary["public_key"], summary["fingerprint"], *known))
    flat = " ".join(text.split())
    assert ("of payouts to KE?" in flat, "shows no payout to SN." in flat) == (True, True)
    for asked in ("gateway.signature_profile", "[outcomes]", "[reply]", "[notifications]", "quarantine_h", "optional"):
        assert asked in flat
    assert [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] == list(range(1, 14))


ANSWERS = {
    "base address": "https://gateway.example",
    "endpoint id": "77",
    "consumer key": "my login",
    "notifications": "https://merchant.example/cb",
    "Countries": "KE, TZ",
}


def test_init_at_terminal_asks_for_missing_values(user: Program) -> None:
    output, code = converse(user, "init", answers=[*ANSWERS.items(), ("for it", "raw-body"), ("passphrase", "")])
    assert code == 0, output
    settings = load_settings(user.config, environ={})
    assert (settings.gateway.endpoint_id, settings.gateway.signature_profile) == ("77", "raw-body")
    assert list(settings.countries) == ["KE", "TZ"]
    assert ("-----BEGIN PUBLIC KEY-----" in output, "PRIVATE" in output) == (True, False)
    assert str(user.config) in " ".join(output.split())


def test_init_checks_each_answer_at_prompt(user: Program) -> None:
    wrong = {"base address": "gateway.example", "endpoint id": "..", "notifications": "nowhere", "Countries": "Kenia"}
    rest = (("for it", "json"), ("for it", "json-params"), ("passphrase", "nosuch.txt"), ("passphrase", ""))
    answers = [(asked, text) for asked in ANSWERS for text in (wrong.get(asked), ANSWERS[asked]) if text]
    output, code = converse(user, "init", answers=[*answers, *rest])
    assert (code, output.count("Error: ")) == (0, 6), output
    settings = load_settings(user.config, environ={})
    assert (list(settings.countries), settings.gateway.signature_profile) == (["KE", "TZ"], "json-params")


def test_failed_init_prints_command_to_retry(user: Program) -> None:
    secret = user.home / "secret.txt"
    secret.write_text("words\n")
    secret.chmod(0o644)
    output, code = converse(user, "init", answers=[*ANSWERS.items(), ("for it", ""), ("passphrase", str(secret))])
    (command,) = re.findall(r"^  paygw-batch (.*)$", output, re.MULTILINE)
    assert (code, user.config.exists()) == (2, False)
    secret.chmod(0o600)
    assert user.run(*shlex.split(command), config=False).exit_code == 0
    assert load_settings(user.config, environ={}).gateway.consumer_key == "my login"


def show_settings(program: Program, *before: str, **environ: str) -> dict[str, tuple[str | None, str]]:
    summary = program.json(*before, "config", "show", **environ)
    assert summary["configuration"] == str(program.config)
    return {setting["key"]: (setting["value"], setting["from"]) for setting in summary["settings"]}


def test_config_show_names_origin_of_each_value(program: Program) -> None:
    settings = show_settings(program, PAYGW_RATE_PER_S="7", PAYGW_RETRY_ORDER_ID="same")
    assert settings["gateway.endpoint_id"] == ("1000", "file")
    assert settings["submission.rate_per_s"] == ("7.0", "environment: PAYGW_RATE_PER_S")
    assert settings["retry.order_id"] == ("same", "environment: PAYGW_RETRY_ORDER_ID")
    assert settings["submission.quarantine_h"] == ("24", "default")
    assert settings["gateway.proxy"] == (None, "default")
    assert settings["outcomes.approved"] == ("paid", "file")
    assert settings["countries.KE.payout.purpose"] == ("SANDBOX-WALLET-KE", "file")
    assert settings["journal.path"] == (str(program.journal), "file")
    for section, model in (("gateway", GatewaySection), ("submission", SubmissionSection)):
        assert {f"{section}.{key}" for key in model.model_fields} <= settings.keys()
    other = str(program.home / "other.sqlite3")
    assert show_settings(program, "--journal", other)["journal.path"] == (other, "command line")
    assert show_settings(program, PAYGW_JOURNAL=other)["journal.path"] == (other, "environment: PAYGW_JOURNAL")


def test_config_show_hides_secrets(program: Program) -> None:
    secret = program.home / "passphrase"
    secret.write_text("s3cret")
    lines = 'private_key_passphrase_env = "KEY_WORDS"\nproxy = "http://me:pa55@proxy.example"\n'
    lines += f'private_key_passphrase_file = "{secret}"\n'
    program.config.write_text(program.config.read_text().replace("[gateway]\n", f"[gateway]\n{lines}"))
    for option in ("--json", "--verbose"):
        result = program.run(option, "config", "show", KEY_WORDS="s3cret")
        assert (result.exit_code, "KEY_WORDS" in result.stdout) == (0, True)
        assert not re.search("s3cret|pa55", result.output)


def test_config_show_without_file_shows_defaults(program: Program) -> None:
    result = program.run("config", "show", config=False)
    assert (result.exit_code, "There is no configuration file." in result.stdout) == (0, True)
    assert " file" not in result.stdout.partition("There is no")[0]
