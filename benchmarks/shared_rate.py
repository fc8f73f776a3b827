"""Measures from the gateway's record how evenly workers keep a shared rate limit."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from benchmarks.commands import Office
from benchmarks.several_hosts import branch
from paygw_batch.sandbox.record import read_record
from tests.promise.cluster.lean_gateway import RECORD, lean_gateway
from tests.support.postgres_server import PostgresServer

_EDGE_S = 2.0
"""Orders this close to the first or the last one are not counted, to exclude warm-up and end."""


@dataclass(frozen=True, slots=True)
class RateResult:
    """The orders per second that arrived at the gateway, relative to the limit: on average, and in any second."""

    mean: float
    most: float
    least: float


def measure_shared_rate(
    machine: Office, server: PostgresServer, workers: int, rate_per_s: int, rows: int
) -> RateResult:
    """Pay a sheet by workers that share a rate, and return its measurement. Raises `ValueError` for too few rows."""
    database = server.new_database()
    home = machine.directory / "recording"
    with lean_gateway(home, approves_all=True) as at:
        recorded = replace(machine, gateway=replace(machine.gateway, base_url=at.url))
        sheet = recorded.make_sheet(rows)
        with branch(recorded, server.url(database), workers) as paying:
            paying.call("limits", "--rate", str(rate_per_s), "--by", "bench")
            paying.call("submit", str(sheet))
        lines = read_record(home / RECORD)
    server.drop_database(database)
    return compute_rate([datetime.fromisoformat(line.received_at).timestamp() for line in lines], rate_per_s)


def compute_rate(arrived_s: Sequence[float], rate_per_s: float) -> RateResult:
    """Return the measurement of orders that arrived at these times. Each one-second window begins with an order."""
    times_s = sorted(arrived_s)
    first_s, last_s = times_s[0] + _EDGE_S, times_s[-1] - _EDGE_S
    counts = [
        bisect_left(times_s, begin_s + 1.0) - at
        for at, begin_s in enumerate(times_s)
        if first_s <= begin_s <= last_s - 1.0
    ]
    if not counts:
        raise ValueError("the run was too short to show a rate")
    inside = bisect_left(times_s, last_s) - bisect_left(times_s, first_s)
    mean_per_s = inside / (last_s - first_s)
    return RateResult(mean_per_s / rate_per_s, max(counts) / rate_per_s, min(counts) / rate_per_s)
