"""`config show`: every setting with its value and origin, and no secrets."""

import pytest

from paygw_batch.settings.sections import GatewaySection, SubmissionSection
from tests.support.program import Program


def show_settings(program: Program, *before: str, **environ: str) -> dict[str, tuple[str | None, str]]:
    summary = program.json(*before, "config", "show", **environ)
    assert summary["configuration"] == str(program.config)
    return {setting["key"]: (setting["value"], setting["from"]) for setting in summary["settings"]}


def test_config_show_lists_origin_of_each_value(program: Program) -> None:
    settings = show_settings(program, PAYGW_RATE_PER_S="7", PAYGW_RETRY_ORDER_ID="same")
    assert settings["gateway.endpoint_id"] == ("1000", "file")
    assert settings["submission.rate_per_s"] == ("7.0", "environment: PAYGW_RATE_PER_S")
    assert settings["retry.order_id"] == ("same", "environment: PAYGW_RETRY_ORDER_ID")
    assert settings["submission.quarantine_h"] == ("24", "default")
    assert settings["gateway.proxy"] == (None, "default")
    assert settings["outcomes.approved"] == ("paid", "file")
    assert settings["countries.KE.payout.purpose"] == ("SANDBOX-WALLET-KE", "file")
    assert settings["journal.path"] == (str(program.journal), "file")


def test_environment_overrides_configuration_file(program: Program) -> None:
    assert show_settings(program, PAYGW_CONCURRENCY="3")["submission.concurrency"] == (
        "3",
        "environment: PAYGW_CONCURRENCY",
    )


def test_journal_path_comes_from_option_or_environment(program: Program) -> None:
    other = str(program.home / "other.sqlite3")
    assert show_settings(program, "--journal", other)["journal.path"] == (other, "command line")
    assert show_settings(program, PAYGW_JOURNAL=other)["journal.path"] == (other, "environment: PAYGW_JOURNAL")


def test_config_show_lists_every_setting_of_section(program: Program) -> None:
    settings = show_settings(program)
    for section, model in (("gateway", GatewaySection), ("submission", SubmissionSection)):
        assert {f"{section}.{key}" for key in model.model_fields} <= settings.keys()


@pytest.mark.parametrize("as_json", [True, False])
def test_config_show_hides_secrets(program: Program, *, as_json: bool) -> None:
    secret = program.home / "passphrase"
    secret.write_text("s3cret")
    text = program.config.read_text().replace(
        "[gateway]\n",
        f'[gateway]\nprivate_key_passphrase_env = "KEY_WORDS"\nproxy = "http://me:pa55@proxy.example"\n'
        f'private_key_passphrase_file = "{secret}"\n',
    )
    program.config.write_text(text)
    words = ["--json"] if as_json else []
    result = program.run(*words, "config", "show", KEY_WORDS="s3cret")
    assert result.exit_code == 0, result.stderr
    assert "KEY_WORDS" in result.stdout
    for hidden in ("s3cret", "pa55"):
        assert hidden not in result.output


def test_config_show_without_file_shows_defaults(program: Program) -> None:
    result = program.run("config", "show", config=False)
    assert (result.exit_code, "There is no configuration file." in result.stdout) == (0, True)
    assert " file" not in result.stdout.partition("There is no")[0]
