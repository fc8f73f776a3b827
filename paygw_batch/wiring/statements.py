"""Reads statements as the configuration says: their columns, their encoding, and their proof."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say
from paygw_batch.run.approval_keys import PublicKey, read_pem_public_key
from paygw_batch.settings.configuration import Settings
from paygw_batch.statement.proof import (
    SIGNATURE_ENDING,
    SignedStatements,
    StatementRule,
    TransferFolder,
    proof_sentence,
)
from paygw_batch.statement.read import Statement, read_statement
from paygw_batch.trusted_files import Others, read_trusted
from paygw_batch.wiring.approvals import policy_of


def statement_rule(settings: Settings) -> StatementRule | None:
    """Return the rule of proof for statements, or None. Raises `ConfigurationError` for its key."""
    if (folder := settings.evidence.folder) is not None:
        return TransferFolder(folder)
    return None if settings.evidence.statement_key is None else SignedStatements(statement_key(settings).verifies)


def statement_key(settings: Settings) -> PublicKey:
    """Return the key that signs the gateway's statements. Raises `ConfigurationError` for one that proves nothing."""
    path, name = settings.evidence.statement_key, "[evidence] statement_key"
    if path is None:
        raise ConfigurationError(say("{name} is not set.", name=name))
    key = read_pem_public_key(read_trusted(path, f"{name} {path}", Others.MAY_READ))
    if key is None:
        raise ConfigurationError(
            say("{name} {path} does not contain a usable public key.", name=name, path=path),
            hint=say("It is a PEM file with an RSA key of 2048 bits or more, or an Ed25519 or P-256 key."),
        )
    policy = policy_of(settings)
    owner = None if policy is None else policy.people.owner_of(key)
    if owner is not None:
        raise ConfigurationError(
            say("{name} {path} is a key of {owner}, who prepares or approves.", name=name, path=path, owner=owner.name),
            hint=say("Only the gateway may have the private half of this key."),
        )
    return key


def statement_in(settings: Settings, file: Path) -> Statement:
    """Return the statement in a file, and its proof. Raises `SheetError`."""
    rule = statement_rule(settings)
    return read_statement(file, settings.statement.columns, encoding=settings.sheet.encoding, rule=rule)


def statement_with_digest(settings: Settings, name: str, sha256: str, folders: Iterable[Path]) -> Statement | None:
    """Return the statement of this name and digest in one of `folders`, or in the transfer's own; None: not there."""
    own, bare = settings.evidence.folder, Path(name).name
    for folder in (*folders, *(() if own is None else (own,))):
        file = folder / bare
        if bare and file.is_file() and _digest(file) == sha256:
            return statement_in(settings, file)
    return None


def what_proves(statement: Statement) -> str:
    """Return the proof of a statement, or why there is none: then it is a person's word."""
    return proof_sentence(statement.proof)


def signature_place(file: Path) -> Path:
    """Return where the signature of a statement belongs."""
    return file.with_name(f"{file.name}{SIGNATURE_ENDING}")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
