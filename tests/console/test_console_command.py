"""Tests the `console` and `invite` commands."""

import importlib.util
import signal
import socket
import urllib.request

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


def test_console_refuses_to_start_with_hint(house: House, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(of: Program, *words: str) -> str:
        result = of.run("console", *words)
        assert result.exit_code == 2, result.output
        return result.stderr

    for host in ("0.0.0.0", "::", "192.0.2.1"):  # noqa: S104 (refused)
        assert f"not on {host}" in refusal(house.program, "--host", host)
    with listen_on_port(0) as taken:
        name, port = taken.getsockname()
        assert name == "127.0.0.1"
        assert "Choose another port" in refusal(house.program, "--port", str(port))
    there, missing = importlib.util.find_spec, {"python_multipart"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name in missing else there(name))
    hint = refusal(house.program)
    assert ("The console needs python_multipart." in hint, "[console]'." in hint) == (True, True)
    monkeypatch.undo()
    program.config.write_text(sandbox_toml())
    assert "[approval]" in refusal(program, "--port", "0")


def test_only_console_members_can_be_invited(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace("[console]", '[console]\norigin = "https://pay.example"'))
    for typed, name in (("Ben Okelo", "Ben Okello"), ("Grace Njery", "Grace Njeri"), ("Zo\xeb", "")):
        result = house.program.run("invite", typed)
        assert (result.exit_code, f"no person called {typed}" in result.stderr) == (2, True)
        assert (f"Did you mean {name}?" in result.stderr) == bool(name)
        assert "Ada Wanjiru, Ben Okello, Grace Njeri, Tom Mutua" in " ".join(result.stderr.split())
    assert not (house.console.directory / "invitations").exists()
    for name in ("Ada Wanjiru", "Grace Njeri", "Tom Mutua"):
        assert house.program.json("invite", f" {name.upper()} ")["name"] == name
