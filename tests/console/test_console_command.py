"""Tests the `console` and `invite` commands."""

import importlib.util
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from paygw_batch.console.console_app import listen_on_port
from tests.support.patience import PATIENCE_S
from tests.support.people import House
from tests.support.ports import free_port, wait_for_server
from tests.support.program import Program, sandbox_toml


def test_pages_are_served_on_loopback(house: House) -> None:
    port = free_port()
    running = house.program.start("console", "--port", str(port))
    try:
        wait_for_server(port, running)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/sign-in", timeout=PATIENCE_S) as answer:
            assert "Ada Wanjiru" in answer.read().decode()
    finally:
        running.send_signal(signal.SIGTERM)
        stdout, errors = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, errors
    assert f"The console is at http://127.0.0.1:{port}." in stdout
    assert errors == ""


def test_pages_are_served_on_unix_socket(house: House) -> None:
    text = house.program.config.read_text()
    place = '[console]\nsocket = "pages.sock"\norigin = "https://pay.example"'
    house.program.config.write_text(text.replace("[console]", place))
    path = house.program.home / "pages.sock"
    running = house.program.start("console")
    try:
        wait_for_server(path, running)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /sign-in HTTP/1.1\r\nHost: pay.example\r\nConnection: close\r\n\r\n")
            client.settimeout(20)
            assert client.recv(64).startswith(b"HTTP/1.1 200")
        assert path.stat().st_mode & 0o777 == 0o660
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE_S)
    assert not path.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 (refused)
def test_pages_refuse_addresses_other_than_loopback(house: House, host: str) -> None:
    result = house.program.run("console", "--host", host)
    assert (result.exit_code, f"not on {host}" in result.stderr) == (2, True)
    with listen_on_port(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_error_for_missing_extra_shows_install_command(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "python_multipart" else there(name, *more)
    )
    result = house.program.run("console")
    assert (result.exit_code, "The console needs python_multipart." in result.stderr) == (2, True)
    assert "[console]'." in result.stderr


def test_console_without_approvals_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    result = Program(tmp_path, config).run("console", "--port", "0")
    assert (result.exit_code, "[approval]" in result.stderr) == (2, True)


def test_error_for_occupied_port_suggests_another_port(house: House) -> None:
    with listen_on_port(0) as taken:
        result = house.program.run("console", "--port", str(taken.getsockname()[1]))
    assert (result.exit_code, "Choose another port" in result.stderr) == (2, True)


@pytest.mark.parametrize(("typed", "name"), [("Ben Okelo", "Ben Okello"), ("Grace Njery", "Grace Njeri"), ("Zoë", "")])
def test_inviting_unknown_person_suggests_nearest_name(house: House, typed: str, name: str) -> None:
    add_origin(house)
    result = house.program.run("invite", typed)
    assert (result.exit_code, f"no person called {typed}" in result.stderr) == (2, True)
    assert (f"Did you mean {name}?" in result.stderr) == bool(name)
    assert "Ada Wanjiru, Ben Okello, Grace Njeri, Tom Mutua" in " ".join(result.stderr.split())
    assert not (house.console.directory / "invitations").exists()


@pytest.mark.parametrize("name", ["Ada Wanjiru", "Grace Njeri", "Tom Mutua"])
def test_every_console_member_can_be_invited(house: House, name: str) -> None:
    add_origin(house)
    assert house.program.json("invite", f" {name.upper()} ")["name"] == name


def add_origin(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace("[console]", '[console]\norigin = "https://pay.example"'))
