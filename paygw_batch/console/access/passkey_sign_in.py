"""Signs people in by passkey: the text that is signed, and whose passkey signed it.

A sign-in signs a text with a first line for this act, like every other signature here: it can never count as an
approval. No list of credentials is kept: the person is the one in the configuration whose key fits the signature.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paygw_batch.console.access.kept_sessions import KeptSessions
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.passkey import PasskeySignature, RelyingParty, challenge_of, has_asserted

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
