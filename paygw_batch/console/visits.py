"""Answers every request in one way: identify, authorise, check the form; then the page, or its error in plain words."""

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
"""No row number is longer."""
_SECRETS = frozenset({"token"})
_AT_ONCE = 1024 * 1024
NOTED_BEFORE = "noted before: "
"""The beginning of the reason in the audit trail for an act that an entry before has as done."""


def row_number(text: str) -> int | None:
    """Return the number that a text in an address or a form is; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_ROW_DIGITS else None


def thing_of(path: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Return the subject of a request, from its path and form. An invitation's token is left out as a secret."""
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
    """Split a text of `thing_of` into its named parts: `sheet`, `batch`, `row`, `column`. Any other text has none."""
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
"""The general messages of the errors below, for the catalogue."""


@dataclass(frozen=True, slots=True)
class Console:
    """Everything that the pages work with. `program` is the command line for starting other commands."""

    settings: Settings
    config: Path
    rules: Rules
    members: tuple[Member, ...]
    access: PasskeyAccess
    sessions: WebSessions
    counts: PayoutCounts
    memories: Callable[[str], ComparisonMemory]
    """Returns the memory of a payout in preparation by its number, empty if it was not corrected recently."""
    templates: Environment
    program: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    now: Now
    origins: frozenset[str]
    cookie: str

    def ran_within_limits(self, program: str, *arguments: str) -> bool:
        """Run one of our programs on an upload, in a process with limits; return whether it ended by itself."""
        return run_within_limits(program, arguments, self.settings, config=self.config, environ=self.environ)

    @property
    def directory(self) -> Path:
        """The folder of sheets in preparation."""
        return self.settings.console_directory()

    @property
    def runs(self) -> Path:
        """The folder of the files of runs that were started here."""
        return self.settings.console_runs_directory()

    @property
    def is_secure(self) -> bool:
        """Whether browsers see the pages over TLS, and must never send the cookie without it."""
        return (self.settings.console.origin or "").startswith("https:")


class PageNotFound(PaygwError):
    """The page does not exist."""


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
    """Why a form was refused, for the field of this name, or for the whole page (empty)."""

    sentence: str
    hint: str
    field: str


@dataclass(frozen=True, slots=True)
class Visit:
    """One request by a person who may make it."""

    console: Console
    request: Request
    session: WebSession | None
    form: Mapping[str, str] = field(default_factory=dict)
    upload: UploadFile | None = None
    signature: UploadFile | None = None
    """A detached signature of the upload, in its own field."""
    form_page: str = "/"
    """The page with the form, if this answers one."""
    was_noted: bool = False
    """Whether the audit trail has the act by now, which is noted before it is done."""
    refusal: Refusal | None = None
    """Why the form was refused: its page is shown again, with the answers filled in."""

    @property
    def member(self) -> Member:
        """The person who asks. Raises `ActRefused` if nobody is signed in."""
        if self.session is None:
            raise ActRefused(say("Sign in first."))
        return self.session.member

    @property
    def passkey(self) -> SignedInKey | None:
        """The passkey that the person signed in with, and signs with; None in the sandbox, where a name was chosen."""
        return None if self.session is None else self.session.passkey

    def may(self, act: Act, maker: str | None = None) -> bool:
        """Whether the person may do something, with a payout prepared by `maker` if one is named."""
        return may(self.member, act, maker)

    def require(self, act: Act, maker: str, sentence: str) -> None:
        """Raise `ActRefused` with a sentence unless the person may do something with a payout of `maker`."""
        if not self.may(act, maker):
            raise ActRefused(sentence)

    def account(self, number: str) -> str:
        """Return an account as this person sees it: whole, or its last digits."""
        return masked(number) if number and self.member.is_masked else number

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def note(self, act: str, thing: str, result: AuditResult, *, said: str = "", who: str | None = None) -> None:
        """Record an action of the person (or `who`) in the audit trail before it is done. Raises `AuditUnwritable`."""
        name = "" if self.session is None else self.session.member.name
        note = AuditNote(name if who is None else who, act, thing, result, said)
        place_of(self.console.settings).note_act(note, timestamp(self.console.now()))

    @property
    def thing(self) -> str:
        """The subject of the request, as the audit trail names it."""
        return thing_of(self.request.path_params, self.form)

    def query(self, name: str) -> str:
        """Return a query value, or that of the refused form; empty if there is none."""
        return self.request.query_params.get(name) or ("" if self.refusal is None else self.form.get(name, ""))

    def query_number(self, name: str) -> int:
        """Return a numeric query value; 0 if there is none."""
        return row_number(self.query(name)) or 0

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Return the page of a template, which knows these values, those of every page, and no other names."""
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
        """Return the error for a missing thing: a form about it came from an outdated page."""
        return PageOutdated(sentence) if self.request.method == "POST" else PageNotFound(sentence)

    @property
    def _back(self) -> str:
        """The address of this page or, for an answer to a form, of the page with the form."""
        url = self.request.url
        if self.request.method == "POST":
            shown = {name: self.form[name] for name in ("kind", "after") if self.form.get(name)}
            return f"{self.form_page}?{urlencode(shown)}" if shown else self.form_page
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment for a command started for the person, in the language of the page."""
        return {**self.console.environ, "PAYGW_LANG": language()}

    def go_to(self, path: str) -> Response:
        return RedirectResponse(path, status_code=303)


def called_in(console: Console) -> Callable[[str, str], str]:
    """Return a function that names payouts: as their makers did or, if started elsewhere, after their sheets.

    The names are looked up when the first one is needed.
    """
    uploads = cache(partial(uploads_by_batch, console.directory))

    def called(batch: str, sheet_name: str) -> str:
        return uploads()[batch].called if batch in uploads() else sheet_name

    return called


Handler = Callable[[Visit], Response]
_SHOWN, _REFUSED = 200, 409


@dataclass(frozen=True, slots=True)
class WebRoute:
    """A path with its handler, the permission it needs (None: no sign-in), its name in the audit trail, and its method.

    `form` locates the page with the form of a POST: beside the path under this name, at the path (empty), or, by
    default, one step above it.
    """

    path: str
    handler: Handler
    act: Act | None
    audit_action: str
    method: str = "GET"
    is_poll: bool = False
    form: str | None = None

    def endpoint(self, console: Console, pages: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint for Starlette. `pages` are the handlers of all pages, by path."""
        page_with_form = pages.get(self.form_page(self.path)) if self.method == "POST" and self.act else None

        async def answer(request: Request) -> Response:
            zone = ZoneInfo(console.settings.console.time_zone)  # kept by its library
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
            except Exception as error:  # noqa: BLE001 (the last resort: a page without details, a trace without data)
                _log.error("Unexpected error at %s. %s", self.path, _bare_trace(error))
                return _problem_page(visit, 500, say("Something went wrong"))
            finally:
                await request.close()

        return answer

    def _answer_poll(self, visit: Visit) -> Response:
        """Answer a polling tab, all in one thread, because many tabs poll every two seconds."""
        visit = _with_session(visit, is_poll=True)
        refused = self._refused(visit)
        return self.handler(visit) if refused is None else refused

    def form_page(self, path: str) -> str:
        """Return the address of the page whose form is sent to `path`."""
        if self.form == "":
            return path
        above = path.rpartition("/")[0]
        return f"{above}/{self.form}" if self.form else above or "/"

    @property
    def is_noted(self) -> bool:
        """Whether the action is recorded before it is done; a sign-in is recorded after it."""
        return self.act is not None and (self.method == "POST" or self.act is Act.DOWNLOAD)

    def _answer_refused(self, visit: Visit, error: PaygwError, page_with_form: Handler | None) -> Response:
        """Return the page about an error, and record it if it was a refused action or lacked permission.

        A refused form comes back with its answers, and the reason.
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
        """Return the refusal of a request before its body is read, or None."""
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
        """Redirect to the sign-in, and from there to the requested page; for a form, to the page that has it."""
        request, is_form = visit.request, self.method == "POST"
        wanted = visit.form_page if is_form else f"{request.url.path}?{request.url.query}".rstrip("?")
        if not is_form and request.headers.get("sec-fetch-site") == "cross-site" and not cookie_of(visit):
            # A link in an e-mail: the browser withholds the session's cookie on the way from another site.
            return visit.page("forward.html", address=wanted)
        shown = {"to": wanted if wanted != "/" else "", "ended": "yes" if cookie_of(visit) else ""}
        query = urlencode({name: value for name, value in shown.items() if value})
        answer = visit.go_to(f"/sign-in?{query}" if query else "/sign-in")
        if cookie_of(visit):
            forget_cookie(visit, answer)
        return answer


def _with_session(visit: Visit, *, is_poll: bool = False) -> Visit:
    """Return the visit with the browser's session, which a poll does not prolong."""
    return replace(visit, session=visit.console.sessions.session(cookie_of(visit), is_poll=is_poll))


def cookie_of(visit: Visit) -> str:
    return visit.request.cookies.get(visit.console.cookie, "")


def own_path(address: str) -> str | None:
    """Return an address unchanged if it is one of these pages; None if it may lead elsewhere."""
    is_own = address.startswith("/") and not address.startswith("//") and "\\" not in address
    return address if is_own and address.isprintable() else None


def error_page(visit: Visit, error: PaygwError) -> Response:
    """Return the page about an error, in the pages' words and without hints for a terminal."""
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
    """Raise `ActRefused` for a form sent by another site. Every browser states the origin of a form."""
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
    """Return where an error happened, without its text or source lines, which could contain a payee's data."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{places}: {type(error).__qualname__}"


def payout_record(journal: JournalReader, batch: str) -> BatchRecord:
    """Return the batch at an address. Raises `PageNotFound` if there is none."""
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
    """Yield the journal to read, and the batch at the address. Raises `PageNotFound` if there is none."""
    with journal_for_planning(visit.console.settings) as journal:
        yield journal, payout_record(journal, visit.path("batch"))


@contextmanager
def kept_upload(visit: Visit, upload: UploadFile) -> Iterator[Path]:
    """Yield the temporary path of an uploaded file, which is removed afterwards unless it was moved away."""
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(dir=visit.console.directory, prefix=".upload-", delete=False) as kept:
        try:
            shutil.copyfileobj(upload.file, kept, _AT_ONCE)
            kept.flush()
            yield Path(kept.name)
        finally:
            Path(kept.name).unlink(missing_ok=True)


def required_ending(ending: str, *known: str) -> str:
    """Return the ending of a file that was asked for. Raises `PageNotFound` unless it is known, and can be written."""
    if ending not in known or (ending == "xlsx" and not has_workbooks()):
        raise PageNotFound(say("There is no such file."))
    return ending


def file_to_take_away(visit: Visit, ending: str, write: Callable[[Path], str]) -> Response:
    """Return the file that `write` writes and names for the person, without leaving anything behind."""
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
    """Whether workbooks can be written, which needs another extra."""
    return importlib.util.find_spec("xlsxwriter") is not None


_locks: defaultdict[str, RLock] = defaultdict(RLock)


@contextmanager
def made_once(number: str) -> Iterator[None]:
    """Let one visit at a time create `number`: a second click waits for the first."""
    with _locks[number]:
        yield
