"""Builds the console's web application from a table of its paths, and serves it until a signal."""

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from paygw_batch.clock import utc_now
from paygw_batch.console.pages import (
    check_page,
    new_payout_page,
    overview_page,
    payout_page,
    people_page,
    plan_page,
    settle_pages,
    signing_in,
    statement_page,
)
from paygw_batch.console.pages.agreement import AgreementForms
from paygw_batch.console.pages.orders import OrderAgreement
from paygw_batch.console.passkey_access import KeptSessions, SignInWay, WebSessions, passkey_access
from paygw_batch.console.payout_counts import PayoutCounts
from paygw_batch.console.permissions import Act, members_of
from paygw_batch.console.rendering import STATIC, page_templates, shown_for
from paygw_batch.console.visits import Console, PageNotFound, Visit, WebRoute, error_page
from paygw_batch.console.web_guard import MAX_FORM_BYTES, AsgiApp, AsgiReceive, AsgiScope, AsgiSend, WebGuard
from paygw_batch.core.batch import PAYOUT
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import rules_of
from paygw_batch.opening.open_journal import journal_for_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.submit.compare_sheet import ComparisonMemory
from paygw_batch.web_server import LOOPBACK, LocalServer, bounded, listen_on_loopback

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_PLAN, _ORDER = AgreementForms(plan_page.PlanAgreement), AgreementForms(OrderAgreement)
ROUTES = (
    WebRoute("/sign-in", signing_in.sign_in_page, None, "open sign-in"),
    WebRoute("/sign-in", signing_in.choose_person, None, "choose person", "POST", form=""),
    WebRoute("/sign-in/passkey", signing_in.use_passkey, None, "use passkey", "POST"),
    WebRoute("/language", signing_in.choose_language, None, "choose language", "POST"),
    WebRoute("/invitation/{token}", signing_in.invited, None, "open invitation"),
    WebRoute("/invitation/{token}", signing_in.take_invitation, None, "take invitation", "POST", form=""),
    WebRoute("/session", signing_in.session_left, Act.STAY, "ask for time left", is_poll=True),
    WebRoute("/session/stay", signing_in.session_left, Act.STAY, "ask for time left"),
    WebRoute("/sign-out", signing_in.sign_out, Act.STAY, "sign out", "POST"),
    WebRoute("/", overview_page.overview, Act.LOOK, "open overview"),
    WebRoute("/new", new_payout_page.new_payout, Act.PREPARE, "open new payout"),
    WebRoute("/new", new_payout_page.upload, Act.PREPARE, "upload", "POST", form=""),
    WebRoute("/new/template", new_payout_page.download_template, Act.DOWNLOAD, "download template"),
    WebRoute("/new/sample", new_payout_page.download_sample, Act.DOWNLOAD, "download sample"),
    WebRoute("/sheets/{sheet}", check_page.check_sheet, Act.SEE_SHEET, "open sheet"),
    WebRoute("/sheets/{sheet}/again", new_payout_page.upload_again, Act.MEND, "upload again", "POST"),
    WebRoute("/sheets/{sheet}/reading", new_payout_page.choose_reading, Act.MEND, "choose reading", "POST"),
    WebRoute("/sheets/{sheet}/totals", new_payout_page.state_totals, Act.MEND, "state totals", "POST"),
    WebRoute("/sheets/{sheet}/marked", new_payout_page.download_marked, Act.DOWNLOAD, "download marked workbook"),
    WebRoute("/sheets/{sheet}/mend", check_page.mend, Act.MEND, "correct cell", "POST"),
    WebRoute("/sheets/{sheet}/mend-kind", check_page.mend_kind, Act.MEND, "correct cells of one kind", "POST"),
    WebRoute("/sheets/{sheet}/leave-out", check_page.leave_out, Act.MEND, "leave out", "POST"),
    WebRoute("/sheets/{sheet}/answer", check_page.answer, Act.MEND, "answer question", "POST"),
    WebRoute("/sheets/{sheet}/remove", check_page.remove_sheet, Act.MEND, "remove sheet", "POST"),
    WebRoute("/sheets/{sheet}/plan", plan_page.payout_plan, Act.LOOK, "open plan"),
    WebRoute("/sheets/{sheet}/people", plan_page.payout_people, Act.LOOK, "open people of plan"),
    WebRoute("/sheets/{sheet}/people.csv", plan_page.download_people, Act.DOWNLOAD, "download people"),
    WebRoute("/sheets/{sheet}/sign", _PLAN.sign, Act.MEND, "sign", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/sign-again", _PLAN.sign_again, Act.MEND, "sign again", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/approve", _PLAN.approve, Act.APPROVE, "approve payout", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/send-back", _PLAN.send_back, Act.APPROVE, "send back", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/withdraw", _PLAN.withdraw, Act.MEND, "withdraw", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/start", _PLAN.start, Act.START, "start", "POST", form="plan"),
    WebRoute("/payouts/{batch}", payout_page.payout, Act.LOOK, "open payout"),
    WebRoute("/payouts/{batch}/progress", payout_page.progress, Act.LOOK, "follow payout", is_poll=True),
    WebRoute(
        "/payouts/{batch}/reconciliation.{ending}",
        payout_page.download_reconciliation,
        Act.DOWNLOAD,
        "download reconciliation",
    ),
    WebRoute("/payouts/{batch}/advices", payout_page.download_advices, Act.DOWNLOAD, "remittance advices"),
    WebRoute("/payouts/{batch}/rows/{row:int}/advice", payout_page.row_advice, Act.DOWNLOAD, "remittance advice"),
    WebRoute("/payouts/{batch}/rows/{row:int}/settle", settle_pages.settle_form, Act.SETTLE, "open settling"),
    WebRoute(
        "/payouts/{batch}/rows/{row:int}/settle", settle_pages.settle_row, Act.SETTLE, "settle row", "POST", form=""
    ),
    WebRoute("/payouts/{batch}/retry", settle_pages.rejected_form, Act.ORDER, "open rejected rows"),
    WebRoute(
        "/payouts/{batch}/retry", settle_pages.choose_rejected, Act.ORDER, "choose rejected rows", "POST", form=""
    ),
    WebRoute(
        "/payouts/{batch}/questions.{ending}", statement_page.download_questions, Act.DOWNLOAD, "download questions"
    ),
    WebRoute("/payouts/{batch}/statement", statement_page.statement_form, Act.SETTLE, "open statements"),
    WebRoute(
        "/payouts/{batch}/statement", statement_page.upload_statement, Act.SETTLE, "upload statement", "POST", form=""
    ),
    WebRoute("/statements/{statement}", statement_page.statement_preview, Act.SETTLE, "open statement"),
    WebRoute(
        "/statements/{statement}/carry-out", statement_page.use_statement, Act.SETTLE, "carry out statement", "POST"
    ),
    WebRoute("/statements/{statement}/remove", statement_page.remove_statement, Act.SETTLE, "remove statement", "POST"),
    WebRoute("/orders/{order}", settle_pages.show_order, Act.LOOK, "open order"),
    WebRoute("/orders/{order}/sign", _ORDER.sign, Act.ORDER, "sign order", "POST"),
    WebRoute("/orders/{order}/sign-again", _ORDER.sign_again, Act.ORDER, "sign order again", "POST"),
    WebRoute("/orders/{order}/agree", _ORDER.approve, Act.AGREE, "agree to order", "POST"),
    WebRoute("/orders/{order}/send-back", _ORDER.send_back, Act.AGREE, "send order back", "POST"),
    WebRoute("/orders/{order}/take-back", _ORDER.take_back, Act.ORDER, "take order back", "POST"),
    WebRoute("/orders/{order}/carry-out", _ORDER.start, Act.SETTLE, "carry order out", "POST"),
    WebRoute("/payees", overview_page.find_payee, Act.LOOK, "search payees"),
    WebRoute("/payees/advice", overview_page.payee_advice, Act.DOWNLOAD, "remittance advice"),
    WebRoute("/people", people_page.people_and_health, Act.ADMINISTER, "open people and health"),
    WebRoute("/workers", people_page.workers_of_all_hosts, Act.ADMINISTER, "open workers"),
    WebRoute("/people/check", people_page.check_program, Act.CHECK, "check program", "POST"),
    WebRoute("/payouts/{batch}/pause", payout_page.pause, Act.START, "pause", "POST"),
    WebRoute("/payouts/{batch}/continue", payout_page.continue_payout, Act.START, "continue payout", "POST"),
    WebRoute("/payouts/{batch}/rows/{row:int}", payout_page.row, Act.LOOK, "open row"),
)
"""Every page and every action, with its handler and the permission that it needs. No other path exists."""
_UPLOADS = ("/new", "/again", "/statement")
"""The endings of the paths that accept file uploads."""
_MAX_SHEETS = 2
"""The number of latest sheets that are kept in memory. A sheet of 200,000 rows takes about 100 MB."""


def console_of(settings: Settings, *, config: Path | None, environ: Mapping[str, str], port: int) -> Console:
    """Return the values that the pages work with. Browsers reach the pages at `port`, unless there is a proxy.

    Raises `ConfigurationError` without a configuration file, or if its lists of people are empty or contradictory.
    """
    section, public, members = settings.console, settings.console.origin, members_of(settings)
    if config is None:
        raise ConfigurationError(say("The pages need a configuration file."), hint=say("Name it with --config."))
    options = ["--config", str(config.absolute())]
    if settings.journal.url is None:  # a journal in a database is named only by the configuration
        options += ["--journal", str(settings.journal_path())]
    with journal_for_document(settings, "console", must_be_known=False):  # this creates the sandbox's journal
        pass
    kept = KeptSessions(settings.journal_path())
    access = passkey_access(settings, members, kept)
    is_secure = public is not None and public.startswith("https:")
    own = set() if is_secure else {f"http://{name}:{port}" for name in LOOPBACK_NAMES}
    origins = own if public is None else {public, *own}
    return Console(
        settings=settings,
        config=config.absolute(),
        rules=rules_of(settings, PAYOUT),
        members=members,
        access=access,
        sessions=WebSessions(
            kept,
            members=members,
            keys=access.keys,
            ways={SignInWay.PASSKEY, SignInWay.LIST} if settings.uses_sandbox else {SignInWay.PASSKEY},
            idle_s=section.idle_min * 60,
            at_most_s=section.session_h * 3600,
            now_s=time.time,
        ),
        counts=PayoutCounts(monotonic_s=time.monotonic),
        memories=lru_cache(_MAX_SHEETS)(lambda _number: ComparisonMemory()),
        templates=page_templates(),
        program=(sys.executable, "-P", "-m", "paygw_batch", *options),
        environ=environ,
        now=utc_now,
        origins=frozenset(origins),
        cookie="__Host-payouts" if is_secure else "payouts",
    )


def console_app(console: Console) -> AsgiApp:
    settings = console.settings

    def most_bytes(path: str) -> int:
        upload_bytes = settings.console.max_upload_mib * 1024 * 1024 if path.endswith(_UPLOADS) else 0
        return upload_bytes + MAX_FORM_BYTES

    async def missing(request: Request, _error: Exception) -> Response:
        session = await run_in_threadpool(console.sessions.session, request.cookies.get(console.cookie, ""))
        with shown_for(request, ZoneInfo(settings.console.time_zone)):
            return error_page(Visit(console, request, session), PageNotFound(say("Check the address.")))

    pages = {route.path: route.handler for route in ROUTES if route.method == "GET" and not route.is_poll}
    app = Starlette(
        routes=[
            *(Route(route.path, route.endpoint(console, pages), methods=[route.method]) for route in ROUTES),
            Mount("/static", StaticFiles(directory=STATIC, packages=[("paygw_batch.show", "static")])),
        ],
        exception_handlers={HTTPException: missing},
    )
    hosts = {urlsplit(origin).netloc.lower() for origin in console.origins}
    return WebGuard(app, hosts=hosts, most_bytes=most_bytes, tls=console.is_secure)


MAX_CONNECTIONS = 256
_BACKLOG = 256
_MAX_HEAD_BYTES = 32 * 1024
_GRACE_S = 10
HEAD_LIMIT_S = 5.0
"""The time limit for the head of a request, which a browser or a proxy sends at once."""


def serve_console(
    settings: Settings,
    config: Path | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    read_again: Callable[[], Settings],
) -> None:
    """Serve the pages until SIGINT or SIGTERM. `tell` is called with their address, once they are served.

    `read_again` loads the file `config` again after a change, because people get keys while the pages are served.
    """
    section = settings.console
    with ExitStack() as stack:
        if section.socket is None:
            listener = stack.enter_context(closing(listen_on_port(section.port)))
            port = int(listener.getsockname()[1])
            place = section.origin or f"http://{LOOPBACK}:{port}"
        elif section.origin is None:
            raise ConfigurationError(say("console.socket needs console.origin: the address that browsers see."))
        else:
            listener, port = stack.enter_context(listen_on_socket(section.socket)), 0
            place = say("{socket}, for {origin}", socket=section.socket, origin=section.origin)

        def served(settings: Settings) -> AsgiApp:
            console = console_of(settings, config=config, environ=environ, port=port)
            stack.callback(console.sessions.close)
            return console_app(console)

        app = CurrentPages(config, served(settings), lambda: served(read_again()), tell)
        asyncio.run(serve_pages(app, listener, ready=lambda: tell(say("The pages are at {place}.", place=place))))


class CurrentPages:
    """An ASGI application that serves the pages, and rebuilds them after a change of the configuration file.

    If the changed file cannot be used, the pages stay as they were, and `tell` is called with the reason.
    """

    def __init__(
        self, config: Path | None, pages: AsgiApp, build: Callable[[], AsgiApp], tell: Callable[[str], None]
    ) -> None:
        self._config, self._pages, self._build, self._tell = config, pages, build, tell
        self._built_of = self._mark()
        self._building = asyncio.Lock()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if self._mark() != self._built_of:
            async with self._building:
                if (mark := self._mark()) != self._built_of:
                    self._built_of = mark
                    await asyncio.to_thread(self._read_again)
        await self._pages(scope, receive, send)

    def _read_again(self) -> None:
        try:
            self._pages = self._build()
        except PaygwError as error:
            self._tell(
                say(
                    "The changed configuration cannot be used: {reason} The pages continue as before.",
                    reason=error.message,
                )
            )

    def _mark(self) -> tuple[int, int] | None:
        """Return a value that differs for every version of the configuration file; None if there is no file."""
        if self._config is None:
            return None
        with suppress(OSError):
            status = self._config.stat()
            return status.st_mtime_ns, status.st_size
        return None


def listen_on_port(port: int) -> socket.socket:
    """Return a socket on the loopback address, the only one that the pages use. Port 0 means any free port."""
    return listen_on_loopback(port, backlog=_BACKLOG)


@contextmanager
def listen_on_socket(path: Path) -> Iterator[socket.socket]:
    """Yield a Unix socket that only its owner and group can use. A proxy in front of it provides TLS.

    Raises `ConfigurationError` if the socket cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(_BACKLOG)
    except OSError as problem:
        listener.close()
        raise ConfigurationError(
            say("Cannot listen on {path}: {reason}.", path=path, reason=say(str(problem.strerror))),
            hint=say("Name another place."),
        ) from None
    try:
        yield listener
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink()


async def serve_pages(app: AsgiApp, listener: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve the pages until SIGINT or SIGTERM. Runs continue after that, because they are separate processes."""
    server = LocalServer(
        app,
        http=bounded(HEAD_LIMIT_S, heads_alone=True),
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        grace_s=_GRACE_S,
    )
    with server.stopped_by_signals():
        ready()
        await server.serve(sockets=[listener])
