"""People with passkeys at the pages, without a browser: what their telephones sign is made in software."""

import re
from dataclasses import dataclass

from httpx import ASGITransport, AsyncClient, Response

from paygw_batch.approval.approval_keys import PasskeySignature, RelyingParty, to_base64url
from paygw_batch.console.passkey_access import invitation_challenge, sign_in_text
from tests.support.people import APPROVER, MAKER, House, Person
from tests.support.software_passkey import SoftwarePasskey, passkey

PAGES = RelyingParty("https://pay.example")
FROM_PAGES = {"origin": PAGES.origin}
KEYS = {MAKER: passkey("p-ada", PAGES), APPROVER: passkey("p-ben", PAGES)}


@dataclass
class PasskeyPerson(Person):
    """Somebody with a passkey, at a browser."""

    key: SoftwarePasskey | None = None
    origin: str = PAGES.origin

    def post(self, path: str, **form: str) -> Response:
        return self.ask("POST", path, data={"csrf": self.token(), **form}, headers={"origin": self.origin})

    def upload(self, path: str, name: str, content: bytes, **form: str) -> Response:
        data = {"csrf": self.token(), **form}
        return self.ask("POST", path, data=data, files={"sheet": (name, content)}, headers={"origin": self.origin})

    def begun(self) -> str:
        """Return the nonce of the sign-in that the page to sign in on begins."""
        return str(re.findall(r'name="nonce" value="([^"]+)"', self.get("/sign-in").text)[0])

    def sign_in(self, key: SoftwarePasskey, begun: str | None = None) -> Response:
        """Sign in by a passkey; `begun` is one that was begun before."""
        nonce = begun or self.begun()
        parts = parts_of(key.sign(sign_in_text(nonce))) | {"nonce": nonce, "credential": key.credential_id}
        return self.ask("POST", "/sign-in/passkey", data=parts, headers={"origin": self.origin})

    def signature_for(self, page: str, key: SoftwarePasskey | None = None) -> dict[str, str]:
        """Return the fields that the browser puts into the form of a page after its passkey has signed."""
        signing = key or self.key
        assert signing is not None
        challenge = re.findall(r'data-challenge="([^"]+)"', page)[0]
        collected = signing.client_data(challenge, "webauthn.get", {})
        return parts_of(signing.sign(b"", client_data=collected))

    def prepared(self, content: bytes, name: str) -> str:
        """Upload a sheet and sign it as its maker; return its address."""
        place = self.upload("/new", name, content).headers["location"]
        page = self.get(f"{place}/plan").text
        answer = self.post(f"{place}/sign", digest=value(page, "digest"), **self.signature_for(page))
        assert answer.status_code == 303, answer.text
        return str(place)


def parts_of(signature: PasskeySignature) -> dict[str, str]:
    return {
        "client_data": signature.client_data,
        "authenticator_data": signature.authenticator_data,
        "signature": signature.signature,
    }


def value(page: str, name: str) -> str:
    """Return the value of a hidden field of a page."""
    return str(re.findall(rf'name="{name}" value="([^"]*)"', page)[0])


@dataclass
class PasskeyHouse(House):
    """A sandbox whose maker and approver have nothing but a passkey, behind a proxy that speaks TLS."""

    def __post_init__(self) -> None:
        text = self.program.config.read_text().replace('sandbox_keys = "keys"', f'origin = "{PAGES.origin}"')
        for name, key in KEYS.items():
            text = re.sub(rf'(?m)^"{name}" = ".*"$', f'"{name}" = "{key.public.text}"', text)
        self.program.config.write_text(text)
        super().__post_init__()

    def stranger(self) -> PasskeyPerson:
        return PasskeyPerson(AsyncClient(transport=ASGITransport(self.app), base_url=PAGES.origin))

    def person(self, name: str) -> PasskeyPerson:
        one = self.stranger()
        one.name, one.key = name, KEYS[name]
        answer = one.sign_in(one.key)
        assert answer.status_code == 303, answer.text
        return one

    def prepared(self, maker: PasskeyPerson, content: bytes, name: str = "payroll.csv") -> str:
        """Upload a sheet and sign it as its maker; return its address."""
        return maker.prepared(content, name)


ADA, CLEO, STRANGER = passkey("p-ada"), passkey("r-cleo"), passkey("p-stranger")


TOKEN = "T" * 43


AT_AND_MORE = 0x45


def made(key: SoftwarePasskey = ADA, *, token: str = TOKEN, kind: str = "webauthn.create") -> dict[str, str]:
    return {
        "client_data": to_base64url(key.client_data(invitation_challenge(token), kind, {})),
        "authenticator_data": to_base64url(key.authenticator_data(AT_AND_MORE, more=b"\0" * 100)),
        "public_key": to_base64url(key.public.material),
    }
