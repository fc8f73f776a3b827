"""Tests that the documented nginx and Caddy configurations work."""

import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trustme

from tests.support.patience import PATIENCE_S
from tests.support.people import MAKER, create_sandbox
from tests.support.ports import free_port, wait_for_server
from tests.support.program import Program

PROXIES = Path(__file__).resolve().parents[2] / "docs" / "proxies"
FOLDERS = "/usr/sbin:/usr/local/sbin:/sbin:/usr/bin:/usr/local/bin:/bin"
NGINX, CADDY = (shutil.which(name, path=FOLDERS) for name in ("nginx", "caddy"))
NAME = "payouts.example.com"


def adapt_file(text: str, home: Path, ports: tuple[int, int], pages: Path) -> str:
    """Return the shipped file with only paths and ports replaced."""
    for shipped, own in {
        "listen 80;": f"listen 127.0.0.1:{ports[0]};",
        "listen 443 ssl;": f"listen 127.0.0.1:{ports[1]} ssl;",
        "/run/paygw-console/pages.sock": str(pages),
        "/etc/ssl/paygw/fullchain.pem": str(home / "chain.pem"),
        "/etc/ssl/private/paygw.pem": str(home / "key.pem"),
        "/var/log/nginx/paygw-console.log": str(home / "nginx.log"),
    }.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, own)
    return text.replace(NAME, "localhost")


AROUND = """
{user}worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log {home}/nginx.log warn;
events {{ worker_connections 256; }}
http {{
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    include {home}/paygw-console.conf;
}}
"""


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def home(tmp_path: Path, ports: tuple[int, int]) -> Path:
    """Return a folder with a certificate and the nginx configuration."""
    if NGINX is None:
        pytest.skip("NO NGINX: the shipped file for it was not tried. `apt-get install nginx` installs it.")
    home = tmp_path / "proxy"
    home.mkdir(mode=0o700)
    issued = trustme.CA()
    (home / "ca.pem").write_bytes(issued.cert_pem.bytes())
    leaf = issued.issue_cert("localhost")
    (home / "chain.pem").write_bytes(b"".join(certificate.bytes() for certificate in leaf.cert_chain_pems))
    (home / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    shipped = (PROXIES / "paygw-console.nginx.conf").read_text()
    (home / "paygw-console.conf").write_text(adapt_file(shipped, home, ports, tmp_path / "pages.sock"))
    (home / "nginx.conf").write_text(AROUND.format(home=home, user="user root;\n" if os.geteuid() == 0 else ""))
    return home


@pytest.fixture
def program(tmp_path: Path, home: Path, ports: tuple[int, int]) -> Iterator[Program]:
    """Serve the pages on a Unix socket behind nginx, as two processes."""
    program = create_sandbox(tmp_path, further=f'socket = "pages.sock"\norigin = "https://localhost:{ports[1]}"')
    with ExitStack() as stack:
        pages = program.start("console")
        stack.callback(pages.communicate)
        stack.callback(pages.send_signal, signal.SIGTERM)
        wait_for_server(tmp_path / "pages.sock", pages)
        command = [str(NGINX), "-e", str(home / "nginx.log"), "-p", str(home), "-c", str(home / "nginx.conf")]
        nginx = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        stack.callback(nginx.terminate)
        wait_for_server(ports[1], nginx)
        assert nginx.poll() is None, (home / "nginx.log").read_text()
        yield program


def test_nginx_serves_only_its_host_over_tls(program: Program, home: Path, ports: tuple[int, int]) -> None:
    origin = f"https://localhost:{ports[1]}"
    trusted = ssl.create_default_context(cafile=str(home / "ca.pem"))
    with httpx.Client(base_url=origin, verify=trusted, timeout=PATIENCE_S) as client:
        page = client.get("/sign-in")
        assert (page.status_code, MAKER in page.text) == (200, True)
        assert page.headers["strict-transport-security"]
        assert client.post("/sign-in", data={"name": MAKER}, headers={"origin": origin}).status_code == 303
        assert client.cookies["__Host-payouts"]
        assert "New payout" in client.get("/").text
        token = re.findall(r'name="csrf" value="([^"]+)"', client.get("/new").text)[0]
        rows = b"country,client_orderid,amount,currency,account_name,account_number,phone\n" + b"x" * 400_000
        files = {"sheet": ("payroll.csv", rows)}
        sent = client.post("/new", data={"csrf": token}, files=files, headers={"origin": origin})
        assert sent.status_code == 303  # The body is larger than nginx buffers in memory.
        assert client.get("/", headers={"host": "evil.example"}).status_code == 421
        headers = {"origin": "https://evil.example"}
        assert client.post("/sign-in", data={"name": MAKER}, headers=headers).status_code == 403
        plain = httpx.get(f"http://localhost:{ports[0]}/new?x=1", follow_redirects=False)
        assert (plain.status_code, plain.headers["location"]) == (301, "https://localhost/new?x=1")
    assert not [path for folder in ("body", "proxy") for path in (home / folder).rglob("*") if path.is_file()]
    assert not re.search(r"/new|\[warn\]", (home / "nginx.log").read_text())
    assert program.record() == []


@pytest.mark.skipif(CADDY is None, reason="NO CADDY: the shipped file for it was not tried.")
def test_caddy_accepts_shipped_configuration() -> None:
    command = [str(CADDY), "validate", "--adapter", "caddyfile", "--config", str(PROXIES / "Caddyfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_proxy_files_share_socket_and_limits() -> None:
    nginx, caddy = (PROXIES / name for name in ("paygw-console.nginx.conf", "Caddyfile"))
    unit = (PROXIES.parent / "systemd" / "paygw-console.service").read_text()
    for text in (nginx.read_text(), caddy.read_text()):  # The default of max_upload_mib is 64.
        assert [part for part in ("/run/paygw-console/pages.sock", NAME, "620s", "65") if part not in text] == []
    assert "RuntimeDirectory=paygw-console\n" in unit
    assert '[console] socket = "/run/paygw-console/pages.sock"' in unit
