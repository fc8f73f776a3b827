"""A gateway that immediately approves every order, so that only our own cost is measured.

It is nginx with its echo module if both are installed (`apt-get install nginx-light libnginx-mod-http-echo`), otherwise
an equally minimal Python server. It runs in a separate process, on the same cores as the client.
"""

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.support.ports import free_port, wait_for_server

ECHO_MODULE = Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")
STOP_TIMEOUT_S = 10.0

_NGINX = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log crit;
load_module {echo_module};
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_in_single_buffer on;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    default_type application/json;
    ssl_certificate {directory}/certificate.pem;
    ssl_certificate_key {directory}/certificate.key;
    map $request_body $order_id {{ "~\\"client_orderid\\": ?\\"(?<found>[^\\"]+)\\"" $found; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        listen 127.0.0.1:{tls_port} ssl backlog=4096;
        location / {{
            echo_read_request_body;
            {wait}
            echo -n '{{"status":"approved","client_orderid":"$order_id"}}';
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class NullGateway:
    """A running gateway: its plain and TLS addresses, and the authority `ca_bundle` of its certificate."""

    server: str
    base_url: str
    """By a host name, which has to be looked up, as every gateway's has."""
    address_url: str
    """The same, by its address."""
    tls_url: str
    ca_bundle: Path


def nginx() -> str | None:
    """Return the path of an nginx with the echo module, or None."""
    return shutil.which("nginx", path=f"{os.defpath}:/usr/sbin:/sbin") if ECHO_MODULE.exists() else None


@contextmanager
def null_gateway(directory: Path, *, latency_s: float = 0.0, bare: bool = False) -> Iterator[NullGateway]:
    """Run a null gateway with its files in `directory`. Each answer takes `latency_s`; `bare` avoids nginx."""
    directory.mkdir(parents=True)
    port, tls_port = free_port(), free_port()
    ca_bundle = _create_certificate(directory)
    program = None if bare else nginx()
    if program is not None:
        command = _nginx_command(program, directory, port, tls_port, latency_s)
    else:
        ports = ["--port", str(port), "--tls-port", str(tls_port)]
        command = [sys.executable, "-m", "benchmarks.bare_server", *ports]
        command += ["--latency-s", str(latency_s), "--directory", str(directory)]
    process = subprocess.Popen(command)
    try:
        for item in (port, tls_port):
            wait_for_server(item, process)
        server = "a bare asyncio server" if program is None else "nginx"
        yield NullGateway(
            server, f"http://localhost:{port}", f"http://127.0.0.1:{port}", f"https://localhost:{tls_port}", ca_bundle
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def response_time_s(base_url: str, times: int) -> float:
    """Return the gateway's median response time for one request at a time over a bare socket."""
    host, port = base_url.removeprefix("http://").split(":")
    body = b'{"client_orderid": "ALONE"}'
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    took_s = []
    with socket.create_connection((host, int(port))) as connection:
        for _ in range(times):
            started_s = time.perf_counter()
            connection.sendall(head.encode() + body)
            answer = b""
            while b"}" not in answer:
                piece = connection.recv(4096)
                if not piece:
                    raise RuntimeError("the null gateway gave no whole answer")
                answer += piece
            took_s.append(time.perf_counter() - started_s)
    return statistics.median(took_s)


def _nginx_command(program: str, directory: Path, port: int, tls_port: int, latency_s: float) -> list[str]:
    wait = f"echo_sleep {latency_s};" if latency_s else ""
    text = _NGINX.format(directory=directory, echo_module=ECHO_MODULE, port=port, tls_port=tls_port, wait=wait)
    config = directory / "nginx.conf"
    config.write_text(text)
    return [program, "-p", str(directory), "-c", str(config), "-e", str(directory / "start.log")]


def _create_certificate(directory: Path) -> Path:
    """Create a certificate for localhost, and return the path of its authority."""
    authority = trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_pem.write_to_path(directory / "certificate.key")
    for piece in own.cert_chain_pems:
        piece.write_to_path(directory / "certificate.pem", append=True)
    ca_bundle = directory / "authority.pem"
    authority.cert_pem.write_to_path(ca_bundle)
    return ca_bundle
