"""Lets people in by passkey: whose key is whose, open sign-ins, invitations.

A sign-in signs a text with a first line for this act, like every other signature here: it can never count as an
approval. No list of credentials is kept: the person is the one in the configuration whose key fits the signature.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.console.access.invitations import Invitations
from paygw_batch.console.access.kept_sessions import KeptSessions
from paygw_batch.console.members import Member
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say
from paygw_batch.run.approval_keys import PublicKey, plain_name, read_public_key
from paygw_batch.run.passkey import PasskeySignature, RelyingParty, challenge_of, has_asserted
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import listed_people, party_of

SIGN_IN_S = 300.0
"""How long a page to sign in on may be open before the passkey is used."""


_KEPT_S = 24 * 3600.0
"""How long a sign-in that has ended is kept: longer than a clock is set back."""


@dataclass(frozen=True, slots=True)
class SignInText:
    """The text of one sign-in. `nonce` is random, and is used once."""

    nonce: str

    @property
    def text(self) -> bytes:
        """The bytes whose digest is the challenge."""
        return f"paygw-batch sign-in 1\n{self.nonce}".encode()

    @property
    def challenge(self) -> str:
        """The challenge for the passkey."""
        return challenge_of(self.text)


class OpenSignIns:
    """Begins sign-ins, and ends each once, within `SIGN_IN_S`.

    A nonce has the time in it, and a code that only this console can make: beginning one keeps nothing, so that nobody
    fills a disk or drives out the sign-ins of others by opening the page. Those that have ended are kept.
    """

    def __init__(self, kept: KeptSessions, *, now_s: Callable[[], float], new_nonce: Callable[[], str]) -> None:
        self._kept = kept
        self._now_s = now_s
        self._new_nonce = new_nonce

    def begin(self) -> SignInText:
        """Return the text of a new sign-in."""
        begun = f"{self._new_nonce()}.{int(self._now_s())}"
        return SignInText(f"{begun}.{self._code(begun)}")

    def end(self, nonce: str) -> SignInText | None:
        """Return the text of an open sign-in, which is open no longer; None for one that was not begun, or long ago."""
        begun, _, code = nonce.rpartition(".")
        if not hmac.compare_digest(code.encode(), self._code(begun).encode()):
            return None
        now_s = self._now_s()
        if abs(now_s - int(begun.rpartition(".")[2])) > SIGN_IN_S:
            return None
        digest = hashlib.sha256(nonce.encode()).digest()
        is_first = self._kept.end_sign_in(digest, now_s, forget_before_s=now_s - _KEPT_S)
        return SignInText(nonce) if is_first else None

    def _code(self, begun: str) -> str:
        return hmac.new(self._kept.secret, begun.encode(), hashlib.sha256).hexdigest()


def key_that_signed(
    sign_in: SignInText, signature: PasskeySignature, keys: Iterable[PublicKey], party: RelyingParty
) -> PublicKey | None:
    """Return the one of `keys` that signed a sign-in, or None."""
    return next((key for key in keys if has_asserted(key, signature, sign_in.text, party)), None)


RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class PasskeyAccess:
    """The parts of access by passkey. `party` is None if the configuration does not say the console's address."""

    party: RelyingParty | None
    keys: Mapping[PublicKey, Member]
    sign_ins: OpenSignIns
    invitations: Invitations


def passkey_access(settings: Settings, members: tuple[Member, ...], kept: KeptSessions) -> PasskeyAccess:
    """Return the parts of access by passkey. Raises `ConfigurationError` if two people have one key."""
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
    """Return the signature that a form carries, as `static/passkey.js` puts it there; empty parts if it has none."""
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
                say(
                    "One key is listed under two names, {name} and {other} (fingerprint "
                    "{fingerprint}): they would be one person.",
                    name=found[key].name,
                    other=member.name,
                    fingerprint=key.fingerprint,
                ),
                hint=say("List each key under the name of the one person who holds it."),
            )
    return found


def _listed_keys(settings: Settings) -> Iterator[tuple[str, PublicKey]]:
    for person in listed_people(settings).listed:
        yield from ((person.name, key) for key in person.keys)
    for section, names in (
        ("auditors", settings.console.auditors),
        ("administrators", settings.console.administrators),
    ):
        for name, texts in names.items():
            for text in [texts] if isinstance(texts, str) else texts:
                key = read_public_key(text)
                if key is None:
                    raise ConfigurationError(
                        say("console.{section}.{name} is not a person's public key.", section=section, name=name)
                    )
                yield name, key
