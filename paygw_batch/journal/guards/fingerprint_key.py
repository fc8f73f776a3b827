"""Keeps the key of forgotten payees' fingerprints in a private file, never in the journal itself."""

import os
from pathlib import Path

from paygw_batch.errors import JournalError
from paygw_batch.files import create_once
from paygw_batch.journal.guards.location import check_file, make_directory
from paygw_batch.language import say

_BYTES = 32


def fingerprint_key_path(journal: Path) -> Path:
    """Return the path of a journal's key, which is beside the journal."""
    return journal.with_name(f"{journal.name}.fingerprint-key")


class FingerprintKey:
    """The key of the fingerprints, in the file at `path`; None: in memory, for a journal in memory.

    Without it a fingerprint reveals nothing about a payee, and a payee who is paid again is not recognised.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._key: bytes | None = None

    def read(self) -> bytes | None:
        """Return the key, or None. Raises `JournalError` for a file that is not private, or not a key."""
        if self._key is None and self.path is not None and check_file(self.path):
            try:
                key = bytes.fromhex(self.path.read_text(encoding="ascii").strip())
            except ValueError:
                key = b""
            if len(key) != _BYTES:
                raise JournalError(say("The file {path} is not a fingerprint key.", path=self.path))
            self._key = key
        return self._key

    def make(self) -> bytes:
        """Return the key; create it if there is none. Raises `OSError`."""
        if (found := self.read()) is not None:
            return found
        return self.keep(os.urandom(_BYTES))

    def keep(self, key: bytes) -> bytes:
        """Write a key and return it, or the key that another process wrote first. Raises `OSError`."""
        if self.path is None:
            self._key = key
            return key
        make_directory(self.path.parent)
        create_once(self.path, f"{key.hex()}\n".encode())
        return self.read() or key
