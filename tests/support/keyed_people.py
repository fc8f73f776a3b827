"""People with passkeys on the pages, without a browser: their signatures are made in software."""

import re
from dataclasses import dataclass

from httpx import ASGITransport, AsyncClient, Response

from paygw_batch.approval.approval_keys import RelyingParty, to_base64url
from paygw_batch.console.passkey_access import invitation_challenge, sign_in_text
from tests.support.people import APPROVER, MAKER, House, Person
from tests.support.software_passkey import SoftwarePasskey, passkey

PAGES = RelyingParty("https://pay.example")
FROM_PAGES = {"origin": PAGES.origin}
KEYS = {MAKER: passkey("p-ada", PAGES), APPROVER: passkey("p-ben", PAGES)}


@dataclass
class PasskeyPerson(Person):
    key: SoftwarePasskey | None = None
    origin: str = PAGES.origin

    def post(self, path: str, **form: str) -> Response:
        return self.ask("POST", path, data={"csrf": self.token(), **form}, headers={"origin": self.origin})

    def upload(self, path: str, name: str, content: bytes, **form: str) -> Response:
        data = {"csrf": self.token(), **form}
        return self.ask("POST", path, data=data, files={"sheet": (name, content)}, headers={"origin": self.origin})

    def begin_sign_in(self) -> str:
        """Return the nonce of the sign-in that the sign-in page begins."""
        return str(re.findall(r'name="nonce" value="([^"]+)"', self.get("/sign-in").text)[0])

    def sign_in(self, key: SoftwarePasskey, earlier_nonce: str | None = None) -> Response:
        """Sign in by passkey. `earlier_nonce` is the nonce of an earlier sign-in page."""
        nonce = earlier_nonce or self.begin_sign_in()
        parts = key.sign(sign_in_text(nonce)).model_dump() | {"nonce": nonce, "credential": key.credential_id}
        return self.ask("POST", "/sign-in/passkey", data=parts, headers={"origin": self.origin})

    def signature_for(self, page: str, key: SoftwarePasskey | None = None) -> dict[str, str]:
        """Return the form fields that a browser fills in after its passkey has signed."""
        signing = key or self.key
        assert signing is not None
        challenge = re.findall(r'data-challenge="([^"]+)"', page)[0]
        return signing.sign(b"", client_data=signing.client_data(challenge, "webauthn.get", {})).model_dump()

    def prepared(self, content: bytes, name: str) -> str:
        """Upload a sheet, sign it as its maker, and return its address."""
        draft = self.upload("/new", name, content).headers["location"]
        page = self.get(f"{draft}/plan").text
        answer = self.post(f"{draft}/sign", digest=hidden_value(page, "digest"), **self.signature_for(page))
        assert answer.status_code == 303, answer.text
        return str(draft)


def hidden_value(page: str, name: str) -> str:
    return str(re.findall(rf'name="{name}" value="([^"]*)"', page)[0])


@dataclass
class PasskeyHouse(House):
    """A sandbox whose maker and approver have only a passkey, behind a TLS proxy."""

    def __post_init__(self) -> None:
        text = self.program.config.read_text().replace('sandbox_keys = "keys"', f'origin = "{PAGES.origin}"')
        for name, key in KEYS.items():
            text = re.sub(rf'(?m)^"{name}" = ".*"$', f'"{name}" = "{key.public.text}"', text)
        self.program.config.write_text(text)
        super().__post_init__()

    def stranger(self) -> PasskeyPerson:
        return PasskeyPerson(AsyncClient(transport=ASGITransport(self.app), base_url=PAGES.origin))

    def person(self, name: str) -> PasskeyPerson:
        item = self.stranger()
        item.name, item.key = name, KEYS[name]
        answer = item.sign_in(item.key)
        assert answer.status_code == 303, answer.text
        return item

    def prepared(self, maker: PasskeyPerson, content: bytes, name: str = "payroll.csv") -> str:
        """Upload a sheet, sign it as its maker, and return its address."""
        return maker.prepared(content, name)


ADA, CLEO, STRANGER = passkey("p-ada"), passkey("r-cleo"), passkey("p-stranger")
TOKEN = "T" * 43


def key_form(key: SoftwarePasskey = ADA, *, token: str = TOKEN, kind: str = "webauthn.create") -> dict[str, str]:
    return {
        "client_data": to_base64url(key.client_data(invitation_challenge(token), kind, {})),
        "authenticator_data": to_base64url(key.authenticator_data(0x45, more=b"\0" * 100)),
        "public_key": to_base64url(key.public.material),
    }
