"""Bad input: one plain sentence, a hint and the documented exit code, without a traceback or partial files."""

import os
import socket
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import Result

from paygw_batch.cli.main import cli
from paygw_batch.errors import ConfigurationError
from paygw_batch.settings.configuration import Settings, load_settings
from tests.support.approving import policy
from tests.support.program import HEADING, Program, kenyan_rows, sandbox_toml


def run_refused(program: Program, code: int, *arguments: str | Path, **environ: str) -> Result:
    before = {path: path.read_bytes() for path in program.home.rglob("*") if path.is_file()}
    result = program.run(*arguments, config=True, **environ)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) >= 2, "what to do next is missing"
    after = {path: path.read_bytes() for path in program.home.rglob("*") if path.is_file()}
    new_names = {path.name for path in after.keys() - before.keys()}
    assert new_names <= {"sandbox-merchant.pem", "sandbox-record.csv", "journal.sqlite3.lock"}
    assert program.record() == []
    return result


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", b""),
        ("heading-only.csv", HEADING.encode() + b"\n"),
        ("wrong-delimiter.csv", f"{HEADING}\n{kenyan_rows(1)[0]}".replace(",", "~").encode()),
        ("no-amount.csv", b"country,client_orderid,currency,account_name,account_number,phone\nKE,A,KES,J,1,2\n"),
        ("twice.csv", HEADING.encode() + b",Amount\n" + kenyan_rows(1)[0].encode() + b",5\n"),
        ("binary.csv", bytes(range(256)) * 20),
        ("not.parquet", b"PAR1 but not really"),
        ("not.xlsx", b"PK\x03\x04 but not really"),
        ("nul.csv", HEADING.encode() + b"\nKE,A\x00,1,KES,J,254712345678,+254712345678\n"),
    ],
)
def test_validate_refuses_file_of_another_kind(program: Program, name: str, content: bytes) -> None:
    path = program.home / name
    path.write_bytes(content)
    result = run_refused(program, 3, "submit", path)
    assert name in result.stderr


def test_doctor_suggests_chmod_for_writable_configuration(program: Program) -> None:
    program.config.write_text(sandbox_toml(base_url='"https://127.0.0.1:9"'))
    remedy = f"chmod go-w {program.config}"
    program.config.chmod(0o666)
    assert remedy in run_refused(program, 2, "submit", program.sheet(kenyan_rows(1))).stderr
    result = program.run("doctor", COLUMNS="400")
    (line,) = [line for line in result.stdout.splitlines() if remedy in line]
    assert (result.exit_code, "wrong" in line, "writable by other users" in line) == (2, True, True)
    program.config.chmod(0o644)
    assert remedy not in program.run("doctor", COLUMNS="400").output


def test_only_correct_passphrase_unlocks_private_key(program: Program) -> None:
    sheet, secret, key = program.sheet(kenyan_rows(1)), program.home / "secret", program.home / "merchant.pem"
    command = ["openssl", "genrsa", "-aes256", "-passout", "pass:correct horse", "2048"]
    key.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    key.chmod(0o600)
    environ = {"PAYGW_PRIVATE_KEY": str(key)}
    assert "passphrase" in run_refused(program, 2, "submit", sheet, **environ).stderr
    secret.write_text("battery staple")
    environ["PAYGW_PRIVATE_KEY_PASSPHRASE_FILE"] = str(secret)
    assert "battery" not in run_refused(program, 2, "submit", sheet, **environ).output
    secret.write_text("correct horse\n")
    key.chmod(0o644)
    assert f"chmod 600 {key}" in run_refused(program, 2, "submit", sheet, **environ).stderr
    key.chmod(0o600)
    assert program.json("submit", sheet, **environ)["states"] == {"paid": 1}


def test_unexpected_error_shows_location_without_personal_data(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("Jane Wanjiku 254712345678")

    monkeypatch.setattr("paygw_batch.cli.commands.sheets.sheet_totals", broken)
    result = program.run("validate", program.sheet(kenyan_rows(1)))
    assert result.exit_code == 1
    assert all(word in result.stderr for word in ("sheets.py", "RuntimeError"))
    assert not any(word in result.output for word in ("Jane", "2547"))


@pytest.fixture
def invalid_paths(program: Program) -> Path:
    """Create a folder with entries of every kind that is not a regular file."""
    path = program.home / "odd"
    path.mkdir()
    for ending in ("csv", "xlsx", "parquet", "json", "toml"):
        os.mkfifo(path / f"pipe.{ending}")
    (path / "folder.csv").mkdir()
    (path / "dangling.csv").symlink_to(path / "nowhere.csv")
    (path / "circle.csv").symlink_to(path / "circle.csv")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path / "socket.csv"))
    return path


NO_SHEETS = [
    *(".", "..", "/", "/dev/null", "/dev/zero", "odd/folder.csv", "odd/pipe.csv", "odd/pipe.xlsx", "odd/pipe.parquet"),
    *("odd/socket.csv", "odd/dangling.csv", "odd/circle.csv", f"{'x' * 300}.csv", "odd/pipe.csv/x.csv"),
]


@pytest.mark.parametrize("name", NO_SHEETS)
def test_each_command_refuses_invalid_sheet_path(program: Program, invalid_paths: Path, name: str, key: Path) -> None:
    sheet = name if name.startswith((".", "/")) else str(invalid_paths.parent / name)
    for command in (
        ("submit", sheet),
        ("submit", sheet, "--dry-run"),
        ("collect", sheet),
        ("validate", sheet),
        ("validate", sheet, "--map", invalid_paths / "map.toml"),
        ("plan", sheet, "--out", program.home / "plan.json", "--key", key),
        ("sign", sheet),
    ):
        assert program.run(*command).exit_code == 3, command
    assert program.run("resume", sheet).exit_code in {2, 7}
    assert program.record() == []


@pytest.fixture
def key(program: Program) -> Path:
    program.config.write_text(sandbox_toml() + policy(program.home))
    return program.home / "ada.pem"


def test_commands_refuse_pipe_without_waiting(program: Program, invalid_paths: Path, key: Path) -> None:
    sheet, pipe = program.sheet(kenyan_rows(1)), invalid_paths / "pipe.json"
    batch = program.json("submit", sheet)["batch"]
    assert program.run("approve", pipe, "--key", key).exit_code == 8
    assert program.run("submit", sheet, "--plan", pipe).exit_code == 8
    assert program.run("submit", sheet, "--mended", pipe).exit_code == 3
    assert program.run("submit", sheet, "--column-profile", invalid_paths / "pipe.toml").exit_code == 2
    assert program.run("resolve", "statement", batch, invalid_paths / "pipe.csv").exit_code == 3
    assert program.run("carry-out", pipe).exit_code == 8


def path_parameters() -> list[tuple[str, click.Parameter]]:
    context = click.Context(cli)
    commands = [("", cli), *((name, cli.get_command(context, name)) for name in cli.list_commands(context))]
    parameters = []
    for name, one in commands:
        assert one is not None
        inner = one.commands.items() if isinstance(one, click.Group) and one is not cli else ()
        for words, command in ((name, one), *((f"{name} {sub}", each) for sub, each in inner)):
            parameters += [(words, parameter) for parameter in command.params if isinstance(parameter.type, click.Path)]
    return parameters


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_every_path_parameter_refuses_empty_value(empty: str) -> None:
    paths = path_parameters()
    assert {("", "config"), ("", "journal"), ("submit", "sheet"), ("run-folder", "folder"), ("backup", "file")} <= {
        (words, one.name) for words, one in paths
    }
    for words, one in paths:
        with pytest.raises(click.UsageError):
            one.type.convert(empty, one, click.Context(cli, info_name=words))


def test_empty_argument_or_path_variable_is_refused(program: Program) -> None:
    result = program.run("resume")
    assert (result.exit_code, "submit" in result.stderr) == (2, True)
    assert program.json("submit", program.sheet(kenyan_rows(1)))["exit_code"] == 0
    other = program.sheet(kenyan_rows(1, prefix="OTHER", amount="20"), "other.csv")
    for words in (
        *(("submit", ""), ("submit", other, "--plan", ""), ("submit", other, "--out", "")),
        *(("submit", other, "--column-profile", ""), ("--config", "", "submit", other)),
        *(("--journal", "", "submit", other), ("resume", ""), ("retry", ""), ("reconcile", "", "--out", "x.csv")),
    ):
        assert program.run(*words).exit_code == 2, words
    for name in ("PAYGW_CONFIG", "PAYGW_JOURNAL", "PAYGW_PRIVATE_KEY", "PAYGW_CA_BUNDLE"):
        refused = program.run("submit", other, config=name != "PAYGW_CONFIG", **{name: ""})
        assert (refused.exit_code, f"{name} is empty" in refused.stderr) == (2, True), refused.output
    assert len(program.record()) == 1


PATH_KEYS = [
    (section, key)
    for section, field in Settings.model_fields.items()
    for key, each in getattr(field.annotation, "model_fields", {}).items()
    if "Path" in str(each.annotation)
]


@pytest.mark.parametrize(("section", "key_of"), [*PATH_KEYS, ("sheet", "column_profile")])
def test_empty_path_in_configuration_is_refused(tmp_path: Path, section: str, key_of: str) -> None:
    file = tmp_path / "paygw.toml"
    for empty in ('""', '" "') if key_of != "column_profile" else ('""',):
        file.write_text(f"[{section}]\n{key_of} = {empty}\n")
        file.chmod(0o600)
        with pytest.raises(ConfigurationError):
            load_settings(file, environ={})
