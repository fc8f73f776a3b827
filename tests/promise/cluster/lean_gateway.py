"""A gateway that is cheaper than the sandbox, for long campaigns: it records orders and verifies nothing.

Every order is recorded before a byte of the answer is sent, in the sandbox's own format, so that the same judge reads
it. The order id decides the outcome: of 100 orders, two are declined and the answer to one is lost. Or all are
approved.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.bare_server import RequestAssembler
from paygw_batch.sandbox.record import Record, RecordLine
from paygw_batch.sandbox.throw_away_key import ensure_sandbox_key
from tests.promise.campaign.machine import ROOT, GatewayProcess
from tests.support.ports import free_port, wait_for_server

RECORD = "sandbox-record.csv"
DELAY_S = 0.005


class _Recording(RequestAssembler):
    def __init__(self, record: Record, references: Iterator[int], *, approves_all: bool) -> None:
        super().__init__()
        self._record, self._references, self._approves_all = record, references, approves_all

    def handle_request(self, body: bytes, closes: bool) -> None:
        line = _line(body, next(self._references), approves_all=self._approves_all)
        self._record.append(line)
        answer = {"status": line.answer, "client_orderid": line.client_orderid, "paynet-order-id": line.reference}
        content = None if line.answer == "drop_after" else json.dumps(answer).encode()
        asyncio.get_running_loop().call_later(DELAY_S, self.answer, content, closes)


def _line(body: bytes, number: int, *, approves_all: bool) -> RecordLine:
    order = json.loads(body, parse_float=str, parse_int=str)
    order_id = order["client_orderid"]
    answer = "approved"
    if not approves_all and order_id.endswith(("13", "57", "63")):
        answer = "drop_after" if order_id.endswith("57") else "declined"
    return RecordLine(
        received_at=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        client_orderid=order_id,
        country=order["currency"][:2],
        currency=order["currency"],
        amount=order["amount"],
        account_number=order.get("account_number") or order.get("phone", ""),
        purpose=order.get("purpose", ""),
        answer=answer,
        committed="no" if answer == "declined" else "yes",
        reference=f"L{number}",
    )


@contextmanager
def lean_gateway(directory: Path, *, approves_all: bool = False) -> Iterator[GatewayProcess]:
    """Run the gateway in a separate process, with its record and a merchant's key in a directory."""
    directory.mkdir(mode=0o700, exist_ok=True)
    ensure_sandbox_key(directory)
    port = free_port()
    command = [sys.executable, "-m", "tests.promise.cluster.lean_gateway", str(directory / RECORD)]
    command += [str(port), str(approves_all)]
    with subprocess.Popen(command, cwd=ROOT, process_group=0) as process:
        try:
            wait_for_server(port, process)
            yield GatewayProcess(directory, f"http://127.0.0.1:{port}")
        finally:
            process.kill()


async def _serve(port: int, record: Record, *, approves_all: bool) -> None:
    answering = partial(_Recording, record, itertools.count(1), approves_all=approves_all)
    await asyncio.get_running_loop().create_server(answering, "127.0.0.1", port, backlog=2048, reuse_address=True)
    await asyncio.Event().wait()  # until it is killed


if __name__ == "__main__":
    _, path, bound, approves = sys.argv
    with Record(Path(path)) as made, asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(_serve(int(bound), made, approves_all=approves == "True"))
