"""Writes the text of a new configuration: that of a real endpoint from a person's answers, and that of the sandbox."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paygw_batch.errors import UsageError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_JOURNAL_TABLE = re.compile(r"^\[journal\].*?(?=^\[)", re.MULTILINE | re.DOTALL)
_OPEN_PURPOSE = '# purpose = "..."'


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """A person's answers about an endpoint. An answer that the gateway's operator has not given is None or absent.

    `countries` maps a code to the purpose of its payouts. `open_keys` maps it to what the interface leaves open there
    (`purpose`, `form`). Paths are as they are to be written.
    """

    base_url: str
    endpoint_id: str
    consumer_key: str
    server_callback_url: str
    private_key: str
    signature_profile: str | None = None
    passphrase_env: str | None = None
    passphrase_file: str | None = None
    ca_bundle: str | None = None
    proxy: str | None = None
    journal: str | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    countries: Mapping[str, str | None] = field(default_factory=dict)
    open_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def endpoint_text(endpoint: NewEndpoint) -> str:
    """Return the configuration of a real endpoint. A setting that is not known yet is there as a comment."""
    lines = [
        "# Written by `paygw-batch init`. No secret belongs in this file. It decides where money goes: keep it 0600.",
        "# What the gateway's operator answers is filled in where a line begins with `# `. Then: paygw-batch doctor",
        "",
        *_gateway(endpoint),
        "",
        *(("[journal]", _line("path", endpoint.journal), "") if endpoint.journal else ()),
        "# The gateway's `status` words, each as paid, accepted or rejected. A word that is not listed puts its row in",
        "# doubt.",
        *_outcomes(endpoint.outcomes),
        "",
        "# Under which names a reply repeats our fields, and says its own: only where they differ from those that",
        "# `paygw-batch doctor` shows.",
        "# [reply]",
        '# order_id = ["..."]',
        "",
        *_countries(endpoint),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def sandbox_text(shipped: str, journal: str | None) -> str:
    """Return the shipped configuration of the sandbox with its journal at `journal`, or in the state directory."""
    place = f"[journal]\n{_line('path', journal)}\n\n" if journal else ""
    kept, places = _JOURNAL_TABLE.subn(lambda _: place, shipped)
    if places != 1:
        raise ValueError("the shipped configuration of the sandbox has no table [journal]")
    settings = kept[kept.index("[gateway]") :]
    return f"# Written by `paygw-batch init --sandbox`. The built-in gateway: no money moves.\n\n{settings}"


def _gateway(endpoint: NewEndpoint) -> Iterator[str]:
    yield "[gateway]"
    yield _line("base_url", endpoint.base_url)
    yield _line("endpoint_id", endpoint.endpoint_id)
    yield _line("consumer_key", endpoint.consumer_key)
    yield _line("private_key", endpoint.private_key)
    if endpoint.passphrase_env:
        yield _line("private_key_passphrase_env", endpoint.passphrase_env)
    if endpoint.passphrase_file:
        yield _line("private_key_passphrase_file", endpoint.passphrase_file)
    yield _line("server_callback_url", endpoint.server_callback_url)
    if endpoint.signature_profile:
        yield _line("signature_profile", endpoint.signature_profile)
    else:
        yield '# signature_profile = "json-params"  # or "raw-body": what exactly is signed'
    if endpoint.ca_bundle:
        yield _line("ca_bundle", endpoint.ca_bundle)
    if endpoint.proxy:
        yield _line("proxy", endpoint.proxy)


def _outcomes(outcomes: Mapping[str, str]) -> Iterator[str]:
    if outcomes:
        yield "[outcomes]"
        yield from (_line(word, meaning) for word, meaning in outcomes.items())
        return
    yield "# [outcomes]"
    yield from ('# approved = "paid"', '# processing = "accepted"', '# declined = "rejected"')


def _countries(endpoint: NewEndpoint) -> Iterator[str]:
    yield "# A table for each country that is paid. `purpose` is the operator's code."
    if not endpoint.countries:
        yield from ("# [countries.KE.payout]", _OPEN_PURPOSE)
    for code, purpose in endpoint.countries.items():
        yield f"[countries.{code}.payout]"
        if purpose is not None:
            yield _line("purpose", purpose)
        for key in endpoint.open_keys.get(code, ()):
            if key != "purpose" or purpose is None:
                yield '# form = "account"  # or "receiver"' if key == "form" else f'# {key} = "..."'
        yield ""


def _line(key: str, value: str | None) -> str:
    text = value or ""
    if _CONTROL.search(text) or _CONTROL.search(key):
        raise UsageError(f"{key} has a control character or a line break.", hint="Write it again, on one line.")
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)
    return f"{name} = {_quoted(text)}"


def _quoted(text: str) -> str:
    """Return a text as TOML writes it: as JSON does, where it has no control character."""
    return json.dumps(text, ensure_ascii=False)
