"""Three pages that use passkeys as the console does, with its own file of JavaScript and under its policy."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from socket import create_server
from time import monotonic

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import paygw_batch.console
from paygw_batch.clock import utc_now
from paygw_batch.compose.approvals import required_policy
from paygw_batch.console.access.invitations import Invitations
from paygw_batch.console.access.new_passkey import NewPasskey, invitation_challenge, new_passkey
from paygw_batch.console.access.passkey_sign_in import OpenSignIns, key_that_signed
from paygw_batch.run.approval import read_plan
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.passkey import PasskeySignature, RelyingParty
from paygw_batch.run.signed_document import Approval, approval_text, approve_by_passkey, write_document
from paygw_batch.settings.configuration import load_settings
from tests.cli.program import Program

STATIC = Path(paygw_batch.console.__file__).parent / "static"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Payouts</title>
<script src="/static/passkey.js" defer></script></head><body><main><h1>{heading}</h1>{body}</main></body></html>"""
FORM = """<form method="post" {data}>{fields}<p role="alert" data-passkey-problem hidden>{problem}</p>
<button>{button}</button></form>"""


def page(heading: str, body: str = "", *, status: int = 200) -> Response:
    headers = {"content-security-policy": POLICY}
    return HTMLResponse(PAGE.format(heading=heading, body=body), status_code=status, headers=headers)


def form(button: str, data: dict[str, str], **fields: str) -> str:
    return FORM.format(
        button=button,
        problem="Nothing was signed, and nothing was sent.",
        data=" ".join(f'data-{name}="{value}"' for name, value in data.items()),
        fields="".join(f'<input type="hidden" name="{name}" value="{value}">' for name, value in fields.items()),
    )


def signature_in(given: dict[str, str]) -> PasskeySignature:
    parts = ("client_data", "authenticator_data", "signature")
    return PasskeySignature(**{name: given.get(name, "") for name in parts})


@dataclass
class PasskeyPages:
    """The pages for one installation and one plan. `signed_in` is the key of the person who signed in last."""

    program: Program
    plan: Path
    origin: str = ""
    posts: int = 0
    signed_in: PublicKey | None = None
    credential: str = ""
    sign_ins: OpenSignIns = field(
        default_factory=lambda: OpenSignIns(monotonic_s=monotonic, new_nonce=lambda: token_urlsafe(32))
    )

    @property
    def party(self) -> RelyingParty:
        return RelyingParty(self.origin)

    @property
    def invitations(self) -> Invitations:
        return Invitations(self.program.home / "invitations")

    async def invited(self, request: Request) -> Response:
        token = request.path_params["token"]
        if request.method == "POST":
            given = await self._form(request)
            made = NewPasskey(*(given.get(name, "") for name in ("client_data", "authenticator_data", "public_key")))
            key = new_passkey(made, token, self.party)
            if key is None or self.invitations.use(token, utc_now()) is None:
                return page("Not made", status=409)
            return page("Made", f'<p id="line">{key.text}</p><p id="fingerprint">{key.fingerprint}</p>')
        found = self.invitations.invitation(token, utc_now())
        if found is None:
            return page("This link was used, or is too old", status=404)
        data = {"passkey": "create", "challenge": invitation_challenge(token), "rp-id": self.party.rp_id}
        return page("Make my passkey", form("Make my passkey", data | {"user-name": found.name, "user-id": token[:22]}))

    async def sign_in(self, request: Request) -> Response:
        if request.method == "POST":
            given = await self._form(request)
            begun = self.sign_ins.end(given.get("nonce", ""))
            people = required_policy(load_settings(self.program.config, environ=self.program.environ)).people
            keys = [key for person in people.listed for key in person.keys]
            self.signed_in = None if begun is None else key_that_signed(begun, signature_in(given), keys, self.party)
            self.credential = given.get("credential", "")
            owner = None if self.signed_in is None else people.owner_of(self.signed_in)
            return page(f"Signed in as {owner.name}") if owner else page("Nobody", status=403)
        begun = self.sign_ins.begin()
        data = {"passkey": "get", "challenge": begun.challenge, "rp-id": self.party.rp_id, "credential": ""}
        return page("Sign in", form("Sign in with your passkey", data, nonce=begun.nonce))

    async def approve(self, request: Request) -> Response:
        policy = required_policy(load_settings(self.program.config, environ=self.program.environ))
        document, key = read_plan(self.plan), self.signed_in
        assert key is not None
        if request.method == "POST":
            given = await self._form(request)
            approval = Approval(key=key.text, approved_at=given["approved_at"], signature=signature_in(given))
            write_document(approve_by_passkey(document, approval, policy, utc_now()), self.plan)
            return page("Approved")
        asked = approval_text(document, key, policy, utc_now())
        data = {
            "passkey": "get",
            "challenge": asked.challenge,
            "rp-id": self.party.rp_id,
            "credential": self.credential,
        }
        told = f'<p id="code">{document.code}</p>'
        return page("Approve", told + form("Approve with my passkey", data, approved_at=asked.approved_at))

    async def _form(self, request: Request) -> dict[str, str]:
        self.posts += 1
        return {name: str(value) for name, value in (await request.form()).items()}

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve the pages on a free port of this machine, at a name that browsers make passkeys for."""
        both = ["GET", "POST"]
        app = Starlette(
            routes=[
                Route("/invitation/{token}", self.invited, methods=both),
                Route("/sign-in", self.sign_in, methods=both),
                Route("/approve", self.approve, methods=both),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )
        with closing(create_server(("127.0.0.1", 0))) as listener:
            self.origin = f"http://localhost:{listener.getsockname()[1]}"
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                yield
            finally:
                server.should_exit = True
                thread.join()
