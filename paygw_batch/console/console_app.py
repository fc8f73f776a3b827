"""Builds the console's web application from its routes, and serves it until a signal arrives."""

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

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
from paygw_batch.console.pages.agreement import AgreementActions
from paygw_batch.console.pages.orders import OrderAgreement
from paygw_batch.console.passkey_access import SignInMethod, StoredSessions, WebSessions, build_passkey_access
from paygw_batch.console.payout_counts import PayoutCounts
from paygw_batch.console.permissions import Action, load_members
from paygw_batch.console.rendering import STATIC, create_environment, request_locale
from paygw_batch.console.visits import Console, PageNotFound, Visit, WebRoute, error_page
from paygw_batch.console.web_guard import MAX_FORM_BYTES, AsgiApp, AsgiReceive, AsgiScope, AsgiSend, WebGuard
from paygw_batch.core.batch import PAYOUT
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.opening.open_journal import journal_for_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.submit.compare_sheet import ComparisonMemory
from paygw_batch.web_server import LOOPBACK, LocalServer, bounded_protocol, listen_on_loopback

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_PLAN, _ORDER = AgreementActions(plan_page.PlanAgreement), AgreementActions(OrderAgreement)
ROUTES = (
    WebRoute("/sign-in", signing_in.show_sign_in_page, None, "open sign-in"),
    WebRoute("/sign-in", signing_in.choose_person, None, "choose person", "POST", form=""),
    WebRoute("/sign-in/passkey", signing_in.use_passkey, None, "use passkey", "POST"),
    WebRoute("/language", signing_in.choose_language, None, "choose language", "POST"),
    WebRoute("/invitation/{token}", signing_in.show_invitation, None, "open invitation"),
    WebRoute("/invitation/{token}", signing_in.accept_invitation, None, "take invitation", "POST", form=""),
    WebRoute("/session", signing_in.send_remaining_seconds, Action.STAY, "ask for time left", is_poll=True),
    WebRoute("/session/stay", signing_in.send_remaining_seconds, Action.STAY, "ask for time left"),
    WebRoute("/sign-out", signing_in.sign_out, Action.STAY, "sign out", "POST"),
    WebRoute("/", overview_page.show_overview, Action.LOOK, "open overview"),
    WebRoute("/new", new_payout_page.show_new_payout, Action.PREPARE, "open new payout"),
    WebRoute("/new", new_payout_page.upload_sheet, Action.PREPARE, "upload", "POST", form=""),
    WebRoute("/new/template", new_payout_page.download_template, Action.DOWNLOAD, "download template"),
    WebRoute("/new/sample", new_payout_page.download_sample, Action.DOWNLOAD, "download sample"),
    WebRoute("/sheets/{sheet}", check_page.show_sheet, Action.SEE_SHEET, "open sheet"),
    WebRoute("/sheets/{sheet}/again", new_payout_page.replace_upload, Action.CORRECT, "upload again", "POST"),
    WebRoute("/sheets/{sheet}/reading", new_payout_page.choose_reading, Action.CORRECT, "choose reading", "POST"),
    WebRoute(
        "/sheets/{sheet}/worksheets", new_payout_page.choose_worksheets, Action.CORRECT, "choose worksheets", "POST"
    ),
    WebRoute("/sheets/{sheet}/totals", new_payout_page.enter_totals, Action.CORRECT, "state totals", "POST"),
    WebRoute("/sheets/{sheet}/marked", new_payout_page.download_rejects, Action.DOWNLOAD, "download marked workbook"),
    WebRoute("/sheets/{sheet}/mend", check_page.correct_cell, Action.CORRECT, "correct cell", "POST"),
    WebRoute("/sheets/{sheet}/mend-kind", check_page.correct_kind, Action.CORRECT, "correct cells of one kind", "POST"),
    WebRoute("/sheets/{sheet}/leave-out", check_page.leave_row_out, Action.CORRECT, "leave out", "POST"),
    WebRoute("/sheets/{sheet}/answer", check_page.answer_question, Action.CORRECT, "answer question", "POST"),
    WebRoute("/sheets/{sheet}/remove", check_page.remove_sheet, Action.CORRECT, "remove sheet", "POST"),
    WebRoute("/sheets/{sheet}/plan", plan_page.show_plan, Action.LOOK, "open plan"),
    WebRoute("/sheets/{sheet}/people", plan_page.show_people, Action.LOOK, "open people of plan"),
    WebRoute("/sheets/{sheet}/people.csv", plan_page.download_people, Action.DOWNLOAD, "download people"),
    WebRoute("/sheets/{sheet}/sign", _PLAN.sign, Action.CORRECT, "sign", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/sign-again", _PLAN.sign_again, Action.CORRECT, "sign again", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/approve", _PLAN.approve, Action.APPROVE, "approve payout", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/send-back", _PLAN.send_back, Action.APPROVE, "send back", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/withdraw", _PLAN.withdraw, Action.CORRECT, "withdraw", "POST", form="plan"),
    WebRoute("/sheets/{sheet}/start", _PLAN.start, Action.START, "start", "POST", form="plan"),
    WebRoute("/payouts/{batch}", payout_page.show_payout, Action.LOOK, "open payout"),
    WebRoute("/payouts/{batch}/progress", payout_page.show_progress, Action.LOOK, "follow payout", is_poll=True),
    WebRoute(
        "/payouts/{batch}/reconciliation.{ending}",
        payout_page.download_reconciliation,
        Action.DOWNLOAD,
        "download reconciliation",
    ),
    WebRoute("/payouts/{batch}/advices", payout_page.download_advices, Action.DOWNLOAD, "remittance advices"),
    WebRoute(
        "/payouts/{batch}/rows/{row:int}/advice", payout_page.download_row_advice, Action.DOWNLOAD, "remittance advice"
    ),
    WebRoute("/payouts/{batch}/rows/{row:int}/settle", settle_pages.show_settle_form, Action.SETTLE, "open settling"),
    WebRoute(
        "/payouts/{batch}/rows/{row:int}/settle", settle_pages.settle_row, Action.SETTLE, "settle row", "POST", form=""
    ),
    WebRoute("/payouts/{batch}/retry", settle_pages.show_rejected_form, Action.ORDER, "open rejected rows"),
    WebRoute(
        "/payouts/{batch}/retry", settle_pages.choose_rejected, Action.ORDER, "choose rejected rows", "POST", form=""
    ),
    WebRoute(
        "/payouts/{batch}/questions.{ending}", statement_page.download_questions, Action.DOWNLOAD, "download questions"
    ),
    WebRoute("/payouts/{batch}/statement", statement_page.show_statement_form, Action.SETTLE, "open statements"),
    WebRoute(
        "/payouts/{batch}/statement", statement_page.add_statement, Action.SETTLE, "upload statement", "POST", form=""
    ),
    WebRoute("/statements/{statement}", statement_page.show_statement_preview, Action.SETTLE, "open statement"),
    WebRoute(
        "/statements/{statement}/carry-out", statement_page.use_statement, Action.SETTLE, "carry out statement", "POST"
    ),
    WebRoute(
        "/statements/{statement}/remove", statement_page.remove_statement, Action.SETTLE, "remove statement", "POST"
    ),
    WebRoute("/orders/{order}", settle_pages.show_order, Action.LOOK, "open order"),
    WebRoute("/orders/{order}/sign", _ORDER.sign, Action.ORDER, "sign order", "POST"),
    WebRoute("/orders/{order}/sign-again", _ORDER.sign_again, Action.ORDER, "sign order again", "POST"),
    WebRoute("/orders/{order}/agree", _ORDER.approve, Action.AGREE, "agree to order", "POST"),
    WebRoute("/orders/{order}/send-back", _ORDER.send_back, Action.AGREE, "send order back", "POST"),
    WebRoute("/orders/{order}/take-back", _ORDER.remove_own_document, Action.ORDER, "take order back", "POST"),
    WebRoute("/orders/{order}/carry-out", _ORDER.start, Action.SETTLE, "carry order out", "POST"),
    WebRoute("/payees", overview_page.search_payees, Action.LOOK, "search payees"),
    WebRoute("/payees/advice", overview_page.download_payee_advice, Action.DOWNLOAD, "remittance advice"),
    WebRoute("/people", people_page.show_people_and_health, Action.ADMINISTER, "open people and health"),
    WebRoute("/workers", people_page.show_workers, Action.ADMINISTER, "open workers"),
    WebRoute("/people/check", people_page.start_check, Action.CHECK, "check program", "POST"),
    WebRoute("/payouts/{batch}/pause", payout_page.pause_payout, Action.START, "pause", "POST"),
    WebRoute("/payouts/{batch}/continue", payout_page.continue_payout, Action.START, "continue payout", "POST"),
    WebRoute("/payouts/{batch}/rows/{row:int}", payout_page.show_row, Action.LOOK, "open row"),
)
"""All pages and actions, each with its handler and required permission. No other path is served."""
_UPLOAD_SUFFIXES = ("/new", "/again", "/statement")
_MAX_CACHED_SHEETS = 2
"""Maximum number of sheets kept in memory. A sheet with 200,000 rows takes about 100 MB."""


def build_console(settings: Settings, *, config: Path | None, environ: Mapping[str, str], port: int) -> Console:
    """Build the console. Raises `ConfigurationError` if its configuration is missing or contradictory."""
    section, public_origin, members = settings.console, settings.console.origin, load_members(settings)
    if config is None:
        raise ConfigurationError(
            say("The console needs a configuration file."), hint=say("Specify its path with --config.")
        )
    options = ["--config", str(config.absolute())]
    if settings.journal.url is None:  # a database URL is set only in the configuration
        options += ["--journal", str(settings.journal_path())]
    with journal_for_document(settings, "console", must_be_known=False):  # creates the sandbox's journal
        pass
    sessions = StoredSessions(settings.journal_path())
    access = build_passkey_access(settings, members, sessions)
    is_secure = public_origin is not None and public_origin.startswith("https:")
    local_origins = set() if is_secure else {f"http://{name}:{port}" for name in LOOPBACK_NAMES}
    origins = local_origins if public_origin is None else {public_origin, *local_origins}
    return Console(
        settings=settings,
        config=config.absolute(),
        rules=rules_for(settings, PAYOUT),
        members=members,
        access=access,
        sessions=WebSessions(
            sessions,
            members=members,
            keys=access.keys,
            methods={SignInMethod.PASSKEY, SignInMethod.LIST} if settings.uses_sandbox else {SignInMethod.PASSKEY},
            idle_s=section.idle_min * 60,
            max_age_s=section.session_h * 3600,
            now_s=time.time,
        ),
        counts=PayoutCounts(monotonic_s=time.monotonic),
        memories=lru_cache(_MAX_CACHED_SHEETS)(lambda _number: ComparisonMemory()),
        templates=create_environment(),
        program=(sys.executable, "-P", "-m", "paygw_batch", *options),
        environ=environ,
        now=utc_now,
        origins=frozenset(origins),
        cookie_name="__Host-payouts" if is_secure else "payouts",
    )


def console_app(console: Console) -> AsgiApp:
    settings = console.settings

    def max_body_bytes(path: str) -> int:
        upload_bytes = settings.console.max_upload_mib * 1024 * 1024 if path.endswith(_UPLOAD_SUFFIXES) else 0
        return upload_bytes + MAX_FORM_BYTES

    async def respond_not_found(request: Request, _error: Exception) -> Response:
        session = await run_in_threadpool(console.sessions.session, request.cookies.get(console.cookie_name, ""))
        with request_locale(request, settings.console.time_zone):
            return error_page(Visit(console, request, session), PageNotFound(say("Check the address.")))

    pages = {route.path: route.handler for route in ROUTES if route.method == "GET" and not route.is_poll}
    app = Starlette(
        routes=[
            *(Route(route.path, route.endpoint(console, pages), methods=[route.method]) for route in ROUTES),
            Mount("/static", StaticFiles(directory=STATIC, packages=[("paygw_batch.show", "static")])),
        ],
        exception_handlers={HTTPException: respond_not_found},
    )
    hosts = {urlsplit(origin).netloc.lower() for origin in console.origins}
    return WebGuard(app, hosts=hosts, max_body_bytes=max_body_bytes, uses_tls=console.is_secure)


MAX_CONNECTIONS = 256
_BACKLOG = 256
_MAX_HEAD_BYTES = 32 * 1024
_GRACE_S = 10
HEAD_LIMIT_S = 5.0
"""Time limit for the head of a request, which browsers and proxies send immediately."""


def serve_console(
    settings: Settings,
    config: Path | None,
    environ: Mapping[str, str],
    echo: Callable[[str], None],
    *,
    reload_settings: Callable[[], Settings],
) -> None:
    """Serve the console until SIGINT or SIGTERM. Calls `echo` with the console's address when it is ready.

    Calls `reload_settings` when the file `config` changes, because people may be added while the console runs.
    """
    section = settings.console
    with ExitStack() as stack:
        if section.socket is None:
            listener = stack.enter_context(closing(listen_on_port(section.port)))
            port = int(listener.getsockname()[1])
            address = section.origin or f"http://{LOOPBACK}:{port}"
        elif section.origin is None:
            raise ConfigurationError(
                say("If console.socket is set, set console.origin to the address that browsers see.")
            )
        else:
            listener, port = stack.enter_context(listen_on_socket(section.socket)), 0
            address = say("{socket}, for {origin}", socket=section.socket, origin=section.origin)

        def build_app(settings: Settings) -> AsgiApp:
            console = build_console(settings, config=config, environ=environ, port=port)
            stack.callback(console.sessions.close)
            return console_app(console)

        app = ReloadingApp(config, build_app(settings), lambda: build_app(reload_settings()), echo)
        asyncio.run(serve_pages(app, listener, on_ready=lambda: echo(say("The console is at {place}.", place=address))))


class ReloadingApp:
    """An ASGI application that rebuilds the console when the configuration file changes.

    If the new file is invalid, the old console stays in use, and `echo` is called with the reason.
    """

    def __init__(
        self, config: Path | None, app: AsgiApp, build: Callable[[], AsgiApp], echo: Callable[[str], None]
    ) -> None:
        self._config, self._app, self._build, self._echo = config, app, build, echo
        self._loaded_version = self._config_version()
        self._rebuild_lock = asyncio.Lock()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if self._config_version() != self._loaded_version:
            async with self._rebuild_lock:
                if (version := self._config_version()) != self._loaded_version:
                    self._loaded_version = version
                    await asyncio.to_thread(self._rebuild)
        await self._app(scope, receive, send)

    def _rebuild(self) -> None:
        try:
            self._app = self._build()
        except PaygwError as error:
            self._echo(
                say(
                    "The changed configuration cannot be used: {reason} The console still uses the previous one.",
                    reason=error.message,
                )
            )

    def _config_version(self) -> tuple[int, int] | None:
        if self._config is None:
            return None
        with suppress(OSError):
            stat = self._config.stat()
            return stat.st_mtime_ns, stat.st_size
        return None


def listen_on_port(port: int) -> socket.socket:
    """Open a listening socket on the loopback address. Port 0 means any free port."""
    return listen_on_loopback(port, backlog=_BACKLOG)


@contextmanager
def listen_on_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that only its owner and group can use. Raises `ConfigurationError` on failure."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            say("Cannot listen on {path}: {reason}.", path=path, reason=say(str(error.strerror))),
            hint=say("Choose another path."),
        ) from None
    try:
        yield listener
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink()


async def serve_pages(app: AsgiApp, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve the console until SIGINT or SIGTERM. Runs continue afterwards, because they are separate processes."""
    server = LocalServer(
        app,
        http=bounded_protocol(HEAD_LIMIT_S, heads_only=True),
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        grace_s=_GRACE_S,
    )
    with server.stop_on_signals():
        on_ready()
        await server.serve(sockets=[listener])
