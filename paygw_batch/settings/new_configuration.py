"""Writes a new user's configuration, and the letter to the gateway's operator with our public key and questions."""

import json
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from paygw_batch.errors import UsageError
from paygw_batch.language import say

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_JOURNAL_TABLE = re.compile(r"^\[journal\].*?(?=^\[)", re.MULTILINE | re.DOTALL)
_WIDTH = 78


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """A person's answers about an endpoint. Values that the gateway's operator must still provide are None or missing.

    `countries` maps country codes to the purpose of payouts. `open_keys` maps country codes to the keys that the
    interface does not define for that country (`purpose`, `form`). Paths are written to the file unchanged.
    """

    base_url: str
    endpoint_id: str
    consumer_key: str
    server_callback_url: str
    private_key: str
    signature_profile: str | None = None
    pkcs11_module: str | None = None
    passphrase_env: str | None = None
    passphrase_file: str | None = None
    ca_bundle: str | None = None
    proxy: str | None = None
    journal: str | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    countries: Mapping[str, str | None] = field(default_factory=dict)
    open_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def render_endpoint_configuration(endpoint: NewEndpoint) -> str:
    """Return the configuration for a real endpoint. Settings that are not known yet become comments."""
    return _render_template("configuration.toml.jinja", line=_format_setting, **asdict(endpoint))


def render_sandbox_configuration(template: str, journal: str | None) -> str:
    """Return the sandbox's configuration, with `journal` as its journal's path if given."""
    journal_table = f"[journal]\n{_format_setting('path', journal)}\n" if journal else ""
    text, replaced_count = _JOURNAL_TABLE.subn(lambda _: journal_table, template)
    if replaced_count != 1:
        raise ValueError("the shipped configuration of the sandbox has no table [journal]")
    settings = text[text.index("[gateway]") :]
    return f"# Written by `paygw-batch init --sandbox`. The built-in gateway: no money moves.\n\n{settings}"


def _format_setting(key: str, value: str | None) -> str:
    if value is None:
        return ""
    if _CONTROL_CHARACTER.search(value) or _CONTROL_CHARACTER.search(key):
        message = say("{key} has a control character or a line break.", key=key)
        raise UsageError(message, hint=say("Enter it on one line."))
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quote_toml(key)
    return f"{name} = {_quote_toml(value)}\n"


def _quote_toml(text: str) -> str:
    """Quote a string for TOML. Without control characters, the JSON form is valid TOML."""
    return json.dumps(text, ensure_ascii=False)


def render_letter(endpoint: NewEndpoint, payout_url: str, public_key_pem: str, fingerprint: str) -> str:
    """Return the letter to the operator as plain text, without the questions that `endpoint` answers."""
    numbers = count(1)

    def format_question(key: str, caller: Callable[[], str]) -> str:
        text = f"{next(numbers)}. {caller()}"
        return f"{textwrap.fill(text, _WIDTH, subsequent_indent='   ', break_on_hyphens=False)}\n   [{key}]\n\n"

    def countries_without(key: str) -> list[str]:
        return [code for code in endpoint.countries if key in endpoint.open_keys.get(code, ())]

    return _render_template(
        "letter.txt.jinja",
        question=format_question,
        payout_url=payout_url,
        public_key=public_key_pem.strip(),
        fingerprint=fingerprint,
        without_purpose=[code for code in countries_without("purpose") if endpoint.countries[code] is None],
        without_form=countries_without("form"),
        **asdict(endpoint),
    )


def _render_template(template: str, **values: object) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 (needed only by `init`)

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True)  # noqa: S701 (plain text)
    return environment.get_template(template).render(values).rstrip("\n") + "\n"
