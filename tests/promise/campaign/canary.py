"""Canaries: names, numbers and secrets that may appear only where the interface says."""

from collections.abc import Iterable
from pathlib import Path

NAME = "Zebulon Canaria"
PHONE = "254799424242"
PASSPHRASE = "canary-passphrase-7f3a"
CANARIES = (NAME, "Canaria", PHONE, "799424242", PASSPHRASE)
SIGNED = ("oauth_signature", "oauth_nonce=", "Authorization", "BEGIN PRIVATE", "BEGIN RSA", "BEGIN ENCRYPTED")
"""Texts that a leaked header or key would contain."""


def sheet_line(order_id: str, amount: str) -> str:
    """Return a good row whose payee is the canary."""
    return f"KE,{order_id},{amount},KES,{NAME},{PHONE},+{PHONE}"


def leaks(files: Iterable[Path]) -> list[str]:
    """Return each canary found, with its file."""
    leaks_found = []
    for path in files:
        content = path.read_bytes()
        leaks_found += [f"{word} in {path.name}" for word in (*CANARIES, *SIGNED) if word.encode() in content]
    return leaks_found
