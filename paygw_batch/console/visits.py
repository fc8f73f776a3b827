"""Answers each request: finds the session, checks permission and the form, then calls the handler."""

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

from jinja2 import Environment
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from paygw_batch.clock import Now, timestamp
from paygw_batch.console.passkey_access import PasskeyAccess, SignInKey, WebSession, WebSessions
from paygw_batch.console.payout_counts import PayoutCounts
from paygw_batch.console.payout_folder import is_folder_name, uploads_by_batch
from paygw_batch.console.permissions import Action, Member, Role, may
from paygw_batch.console.rendering import language_names, request_locale
from paygw_batch.console.sheet_process import run_within_limits
from paygw_batch.console.web_guard import BodyRefused
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import AuditUnwritable, PaygwError, UsageError
from paygw_batch.journal import AuditNote, AuditResult, BatchRecord, JournalReader, make_directory
from paygw_batch.language import language, mark, mark_all, say
from paygw_batch.opening.open_journal import journal_for_planning, journal_location
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.columns import operation_columns
from paygw_batch.show.remittance import mask_number
from paygw_batch.submit.compare_sheet import ComparisonMemory

_MAX_ROW_DIGITS = 10
_SECRET_PARAMETERS = frozenset({"token"})
_CHUNK_BYTES = 1024 * 1024
RECORDED_AS_DONE = "noted before: "
"""Audit trail prefix for a refused action that an earlier entry records as done."""


def parse_row_number(text: str) -> int | None:
    """Parse a row number from a URL or a form. Returns None if the text is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_ROW_DIGITS else None


def describe_subject(path_params: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Return the subject of a request for the audit trail, without the secret token of an invitation."""
    parts = {name: value for name, value in path_params.items() if name not in _SECRET_PARAMETERS}
    number, row, column = (form.get(name, "") for name in ("number", "row", "column"))
    if "sheet" not in path_params and is_folder_name(number):
        parts["sheet"] = number
    if "row" not in path_params and parse_row_number(row) is not None:
        parts["row"] = row
    if column in operation_columns(PAYOUT):
        parts["column"] = column
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def parse_subject(text: str) -> Mapping[str, str]:
    """Parse a text from `describe_subject` into parts such as `sheet`, `batch` and `row`."""
    pairs = (part.partition(" ") for part in text.split(", "))
    return {name: value for name, _, value in pairs if value}


_log = logging.getLogger(__name__)
_OWN_SITES = frozenset({"same-origin", "none"})
MAX_FIELDS = 2_000
SIGNATURE_FIELD = "signature"
_INVALID_FORM = mark("This form is out of date or was not sent from the console. Reload the page.")
_DEFAULT_MESSAGES = mark_all(
    "This page does not exist.",
    "You do not have permission to do this.",
    "This page is out of date. Reload it and check again.",
)
"""Default messages of the errors below, marked for the catalogue."""


@dataclass(frozen=True, slots=True)
class Console:
    """The values shared by all pages. `program` is the command line that starts this program."""

    settings: Settings
    config: Path
    rules: Rules
    members: tuple[Member, ...]
    access: PasskeyAccess
    sessions: WebSessions
    counts: PayoutCounts
    memories: Callable[[str], ComparisonMemory]
    """Returns a payout's comparison memory by its number. It is empty unless the sheet was checked recently."""
    templates: Environment
    program: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    now: Now
    origins: frozenset[str]
    cookie_name: str

    def run_on_upload(self, program: str, *arguments: str) -> bool:
        """Run the Python code `program` on an upload in a limited process. Return whether it succeeded."""
        return run_within_limits(program, arguments, self.settings, config=self.config, environ=self.environ)

    @property
    def directory(self) -> Path:
        """The directory of sheets in preparation."""
        return self.settings.console_directory()

    @property
    def runs(self) -> Path:
        return self.settings.console_runs_directory()

    @property
    def is_secure(self) -> bool:
        """Whether browsers use TLS, so that the session cookie can be restricted to TLS."""
        return (self.settings.console.origin or "").startswith("https:")


class PageNotFound(PaygwError):
    """This page does not exist."""


class ActionRefused(PaygwError):
    """You do not have permission to do this."""


class PageOutdated(PaygwError):
    """This page is out of date. Reload it and check again."""


class FieldRefused(UsageError):
    """This cannot be used."""

    def __init__(self, field: str, message: str, **extra: Any) -> None:
        super().__init__(message, **extra)
        self.field = field


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a form was refused. `field` is the invalid field, or empty if the whole form was refused."""

    sentence: str
    hint: str
    field: str


@dataclass(frozen=True, slots=True)
class Visit:
    """A request with its session and, if it has been read, its form."""

    console: Console
    request: Request
    session: WebSession | None
    form: Mapping[str, str] = field(default_factory=dict)
    upload: UploadFile | None = None
    signature: UploadFile | None = None
    """The detached signature of the upload, from its own field."""
    form_page: str = "/"
    was_recorded: bool = False
    """Whether the audit trail, which is written before the action, already records it as done."""
    refusal: Refusal | None = None
    """Why the form was refused. If set, its page is shown again with the answers filled in."""

    @property
    def member(self) -> Member:
        """The signed-in person. Raises `ActionRefused` if nobody is signed in."""
        if self.session is None:
            raise ActionRefused(say("Sign in first."))
        return self.session.member

    @property
    def passkey(self) -> SignInKey | None:
        """The passkey that the person signed in with, or None if the person chose a name in the sandbox."""
        return None if self.session is None else self.session.passkey

    def may(self, action: Action, maker: str | None = None) -> bool:
        return may(self.member, action, maker)

    def require(self, action: Action, maker: str, message: str) -> None:
        """Raise `ActionRefused` with `message` unless the person may do `action` on a document prepared by `maker`."""
        if not self.may(action, maker):
            raise ActionRefused(message)

    def account(self, number: str) -> str:
        """Return an account number as this person may see it: in full, or only the last digits."""
        return mask_number(number) if number and self.member.sees_only_last_digits else number

    def path_param(self, name: str) -> str:
        return str(self.request.path_params[name])

    def record_action(
        self, action: str, subject: str, result: AuditResult, *, reason: str = "", person: str | None = None
    ) -> None:
        """Record an action by `person`, or by the signed-in person if None. Raises `AuditUnwritable` on failure."""
        name = "" if self.session is None else self.session.member.name
        note = AuditNote(name if person is None else person, action, subject, result, reason)
        journal_location(self.console.settings).add_audit_entry(note, timestamp(self.console.now()))

    @property
    def subject(self) -> str:
        return describe_subject(self.request.path_params, self.form)

    def query(self, name: str) -> str:
        """Return a query parameter or, if it is missing, that field of the rejected form. Empty if both are missing."""
        return self.request.query_params.get(name) or ("" if self.refusal is None else self.form.get(name, ""))

    def query_number(self, name: str) -> int:
        return parse_row_number(self.query(name)) or 0

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Render a template with `values` and the values that all pages share."""
        console, member = self.console, None if self.session is None else self.session.member
        page_values = {
            "member": member,
            "csrf": "" if self.session is None else self.session.csrf_token,
            # Whether the person may do the named action.
            "may": lambda action: member is not None and self.may(Action(action)),
            "is_sandbox": console.settings.uses_sandbox,
            # Several machines can send only if they share a journal in a database.
            "has_workers": console.settings.journal.url is not None,
            "gateway": console.settings.gateway.base_url or "",
            "here": self.request.url.path,
            "back": self._return_path,
            "home": "/sign-in" if member is None else home_path(member),
            # Seconds until an inactive person is signed out, or 0 if nobody is signed in.
            "session_left_s": 0 if self.session is None else int(self.session.remaining_s),
            "refusal": self.refusal,
            # The fields of the refused form.
            "sent": {} if self.refusal is None else self.form,
            "languages": language_names(),
            "payout_name": payout_name_lookup(console),
            "account": self.account,
            "writes_workbooks": can_write_workbooks(),
        }
        status = _CONFLICT if self.refusal is not None and status == _OK else status
        return HTMLResponse(console.templates.get_template(template).render(page_values | values), status_code=status)

    def missing_error(self, message: str) -> PaygwError:
        """Return `PageNotFound`, or `PageOutdated` if a form was sent, because its page showed the missing item."""
        return PageOutdated(message) if self.request.method == "POST" else PageNotFound(message)

    @property
    def _return_path(self) -> str:
        url = self.request.url
        if self.request.method == "POST":
            page_fields = {name: self.form[name] for name in ("kind", "after") if self.form.get(name)}
            return f"{self.form_page}?{urlencode(page_fields)}" if page_fields else self.form_page
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment for a command that the person starts, with the language of the page."""
        return {**self.console.environ, "PAYGW_LANG": language()}

    def redirect(self, path: str) -> Response:
        return RedirectResponse(path, status_code=303)


def payout_name_lookup(console: Console) -> Callable[[str, str], str]:
    """Return a function that looks up a payout's display name. It falls back to the sheet name."""
    uploads = cache(partial(uploads_by_batch, console.directory))

    def payout_name(batch: str, sheet_name: str) -> str:
        return uploads()[batch].display_name if batch in uploads() else sheet_name

    return payout_name


Handler = Callable[[Visit], Response]
_OK, _CONFLICT = 200, 409


@dataclass(frozen=True, slots=True)
class WebRoute:
    """A path and its handler. The person needs permission for `action`. If it is None, no sign-in is needed.

    `audit_action` names the action in the audit trail. `form` says where the form of a POST is: at the parent path if
    None, at the path itself if empty, and otherwise at the sibling path with this name.
    """

    path: str
    handler: Handler
    action: Action | None
    audit_action: str
    method: str = "GET"
    is_poll: bool = False
    form: str | None = None

    def endpoint(self, console: Console, pages: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
        """Return the Starlette endpoint. `pages` maps the path of each page to its handler."""
        page_with_form = pages.get(self.form_page(self.path)) if self.method == "POST" and self.action else None

        async def respond(request: Request) -> Response:
            with request_locale(request, console.settings.console.time_zone):
                return await respond_in_language(request)

        async def respond_in_language(request: Request) -> Response:
            visit = Visit(console, request, None, form_page=self.form_page(request.url.path))
            try:
                if self.is_poll:
                    return await run_in_threadpool(self._poll_response, visit)
                visit = await run_in_threadpool(_with_session, visit)
                refusal = self._refusal_response(visit)
                if refusal is None and self.method == "POST":
                    visit = await _with_form(visit, needs_session=self.action is not None)
                if refusal is None and self.is_recorded_first:
                    await run_in_threadpool(visit.record_action, self.audit_action, visit.subject, AuditResult.DONE)
                    visit = replace(visit, was_recorded=True)
                return await run_in_threadpool(self.handler, visit) if refusal is None else refusal
            except PaygwError as error:
                return await run_in_threadpool(self._error_response, visit, error, page_with_form)
            except BodyRefused as error:
                with suppress(AuditUnwritable):
                    await run_in_threadpool(self._record_refusal, visit, error)
                message = say("The file is too large or took too long to upload.")
                response = _render_error(visit, 413, say("You cannot do this now"), message)
                response.headers["connection"] = "close"  # The rest of the body is not read.
                return response
            except Exception as error:  # noqa: BLE001 (shows no details, and logs a trace without data)
                _log.error("Unexpected error at %s. %s", self.path, _format_trace(error))
                return _render_error(visit, 500, say("Something went wrong"))
            finally:
                await request.close()

        return respond

    def _poll_response(self, visit: Visit) -> Response:
        """Return the response to a poll. All steps run in one thread, because many tabs poll every two seconds."""
        visit = _with_session(visit, is_poll=True)
        refusal = self._refusal_response(visit)
        return self.handler(visit) if refusal is None else refusal

    def form_page(self, path: str) -> str:
        """Return the address of the page whose form is sent to `path`."""
        if self.form == "":
            return path
        parent = path.rpartition("/")[0]
        return f"{parent}/{self.form}" if self.form else parent or "/"

    @property
    def is_recorded_first(self) -> bool:
        """Whether to record the action before it is done. A sign-in is recorded only afterwards."""
        return self.action is not None and (self.method == "POST" or self.action is Action.DOWNLOAD)

    def _error_response(self, visit: Visit, error: PaygwError, page_with_form: Handler | None) -> Response:
        """Record the refusal and return the page for an error. A refused form is shown again with its answers."""
        if (self.method == "POST" or isinstance(error, ActionRefused)) and not isinstance(error, AuditUnwritable):
            try:
                self._record_refusal(visit, error)
            except AuditUnwritable as audit_error:
                return error_page(visit, audit_error)
        if page_with_form is None or isinstance(error, PageNotFound | ActionRefused | PageOutdated | AuditUnwritable):
            return error_page(visit, error)
        field_name = error.field if isinstance(error, FieldRefused) else ""
        refused_visit = replace(visit, refusal=Refusal(error.message, error.page_hint, field_name))
        try:
            response = page_with_form(refused_visit)
        except PaygwError:
            return error_page(visit, error)
        return response if response.status_code == _CONFLICT else error_page(visit, error)

    def _record_refusal(self, visit: Visit, error: Exception) -> None:
        reason = f"{RECORDED_AS_DONE if visit.was_recorded else ''}{type(error).__name__}"
        visit.record_action(self.audit_action, visit.subject, AuditResult.REFUSED, reason=reason)

    def _refusal_response(self, visit: Visit) -> Response | None:
        """Return a response if the person must sign in, otherwise None. Raises `ActionRefused` without permission."""
        if self.method == "POST":
            _require_own_origin(visit)
        if self.action is None:
            return None
        if visit.session is None:
            return Response(status_code=401) if self.is_poll else self._redirect_to_sign_in(visit)
        if not visit.may(self.action):
            raise ActionRefused
        return None

    def _redirect_to_sign_in(self, visit: Visit) -> Response:
        request, is_form = visit.request, self.method == "POST"
        path = visit.form_page if is_form else f"{request.url.path}?{request.url.query}".rstrip("?")
        if not is_form and request.headers.get("sec-fetch-site") == "cross-site" and not session_cookie(visit):
            # This may be a link in an e-mail. Browsers send no session cookie with a request from another site.
            return visit.page("forward.html", address=path)
        values = {"to": path if path != "/" else "", "ended": "yes" if session_cookie(visit) else ""}
        query = urlencode({name: value for name, value in values.items() if value})
        response = visit.redirect(f"/sign-in?{query}" if query else "/sign-in")
        if session_cookie(visit):
            delete_session_cookie(visit, response)
        return response


def _with_session(visit: Visit, *, is_poll: bool = False) -> Visit:
    return replace(visit, session=visit.console.sessions.session(session_cookie(visit), is_poll=is_poll))


def session_cookie(visit: Visit) -> str:
    return visit.request.cookies.get(visit.console.cookie_name, "")


def console_path(address: str) -> str | None:
    """Return an address unchanged if it is a path in this console, or None if it may lead elsewhere."""
    is_local = address.startswith("/") and not address.startswith("//") and "\\" not in address
    return address if is_local and address.isprintable() else None


def error_page(visit: Visit, error: PaygwError) -> Response:
    """Render the page for an error, without hints that mention commands."""
    match error:
        case PageNotFound():
            status, heading = 404, say("Page not found")
        case ActionRefused():
            status, heading = 403, say("You do not have permission to do this")
        case _:
            status, heading = 409, say("You cannot do this now")
    is_form_post = status == 409 and visit.request.method == "POST"  # noqa: PLR2004 (as above)
    return _render_error(visit, status, heading, error.message, error.page_hint, can_reload=is_form_post)


def _render_error(
    visit: Visit, status: int, heading: str, message: str = "", hint: str = "", *, can_reload: bool = False
) -> Response:
    return visit.page("error.html", heading=heading, message=message, hint=hint, can_reload=can_reload, status=status)


def _require_own_origin(visit: Visit) -> None:
    """Raise `ActionRefused` for a form from another site. Browsers send the origin with every form."""
    headers = visit.request.headers
    if headers.get("origin") not in visit.console.origins or headers.get("sec-fetch-site", "none") not in _OWN_SITES:
        raise ActionRefused(say("This form was not sent from the console."))


async def _with_form(visit: Visit, *, needs_session: bool) -> Visit:
    """Return the visit with the values of its form. Raises `ActionRefused` unless this session sent the form."""
    try:
        body = await visit.request.form(max_files=2, max_fields=MAX_FIELDS)
    except HTTPException:  # The body is not a form, or has too many fields.
        raise ActionRefused(say(_INVALID_FORM)) from None
    form = {name: value for name, value in body.multi_items() if isinstance(value, str)}
    if needs_session and (visit.session is None or not visit.session.has_token(form.get("csrf", ""))):
        raise ActionRefused(say(_INVALID_FORM))
    uploads = [(name, value) for name, value in body.multi_items() if isinstance(value, UploadFile)]
    upload = next((value for name, value in uploads if name != SIGNATURE_FIELD), None)
    signature = next((value for name, value in uploads if name == SIGNATURE_FIELD and value.filename), None)
    return replace(visit, form=form, upload=upload, signature=signature)


def home_path(member: Member) -> str:
    return "/people" if member.roles == {Role.ADMINISTRATOR} else "/"


def delete_session_cookie(visit: Visit, response: Response) -> None:
    response.delete_cookie(
        visit.console.cookie_name, path="/", secure=visit.console.is_secure, httponly=True, samesite="strict"
    )


def _format_trace(error: BaseException) -> str:
    """Format an error's class, files and line numbers. Omits its message and source code, which may name a payee."""
    frames = traceback.extract_tb(error.__traceback__)
    locations = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{locations}: {type(error).__qualname__}"


def require_payout(journal: JournalReader, batch: str) -> BatchRecord:
    """Return the batch with the id `batch`. Raises `PageNotFound` if it does not exist."""
    record = journal.batch(batch)
    if record is None:
        raise PageNotFound(say("This payout does not exist."))
    return record


FILE_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html; charset=utf-8",
}


@contextmanager
def open_payout(visit: Visit) -> Iterator[tuple[JournalReader, BatchRecord]]:
    """Yield the journal and the batch named in the address. Raises `PageNotFound` if the batch does not exist."""
    with journal_for_planning(visit.console.settings) as journal:
        yield journal, require_payout(journal, visit.path_param("batch"))


@contextmanager
def temporary_upload(visit: Visit, upload: UploadFile) -> Iterator[Path]:
    """Yield the path of a temporary copy of an upload. Removes the copy afterwards unless it was moved."""
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(dir=visit.console.directory, prefix=".upload-", delete=False) as file:
        try:
            shutil.copyfileobj(upload.file, file, _CHUNK_BYTES)
            file.flush()
            yield Path(file.name)
        finally:
            Path(file.name).unlink(missing_ok=True)


def require_extension(extension: str, *allowed: str) -> str:
    """Return `extension` unchanged. Raises `PageNotFound` unless it is `allowed` and can be written."""
    if extension not in allowed or (extension == "xlsx" and not can_write_workbooks()):
        raise PageNotFound(say("This file does not exist."))
    return extension


def download_response(visit: Visit, extension: str, write: Callable[[Path], str]) -> Response:
    """Return a temporary file as a download. `write` writes the file and returns the name for the browser."""
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(
        dir=visit.console.directory, prefix=".download-", suffix=f".{extension}", delete=False
    ) as file:
        path = Path(file.name)
    try:
        name = write(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(
        path, media_type=FILE_TYPES[extension], filename=name, background=BackgroundTask(path.unlink, missing_ok=True)
    )


def can_write_workbooks() -> bool:
    """Return whether the `excel` extra, which writes workbooks, is installed."""
    return importlib.util.find_spec("xlsxwriter") is not None


_locks: defaultdict[str, RLock] = defaultdict(RLock)


@contextmanager
def hold_lock(name: str) -> Iterator[None]:
    """Hold the lock called `name` during the block, so that repeated requests run one at a time."""
    with _locks[name]:
        yield
