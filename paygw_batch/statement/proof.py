"""Checks the proof that a statement is the gateway's: a signature beside it, or a folder that only a transfer writes.

Without a proof a statement is the word of the person who brings it. The proof is over bytes: the very ones that are
read as lines.
"""

import base64
import binascii
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say

SIGNATURE_ENDING = ".sig"
MAX_SIGNATURE_BYTES = 16 * 1024
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class StatementProof(StrEnum):
    """The proof that a statement is the gateway's, or why there is none: then it is a person's word."""

    SIGNED = "signed"
    FOLDER = "folder"
    UNASKED = "unasked"
    NO_SIGNATURE = "no_signature"
    ELSEWHERE = "elsewhere"
    OTHER_FILE = "other_file"
    OPEN_FOLDER = "open_folder"

    @property
    def is_proven(self) -> bool:
        """Whether the statement is the gateway's own word."""
        return self in {StatementProof.SIGNED, StatementProof.FOLDER}


_SENTENCES = {
    StatementProof.SIGNED: mark("The gateway's signature proves the statement."),
    StatementProof.FOLDER: mark("The transfer's folder proves the statement."),
    StatementProof.UNASKED: mark("The statement is a person's word: no proof of statements is configured."),
    StatementProof.NO_SIGNATURE: mark("The statement is a person's word: there is no signature beside it."),
    StatementProof.ELSEWHERE: mark("The statement is a person's word: the transfer's folder does not hold this file."),
    StatementProof.OTHER_FILE: mark(
        "The statement is a person's word: its file in the transfer's folder is a link, has a second name, does "
        "not belong to the folder's owner, or can be changed by others."
    ),
    StatementProof.OPEN_FOLDER: mark(
        "The statement is a person's word: the transfer's folder, or one above it, is a link or can be changed by "
        "others."
    ),
}


def proof_sentence(proof: StatementProof) -> str:
    """Return the proof of a statement, or why there is none."""
    return say(_SENTENCES[proof])


@dataclass(frozen=True, slots=True)
class SignedStatements:
    """A statement is the gateway's if `statement.csv.sig` beside it is a signature that `verifies` over its bytes.

    `verifies` takes the signature and the bytes.
    """

    verifies: Callable[[bytes, bytes], bool]

    def proof_of(self, file: Path, content: bytes) -> StatementProof:
        """Return the proof of a statement. Raises `SheetError` for a signature that does not fit it."""
        beside = file.with_name(f"{file.name}{SIGNATURE_ENDING}")
        signature = _read(beside)
        if signature is None:
            return StatementProof.NO_SIGNATURE
        if any(self.verifies(one, content) for one in _spellings(signature)):
            return StatementProof.SIGNED
        raise SheetError(
            say("{signature} is not the gateway's signature of {name}.", signature=beside.name, name=file.name),
            hint=say(
                "One of them was changed, or another key signed it. Nothing was settled. Get both from the gateway "
                "again."
            ),
        )


@dataclass(frozen=True, slots=True)
class TransferFolder:
    """A statement is the gateway's if the folder at `path`, which only its transfer writes, holds its very bytes."""

    path: Path

    def proof_of(self, file: Path, content: bytes) -> StatementProof:
        """Return the proof of a statement: of its name and bytes, wherever `file` itself is."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return StatementProof.OPEN_FOLDER
        try:
            about = os.fstat(folder)
            if self.problem() is not None:
                return StatementProof.OPEN_FOLDER
            return _in_folder(folder, about.st_uid, file.name, content)
        finally:
            os.close(folder)

    def problem(self) -> str | None:
        """Return why the folder proves nothing, or None: it is real, and only its owner can put files into it."""
        try:
            about = self.path.lstat()
            above = [one.stat() for one in (self.path.parent.resolve(), *self.path.parent.resolve().parents)]
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            return say("{path} cannot be read: {reason}.", path=self.path, reason=reason)
        if not stat.S_ISDIR(about.st_mode):
            return say("{path} is not a folder, or is a link to one.", path=self.path)
        if about.st_mode & _OTHERS_WRITE:
            return say("{path} can be changed by its group or by everyone: chmod go-w.", path=self.path)
        for one in above:
            if one.st_uid not in {0, about.st_uid} or (one.st_mode & _OTHERS_WRITE and not one.st_mode & stat.S_ISVTX):
                return say("A folder above {path} can be changed by someone other than its owner.", path=self.path)
        return None

    @property
    def is_ours(self) -> bool:
        """Whether the folder belongs to the account of this process: its users can put files there."""
        return self.path.lstat().st_uid == os.geteuid()


StatementRule = SignedStatements | TransferFolder


def _in_folder(folder: int, owner: int, name: str, content: bytes) -> StatementProof:
    """Return the proof of a file of an open folder: real, of the folder's owner, under one name, closed to others."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return StatementProof.ELSEWHERE
    except OSError:
        return StatementProof.OTHER_FILE
    with os.fdopen(handle, "rb") as stream:
        about = os.fstat(handle)
        is_own = stat.S_ISREG(about.st_mode) and about.st_uid == owner and about.st_nlink == 1
        if not is_own or about.st_mode & _OTHERS_WRITE:
            return StatementProof.OTHER_FILE
        return StatementProof.FOLDER if stream.read(len(content) + 1) == content else StatementProof.ELSEWHERE


def _read(path: Path) -> bytes | None:
    """Return the bytes of a signature, or None if there is no such file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        raise SheetError(say("{path} cannot be read: {reason}.", path=path, reason=reason)) from None
    with os.fdopen(handle, "rb") as stream:
        return stream.read(MAX_SIGNATURE_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""


def _spellings(signature: bytes) -> list[bytes]:
    """Return a signature as it is, and as base64 states it."""
    try:
        return [signature, base64.b64decode(b"".join(signature.split()), validate=True)]
    except (binascii.Error, ValueError):
        return [signature]
