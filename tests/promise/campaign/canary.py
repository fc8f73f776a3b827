"""Canaries: names, numbers and secrets that must not turn up anywhere but where the interface says."""

from collections.abc import Iterable
from pathlib import Path

NAME = "Zebulon Canaria"
PHONE = "254799424242"
PASSPHRASE = "canary-passphrase-7f3a"
CANARIES = (NAME, "Canaria", PHONE, "799424242", PASSPHRASE)
SIGNED = ("oauth_signature", "oauth_nonce=", "Authorization", "BEGIN PRIVATE", "BEGIN RSA", "BEGIN ENCRYPTED")
"""What a leaked header or key would show."""


def sheet_line(order_id: str, amount: str) -> str:
    """Return a good row whose payee is the canary."""
    return f"KE,{order_id},{amount},KES,{NAME},{PHONE},+{PHONE}"


def leaks(files: Iterable[Path]) -> list[str]:
    """Return which canary turned up in which file."""
    found = []
    for path in files:
        content = path.read_bytes()
        found += [f"{word} in {path.name}" for word in (*CANARIES, *SIGNED) if word.encode() in content]
    return found
