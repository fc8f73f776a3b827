"""Every kind of fault of the gateway in a whole run: engine, transport and classification, to row state and exit code.

The server counts the orders: none reaches it twice.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import display_state
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.pacing import TRIES, Pace
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import Attempt, PreparedRequest
from paygw_batch.journal.values import RowState
from paygw_batch.show.summary import exit_code_for
from tests.support.gateway_cases import OPERATION
from tests.support.gateway_server import (
    PATH,
    Peer,
    Script,
    advance_clock,
    hang_up,
    replying,
    reset,
    run_loop,
    run_test,
    serving,
    settings_for,
    stay_silent,
)
from tests.support.scripted_scenario import build_engine, build_journal, unsigned

Channel = dict[str, Any]
WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
ROWS = 3


def http_reply(body: bytes, status: int = 200, *fields: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % size, *fields, b"", body]
    return b"\r\n".join(lines)


YES, NO = b'{"status": "approved"}', b'{"status": "declined"}'
HERE = b"Location: " + PATH.encode()

REPLIES: Mapping[str, tuple[bytes, str, int]] = {
    # Each case has the fault, the state of the row, and the number of rows that the run reaches.
    "approved": (http_reply(YES), "paid", ROWS),
    "processing": (http_reply(b'{"status": "processing"}'), "accepted", ROWS),
    "declined": (http_reply(NO), "rejected", ROWS),
    "500 that approves": (http_reply(YES, 500), "in_doubt", ROWS),
    "redirect to itself": (http_reply(NO, 307, HERE), "in_doubt", ROWS),
    "redirect elsewhere": (http_reply(NO, 302, b"Location: http://localhost:1/elsewhere"), "in_doubt", ROWS),
    "silence": (b"", "in_doubt", ROWS),
    "silence before the last byte": (http_reply(NO)[:-1], "in_doubt", ROWS),
    "broken gzip": (http_reply(b"\x1f\x8b\x08", 200, b"Content-Encoding: gzip"), "in_doubt", ROWS),
    "10 MB": (http_reply(b" " * 10_000_000 + NO), "in_doubt", ROWS),
    "a body longer than it says": (http_reply(NO, length=5), "in_doubt", ROWS),
    "two replies": (http_reply(YES) + http_reply(YES), "in_doubt", ROWS),
    "401": (http_reply(NO, 401), "rejected", 1),
    "403 without a word": (http_reply(b"{}", 403), "in_doubt", 1),
    "echo of another order": (http_reply(b'{"status": "declined", "client_orderid": "PAY-9"}'), "in_doubt", 1),
    "echo of another amount": (http_reply(b'{"status": "declined", "amount": 1}'), "in_doubt", 1),
    "429 in seconds": (http_reply(NO, 429, b"Retry-After: 7"), "rejected", ROWS),
    "429 in 30 years": (http_reply(NO, 429, b"Retry-After: 1000000000"), "rejected", ROWS),
    "503 by a date": (http_reply(NO, 503, b"Retry-After: Fri, 20 Nov 2026 10:01:00 GMT"), "in_doubt", ROWS),
}


class RunResult(NamedTuple):
    """The result of a run: its first row, the exit code, and how often each order arrived whole."""

    first: RowState
    exit_code: int
    arrived: Counter[str]
    end: RunEnd


async def run_three_rows(script: Script, channel: Channel, *, url: str = "", always: bool = False) -> RunResult:
    """Send three rows. The first meets `script`; later ones do too if `always`, or else are approved.

    They are sent to `url`, or to the server. With `speaks` in `channel`, the scheme is not the server's.
    """
    arrived: Counter[str] = Counter()

    async def script_then_approve(peer: Peer) -> None:
        peer_request = peer.request

        async def record_request() -> bytes:
            request = await peer_request()
            arrived[request.split()[-2].decode()] += 1  # the body has the order id and the amount
            return request

        peer.request = record_request  # type: ignore[method-assign]
        await (script(peer) if peer.number == 0 or always else peer.answer(http_reply(YES)))

    async with serving(script_then_approve, tls=channel["tls"]) as server:
        place = url or server.url.replace("http:", f"{channel.get('speaks', 'http')}:")

        async def prepare(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
            return [replace(unsigned(attempt), url=place + PATH) for attempt in attempts]

        async with PayoutTransport(settings_for(place, ca_bundle=channel.get("ca_bundle"))) as transport:
            journal, batch = build_journal(ROWS)
            engine = build_engine(journal, transport, Pace(concurrency=1))
            engine._prepare, engine._assess = prepare, partial(classify, words=WORDS, operation=OPERATION)
            jumping = asyncio.create_task(_advance_when_idle())
            end = await engine.run(batch.number)
            jumping.cancel()
    rows = list(journal.rows(batch.number))
    counts = Counter(display_state(row.state) for row in rows)
    code = exit_code_for(counts, interrupted=end.interrupted, contradictions=len(journal.messages().contradictions))
    assert max(arrived.values(), default=0) <= 1, "an order arrived twice"
    return RunResult(rows[0], int(code), arrived, end)


async def _advance_when_idle() -> None:
    """Advance the clock by a minute whenever nothing has happened for a while."""
    while True:
        await run_loop(2_000)
        advance_clock(31)


CODES = {"paid": 0, "accepted": 0, "rejected": 4, "in_doubt": 5}


def check(ended: RunResult, state: str, rows: int) -> None:
    assert (ended.first.state.value, ended.first.attempts) == (state, 1)
    assert ended.end.sent == rows
    assert (ended.end.stop_reason is None) == (rows == ROWS)
    expected = CODES[state] if rows == ROWS or state == "in_doubt" else 6
    assert ended.exit_code == expected
    assert ended.end.failure is None


@pytest.mark.share(2)
@pytest.mark.parametrize("name", REPLIES)
def test_reply_determines_row_state_and_run_end(channel: Channel, name: str) -> None:
    reply, state, rows = REPLIES[name]
    check(run_test(run_three_rows(replying(reply), channel)), state, rows)


@pytest.mark.parametrize("cut", [0, 17, len(http_reply(NO)) - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_truncated_reply_leaves_row_in_doubt(channel: Channel, cut: int, *, reset: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(http_reply(NO)[:cut])
        (peer.reset if reset else peer.cut)()

    check(run_test(run_three_rows(script, channel)), "in_doubt", ROWS)


@pytest.mark.parametrize("taken", [1, 40, 200])
@pytest.mark.parametrize("end", [Peer.cut, Peer.reset])
def test_truncated_request_leaves_row_in_doubt(channel: Channel, taken: int, end: Callable[[Peer], None]) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(taken)
        end(peer)

    check(run_test(run_three_rows(script, channel)), "in_doubt", ROWS)


@pytest.mark.parametrize("script", [hang_up, reset, stay_silent, None])
def test_unreachable_gateway_leaves_rows_ready(script: Script | None, ca_bundle: Path) -> None:
    """Nothing was sent after all tries: every row is ready, and the exit code says so."""
    if script is None:
        with socket.socket() as held:  # nobody else can listen there
            held.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{held.getsockname()[1]}"
            ended = run_test(run_three_rows(stay_silent, {"tls": None}, url=url))
    else:
        ended = run_test(run_three_rows(script, {"tls": None, "speaks": "https", "ca_bundle": ca_bundle}, always=True))
    assert (ended.first.state.value, ended.first.attempts, ended.end.sent) == ("ready", TRIES, 0)
    assert (ended.exit_code, ended.arrived) == (6, {})


def test_gateway_sending_early_receives_no_row(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        peers.append(peer)
        await peer.send(http_reply(NO))
        await peer.until_closed()

    peers: list[Peer] = []
    ended = run_test(run_three_rows(script, channel, always=True))
    assert (ended.first.state.value, ended.first.attempts, ended.end.sent) == ("ready", 1, 0)
    assert (ended.exit_code, ended.arrived, len(peers)) == (6, {}, 1)
    assert "before we sent a request" in (ended.end.stop_reason or "")


@pytest.mark.parametrize("end", ["cut", "reset"])
def test_immediately_closed_connection_never_pays_twice(channel: Channel, end: str) -> None:
    """The request may or may not have left by then. Only the witness shows which."""

    async def script(peer: Peer) -> None:
        getattr(peer, end)()

    ended = run_test(run_three_rows(script, channel))
    assert (ended.first.state.value, ended.exit_code) in {("in_doubt", 5), ("paid", 0)}
    assert ended.end.sent == ROWS


def test_untrusted_certificate_leaves_rows_ready_after_one_try(authority: trustme.CA, ca_bundle: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("gateway.example").configure_cert(context)
    ended = run_test(run_three_rows(stay_silent, {"tls": context, "ca_bundle": ca_bundle}))
    assert (ended.first.state.value, ended.first.attempts, ended.exit_code) == ("ready", 1, 6)
    assert ended.end.stop_reason == "The gateway's certificate is not trusted."
