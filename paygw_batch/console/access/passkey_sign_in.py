"""Signs people in by passkey: the text that is signed, and whose passkey signed it.

A sign-in signs a text with a first line for this act, like every other signature here: it can never count as an
approval. No list of credentials is kept: the person is the one in the configuration whose key fits the signature.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.passkey import PasskeySignature, RelyingParty, challenge_of, has_asserted

SIGN_IN_S = 300.0
"""How long a page to sign in on may be open before the passkey is used."""
_MOST = 10_000


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
    """Remembers the sign-ins that were begun, in memory alone: each can end once, within `SIGN_IN_S`."""

    def __init__(self, *, monotonic_s: Callable[[], float], new_nonce: Callable[[], str]) -> None:
        self._monotonic_s = monotonic_s
        self._new_nonce = new_nonce
        self._begun_s: dict[str, float] = {}
        self._lock = Lock()

    def begin(self) -> SignInText:
        """Return the text of a new sign-in. Where very many are open, the oldest is given up."""
        nonce, now_s = self._new_nonce(), self._monotonic_s()
        with self._lock:
            while len(self._begun_s) >= _MOST:
                del self._begun_s[next(iter(self._begun_s))]
            self._begun_s[nonce] = now_s
        return SignInText(nonce)

    def end(self, nonce: str) -> SignInText | None:
        """Return the text of an open sign-in, which is open no longer; None for one that was not begun, or long ago."""
        with self._lock:
            begun_s = self._begun_s.pop(nonce, None)
        if begun_s is None or self._monotonic_s() - begun_s > SIGN_IN_S:
            return None
        return SignInText(nonce)


def key_that_signed(
    sign_in: SignInText, signature: PasskeySignature, keys: Iterable[PublicKey], party: RelyingParty
) -> PublicKey | None:
    """Return the one of `keys` that signed a sign-in, or None."""
    return next((key for key in keys if has_asserted(key, signature, sign_in.text, party)), None)
