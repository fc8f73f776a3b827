"""Settings from a configuration file and the environment, and the errors about wrong ones."""

import os
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import ConfigurationError
from paygw_batch.opening.gateway_access import load_passphrase
from paygw_batch.settings.configuration import environment_keys, load_settings, unknown_variables
from paygw_batch.settings.user_directories import state_directory

EXAMPLE = """
[gateway]
base_url = "https://gateway.example"
endpoint_id = "1234"
consumer_key = "merchant-login"
private_key = "keys/merchant.pem"
private_key_passphrase_env = "PAYGW_KEY_PASSPHRASE"
signature_profile = "json-params"
server_callback_url = "https://merchant.example/paygw/callback"
ca_bundle = "corporate-ca.pem"
[submission]
concurrency = 16
rate_per_s = 0
stop_after_in_doubt = 5
connections = "fresh"
quarantine_h = 24
[journal]
path = "paygw-journal.sqlite3"
[outcomes]
approved = "paid"
processing = "accepted"
declined = "rejected"
[retry]
order_id = "suffix"
[countries.KE.payout]
purpose = "WALLET"
min_amount = "10"
max_amount = "250000"
"""


@pytest.fixture
def write_configuration(tmp_path: Path) -> Path:
    path = tmp_path / "paygw.toml"
    path.write_text(EXAMPLE)
    return path


def refusal_message(tmp_path: Path, text: str, **environ: str) -> str:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path, environ=environ)
    return caught.value.message


def test_file_settings_are_read_and_overridden(write_configuration: Path) -> None:
    settings = load_settings(write_configuration, environ={})
    kinds = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
    assert (settings.gateway.endpoint_id, settings.submission.quarantine_h, settings.words()) == ("1234", 24, kinds)
    kenya = settings.terms("payout")["KE"]
    assert (kenya.purpose, kenya.max_amount, settings.missing_for_sending()) == ("WALLET", Decimal(250000), [])
    environ = {"PAYGW_CONCURRENCY": "3", "PAYGW_RATE_PER_S": "2.5"}
    settings = load_settings(write_configuration, environ=environ, flags={("submission", "concurrency"): 7})
    assert (settings.submission.concurrency, settings.submission.rate_per_s) == (7, 2.5)


def test_paths_are_relative_to_configuration_file(write_configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = write_configuration.parent / "here"
    here.mkdir(mode=0o700)
    monkeypatch.chdir(here)
    settings, folder = load_settings(write_configuration, environ={}), write_configuration.parent
    assert settings.gateway.private_key == folder / "keys/merchant.pem"
    assert settings.gateway.ca_bundle == folder / "corporate-ca.pem"
    assert settings.journal_path() == folder / "paygw-journal.sqlite3"
    assert settings.known_journals_directory() != folder
    elsewhere = load_settings(write_configuration, environ={"PAYGW_JOURNAL": str(folder / "other.sqlite3")})
    assert elsewhere.journal_path() == folder / "other.sqlite3"
    for text, key in (
        ("merchant.pem", here / "merchant.pem"),  # a path in the environment is relative to the working directory
        *((text, text) for text in ("pkcs11:token=paygw;object=payouts", "awskms:alias/payouts")),
    ):
        assert load_settings(write_configuration, environ={"PAYGW_PRIVATE_KEY": text}).gateway.private_key == key


@pytest.mark.parametrize("name", sorted(environment_keys()))
def test_every_environment_variable_sets_its_key(name: str, tmp_path: Path) -> None:
    section, key = environment_keys()[name]
    words = {"signature_profile": "raw-body", "connections": "reuse", "order_id": "same", "encoding": "cp1252"}
    words |= {"names": "words", "numbers": "comma"}
    words |= {"read_timeout_s": "90", "total_timeout_s": "500", "connect_timeout_s": "5"}
    paths = ("private_key", "private_key_passphrase_file", "ca_bundle", "pkcs11_module")
    text = words.get(key, str(tmp_path / key) if key in paths else "7")
    settings = load_settings(None, environ={name: text})
    assert str(getattr(getattr(settings, section), key)) in {text, f"{text}.0"}


def test_all_wrong_settings_are_reported_together(tmp_path: Path) -> None:
    message = refusal_message(tmp_path, "[gateway]\nhost = 1\n[limits]\nmax_rows = 0\n[nonsense]\n")
    assert all(key in message for key in ("gateway.host", "limits.max_rows", "nonsense"))
    assert "PAYGW_CONCURRENCY is 'many'" in refusal_message(tmp_path, "", PAYGW_CONCURRENCY="many")
    message = refusal_message(tmp_path, "", PAYGW_CONCURRENCY="0", PAYGW_RETRY_ORDER_ID="same")
    assert "wrong.toml, PAYGW_CONCURRENCY: submission.concurrency: " in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gateway]\nread_timeout_s = 59.9\n", "60 seconds"),
        ("[gateway]\nread_timeout_s = 90\ntotal_timeout_s = 80\n", "total_timeout_s"),
        ('[gateway]\nsignature_profile = "md5"\n', "signature_profile"),
        ('[submission]\nconnections = "pooled"\n', "connections"),
        *((f"[submission]\nconcurrency = {value}\n", "concurrency") for value in ("0", '"16"')),
        *((f'[outcomes]\napproved = "{value}"\n', "outcomes.approved") for value in ("maybe", "unknown")),
        ("[countries.KE.payout]\nmin_amount = 10.5\n", "in quotation marks"),
        *((f'[countries.KE.payout]\nmin_amount = "{value}"\n', "not an amount") for value in ("ten", "NaN")),
        ("[submission]\nconcurency = 3\n", "submission.concurency is not a known key. Did you mean concurrency?"),
        ('[countries.KE.payout]\npurpse = "x"\n', "countries.KE.payout.purpse"),
        ('[gateway]\nprivate_key_passphrase_env = "TZ"\n', "a secret cannot be in the variable TZ"),
        ('[reply]\norderid = ["x"]\n', "reply.orderid is not a known key. Did you mean order_id?"),
        *((f"[reply]\norder_id = {value}\n", "reply.order_id") for value in ("[]", '"x"')),
        ('[reply]\nmessage = ["error..message"]\n', "reply.message"),
        ('[reply]\namount_unit = "cents"\n', "reply.amount_unit"),
        ("not toml", "not valid TOML"),
        ('[console]\norigin = "http://payouts.example.com"\n', "console: "),
        ('[console]\norigin = "https://payouts.example.com/"\n', "no path"),
        ('[console]\norigin = "https://payouts.example.com:443"\n', "default port"),
        ('[console]\norigin = "https://Payouts.example.com"\n', "lower case"),
        *((f'[console]\norigin = "{value}"\n', "not an IP") for value in ("https://10.0.0.7", "http://127.0.0.1:8080")),
        ('[console]\norigin = "https://payouts"\n', "not an origin that passkeys"),
    ],
)
def test_error_about_invalid_value_names_setting(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal_message(tmp_path, text)


def test_console_origin_suitable_for_passkeys_is_accepted(tmp_path: Path) -> None:
    secure = ("https://payouts.example.com", "https://payouts.example.com:8443", "https://localhost")
    for origin in (*secure, "http://localhost:8087"):
        (tmp_path / "paygw.toml").write_text(f'[console]\norigin = "{origin}"\n')
        assert load_settings(tmp_path / "paygw.toml", environ={}).console.origin == origin


def test_missing_and_misspelt_settings_are_named(write_configuration: Path, tmp_path: Path) -> None:
    missing = load_settings(None, environ={}).missing_for_sending()
    assert {"gateway.signature_profile", "outcomes", "gateway.base_url"} <= set(missing)
    settings = load_settings(write_configuration, environ={})
    environ = {"PAYGW_KEY_PASSPHRASE": "x", "PAYGW_CONCURENCY": "2", "PAYGW_CONFIG": "c", "HOME": "/"}
    assert unknown_variables(environ, settings) == ["PAYGW_CONCURENCY"]
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=str(path)):
            load_settings(path, environ={})


def test_journal_is_separate_for_each_merchant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names = ("PAYGW_BASE_URL", "PAYGW_ENDPOINT_ID", "PAYGW_CONSUMER_KEY")
    accesses = product(("https://a.example", "https://b.example"), "12", ("one", "other"))
    places = {load_settings(None, environ=dict(zip(names, access, strict=True))).journal_path() for access in accesses}
    assert len(places) == 4
    assert all(place.is_relative_to(state_directory()) for place in places)
    assert state_directory().is_relative_to(tmp_path)
    result = [
        load_settings(None, environ={"PAYGW_BASE_URL": f"https://a.example{port}", "PAYGW_ENDPOINT_ID": "1"})
        for port in ("", ":443", ":8443")
    ]
    assert [settings.endpoint() for settings in result] == ["a.example/1", "a.example/1", "a.example:8443/1"]
    assert len({settings.journal_path() for settings in result}) == 1


def test_passphrase_is_read_from_variable_or_file(write_configuration: Path, tmp_path: Path) -> None:
    settings, secret = load_settings(write_configuration, environ={}), tmp_path / "secret"
    assert load_passphrase(settings, {"PAYGW_KEY_PASSPHRASE": "from variable"}) == b"from variable"
    assert load_passphrase(settings, {}) is None
    by_file = load_settings(None, environ={"PAYGW_PRIVATE_KEY_PASSPHRASE_FILE": str(secret)})
    for text in (b"from file\n", b"\xef\xbb\xbffrom file\r\n", b"\xef\xbb\xbffrom file", b"from file"):
        secret.write_bytes(text)
        secret.chmod(0o600)
        assert load_passphrase(by_file, {}) == b"from file"


@pytest.mark.parametrize("mode", [0o666, 0o640, 0o604, 0o620])
def test_passphrase_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\n")
    secret.chmod(mode)
    places = {"PAYGW_PRIVATE_KEY_PASSPHRASE_FILE": str(secret), "PAYGW_BASE_URL": "https://gateway.example"}
    with pytest.raises(ConfigurationError, match="accessible to users other") as caught:
        load_passphrase(load_settings(None, environ=places), {})
    assert caught.value.hint == f"chmod 600 {secret}"
    assert load_passphrase(load_settings(None, environ={**places, "PAYGW_BASE_URL": "sandbox"}), {}) == b"from file"


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_writable_configuration_is_refused_for_real_gateway(tmp_path: Path, mode: int) -> None:
    config = tmp_path / "paygw.toml"
    config.write_text('[gateway]\nbase_url = "https://gateway.example"\n')
    config.chmod(mode)
    with pytest.raises(ConfigurationError, match="writable by other users") as caught:
        load_settings(config, environ={})
    assert caught.value.hint == f"chmod go-w {config}"
    assert load_settings(config, environ={"PAYGW_BASE_URL": "sandbox"}).uses_sandbox
    noted: list[ConfigurationError] = []
    assert load_settings(config, environ={}, trust_errors=noted).gateway.base_url == "https://gateway.example"
    assert [item.hint for item in noted] == [f"chmod go-w {config}"]
    config.chmod(0o644)
    assert load_settings(config, environ={}).gateway.base_url == "https://gateway.example"
    if os.geteuid() == 0:  # only root can give a file away
        os.chown(config, 65534, 65534)
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            load_settings(config, environ={})


TIMETABLE = """
[journal]
url = "postgresql://paygw@db1/paygw"
replication = "none"
[timetable]
time_zone = "Africa/Nairobi"
refresh = "*/15 * * * *"
[timetable.backup]
folder = "backups"
at = "0  4 * * *"
[[timetable.pick_up]]
folder = "drop"
at = "*/5 6-18 * * 1-5"
"""


def test_timetable_has_configured_entries(tmp_path: Path) -> None:
    path = tmp_path / "several.toml"
    path.write_text(TIMETABLE)
    result = load_settings(path, environ={}).timetable
    assert (result.time_zone, result.refresh, result.verify) == ("Africa/Nairobi", "*/15 * * * *", None)
    (drop,), backup = result.pick_up, result.backup
    assert backup is not None
    assert (backup.folder, backup.at) == (tmp_path / "backups", "0 4 * * *")
    assert (drop.folder, drop.at, drop.collect) == (tmp_path / "drop", "*/5 6-18 * * 1-5", False)


TWICE = '"* * * * *"\n[[timetable.pick_up]]\nfolder = "drop"\nat = "* * * * *"'


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("refresh =", "refrehs =", "timetable.refrehs is not a known key. Did you mean refresh?"),
        ('folder = "drop"', 'fodler = "drop"', "timetable.pick_up.0.fodler is not a known key. Did you mean folder?"),
        *(("*/15 * * * *", time, "is not a time for a timetable") for time in ("61 * * * *", "@daily", "0 3 * * * 0")),
        ("Africa/Nairobi", "Nairobi", "is not a time zone"),
        ('time_zone = "Africa/Nairobi"', "", "time_zone is not set"),
        ('url = "postgresql://paygw@db1/paygw"\nreplication = "none"', "", "Set [journal] url"),
        ('"*/5 6-18 * * 1-5"', TWICE, "twice"),
    ],
)
def test_invalid_timetable_is_refused(tmp_path: Path, right: str, wrong: str, why: str) -> None:
    assert right in TIMETABLE
    assert why in refusal_message(tmp_path, TIMETABLE.replace(right, wrong))
