"""Failures of a connection during a write, with a scripted transport."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest

from paygw_batch.gateway.http.connection import ConnectFailed, Connection
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_server import always, run_test


class FailingTransport(asyncio.Transport):
    """A transport for asyncio whose socket breaks during a write, or before."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken
        self.written: list[bytes] = []
        self._ends = socket.socketpair()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ends[0] if name == "socket" else default

    def release(self) -> None:
        for end in self._ends:
            end.close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (0, None)

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        self.broken = True

    def is_closing(self) -> bool:
        return self.broken

    def abort(self) -> None:
        self.broken = True


async def exchange_over(transport: FailingTransport) -> RawReply | TransportFault:
    loop = asyncio.get_running_loop()
    connection = Connection(loop, set())
    connection.connection_made(transport)
    with suppress(ConnectFailed):
        await connection.wait_for_silence(0, loop.time() + 30)
    return await connection.exchange(b"request", always, read_timeout_s=60, deadline_s=loop.time() + 120)


@pytest.mark.parametrize(
    ("broken_before", "fault", "written"),
    [
        (True, TransportFault(FaultKind.CONNECT_FAILED, first_byte_left=False, detail="lost at once"), []),
        (
            False,
            TransportFault(FaultKind.WRITE_FAILED, first_byte_left=True, detail="the connection was gone"),
            [b"request"],
        ),
    ],
)
def test_lost_connection_proves_unsent_only_before_write(
    fault: TransportFault, written: list[bytes], *, broken_before: bool
) -> None:
    transport = FailingTransport(broken=broken_before)
    assert run_test(exchange_over(transport)) == fault
    assert transport.written == written
    transport.release()
