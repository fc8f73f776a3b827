"""A sandbox with people who have keys, and HTTP clients in place of their browsers."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from httpx import ASGITransport, AsyncClient, Response

from paygw_batch.console import payout_folder
from paygw_batch.console.console_app import build_console, console_app
from paygw_batch.console.pages import check_page
from paygw_batch.console.permissions import Role
from paygw_batch.console.visits import WebRoute
from paygw_batch.journal import AuditEntry
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.settings.configuration import Settings, load_settings
from tests.support.program import Program, sandbox_toml

MAKER, APPROVER, AUDITOR, ADMINISTRATOR = "Ada Wanjiru", "Ben Okello", "Grace Njeri", "Tom Mutua"
PORT = 8460
ORIGIN = f"http://127.0.0.1:{PORT}"


def make_key(folder: Path, name: str) -> str:
    """Write a private key for a person, and return its public half for the configuration."""
    key = Ed25519PrivateKey.generate()
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return "".join(public.decode().splitlines()[1:-1])


def create_sandbox(home: Path, *, further: str = "", behaviour: str = "") -> Program:
    """Create a sandbox with a maker, an approver, an auditor and an administrator."""
    home.chmod(0o700)
    keys = home / "keys"
    keys.mkdir(mode=0o700)
    public = {name: make_key(keys, name) for name in (MAKER, APPROVER, AUDITOR, ADMINISTRATOR)}
    text = f"""{sandbox_toml()}
[approval.makers]
"{MAKER}" = "{public[MAKER]}"
[approval.approvers]
"{APPROVER}" = "{public[APPROVER]}"
[console]
sandbox_keys = "keys"
{further}
[console.auditors]
"{AUDITOR}" = "{public[AUDITOR]}"
[console.administrators]
"{ADMINISTRATOR}" = "{public[ADMINISTRATOR]}"
"""
    if behaviour:
        (home / "behaviour.toml").write_text(behaviour)
        text += '\n[sandbox]\nbehaviour = "behaviour.toml"\n'
    config = home / "paygw.toml"
    config.write_text(text)
    return Program(home, config)


def add_role(program: Program, name: str, roles: str) -> None:
    """List a person also among the makers or the approvers."""
    text = program.config.read_text()
    line = re.findall(rf'"{name}" = "\S+"', text)[0]
    program.config.write_text(text.replace(f"[approval.{roles}]\n", f"[approval.{roles}]\n{line}\n"))


_OTHER_PAGES = ("/settle", "/retry", "/statement")
"""Endings of form addresses whose page has the address without the ending."""
_CHOICES = frozenset({"row", "column", "kind"})
"""The hidden fields that distinguish forms with the same address on one page."""


def parse_forms(page: str) -> list[tuple[str, dict[str, str]]]:
    """Return the forms of a page: each address with its hidden fields, except those that belong to a choice."""
    results: list[tuple[str, dict[str, str]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = {name: value or "" for name, value in attrs}
            if tag == "form":
                results.append((given.get("action", ""), {}))
            elif results and given.get("type") == "hidden" and not given["name"].startswith("heading-"):
                results[-1][1][given["name"]] = given.get("value", "")

    Reader().feed(page)
    return results


def newest_entries(settings: Settings, *, limit: int) -> Sequence[AuditEntry]:
    """Return the newest entries of the audit trail, newest first."""
    with open_journal_to_read(settings) as journal:
        return journal.audit_entries(limit=limit)


@dataclass
class Person:
    client: AsyncClient
    name: str = ""
    house: "House | None" = None

    def ask(self, method: str, path: str, **details: Any) -> Response:
        """Send one request in a new event loop, so that only the cookie is carried over to the next."""
        return asyncio.run(self.client.request(method, path, **details))

    def get(self, path: str, **headers: str) -> Response:
        return self.ask("GET", path, headers=headers)

    def token(self, path: str = "/sign-in") -> str:
        results = re.search(r'name="csrf" value="([^"]+)"', self.get(path).text)
        return "" if results is None else results.group(1)

    def with_token(self, form: dict[str, str]) -> dict[str, str]:
        """Return a form with the token of this session, which it has already if it is shown on a page."""
        return form if "csrf" in form else {**form, "csrf": self.token()}

    def shown(self, path: str, **typed: str) -> dict[str, str]:
        """Return the hidden fields of the form for `path` that fits `typed`, or none if no form fits."""
        place = path if path == "/new" or path.endswith(_OTHER_PAGES) else path.rpartition("/")[0]
        first = self.get(place).text
        others = [f"{place}/plan"] if place.startswith("/sheets/") else []
        others += [f"{place}?kind={kind}" for kind in ("mended", *filter(None, [typed.get("kind")]))]
        others += [f"{place}{item}" for item in re.findall(r'href="(\?kind=[^"#]+)', first)]
        for page in chain([first], (self.get(other).text for other in dict.fromkeys(others))):
            for action, fields in parse_forms(page):
                chosen = _CHOICES & {*fields} & {*typed}
                if action == path and all(typed[name] == fields[name] for name in chosen):
                    return fields
        return {} if self.house is None or "row" not in typed else self.house.row_fields(place, **typed)

    def post(self, path: str, **form: str) -> Response:
        """Send a form as the pages have it: with its hidden fields and this session's token, from our origin."""
        data = self.with_token(self.shown(path, **form) | form)
        return self.ask("POST", path, data=data, headers={"origin": ORIGIN})

    def upload(self, path: str, name: str, content: bytes, **form: str) -> Response:
        data = self.with_token(self.shown(path) | form)
        return self.ask("POST", path, data=data, files={"sheet": (name, content)}, headers={"origin": ORIGIN})


@dataclass
class House:
    program: Program

    def __post_init__(self) -> None:
        settings = load_settings(self.program.config, environ={})
        environ = {**self.program.environ, "PATH": "/usr/bin:/bin"}
        self.console = build_console(settings, config=self.program.config, environ=environ, port=PORT)
        self.app = console_app(self.console)

    def stranger(self) -> Person:
        return Person(AsyncClient(transport=ASGITransport(self.app), base_url=ORIGIN))

    def person(self, name: str) -> Person:
        item = self.stranger()
        answer = item.ask("POST", "/sign-in", data={"name": name}, headers={"origin": ORIGIN})
        assert answer.status_code == 303, answer.text
        item.name, item.house = name, self
        return item

    def row_fields(self, place: str, row: str, column: str = "", **_typed: str) -> dict[str, str]:
        """Return the hidden fields of a form about a row that no page lists, because it has no defect."""
        results = payout_folder.PayoutFolder.find(self.console.directory, place.rpartition("/")[2])
        if results is None or not results.was_read or results.corrections is None or not row.isdigit():
            return {}
        texts = check_page.read_cell_texts(results, [int(row)]).get(int(row), {})
        is_out = any(item.row == int(row) for item in results.corrections.left_out)
        shown = (texts.get(column) or "") if column else check_page.texts_digest(texts)
        return {"file": results.corrections.sheet_sha256, "shown": shown, "out": "no" if is_out else "yes"}


PEOPLE = {Role.MAKER: MAKER, Role.APPROVER: APPROVER, Role.AUDITOR: AUDITOR, Role.ADMINISTRATOR: ADMINISTRATOR}


def address(screen: WebRoute) -> str:
    values = {"token": "T" * 43, "row:int": "2", "ending": "csv"}
    values |= dict.fromkeys(("batch", "sheet", "order", "statement"), "0" * 16)
    return re.sub(r"\{([^}]*)\}", lambda part: values[part[1]], screen.path)


def audit_entries(house: House) -> list[tuple[str, str, str, str]]:
    """Return the audit entries, oldest first: person, act, object, result."""
    results = newest_entries(house.console.settings, limit=100)
    return [(item.who, item.act, item.thing, item.result) for item in reversed(results)]
