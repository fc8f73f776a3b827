"""Stories from `init` to the reconciliation with only the documented settings."""

import csv
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from httpx import AsyncClient, AsyncHTTPTransport, Limits, Request, Response

from paygw_batch.approval.approval_keys import RelyingParty
from tests.console.preparing import sheet
from tests.support import forked
from tests.support.keyed_people import PasskeyPerson, hidden_value, key_form
from tests.support.long_part import long
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.people import APPROVER, MAKER
from tests.support.ports import free_port, wait_for_server
from tests.support.postgres_server import PostgresServer
from tests.support.program import ROOT, Program, read_csv, sandbox_toml
from tests.support.software_passkey import passkey
from tests.support.systemd_units import UNITS, unit_keys

_ORIGIN = "https://payouts.example.com"


@dataclass
class Account(Program):
    """The account that runs the console, with its environment, command options and browser address."""

    variables: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str | Path] = ()
    origin: str = ""
    further: str = ""
    """Further lines for `[console]`."""
    socket: Path | None = None
    """The address of the pages behind a proxy."""

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.home), "NO_COLOR": "1", **self.variables}

    def command(self, *words: str | Path) -> str:
        done = self.run(*self.options, *words, config=False)
        assert done.exit_code == 0, (words, done.output)
        return done.stdout

    @contextmanager
    def running(self, *words: str | Path) -> Iterator["subprocess.Popen[str]"]:
        """Run a command as a process during the block, and stop it as a service manager does."""
        environ = {"PATH": "/usr/bin:/bin", **self.environ}
        with (self.home / f"{words[0]}.log").open("w") as log:
            process = forked.start([*self.options, *words], environ, self.home, log, log)
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE_S)

    def name_people(self) -> None:
        """Add the people to the configuration as docs/console.md says, still without keys."""
        blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "console.md").read_text(), re.DOTALL)
        (named,) = (block for block in blocks if f'"{MAKER}" = []' in block and f'"{APPROVER}" = []' in block)
        assert _ORIGIN in named
        self.config.write_text(f"{self.config.read_text()}\n{named.replace(_ORIGIN, self.origin)}{self.further}")

    def record(self) -> list[dict[str, str]]:
        return [line for path in self.home.rglob("sandbox-record.csv") for line in read_csv(path)]


def local_account(home: Path) -> Account:
    """Return a person's own account: no options or variables, and pages on loopback."""
    home.chmod(0o700)
    port, config = free_port(), home / ".config" / "paygw-batch" / "paygw.toml"
    return Account(home, config, origin=f"http://localhost:{port}", further=f"port = {port}\n")


def systemd_account(home: Path) -> Account:
    """Return the account of the systemd unit with its variables, options, and socket behind a proxy."""
    home.chmod(0o700)
    unit = unit_keys(UNITS / "paygw-console.service")
    (start,) = unit["ExecStart"]
    config = Path(shlex.split(start)[2].replace("/etc/paygw", str(home / "etc")))
    secret = home / "credentials" / "passphrase"
    for folder in (config.parent, secret.parent, home / "var" / "lib" / unit["StateDirectory"][0]):
        folder.mkdir(mode=0o700, parents=True)
    secret.write_text("correct horse battery staple\n")
    secret.chmod(0o600)
    lines = (line.replace("%d", str(secret.parent)).replace("/var/", f"{home}/var/") for line in unit["Environment"])
    variables = {name: text for name, _, text in (line.partition("=") for line in lines)}
    socket = home / "pages.sock"
    return Account(home, config, variables, ["--config", config], _ORIGIN, f'socket = "{socket}"\n', socket)


def set_up_endpoint(account: Account, gateway_port: int) -> None:
    """Set up an endpoint with `init`, as in the README, for a gateway on loopback."""
    words = ["init", "--base-url", f"http://127.0.0.1:{gateway_port}", "--endpoint-id", "1000"]
    words += ["--consumer-key", "merchant", "--server-callback-url", "https://merchant.example/callback"]
    words += ["--country", "KE=SANDBOX-WALLET-KE", "--signature-profile", "json-params", "--outcome", "approved=paid"]
    if (secret := account.variables.get("PAYGW_PRIVATE_KEY_PASSPHRASE_FILE")) is not None:
        words += ["--private-key-passphrase-file", secret]
    account.command(*words)
    account.name_people()


@contextmanager
def compose_account(home: Path, database: str) -> Iterator[Account]:
    """Yield the office of docs/compose.yaml with its gateway, journal and a worker."""
    home.chmod(0o700)
    composed = yaml.safe_load((ROOT / "docs" / "compose.yaml").read_text())
    office, port = composed["services"]["office"], free_port()
    gateway = Program(home / "gateway", home / "gateway" / "sandbox.toml")
    gateway.home.mkdir(mode=0o700)
    gateway.config.write_text(sandbox_toml())
    places = {"/state": home / "state", "/key": gateway.home, "http://127.0.0.1:8080": f"http://127.0.0.1:{port}"}
    variables = {name: str(text) for name, text in office["environment"].items()}
    for shipped, own in places.items():
        variables = {name: re.sub(f"^{shipped}", str(own), text) for name, text in variables.items()}
    account = local_account(home)
    account.config, account.variables = home / "paygw.toml", variables
    account.options = ["--config", account.config]
    text, url = composed["configs"]["paygw"]["content"], "postgresql://paygw@database/paygw"
    assert url in text
    account.config.write_text(text.replace(url, database))
    account.name_people()
    served = Account(gateway.home, gateway.config, options=["--config", gateway.config])
    with served.running("sandbox", "--port", str(port)) as process:
        wait_for_server(port, process)
        account.command(*composed["services"]["journal"]["command"])
        with account.running(*composed["services"]["worker-1"]["command"]):
            yield account


@contextmanager
def serve_account_pages(account: Account) -> Iterator[None]:
    with account.running("console") as process:
        wait_for_server(account.socket or int(account.origin.rpartition(":")[2]), process)
        yield


class ProxyTransport(AsyncHTTPTransport):
    """Acts as a TLS proxy in front of a Unix socket."""

    async def handle_async_request(self, request: Request) -> Response:
        url = request.url.copy_with(scheme="http")
        inner = Request(request.method, url, headers=request.headers, stream=request.stream)
        return await super().handle_async_request(inner)


def pay_through_pages(maker: PasskeyPerson, approver: PasskeyPerson, content: bytes, name: str) -> list[dict[str, str]]:
    """Upload, sign, approve and start a payout, and return its downloaded reconciliation."""
    draft = maker.prepared(content, name)
    page = approver.get(f"{draft}/plan").text
    shown = {part: hidden_value(page, part) for part in ("digest", "approved_at")}
    assert approver.post(f"{draft}/approve", **shown, **approver.signature_for(page)).status_code == 303
    start = approver.post(f"{draft}/start", digest=shown["digest"], run="")
    assert start.status_code == 303, start.text
    wait_until(lambda: maker.get(f"{draft}/plan").status_code == 303, "the payout does not start")
    payout = maker.get(f"{draft}/plan").headers["location"]
    wait_until(lambda: "Finished" in maker.get(payout).text, "the payout does not end")
    reconciliation = maker.get(f"{payout}/reconciliation.csv")
    assert reconciliation.status_code == 200
    return list(csv.DictReader(reconciliation.text.splitlines()))


def sign_up(account: Account, name: str) -> PasskeyPerson:
    """Invite a person, list the new passkey, and return the person. Each request uses its own connection."""
    path, limits = account.socket, Limits(max_keepalive_connections=0)
    transport = AsyncHTTPTransport(limits=limits) if path is None else ProxyTransport(uds=str(path), limits=limits)
    client = AsyncClient(transport=transport, base_url=account.origin, timeout=PATIENCE_S)
    key = passkey(f"p-{name}", RelyingParty(account.origin))
    person = PasskeyPerson(client, name, key=key, origin=account.origin)
    token = json.loads(account.command("--json", "invite", name))["link"].rpartition("/")[2]
    form = key_form(key, token=token)
    answer = person.ask("POST", f"/invitation/{token}", data=form, headers={"origin": account.origin})
    assert f'<code id="line">{key.public.text}</code>' in answer.text
    text = account.config.read_text()
    account.config.write_text(text.replace(f'"{name}" = []', f'"{name}" = "{key.public.text}"'))
    return person


def pay_twice(account: Account) -> None:
    """Pay a sheet by two people, and another one after a restart of the console."""
    with serve_account_pages(account):
        ada, ben = (sign_up(account, name) for name in (MAKER, APPROVER))
        for person in (ada, ben):
            assert person.key is not None
            assert person.sign_in(person.key).status_code == 303
        october = pay_through_pages(ada, ben, sheet(3), "october.csv")
    with serve_account_pages(account):
        november = pay_through_pages(ada, ben, sheet(2).replace(b"P-", b"N-").replace(b".00", b".50"), "november.csv")
    assert [line["state"] for line in [*october, *november]] == ["paid"] * 5
    assert [line["client_orderid"] for line in account.record()] == [f"P-{n}" for n in (1, 2, 3)] + ["N-1", "N-2"]


@pytest.mark.parametrize("place", [long(local_account), systemd_account])
def test_documented_setup_pays_two_sheets(tmp_path: Path, place: Callable[[Path], Account]) -> None:
    account, port = place(tmp_path), free_port()
    set_up_endpoint(account, port)
    with account.running("sandbox", "--port", str(port)) as gateway:
        wait_for_server(port, gateway)
        pay_twice(account)


@pytest.mark.long
def test_compose_setup_pays_two_sheets(tmp_path: Path, postgres_server: PostgresServer) -> None:
    name = postgres_server.new_database()
    with compose_account(tmp_path, postgres_server.url(name)) as account:
        pay_twice(account)
    postgres_server.drop_database(name)


@pytest.mark.long
def test_sandbox_example_in_docs_pays_two_sheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The example sheet is written there.
    account = local_account(tmp_path)
    account.command("init", "--sandbox")
    account.name_people()
    pay_twice(account)
