"""Builds from settings the parts by which people get access: whose key is whose, open sign-ins, invitations."""

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.compose.approvals import party_of, required_policy
from paygw_batch.console.access.invitations import Invitations
from paygw_batch.console.access.kept_sessions import KeptSessions
from paygw_batch.console.access.passkey_sign_in import OpenSignIns
from paygw_batch.console.members import Member
from paygw_batch.errors import ConfigurationError
from paygw_batch.run.approval_keys import PublicKey, read_public_key
from paygw_batch.run.passkey import PasskeySignature, RelyingParty
from paygw_batch.run.people import plain_name
from paygw_batch.settings.configuration import Settings

RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class PasskeyAccess:
    """The parts of access by passkey. `party` is None where the configuration does not say the console's address."""

    party: RelyingParty | None
    keys: Mapping[PublicKey, Member]
    sign_ins: OpenSignIns
    invitations: Invitations


def passkey_access(settings: Settings, members: tuple[Member, ...], kept: KeptSessions) -> PasskeyAccess:
    """Return the parts of access by passkey. Raises `ConfigurationError` where two people have one key."""
    return PasskeyAccess(
        party=party_of(settings),
        keys=_keys_of(settings, members),
        sign_ins=OpenSignIns(kept, now_s=time.time, new_nonce=lambda: secrets.token_urlsafe(RANDOM_BYTES)),
        invitations=Invitations(invitation_folder(settings)),
    )


def invitation_folder(settings: Settings) -> Path:
    """Return where invitations are kept."""
    return settings.console_directory() / "invitations"


def signature_in(form: Mapping[str, str]) -> PasskeySignature:
    """Return the signature that a form carries, as `static/passkey.js` puts it there; empty parts where it has none."""
    return PasskeySignature(
        client_data=form.get("client_data", ""),
        authenticator_data=form.get("authenticator_data", ""),
        signature=form.get("signature", ""),
    )


def _keys_of(settings: Settings, members: tuple[Member, ...]) -> Mapping[PublicKey, Member]:
    by_name = {plain_name(member.name): member for member in members}
    found: dict[PublicKey, Member] = {}
    for name, key in _listed_keys(settings):
        member = by_name[plain_name(name)]
        if found.setdefault(key, member) != member:
            raise ConfigurationError(
                f"One key is listed under two names, {found[key].name} and {member.name} (fingerprint "
                f"{key.fingerprint}): they would be one person.",
                hint="List each key under the name of the one person who has it.",
            )
    return found


def _listed_keys(settings: Settings) -> Iterator[tuple[str, PublicKey]]:
    for person in required_policy(settings).people.listed:
        yield from ((person.name, key) for key in person.keys)
    for section, names in (
        ("auditors", settings.console.auditors),
        ("administrators", settings.console.administrators),
    ):
        for name, texts in names.items():
            for text in [texts] if isinstance(texts, str) else texts:
                key = read_public_key(text)
                if key is None:
                    raise ConfigurationError(f"console.{section}.{name} is no public key of a person.")
                yield name, key
