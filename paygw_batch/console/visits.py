"""Answers every request in the same order: find the session, check the permission and the form, then call the page."""

import importlib.util
import logging
import shutil
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from jinja2 import Environment
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from paygw_batch.clock import Now, timestamp
from paygw_batch.console.passkey_access import PasskeyAccess, SignedInKey, WebSession, WebSessions
from paygw_batch.console.payout_counts import PayoutCounts
from paygw_batch.console.payout_folder import is_folder_name, uploads_by_batch
from paygw_batch.console.permissions import Act, Member, Role, may
from paygw_batch.console.rendering import own_names, shown_for
from paygw_batch.console.sheet_process import run_within_limits
from paygw_batch.console.web_guard import BodyRefused
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import AuditUnwritable, PaygwError, UsageError
from paygw_batch.journal import (
    AuditNote,
    AuditResult,
    BatchRecord,
    JournalReader,
    make_directory,
)
from paygw_batch.language import language, mark, mark_all, say
from paygw_batch.opening.open_journal import journal_for_planning, place_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.show.remittance import masked
from paygw_batch.submit.compare_sheet import ComparisonMemory

_MAX_ROW_DIGITS = 10
"""The maximum number of digits of a row number."""
_SECRETS = frozenset({"token"})
_AT_ONCE = 1024 * 1024
NOTED_BEFORE = "noted before: "
"""The prefix of a reason in the audit trail, if an earlier entry says that the refused act was done."""


def row_number(text: str) -> int | None:
    """Return the row number in a text of an address or a form; None if the text is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_ROW_DIGITS else None


def thing_of(path: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Return the subject of a request as text, from its path and form, without the secret token of an invitation."""
    return ", ".join(f"{name} {value}" for name, value in _parts(path, form))


def _parts(path: Mapping[str, Any], form: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in path.items() if name not in _SECRETS)
    number, row, column = (form.get(name, "") for name in ("number", "row", "column"))
    if "sheet" not in path and is_folder_name(number):
        yield "sheet", number
    if "row" not in path and row_number(row) is not None:
        yield "row", row
    if column in columns_of_operation(PAYOUT):
        yield "column", column


def parts_of(thing: str) -> Mapping[str, str]:
    """Return the parts of a text of `thing_of` by name, such as `sheet`, `batch`, `row`; empty for any other text."""
    pairs = (part.partition(" ") for part in thing.split(", "))
    return {name: value for name, _, value in pairs if value}


_log = logging.getLogger(__name__)
_OWN_SITE = frozenset({"same-origin", "none"})
MAX_FIELDS = 2_000
SIGNATURE_FIELD = "signature"
_STRANGE = mark("This form is out of date, or not from these pages. Reload the page.")
_GENERAL = mark_all(
    "There is no such page.",
    "You don't have permission to do this.",
    "This page is out of date. Reload it and check again.",
)
"""The default messages of the errors below, marked here so that the catalogue has them."""


@dataclass(frozen=True, slots=True)
class Console:
    """The values that all pages work with. `program` is the command line that starts this program in a process."""

    settings: Settings
    config: Path
    rules: Rules
    members: tuple[Member, ...]
    access: PasskeyAccess
    sessions: WebSessions
    counts: PayoutCounts
    memories: Callable[[str], ComparisonMemory]
    """Returns the memory of a payout in preparation by its number. It is empty without a recent correction."""
    templates: Environment
    program: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    now: Now
    origins: frozenset[str]
    cookie: str

    def ran_within_limits(self, program: str, *arguments: str) -> bool:
        """Run one of our programs on an upload, in a process with limits. Return whether it succeeded within them."""
        return run_within_limits(program, arguments, self.settings, config=self.config, environ=self.environ)

    @property
    def directory(self) -> Path:
        """The folder of sheets in preparation."""
        return self.settings.console_directory()

    @property
    def runs(self) -> Path:
        """The folder of the files of runs that were started from these pages."""
        return self.settings.console_runs_directory()

    @property
    def is_secure(self) -> bool:
        """Whether browsers load the pages over TLS. If so, they must never send the cookie without TLS."""
        return (self.settings.console.origin or "").startswith("https:")


class PageNotFound(PaygwError):
    """There is no such page."""


class ActRefused(PaygwError):
    """You don't have permission to do this."""


class PageOutdated(PaygwError):
    """This page is out of date. Reload it and check again."""


class FieldRefused(UsageError):
    """This cannot be used."""

    def __init__(self, field: str, message: str, **further: Any) -> None:
        super().__init__(message, **further)
        self.field = field


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a form was refused. `field` names the field that is wrong, or is empty for the whole form."""

    sentence: str
    hint: str
    field: str


@dataclass(frozen=True, slots=True)
class Visit:
    """One request with its session, and the values of its form, as far as they have been read."""

    console: Console
    request: Request
    session: WebSession | None
    form: Mapping[str, str] = field(default_factory=dict)
    upload: UploadFile | None = None
    signature: UploadFile | None = None
    """The detached signature of the upload, which comes in a separate field."""
    form_page: str = "/"
    """The address of the page whose form this request sends."""
    was_noted: bool = False
    """Whether the act is already in the audit trail. An act is recorded there before it is done."""
    refusal: Refusal | None = None
    """The reason why the form was refused. Its page is then shown again, with the answers filled in."""

    @property
    def member(self) -> Member:
        """The person who makes the request. Raises `ActRefused` if nobody is signed in."""
        if self.session is None:
            raise ActRefused(say("Sign in first."))
        return self.session.member

    @property
    def passkey(self) -> SignedInKey | None:
        """The passkey with which the person signed in and signs; None if a name was chosen in the sandbox."""
        return None if self.session is None else self.session.passkey

    def may(self, act: Act, maker: str | None = None) -> bool:
        """Return whether the person may do an action, on a payout prepared by `maker` if a maker is named."""
        return may(self.member, act, maker)

    def require(self, act: Act, maker: str, sentence: str) -> None:
        """Raise `ActRefused` with `sentence` unless the person may do an action on a payout prepared by `maker`."""
        if not self.may(act, maker):
            raise ActRefused(sentence)

    def account(self, number: str) -> str:
        """Return an account number as this person may see it: the whole number, or only its last digits."""
        return masked(number) if number and self.member.is_masked else number

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def note(self, act: str, thing: str, result: AuditResult, *, said: str = "", who: str | None = None) -> None:
        """Write an action of the person, or of `who`, to the audit trail. Raises `AuditUnwritable` if that fails."""
        name = "" if self.session is None else self.session.member.name
        note = AuditNote(name if who is None else who, act, thing, result, said)
        place_of(self.console.settings).note_act(note, timestamp(self.console.now()))

    @property
    def thing(self) -> str:
        """The subject of the request, as the audit trail names it."""
        return thing_of(self.request.path_params, self.form)

    def query(self, name: str) -> str:
        """Return a value of the query or, if a form was refused, of that form; empty if there is none."""
        return self.request.query_params.get(name) or ("" if self.refusal is None else self.form.get(name, ""))

    def query_number(self, name: str) -> int:
        """Return a value of the query as a number; 0 if there is none."""
        return row_number(self.query(name)) or 0

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Return a page made from a template. The template has `values`, and the values of every page."""
        console, member = self.console, None if self.session is None else self.session.member
        frame = {
            "member": member,
            "csrf": "" if self.session is None else self.session.csrf_token,
            # Whether the person may do an action at all, by its name.
            "may": lambda act: member is not None and self.may(Act(act)),
            "is_sandbox": console.settings.uses_sandbox,
            # Whether several machines can send, sharing a journal in a database.
            "has_workers": console.settings.journal.url is not None,
            "gateway": console.settings.gateway.base_url or "",
            "here": self.request.url.path,
            "back": self._back,
            "home": "/sign-in" if member is None else first_page(member),
            # The seconds of inactivity until the person is signed out; 0: nobody is signed in.
            "session_left_s": 0 if self.session is None else int(self.session.left_s),
            "refusal": self.refusal,
            # The fields of the refused form.
            "sent": {} if self.refusal is None else self.form,
            "languages": own_names(),
            "called": called_in(console),
            "account": self.account,
            "writes_workbooks": has_workbooks(),
        }
        status = _REFUSED if self.refusal is not None and status == _SHOWN else status
        return HTMLResponse(console.templates.get_template(template).render(frame | values), status_code=status)

    def gone(self, sentence: str) -> PaygwError:
        """Return the error for a missing thing: `PageOutdated` for a form, whose page showed it, or `PageNotFound`."""
        return PageOutdated(sentence) if self.request.method == "POST" else PageNotFound(sentence)

    @property
    def _back(self) -> str:
        """The address of this page. In the answer to a form, it is the address of the page with the form."""
        url = self.request.url
        if self.request.method == "POST":
            shown = {name: self.form[name] for name in ("kind", "after") if self.form.get(name)}
            return f"{self.form_page}?{urlencode(shown)}" if shown else self.form_page
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment for a command that is started for the person. Its language is that of the page."""
        return {**self.console.environ, "PAYGW_LANG": language()}

    def go_to(self, path: str) -> Response:
        return RedirectResponse(path, status_code=303)


def called_in(console: Console) -> Callable[[str, str], str]:
    """Return a function that returns the name of a payout, from its batch and the name of its sheet.

    A payout prepared on these pages has the name that its maker gave it; any other has the name of its sheet. The
    folders are read when the first name is needed.
    """
    uploads = cache(partial(uploads_by_batch, console.directory))

    def called(batch: str, sheet_name: str) -> str:
        return uploads()[batch].called if batch in uploads() else sheet_name

    return called


Handler = Callable[[Visit], Response]
_SHOWN, _REFUSED = 200, 409


@dataclass(frozen=True, slots=True)
class WebRoute:
    """A path with its handler, and the action that a person must be allowed to do (None if no sign-in is needed).

    `audit_action` names the action in the audit trail. `form` says where the page with the form of a POST is: one step
    above the path (None), at the path itself (empty), or beside it, under this name.
    """

    path: str
    handler: Handler
    act: Act | None
    audit_action: str
    method: str = "GET"
    is_poll: bool = False
    form: str | None = None

    def endpoint(self, console: Console, pages: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint for Starlette. `pages` has the handlers of all pages by path."""
        page_with_form = pages.get(self.form_page(self.path)) if self.method == "POST" and self.act else None

        async def answer(request: Request) -> Response:
            zone = ZoneInfo(console.settings.console.time_zone)  # zoneinfo caches it
            with shown_for(request, zone):
                return await in_language(request)

        async def in_language(request: Request) -> Response:
            visit = Visit(console, request, None, form_page=self.form_page(request.url.path))
            try:
                if self.is_poll:
                    return await run_in_threadpool(self._answer_poll, visit)
                visit = await run_in_threadpool(_with_session, visit)
                refused = self._refused(visit)
                if refused is None and self.method == "POST":
                    visit = await _with_form(visit, is_signed_in=self.act is not None)
                if refused is None and self.is_noted:
                    await run_in_threadpool(visit.note, self.audit_action, visit.thing, AuditResult.DONE)
                    visit = replace(visit, was_noted=True)
                return await run_in_threadpool(self.handler, visit) if refused is None else refused
            except PaygwError as error:
                return await run_in_threadpool(self._answer_refused, visit, error, page_with_form)
            except BodyRefused as error:
                with suppress(AuditUnwritable):
                    await run_in_threadpool(self._note_refusal, visit, error)
                message = say("The file is too large, or took too long to upload.")
                answer = _problem_page(visit, 413, say("This cannot be done now"), message)
                answer.headers["connection"] = "close"  # the rest of the body is not read
                return answer
            except Exception as error:  # noqa: BLE001 (for any other error: a page without details, and a trace without data)
                _log.error("Unexpected error at %s. %s", self.path, _bare_trace(error))
                return _problem_page(visit, 500, say("Something went wrong"))
            finally:
                await request.close()

        return answer

    def _answer_poll(self, visit: Visit) -> Response:
        """Answer a polling tab. All steps run in one thread, because many tabs poll every two seconds."""
        visit = _with_session(visit, is_poll=True)
        refused = self._refused(visit)
        return self.handler(visit) if refused is None else refused

    def form_page(self, path: str) -> str:
        """Return the address of the page with the form that is sent to `path`."""
        if self.form == "":
            return path
        above = path.rpartition("/")[0]
        return f"{above}/{self.form}" if self.form else above or "/"

    @property
    def is_noted(self) -> bool:
        """Whether the action is recorded before it is done. A sign-in is recorded only afterwards."""
        return self.act is not None and (self.method == "POST" or self.act is Act.DOWNLOAD)

    def _answer_refused(self, visit: Visit, error: PaygwError, page_with_form: Handler | None) -> Response:
        """Return the page about an error, and record a refused form or a missing permission in the audit trail.

        A refused form is shown again, with its answers and the reason.
        """
        if (self.method == "POST" or isinstance(error, ActRefused)) and not isinstance(error, AuditUnwritable):
            try:
                self._note_refusal(visit, error)
            except AuditUnwritable as problem:
                return error_page(visit, problem)
        if page_with_form is None or isinstance(error, PageNotFound | ActRefused | PageOutdated | AuditUnwritable):
            return error_page(visit, error)
        field_name = error.field if isinstance(error, FieldRefused) else ""
        again = replace(visit, refusal=Refusal(error.message, error.page_hint, field_name))
        try:
            answer = page_with_form(again)
        except PaygwError:
            return error_page(visit, error)
        return answer if answer.status_code == _REFUSED else error_page(visit, error)

    def _note_refusal(self, visit: Visit, error: Exception) -> None:
        said = f"{NOTED_BEFORE if visit.was_noted else ''}{type(error).__name__}"
        visit.note(self.audit_action, visit.thing, AuditResult.REFUSED, said=said)

    def _refused(self, visit: Visit) -> Response | None:
        """Return the answer to a request without a session; None if the request may go on. The body is not read yet.

        Raises `ActRefused` without the permission, or for a form of another site.
        """
        if self.method == "POST":
            _require_own_origin(visit)
        if self.act is None:
            return None
        if visit.session is None:
            return Response(status_code=401) if self.is_poll else self._to_sign_in(visit)
        if not visit.may(self.act):
            raise ActRefused
        return None

    def _to_sign_in(self, visit: Visit) -> Response:
        """Redirect to the sign-in page, which then leads to the requested page, or to the page with the sent form."""
        request, is_form = visit.request, self.method == "POST"
        wanted = visit.form_page if is_form else f"{request.url.path}?{request.url.query}".rstrip("?")
        if not is_form and request.headers.get("sec-fetch-site") == "cross-site" and not cookie_of(visit):
            # This may be a link in an e-mail. The browser sends no session cookie with a request from another site.
            return visit.page("forward.html", address=wanted)
        shown = {"to": wanted if wanted != "/" else "", "ended": "yes" if cookie_of(visit) else ""}
        query = urlencode({name: value for name, value in shown.items() if value})
        answer = visit.go_to(f"/sign-in?{query}" if query else "/sign-in")
        if cookie_of(visit):
            forget_cookie(visit, answer)
        return answer


def _with_session(visit: Visit, *, is_poll: bool = False) -> Visit:
    """Return the visit with the session of the browser. A poll does not prolong the session."""
    return replace(visit, session=visit.console.sessions.session(cookie_of(visit), is_poll=is_poll))


def cookie_of(visit: Visit) -> str:
    return visit.request.cookies.get(visit.console.cookie, "")


def own_path(address: str) -> str | None:
    """Return an address unchanged if it is a path on these pages; None if it may lead to another site."""
    is_own = address.startswith("/") and not address.startswith("//") and "\\" not in address
    return address if is_own and address.isprintable() else None


def error_page(visit: Visit, error: PaygwError) -> Response:
    """Return the page about an error, without hints for people at a terminal."""
    match error:
        case PageNotFound():
            status, heading = 404, say("There is no such page")
        case ActRefused():
            status, heading = 403, say("You don't have permission to do this")
        case _:
            status, heading = 409, say("This cannot be done now")
    is_of_form = status == 409 and visit.request.method == "POST"  # noqa: PLR2004 (as above)
    return _problem_page(visit, status, heading, error.message, error.page_hint, can_reload=is_of_form)


def _problem_page(
    visit: Visit, status: int, heading: str, message: str = "", hint: str = "", *, can_reload: bool = False
) -> Response:
    return visit.page("error.html", heading=heading, message=message, hint=hint, can_reload=can_reload, status=status)


def _require_own_origin(visit: Visit) -> None:
    """Raise `ActRefused` for a form from another site. Every browser sends the origin with a form."""
    headers = visit.request.headers
    if headers.get("origin") not in visit.console.origins or headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        raise ActRefused(say("This form does not come from these pages."))


async def _with_form(visit: Visit, *, is_signed_in: bool) -> Visit:
    """Return the visit with the values of its form. Raises `ActRefused` if the form is not from this session."""
    try:
        body = await visit.request.form(max_files=2, max_fields=MAX_FIELDS)
    except HTTPException:  # too many fields, or not a form
        raise ActRefused(say(_STRANGE)) from None
    form = {name: value for name, value in body.multi_items() if isinstance(value, str)}
    if is_signed_in and (visit.session is None or not visit.session.has_token(form.get("csrf", ""))):
        raise ActRefused(say(_STRANGE))
    uploads = [(name, value) for name, value in body.multi_items() if isinstance(value, UploadFile)]
    upload = next((value for name, value in uploads if name != SIGNATURE_FIELD), None)
    signature = next((value for name, value in uploads if name == SIGNATURE_FIELD and value.filename), None)
    return replace(visit, form=form, upload=upload, signature=signature)


def first_page(member: Member) -> str:
    """Return the page shown after signing in."""
    return "/people" if member.roles == {Role.ADMINISTRATOR} else "/"


def forget_cookie(visit: Visit, answer: Response) -> None:
    answer.delete_cookie(
        visit.console.cookie, path="/", secure=visit.console.is_secure, httponly=True, samesite="strict"
    )


def _bare_trace(error: BaseException) -> str:
    """Return the files and lines of an error. Its text and source lines, which could name a payee, are left out."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{places}: {type(error).__qualname__}"


def payout_record(journal: JournalReader, batch: str) -> BatchRecord:
    """Return the batch with this id. Raises `PageNotFound` if there is none."""
    record = journal.batch(batch)
    if record is None:
        raise PageNotFound(say("There is no such payout."))
    return record


FILE_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html; charset=utf-8",
}


@contextmanager
def payout_at(visit: Visit) -> Iterator[tuple[JournalReader, BatchRecord]]:
    """Yield the journal, for reading, and the batch in the address. Raises `PageNotFound` if there is no such batch."""
    with journal_for_planning(visit.console.settings) as journal:
        yield journal, payout_record(journal, visit.path("batch"))


@contextmanager
def kept_upload(visit: Visit, upload: UploadFile) -> Iterator[Path]:
    """Yield the path of a temporary file with the upload. The file is removed afterwards if it is still there."""
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(dir=visit.console.directory, prefix=".upload-", delete=False) as kept:
        try:
            shutil.copyfileobj(upload.file, kept, _AT_ONCE)
            kept.flush()
            yield Path(kept.name)
        finally:
            Path(kept.name).unlink(missing_ok=True)


def required_ending(ending: str, *known: str) -> str:
    """Return `ending` unchanged. Raises `PageNotFound` unless it is known, and such a file can be written."""
    if ending not in known or (ending == "xlsx" and not has_workbooks()):
        raise PageNotFound(say("There is no such file."))
    return ending


def file_to_take_away(visit: Visit, ending: str, write: Callable[[Path], str]) -> Response:
    """Return a download. `write` writes a temporary file, which is removed afterwards, and returns a name for it."""
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(
        dir=visit.console.directory, prefix=".download-", suffix=f".{ending}", delete=False
    ) as kept:
        path = Path(kept.name)
    try:
        name = write(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(
        path,
        media_type=FILE_TYPES[ending],
        filename=name,
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


def has_workbooks() -> bool:
    """Return whether workbooks can be written, for which the `excel` extra must be installed."""
    return importlib.util.find_spec("xlsxwriter") is not None


_locks: defaultdict[str, RLock] = defaultdict(RLock)


@contextmanager
def made_once(number: str) -> Iterator[None]:
    """Hold the lock for `number` during the block, so that a second click waits for the first."""
    with _locks[number]:
        yield
