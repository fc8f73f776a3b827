"""Answers requests in one way: who is it, may they, is the form ours; then the page, and its errors in plain words."""

import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from paygw_batch.clock import Now, timestamp
from paygw_batch.console.access.passkey_access import PasskeyAccess
from paygw_batch.console.members import Member, Role
from paygw_batch.console.payout_counts import PayoutCounts
from paygw_batch.console.permissions import Act, Thing, may
from paygw_batch.console.visit_language import language_of, own_names
from paygw_batch.console.web_guard import BodyRefused
from paygw_batch.console.web_sessions import SignedInKey, SignInWay, WebSession, WebSessions
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import AuditUnwritable, PaygwError
from paygw_batch.journal import AuditNote, AuditResult, AuditTrail
from paygw_batch.language import language, mark, mark_all, say, speaking
from paygw_batch.settings.configuration import Settings

_log = logging.getLogger(__name__)
_COMMAND = re.compile(r"`|--[a-z]|\.toml|\[[a-z]+\]")
"""A hint with one of these is for a person at a terminal."""
_OWN_SITE = frozenset({"same-origin", "none"})
MOST_FIELDS = 2_000
_STRANGE = mark("This form is too old, or does not come from these pages. Open the page again.")
_GENERAL = mark_all("There is no such page.", "This is not for you to do.")
"""The general messages of the errors below, for the catalogue."""


@dataclass(frozen=True, slots=True)
class Console:
    """Everything that the pages work with. `program` is the command line by which another command is started."""

    settings: Settings
    config: Path
    rules: Rules
    members: tuple[Member, ...]
    access: PasskeyAccess
    trail: AuditTrail
    sessions: WebSessions
    counts: PayoutCounts
    templates: Environment
    program: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    now: Now
    origins: frozenset[str]
    cookie: str

    def close(self) -> None:
        """Let go of the files that are open."""
        self.trail.close()
        self.sessions.close()

    @property
    def directory(self) -> Path:
        """Where sheets in preparation are."""
        return self.settings.console_directory()

    @property
    def is_secure(self) -> bool:
        """Whether browsers see the pages over TLS: their cookie then never leaves it."""
        return (self.settings.console.origin or "").startswith("https:")


class PageNotFound(PaygwError):
    """There is no such page."""


class ActRefused(PaygwError):
    """This is not for you to do."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a person who may make it."""

    console: Console
    request: Request
    session: WebSession | None
    form: Mapping[str, str] = field(default_factory=dict)
    upload: UploadFile | None = None

    @property
    def member(self) -> Member:
        """Who asks."""
        if self.session is None:
            raise ActRefused(say("Sign in first."))
        return self.session.member

    @property
    def passkey(self) -> SignedInKey | None:
        """The passkey by which the person signed in, and signs; None in the sandbox, where a name was chosen."""
        return None if self.session is None else self.session.passkey

    def may(self, act: Act, maker: str | None = None) -> bool:
        """Whether the person may do something, with a payout that `maker` prepares where one is named."""
        return may(self.member, act, None if maker is None else Thing(maker))

    def require(self, act: Act, maker: str, sentence: str) -> None:
        """Raise `ActRefused` with a sentence unless the person may do something with a payout of `maker`."""
        if not self.may(act, maker):
            raise ActRefused(sentence)

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def note(self, act: str, thing: str, result: AuditResult, *, said: str = "", who: str | None = None) -> None:
        """Note an act of the person (or of `who`) in the audit trail, before it is done. Raises `AuditUnwritable`."""
        name = "" if self.session is None else self.session.member.name
        note = AuditNote(name if who is None else who, act, thing, result, said)
        self.console.trail.note(note, timestamp(self.console.now()))

    @property
    def thing(self) -> str:
        """The thing that the request is about, by its path. The token of an invitation is a secret."""
        parts = self.request.path_params
        return ", ".join(f"{name} {value}" for name, value in parts.items() if name != "token")

    def query(self, name: str) -> str:
        """Return a value behind the question mark; empty where there is none."""
        return self.request.query_params.get(name, "")

    def query_number(self, name: str) -> int:
        """Return a number behind the question mark; 0 where there is none."""
        text = self.query(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0  # noqa: PLR2004 (no row is so far)

    def page(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """Return a page."""
        console, member = self.console, None if self.session is None else self.session.member
        common = {
            "member": member,
            "roles": [] if member is None else sorted(member.roles),
            "csrf": "" if self.session is None else self.session.csrf_token,
            "may": lambda act, maker=None: member is not None and self.may(Act(act), maker),
            "is_sandbox": console.settings.uses_sandbox,
            "gateway": console.settings.gateway.base_url or "",
            "here": self.request.url.path,
            "back": self._back,
            "languages": own_names(),
        }
        return HTMLResponse(console.templates.get_template(template).render(common | context), status_code=status)

    @property
    def _back(self) -> str:
        """The address of this page; the first page where it is an answer to a form."""
        url = self.request.url
        return "/" if self.request.method == "POST" else f"{url.path}?{url.query}" if url.query else url.path

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of a command that is started for the person: it speaks the language of the page."""
        return {**self.console.environ, "PAYGW_LANG": language()}

    def go_to(self, path: str) -> Response:
        """Lead the browser to another page, after something was done."""
        return RedirectResponse(path, status_code=303)


Handler = Callable[[Visit], Response]


@dataclass(frozen=True, slots=True)
class WebRoute:
    """A path with its handler: who may ask for it (None: also who is not signed in), and with which methods."""

    path: str
    handler: Handler
    act: Act | None
    method: str = "GET"
    is_poll: bool = False

    def endpoint(self, console: Console) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint for Starlette."""

        async def answer(request: Request) -> Response:
            with speaking(language_of(request.cookies)):
                return await in_language(request)

        async def in_language(request: Request) -> Response:
            found = partial(console.sessions.session, _cookie(console, request), is_poll=self.is_poll)
            visit = Visit(console, request, await run_in_threadpool(found))
            try:
                refused = self._refused(visit)
                if refused is None and self.method == "POST":
                    visit = await _with_form(visit, is_signed_in=self.act is not None)
                if refused is None and self.is_noted:
                    await run_in_threadpool(visit.note, self.deed, visit.thing, AuditResult.DONE)
                return await run_in_threadpool(self.handler, visit) if refused is None else refused
            except PaygwError as error:
                return await run_in_threadpool(self._answer_refused, visit, error)
            except BodyRefused as error:
                with suppress(AuditUnwritable):
                    await run_in_threadpool(self._note_refusal, visit, error)
                return _too_much(visit)
            except Exception as error:  # noqa: BLE001 (the last resort: a page that tells nothing, a trace without data)
                _log.error("Unexpected error at %s. %s", self.path, _bare_trace(error))
                return visit.page("error.html", status=500, heading=say("Something went wrong"), message="", hint="")
            finally:
                await request.close()

        return answer

    @property
    def deed(self) -> str:
        """The word for this act in the audit trail."""
        return self.handler.__name__.replace("_", " ")

    @property
    def is_noted(self) -> bool:
        """Whether the act is noted before it is done. Who signs in is known, and noted, afterwards."""
        return self.act is not None and (self.method == "POST" or self.act is Act.DOWNLOAD)

    def _answer_refused(self, visit: Visit, error: PaygwError) -> Response:
        """Return the page about an error, and note it where something was to be done, or was not for this person."""
        if (self.method == "POST" or isinstance(error, ActRefused)) and not isinstance(error, AuditUnwritable):
            try:
                self._note_refusal(visit, error)
            except AuditUnwritable as problem:
                return error_page(visit, problem)
        return error_page(visit, error)

    def _note_refusal(self, visit: Visit, error: Exception) -> None:
        visit.note(self.deed, visit.thing, AuditResult.REFUSED, said=type(error).__name__)

    def _refused(self, visit: Visit) -> Response | None:
        """Return the refusal of a request before its body is read, or None."""
        if self.method == "POST":
            _require_own_origin(visit)
        if self.act is None:
            return None
        if visit.session is None:
            return Response(status_code=401) if self.is_poll else visit.go_to("/sign-in")
        if not visit.may(self.act):
            raise ActRefused
        return None


def error_page(visit: Visit, error: PaygwError) -> Response:
    """Return the page about an error, in the words of the pages: without the hints for a terminal."""
    match error:
        case PageNotFound():
            status, heading = 404, say("There is no such page")
        case ActRefused():
            status, heading = 403, say("This is not for you to do")
        case _:
            status, heading = 409, say("This cannot be done now")
    hint = "" if _COMMAND.search(error.hint) else error.hint
    return visit.page("error.html", status=status, heading=heading, message=error.message, hint=hint)


def _too_much(visit: Visit) -> Response:
    """Return the page about a body that is too long or too slow. The rest of it is not read."""
    message = say("The file is too large, or came too slowly.")
    answer = visit.page("error.html", status=413, heading=say("This cannot be done now"), message=message, hint="")
    answer.headers["connection"] = "close"
    return answer


def _require_own_origin(visit: Visit) -> None:
    """Raise `ActRefused` for a form that another site sends. Every browser names the origin of a form."""
    headers = visit.request.headers
    if headers.get("origin") not in visit.console.origins or headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        raise ActRefused(say("This form does not come from these pages."))


async def _with_form(visit: Visit, *, is_signed_in: bool) -> Visit:
    """Return the visit with the values of its form. Raises `ActRefused` for one that is not of this session."""
    try:
        found = await visit.request.form(max_files=1, max_fields=MOST_FIELDS)
    except HTTPException:  # too many fields, or no form at all
        raise ActRefused(say(_STRANGE)) from None
    form = {name: value for name, value in found.multi_items() if isinstance(value, str)}
    if is_signed_in and (visit.session is None or not visit.session.has_token(form.get("csrf", ""))):
        raise ActRefused(say(_STRANGE))
    upload = next((value for _, value in found.multi_items() if isinstance(value, UploadFile)), None)
    return Visit(visit.console, visit.request, visit.session, form, upload)


def _cookie(console: Console, request: Request) -> str:
    return request.cookies.get(console.cookie, "")


def signed_in(visit: Visit, member: Member, way: SignInWay, passkey: SignedInKey | None = None) -> Response:
    """Return the answer that signs a person in, with a new session, and leads to the first page for them."""
    console = visit.console
    session_id = console.sessions.sign_in(member, _cookie(console, visit.request), way, passkey)
    first = "/people" if member.roles == {Role.ADMINISTRATOR} else "/"
    answer = visit.go_to(first)
    answer.set_cookie(console.cookie, session_id, path="/", secure=console.is_secure, httponly=True, samesite="strict")
    return answer


def signed_out(visit: Visit) -> Response:
    """Return the answer that ends the session."""
    visit.console.sessions.sign_out(_cookie(visit.console, visit.request))
    answer = visit.go_to("/sign-in")
    answer.delete_cookie(
        visit.console.cookie, path="/", secure=visit.console.is_secure, httponly=True, samesite="strict"
    )
    return answer


def _bare_trace(error: BaseException) -> str:
    """Return where an error happened, without its text and without source lines: both could hold a payee's data."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{places}: {type(error).__qualname__}"
