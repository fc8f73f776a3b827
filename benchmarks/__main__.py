"""Measure everything and print it as Markdown: `python -m benchmarks`.

What is compared is measured side by side, one repetition after another. A default run takes some minutes; `--full`
adds the sheet of a million rows, which takes some more.
"""

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.commands import ROOT, Ended, office, timed
from benchmarks.commands_resumed import open_sent
from benchmarks.figures import Figure, Ratio, Sample, apart, side_by_side, table
from benchmarks.journal_alone import payouts_noted_per_s
from benchmarks.machine import machine
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import NullGateway, null_gateway
from benchmarks.payouts import Trial, payouts_per_s
from benchmarks.plain_loops import Client, plain_payouts_per_s
from benchmarks.signatures import signatures_per_s

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SLOW_GATEWAYS_S = (0.05, 1.0)
GROUPS_FACTS = (16, 64, 128)
"""The sizes of commits that a run makes: `paygw_batch/engine/pacing.py`."""
IN_FLIGHT = 64
PLAIN_IN_FLIGHT = (1, 10, 20, 64)

Measure = Callable[[], Sample]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how much is measured: `scale` is 1, and a small fraction where only the machinery is tried."""

    directory: Path
    merchant: Merchant
    gateway: NullGateway
    slow_gateways: Mapping[float, NullGateway]
    """By the seconds that each answer takes."""
    repetitions: int
    full: bool
    scale: float

    def rows(self, count: int) -> int:
        """Return how many rows a measurement of `count` has at this scale."""
        return max(2 * IN_FLIGHT, round(count * self.scale))

    def trial(self) -> Trial:
        """Return a run of the engine against the null gateway."""
        return Trial(self.directory, self.gateway.base_url, self.rows(20_000), IN_FLIGHT)

    def side_by_side(self, contenders: Mapping[str, Measure], unit: str) -> dict[str, Figure]:
        """Measure the contenders in turn."""
        return side_by_side(contenders, self.repetitions, unit, tell)


def tell(line: str) -> None:
    """Say how far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


def run_of(trial: Trial) -> Measure:
    """Return what measures a run of the engine, in a process of its own."""
    return partial(apart, payouts_per_s, trial)


# Each section returns itself in Markdown.


def engine(bench: Bench) -> str:
    """Measure durable payouts against bare signatures, with and without the journal, a new connection, TLS."""
    trial = bench.trial()
    tls = replace(trial, base_url=bench.gateway.tls_url, ca_bundle=bench.gateway.ca_bundle)
    found = bench.side_by_side(
        {
            "bare signatures, two threads": partial(apart, signatures_per_s, bench.merchant.key, bench.rows(20_000)),
            "payouts, reused connections": run_of(trial),
            "payouts, a fresh connection each": run_of(replace(trial, connections="fresh")),
            "payouts, a fresh connection each, by a host name": run_of(
                replace(trial, base_url=bench.gateway.named_url, connections="fresh")
            ),
            "payouts, reused connections, no journal": run_of(replace(trial, journal="memory")),
            "payouts, reused connections, TLS": run_of(tls),
            "payouts, a fresh connection each, TLS": run_of(replace(tls, connections="fresh")),
        },
        "/s",
    )
    signatures, reused, fresh, _, unrecorded, *_ = found.values()
    ratios = [
        Ratio.of("durable payouts, reused connections : signatures", reused, signatures, 0.60),
        Ratio.of("durable payouts, fresh connections : signatures", fresh, signatures, 0.45),
        Ratio.of("journal on : journal off", reused, unrecorded, 0.85),
    ]
    return table("Payouts against the signing ceiling", list(found.values()), ratios, f"{IN_FLIGHT} in flight.")


def plain(bench: Bench) -> str:
    """Measure durable payouts against the loops one would write without this program."""
    url = bench.merchant.url(bench.gateway.base_url)
    for_s = 2.0 * min(1.0, bench.scale * 10)

    def loop(client: Client, in_flight: int) -> Measure:
        return partial(apart, plain_payouts_per_s, client, bench.merchant.key, url, in_flight, for_s)

    contenders = {"durable payouts": run_of(bench.trial())}
    contenders |= {f"plain httpx, {n} in flight": loop("httpx", n) for n in PLAIN_IN_FLIGHT}
    has_aiohttp = importlib.util.find_spec("aiohttp") is not None
    if has_aiohttp:
        contenders |= {f"plain aiohttp, {n} in flight": loop("aiohttp", n) for n in PLAIN_IN_FLIGHT}
    found = bench.side_by_side(contenders, "/s")
    ours = found["durable payouts"]
    ratios = [Ratio.of("durable payouts : best plain httpx loop", ours, _best(found, "plain httpx"), 5.0)]
    if has_aiohttp:
        ratios.append(Ratio.of("durable payouts : best plain aiohttp loop", ours, _best(found, "plain aiohttp"), 1.5))
    note = "The plain loops sign inline and keep no journal."
    return table("Payouts against plain loops", list(found.values()), ratios, note)


def _best(found: Mapping[str, Figure], start: str) -> Figure:
    """Return the best of each repetition, among the figures whose name begins so."""
    some = [figure.samples for name, figure in found.items() if name.startswith(start)]
    return Figure(f"best {start}", "/s", tuple(max(each) for each in zip(*some, strict=True)))


def journal(bench: Bench) -> str:
    """Measure what the journal costs by itself, by the size of a commit."""
    found = bench.side_by_side(
        {
            f"both facts of a payout, {facts} facts a commit": partial(
                apart, payouts_noted_per_s, bench.directory, bench.rows(20_000), facts
            )
            for facts in GROUPS_FACTS
        },
        "/s",
    )
    return table("The journal alone", list(found.values()), [], "On disk, in groups as a run makes them.")


def latency(bench: Bench) -> str:
    """Measure how much of what a slow gateway allows is reached."""
    contenders, allowed = {}, {}
    for latency_s, n, rows in ((0.05, 64, 16_000), (0.05, 256, 30_000), (1.0, 256, 2_560)):
        name = f"payouts, {n} in flight, {1000 * latency_s:.0f} ms"
        slow = replace(bench.trial(), base_url=bench.slow_gateways[latency_s].base_url)
        contenders[name] = run_of(replace(slow, concurrency=n, rows=bench.rows(rows)))
        allowed[name] = n / latency_s
    found = bench.side_by_side(contenders, "/s")
    ratios = [
        Ratio(f"achieved : allowed ({allowed[name]:,.0f}/s), {name}", _shares(figure, allowed[name]), 0.93)
        for name, figure in found.items()
    ]
    note = "Each answer takes so long. The slow start of a run is part of it."
    return table("Payouts against a slow gateway", list(found.values()), ratios, note)


def _shares(figure: Figure, allowed: float) -> tuple[float, ...]:
    return tuple(sample / allowed for sample in figure.samples)


def commands(bench: Bench) -> str:
    """Measure whole commands, from the sheet's file to the reconciliation file."""
    sizes = [10_000, 100_000, *([1_000_000] if bench.full else [])]
    parts = [
        "### Whole commands",
        "",
        "| rows | command | wall | a row | processor time a row | peak memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    a_row_us = {}
    for rows in dict.fromkeys(map(bench.rows, sizes)):
        for command, ended in _day(bench, rows, parts):
            a_row_us[rows, command] = 1e6 * ended.seconds / rows
    parts.append("")
    if bench.full:
        low, high = bench.rows(sizes[0]), bench.rows(sizes[-1])
        ratio = a_row_us[high, "submit"] / a_row_us[low, "submit"]
        parts += [
            f"A row of {high:,} costs {ratio:.2f} of what a row of {low:,} costs to submit (goal: at most 1.2).",
            "",
        ]
    return "\n".join(parts)


def _day(bench: Bench, rows: int, parts: list[str]) -> Iterator[tuple[str, Ended]]:
    """Run every command on a sheet of `rows` rows and a journal that begins empty."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        sheet = place.make_sheet(rows)
        for command, words in {
            "validate": ("validate", str(sheet)),
            "submit": ("submit", str(sheet)),
            "submit again": ("submit", str(sheet)),
            "resume": ("resume", str(sheet)),
            "status": ("status", str(sheet)),
            "reconcile": ("reconcile", str(sheet), "--out", str(place.directory / "again.csv")),
            "verify": ("verify",),
        }.items():
            ended = place.call(*words)
            parts.append(_command_line(rows, command, ended))
            tell(parts[-1])
            yield command, ended
        parts.append(f"| {rows:,} | journal | | {place.journal_bytes() / rows:,.0f} bytes | | |")


def _command_line(rows: int, command: str, ended: Ended) -> str:
    wall_us, cpu_us = 1e6 * ended.seconds / rows, 1e6 * ended.cpu_s / rows
    wall = f"{ended.seconds:,.1f} s | {wall_us:,.0f} us | {cpu_us:,.0f} us"
    return f"| {rows:,} | {command} | {wall} | {ended.peak_mib:,.0f} MiB |"


def resumed(bench: Bench) -> str:
    """Measure commands on a batch of which nearly all was sent."""
    rows = bench.rows(1_000_000 if bench.full else 100_000)
    parts = [
        "### A batch of which 1 % is left",
        "",
        "What is left is sent by `resume`; every row before it was accepted.",
        "",
        "| rows | command | wall | a row | processor time a row | peak memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        sheet = place.make_sheet(rows)
        apart(open_sent, sheet, place.journal, place.environment())
        for command in ("resume", "status"):
            parts.append(_command_line(rows, command, place.call(command, str(sheet))))
            tell(parts[-1])
    return "\n".join([*parts, ""])


def start(bench: Bench) -> str:
    """Measure how soon the program answers."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        sheet = place.make_sheet(10)
        program = [sys.executable, "-m", "paygw_batch"]
        found = bench.side_by_side(
            {
                "python -c pass": lambda: timed([sys.executable, "-c", "pass"]).sample(),
                "paygw-batch --help": lambda: timed([*program, "--help"]).sample(),
                "validate, ten rows": lambda: place.call("validate", str(sheet)).sample(),
            },
            "s",
        )
    ratios = [
        Ratio("--help, in seconds", found["paygw-batch --help"].samples, 0.3, at_most=True),
        Ratio("validate of ten rows, in seconds", found["validate, ten rows"].samples, 1.5, at_most=True),
    ]
    return table("Start", list(found.values()), ratios)


SECTIONS: Mapping[str, Callable[[Bench], str]] = {
    "engine": engine,
    "plain": plain,
    "journal": journal,
    "latency": latency,
    "commands": commands,
    "resumed": resumed,
    "start": start,
}


@contextmanager
def prepared(told: argparse.Namespace) -> Iterator[Bench]:
    """Yield a bench with a merchant and gateways that run."""
    with tempfile.TemporaryDirectory(dir=told.directory) as name:
        directory = Path(name)
        merchant = Merchant.settled_in(directory)
        with ExitStack() as stack:
            gateway = stack.enter_context(null_gateway(directory / "gateway", bare=told.bare))
            slow = {
                latency_s: stack.enter_context(
                    null_gateway(directory / f"slow-{latency_s}", latency_s=latency_s, bare=told.bare)
                )
                for latency_s in SLOW_GATEWAYS_S
            }
            yield Bench(directory, merchant, gateway, slow, told.repetitions, told.full, told.scale)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything, side by side.")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="measure this (default: everything)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="also a sheet of a million rows")
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction, to try the machinery itself")
    parser.add_argument("--bare", action="store_true", help="use our own null gateway even where there is nginx")
    parser.add_argument("--directory", type=Path, default=ROOT, help="on the disk to measure (default: the checkout)")
    parser.add_argument("--write", type=Path, help="put the figures between the marks in this document")
    told = parser.parse_args()
    with prepared(told) as bench:
        parts = [machine(bench.directory, bench.gateway.server)]
        parts += [SECTIONS[name](bench) for name in told.only or SECTIONS]
    text = "\n".join(parts)
    print(text)
    if told.write is not None:
        before, _, rest = told.write.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        told.write.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
