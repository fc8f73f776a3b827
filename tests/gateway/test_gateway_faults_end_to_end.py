"""Every fault of the gateway through a whole run: engine, transport and judgement, to a row's state and the exit code.

The server is the judge: whatever it did, no order reached it twice.
"""

import asyncio
import datetime as dt
import gzip
import json
import socket
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from benchmarks.silent_progress import Silent
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import shown_state
from paygw_batch.countries.load import load_operation
from paygw_batch.engine.engine import Engine, RunEnd
from paygw_batch.engine.pacing import TRIES, Pace
from paygw_batch.engine.ports import World
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest
from paygw_batch.journal.file_place import in_memory_journal
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import NewBatch, NewInstruction, RowState
from paygw_batch.show.summary import of_states
from tests.support.gateway_server import (
    PATH,
    JumpingLoop,
    Peer,
    Script,
    hang_up,
    jump,
    play,
    reset,
    serving,
    settings_for,
    silence,
    turns,
)
from tests.support.inline_journal import InlineJournal

Channel = dict[str, Any]
OPERATION = load_operation("payout")
WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
ROWS = 3


def http(body: bytes, status: int = 200, *fields: bytes, length: int | None = None) -> bytes:
    """Return a reply byte by byte as it goes over the wire."""
    size = len(body) if length is None else length
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % size, *fields, b"", body]
    return b"\r\n".join(lines)


def says(status: object, **members: object) -> bytes:
    return json.dumps({"status": status, **members}).encode()


YES, NO = says("approved"), says("declined")
DEEP = b'{"status": "declined", "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
BOMB = gzip.compress(b" " * 10_000_000 + NO)
LOCATION = b"Location: http://localhost:1/elsewhere"

REPLIES: Mapping[str, tuple[bytes, str, int]] = {
    # What arrives, what becomes of the row, and how many rows the run comes to.
    "approved": (http(YES), "paid", ROWS),
    "processing": (http(says("processing")), "accepted", ROWS),
    "declined": (http(NO), "rejected", ROWS),
    "declined with 400": (http(NO, 400), "rejected", ROWS),
    "of another type": (http(YES, 200, b"Content-Type: text/html"), "paid", ROWS),
    "of another charset": (http(YES, 200, b"Content-Type: application/json; charset=latin-1"), "paid", ROWS),
    "500": (http(NO, 500), "in_doubt", ROWS),
    "500 that approves": (http(YES, 500), "in_doubt", ROWS),
    "502 html": (http(b"<html>Bad Gateway</html>", 502), "in_doubt", ROWS),
    "garbage": (http(b"\x00\xff\xfe"), "in_doubt", ROWS),
    "no http": (b"SSH-2.0-OpenSSH\r\n\r\n", "in_doubt", ROWS),
    "empty": (http(b""), "in_doubt", ROWS),
    "204": (http(b"", 204), "in_doubt", ROWS),
    "a mark of byte order": (http(b"\xef\xbb\xbf" + NO), "in_doubt", ROWS),
    "UTF-16": (http(NO.decode().encode("utf-16")), "in_doubt", ROWS),
    "latin-1": (http('{"status": "declin\xe9d"}'.encode("latin-1")), "in_doubt", ROWS),
    "two equal keys": (http(b'{"status": "approved", "status": "declined"}'), "in_doubt", ROWS),
    "deep": (http(DEEP), "in_doubt", ROWS),
    "NaN": (http(b'{"status": "declined", "fee": NaN}'), "in_doubt", ROWS),
    "a list": (http(b'["declined"]'), "in_doubt", ROWS),
    "null": (http(b"null"), "in_doubt", ROWS),
    "status null": (http(says(None)), "in_doubt", ROWS),
    "status a number": (http(says(0)), "in_doubt", ROWS),
    "no status": (http(b"{}"), "in_doubt", ROWS),
    "a word in capitals": (http(says("Declined")), "in_doubt", ROWS),
    "a word with a blank": (http(says("declined ")), "in_doubt", ROWS),
    **{f"{code}": (http(NO, code, LOCATION), "in_doubt", ROWS) for code in (301, 302, 303, 307, 308)},
    **{
        f"{code} to itself": (http(NO, code, b"Location: " + PATH.encode()), "in_doubt", ROWS)
        for code in (301, 302, 303, 307, 308)
    },
    "gzip": (http(b"\x1f\x8b\x08", 200, b"Content-Encoding: gzip"), "in_doubt", ROWS),
    "a gzip bomb": (http(BOMB, 200, b"Content-Encoding: gzip"), "in_doubt", ROWS),
    "10 MB": (http(b" " * 10_000_000 + NO), "in_doubt", ROWS),
    "a body longer than it says": (http(NO, length=5), "in_doubt", ROWS),
    "two replies": (http(YES) + http(YES), "in_doubt", ROWS),
    "101": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "in_doubt", ROWS),
    "1xx without end": (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, "in_doubt", ROWS),
    "chunks without end": (
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n" * 100,
        "in_doubt",
        ROWS,
    ),
    "401": (http(says("declined"), 401), "rejected", 1),
    "403 without a word": (http(b"{}", 403), "in_doubt", 1),
    "echo of another order": (http(says("declined", **{OPERATION.reply.order_id[0]: "PAY-9"})), "in_doubt", 1),
    "echo of another amount": (http(says("declined", **{OPERATION.reply.amount[0]: 1})), "in_doubt", 1),
    "echo of another currency": (http(says("declined", **{OPERATION.reply.currency[0]: "UGX"})), "in_doubt", 1),
    "429 in seconds": (http(NO, 429, b"Retry-After: 7"), "rejected", ROWS),
    "429 by a date": (http(NO, 429, b"Retry-After: Fri, 20 Nov 2026 10:01:00 GMT"), "rejected", ROWS),
    "429 in the past": (http(NO, 429, b"Retry-After: -5"), "rejected", ROWS),
    "429 in 30 years": (http(NO, 429, b"Retry-After: 1000000000"), "rejected", ROWS),
    "429 in words": (http(NO, 429, b"Retry-After: soon"), "rejected", ROWS),
    "503 in seconds": (http(NO, 503, b"Retry-After: 7"), "in_doubt", ROWS),
    "503 by a date": (http(NO, 503, b"Retry-After: Fri, 20 Nov 2026 10:01:00 GMT"), "in_doubt", ROWS),
    "503 in the past": (http(NO, 503, b"Retry-After: -5"), "in_doubt", ROWS),
    "503 in 30 years": (http(NO, 503, b"Retry-After: 1000000000"), "in_doubt", ROWS),
    "503 in words": (http(NO, 503, b"Retry-After: soon"), "in_doubt", ROWS),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run came to: its first row, the exit code, and how often each order arrived whole."""

    first: RowState
    exit_code: int
    arrived: Counter[str]
    end: RunEnd


def prepare_for(url: str) -> Any:
    def unsigned(attempt: Attempt) -> PreparedRequest:
        return PreparedRequest(
            url=url + PATH,
            authorization=f'OAuth oauth_nonce="{attempt.nonce}"',
            body=b'{"client_orderid":"%s"}' % attempt.order_id.encode(),
            body_sha256="",
            nonce=attempt.nonce,
            timestamp_s=attempt.timestamp_s,
            purpose=None,
            endpoint_id="1234",
            expected=Expected(attempt.order_id, Decimal(attempt.instruction.amount), attempt.instruction.currency),
        )

    async def prepare(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        return [unsigned(attempt) for attempt in attempts]

    return prepare


def a_batch(journal: SqliteJournal) -> int:
    new = [
        NewInstruction(row, f"PAY-{row}", "KE", "KES", "100", 10_000, "account", "{}", f"{row}", f"{row}")
        for row in range(2, 2 + ROWS)
    ]
    opened = journal.open_batch(
        NewBatch("b", "payout", "s.csv", "", ROWS, 0),
        parts=[BatchPart(instructions=InstructionRows(new))],
        known=[],
        amendments=[],
        at="",
    )
    return opened.number


async def a_run(script: Script, channel: Channel, *, url: str | None = None, always: bool = False) -> Ended:
    """Send three rows. The first meets `script`, and later connections too (`always`), or one that answers `approved`.

    They are sent to `url`, or to the server; with `speaks` in `channel` over a scheme that is not the server's.
    """
    arrived: Counter[str] = Counter()

    async def first_then_well(peer: Peer) -> None:
        peer_request = peer.request

        async def noted() -> bytes:
            request = await peer_request()
            arrived[json.loads(request.partition(b"\r\n\r\n")[2])["client_orderid"]] += 1
            return request

        peer.request = noted  # type: ignore[method-assign]
        if peer.number == 0 or always:
            await script(peer)
        else:
            await peer.answer(http(YES))

    nonces = count(1)
    journal = in_memory_journal()
    batch = a_batch(journal)
    async with serving(first_then_well, tls=channel["tls"]) as server:
        place = url or server.url.replace("http:", f"{channel.get('speaks', 'http')}:")
        settings = settings_for(place, ca_bundle=channel.get("ca_bundle"))
        async with PayoutTransport(settings) as transport:
            engine = Engine(
                journal=InlineJournal(journal),
                gateway=transport,
                prepare=prepare_for(place),
                judge=partial(classify, words=WORDS, operation=OPERATION),
                pace=Pace(concurrency=1),
                world=World(now=_now, elapsed_s=asyncio.get_running_loop().time, nonce=lambda: f"{next(nonces):032x}"),
                progress=Silent(),
                departs_within_s=settings.connect_timeout_s + settings.total_timeout_s,
            )
            jumping = asyncio.create_task(_jump_on())
            end = await engine.run(batch)
            jumping.cancel()
    standings = list(journal.rows(batch))
    states = Counter(shown_state(one.state) for one in standings)
    code = of_states(states, interrupted=end.interrupted, contradictions=len(journal.messages().contradictions))
    assert max(arrived.values(), default=0) <= 1, "an order arrived twice"
    return Ended(standings[0], int(code), arrived, end)


def _now() -> dt.datetime:
    return dt.datetime(2026, 11, 20, 10, tzinfo=dt.UTC)


async def _jump_on() -> None:
    """Let a minute go by whenever nothing has happened for a while."""
    while True:
        await turns(2_000)
        jump(31)


CODES = {"paid": 0, "accepted": 0, "rejected": 4, "in_doubt": 5}


def check(ended: Ended, state: str, rows: int) -> None:
    assert (ended.first.state.value, ended.first.attempts) == (state, 1)
    assert ended.end.sent == rows
    assert (ended.end.stop_reason is None) == (rows == ROWS)
    expected = CODES[state] if rows == ROWS or state == "in_doubt" else 6
    assert ended.exit_code == expected
    assert ended.end.failure is None


@pytest.mark.parametrize("name", REPLIES)
def test_reply_decides_row_and_run(channel: Channel, name: str) -> None:
    reply, state, rows = REPLIES[name]

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(reply)
        await peer.until_closed()

    check(play(a_run(script, channel)), state, rows)


@pytest.mark.parametrize("cut", [0, 1, 8, 12, 17, 30, len(http(NO)) - 2, len(http(NO)) - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_cut_reply_leaves_row_in_doubt(channel: Channel, cut: int, *, reset: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if cut:
            await peer.send(http(NO)[:cut])
        (peer.reset if reset else peer.cut)()

    check(play(a_run(script, channel)), "in_doubt", ROWS)


@pytest.mark.parametrize("taken", [1, 40, 200])
def test_cut_request_leaves_row_in_doubt(channel: Channel, taken: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(taken)
        peer.reset()

    check(play(a_run(script, channel)), "in_doubt", ROWS)


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\n", http(NO)[:-1]], ids=["nothing", "head", "all but one"])
def test_silence_leaves_row_in_doubt_after_timeout(channel: Channel, part: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if part:
            await peer.send(part)
        await asyncio.Event().wait()

    check(play(a_run(script, channel)), "in_doubt", ROWS)


def test_dripping_reply_leaves_row_in_doubt_after_timeout(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in http(NO):
            jump(5)
            await peer.send(bytes([byte]))
        await asyncio.Event().wait()

    check(play(a_run(script, channel)), "in_doubt", ROWS)


def check_unsent(ended: Ended) -> None:
    """Nothing left, after as many tries as there are: every row stays ready, and the exit code says so."""
    assert (ended.first.state.value, ended.first.attempts, ended.end.sent) == ("ready", TRIES, 0)
    assert ended.exit_code == 6
    assert ended.arrived == {}


def test_absent_gateway_leaves_rows_ready(channel: Channel) -> None:
    check_unsent(play(a_run(silence, channel, url="http://127.0.0.1:1")))


def test_unanswered_connection_leaves_rows_ready(blackhole: int) -> None:
    check_unsent(play(a_run(silence, {"tls": None}, url=f"http://127.0.0.1:{blackhole}")))


def test_unresolved_name_leaves_rows_ready() -> None:
    async def scenario() -> Ended:
        cast("JumpingLoop", asyncio.get_running_loop()).names["localhost"] = socket.gaierror(-2, "not known")
        return await a_run(silence, {"tls": None})

    check_unsent(play(scenario()))


def test_early_speaking_gateway_gets_single_connection_without_row(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        peers.append(peer)
        await peer.send(http(NO))
        await peer.until_closed()

    peers: list[Peer] = []
    ended = play(a_run(script, channel, always=True))
    assert (ended.first.state.value, ended.first.attempts, ended.end.sent) == ("ready", 1, 0)
    assert (ended.exit_code, ended.arrived, len(peers)) == (6, {}, 1)
    assert "before we sent a request" in (ended.end.stop_reason or "")


@pytest.mark.parametrize("script", [hang_up, reset, silence])
def test_failed_handshake_leaves_rows_ready(script: Script, ca_bundle: Path) -> None:
    check_unsent(play(a_run(script, {"tls": None, "speaks": "https", "ca_bundle": ca_bundle}, always=True)))


@pytest.mark.parametrize("end", ["cut", "reset"])
def test_connection_ending_at_once_pays_no_row_twice(channel: Channel, end: str) -> None:
    """Whether the request had left by then is a race that either side may win; the witness knows who did."""

    async def script(peer: Peer) -> None:
        getattr(peer, end)()

    ended = play(a_run(script, channel))
    assert (ended.first.state.value, ended.exit_code) in {("in_doubt", 5), ("paid", 0)}
    assert ended.end.sent == ROWS


@pytest.mark.parametrize("case", ["unknown authority", "expired", "other name"])
def test_untrusted_certificate_leaves_rows_ready_after_single_try(
    case: str, authority: trustme.CA, ca_bundle: Path
) -> None:
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    certificate = {
        "unknown authority": trustme.CA().issue_cert("localhost"),
        "expired": authority.issue_cert("localhost", not_after=yesterday),
        "other name": authority.issue_cert("gateway.example"),
    }[case]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    ended = play(a_run(silence, {"tls": context, "ca_bundle": ca_bundle}))
    assert (ended.first.state.value, ended.first.attempts, ended.exit_code) == ("ready", 1, 6)
    assert ended.end.stop_reason == "The gateway's certificate is not trusted."
