"""Serves the sandbox on a loopback port: verifies, records and answers each request.

It runs in a thread during a run, or in the foreground as `paygw-batch sandbox`.
"""

import asyncio
import logging
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import assert_never

from starlette import requests
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paygw_batch.clock import SIGNAL_CHECK_INTERVAL_S
from paygw_batch.countries.rules import Operation, Rules
from paygw_batch.errors import ConfigurationError, InternalError, OutputError
from paygw_batch.language import say
from paygw_batch.sandbox.callback import NotificationProof, NotificationSender
from paygw_batch.sandbox.form import Expectations, Order, Refusal, Request
from paygw_batch.sandbox.record import Record, RecordLine
from paygw_batch.sandbox.reply import (
    BARE_500,
    GARBAGE,
    Answer,
    AnswerChooser,
    Behaviour,
    EnquiryResponder,
    Fault,
    build_refusal_reply,
    build_reply,
)
from paygw_batch.sandbox.verifier import MAX_BODY_BYTES, Authenticator, VerifiedProfile, Verifier
from paygw_batch.web_server import LOOPBACK, LocalServer, listen_on_loopback

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedOperation:
    """An operation that the sandbox serves. Accepted orders are recorded at `record_path`."""

    operation: Operation
    rules: Rules
    record_path: Path
    expectations: Expectations = Expectations()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """The configuration of the sandbox. `profile` is the signature profile. `operations` must not be empty."""

    endpoint_id: str
    consumer_key: str
    public_key_pem: bytes = field(repr=False)
    profile: str
    operations: tuple[ServedOperation, ...]
    behaviour: Behaviour
    notification_proof: NotificationProof | None = None
    """How notifications are authenticated, or None if they are not."""
    enquiry: Operation | None = None
    """The operation for status enquiries, or None if they are not answered."""

    @property
    def notification_record_path(self) -> Path:
        """The file that records the merchant's replies to notifications."""
        return self.operations[0].record_path.with_name("sandbox-callbacks.csv")


class SandboxApp:
    """The sandbox as an ASGI application, for a single event loop.

    `records` maps operation names to open records. Each scope's `state` must contain the `transport`, so that the
    connection can be dropped. Raises `ConfigurationError` if `config` cannot be used.
    """

    def __init__(
        self, config: SandboxConfig, records: Mapping[str, Record], *, clock: Callable[[], float] = time.time
    ) -> None:
        try:
            profile = VerifiedProfile(config.profile)
        except ValueError:
            profiles = ", ".join(VerifiedProfile)
            raise ConfigurationError(
                say(
                    "The sandbox does not support the signature_profile {profile}, only {known}.",
                    profile=config.profile,
                    known=profiles,
                )
            ) from None
        self._clock = clock
        self._chooser = AnswerChooser(config.behaviour)
        self._notification_sender = NotificationSender(config.notification_record_path, config.notification_proof)
        authenticator = Authenticator(
            consumer_key=config.consumer_key, public_key_pem=config.public_key_pem, profile=profile
        )
        build_verifier = partial(Verifier, endpoint_id=config.endpoint_id, authenticator=authenticator, clock=clock)
        self._verifiers: list[tuple[Verifier, Record]] = []
        for entry in config.operations:
            verifier = build_verifier(operation=entry.operation, rules=entry.rules, expectations=entry.expectations)
            self._verifiers.append((verifier, records[entry.operation.name]))
        self._enquiries: EnquiryResponder | None = None
        if config.enquiry is not None:
            paths = [entry.record_path for entry in config.operations]
            verifier = build_verifier(operation=config.enquiry, rules={})
            self._enquiries = EnquiryResponder(verifier, paths, config.behaviour.enquiry, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. An incomplete request is ignored."""
        try:
            reply = await self._serve(requests.Request(scope, receive))
            await reply(scope, receive, send)
        except requests.ClientDisconnect:
            pass
        except Exception:
            _log.exception("The sandbox failed on a request.")
            raise

    async def _serve(self, incoming: requests.Request) -> ASGIApp:
        request = _convert_request(incoming, await _read_body(incoming))
        verifier, record = next((entry for entry in self._verifiers if entry[0].can_serve(request)), self._verifiers[0])
        if len(request.body) > MAX_BODY_BYTES:
            refusal = Refusal(413, "body", f"The body is longer than {MAX_BODY_BYTES} bytes.")
            reply = build_refusal_reply(verifier.operation, refusal)
            reply.headers["Connection"] = "close"
            return reply
        if self._enquiries is not None and self._enquiries.can_serve(request):
            return self._enquiries.reply(request)
        order = verifier.verify(request)
        if isinstance(order, Refusal):
            return build_refusal_reply(verifier.operation, order)
        return await self._answer(verifier.operation, record, order, incoming)

    async def _answer(self, operation: Operation, record: Record, order: Order, incoming: requests.Request) -> ASGIApp:
        answer = self._chooser.choose(order)
        reference = secrets.token_hex(8)
        try:
            # An order counts as accepted once it is recorded, so record it before sending any byte of the answer.
            record.append(self._record_line(order, answer, reference))
        except OutputError as error:
            _log.error("%s", error.message)
            return BARE_500
        for rule in self._chooser.notification_rules(order):
            self._notification_sender.schedule(order, rule, reference)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        order_id = f"{order.order_id}-other" if answer.fault is Fault.WRONG_ECHO else order.order_id
        reply = build_reply(operation, order, answer, order_id=order_id, reference=reference)
        match answer.fault:
            case None | Fault.WRONG_ECHO:
                return reply
            case Fault.SILENCE:
                return _never_answer
            case Fault.GARBAGE:
                return GARBAGE
            case Fault.DROP_BEFORE | Fault.DROP_AFTER:
                incoming.state.transport.abort()
                return _never_answer
            case Fault.HTTP_500:
                return BARE_500
            case Fault.SLOW_DRIP:
                return StreamingResponse(_drip(reply, answer.drip_interval_s), reply.status_code, reply.headers)
            case _:
                assert_never(answer.fault)

    def _record_line(self, order: Order, answer: Answer, reference: str) -> RecordLine:
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        return RecordLine(
            received_at=now.replace("+00:00", "Z"),
            client_orderid=order.order_id,
            country=order.country,
            currency=order.currency,
            amount=order.amount,
            account_number=order.payee,
            purpose=order.purpose or "",
            answer=answer.fault or answer.status,
            committed="yes" if answer.commits else "no",
            reference=reference,
        )


def _convert_request(incoming: requests.Request, body: bytes) -> Request:
    return Request(
        http_version=incoming.scope["http_version"],
        method=incoming.method,
        path=incoming.scope["raw_path"].decode("latin-1"),
        query=incoming.scope["query_string"].decode("latin-1"),
        headers=tuple(incoming.headers.items()),
        body=body,
    )


async def _read_body(request: requests.Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            break
    return body


async def _never_answer(_scope: Scope, receive: Receive, _send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drip(reply: Response, interval_s: float) -> AsyncIterator[bytes]:
    for position in range(len(reply.body)):
        await asyncio.sleep(interval_s)
        yield bytes(reply.body[position : position + 1])


_BACKLOG = 2048
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 10
_SHUTDOWN_GRACE_S = 0.1


class _DroppableProtocol(HttpToolsProtocol):
    """Adds the transport to each request's `state`, so that the application can drop the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


@contextmanager
def running_sandbox(config: SandboxConfig, *, port: int = 0) -> Iterator[str]:
    """Run the sandbox in a thread, on a free loopback port unless `port` is given. Yields its URL.

    Connections still open at the end are dropped. Raises `ConfigurationError` if a port, record or key cannot be used.
    """
    with ExitStack() as stack:
        records = {entry.operation.name: stack.enter_context(Record(entry.record_path)) for entry in config.operations}
        app = SandboxApp(config, records)
        listener = listen_on_loopback(port, backlog=_BACKLOG, who=say("The sandbox"))
        server = _SandboxServer(app, http=_DroppableProtocol, grace_s=0)
        thread = threading.Thread(target=server.run, args=([listener],), name="paygw-sandbox", daemon=True)
        thread.start()
        try:
            deadline_s = time.monotonic() + _START_TIMEOUT_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline_s:
                    raise InternalError("The sandbox did not start.")
                time.sleep(0.002)
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.end()
            thread.join(_STOP_TIMEOUT_S)
            listener.close()


def serve(config: SandboxConfig, port: int, *, on_ready: Callable[[str], None]) -> None:
    """Run the sandbox until SIGINT or SIGTERM. Calls `on_ready` with the base URL once it is running."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    previous_handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in signals}
    try:
        with running_sandbox(config, port=port) as base_url:
            on_ready(base_url)
            while not stop.wait(SIGNAL_CHECK_INTERVAL_S):
                pass
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


class _SandboxServer(LocalServer):
    """A server that drops open connections when it stops, so that slow answers do not delay the stop."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        if unanswered := set(self.server_state.tasks):
            _, unfinished = await asyncio.wait(unanswered, timeout=_SHUTDOWN_GRACE_S)
            for task in unfinished:
                task.cancel()
