"""The sections of the figures: each measures one part side by side, and returns itself in Markdown."""

import importlib.util
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.commands import Ended, office, timed
from benchmarks.commands_resumed import open_sent
from benchmarks.console_pages import TABS, page_times, polling_tabs, served_pages
from benchmarks.figures import Figure, Goal, Ratio, Sample, apart, readable, side_by_side, table
from benchmarks.first_byte import until_first_byte
from benchmarks.journal_alone import payouts_noted_per_s
from benchmarks.keys_elsewhere import alone_per_s, in_slow_kms, in_token
from benchmarks.machine import sync_ms
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import NullGateway, answer_s
from benchmarks.payouts import Trial, payouts_per_s
from benchmarks.pictures import Curve, Gallery, thinned
from benchmarks.plain_loops import Client, plain_payouts_per_s
from benchmarks.several_hosts import Shared, paid_by_workers, paid_from_a_file, server_on_disk
from benchmarks.shared_rate import kept_rate
from benchmarks.sheets import KINDS, PARQUET, sheet_of_kind
from benchmarks.signatures import signatures_per_s
from benchmarks.validation import contenders as validations
from benchmarks.validation import cpu_ratio, peak_mib
from tests.support.postgres_server import PostgresServer
from tests.support.tokens import HOW_TO_GET_IT, softhsm

SLOW_GATEWAYS_S = (0.05, 1.0)
GROUPS_FACTS = (16, 64, 128)
"""The sizes of commits that a run makes: `paygw_batch/engine/pacing.py`."""
IN_FLIGHT = 64
PLAIN_IN_FLIGHT = (1, 10, 20, 64)
SLOW_FLUSH_S = 0.005
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PAGE_TIMES = 40
"""How often each page of the console is asked for."""
UPLOADED_ROWS = 100_000
SHARED_RATE_PER_S, SHARED_RATE_S = 200, 60
"""The rate that four workers keep together, and for how long they are watched."""
MAX_SENT_ROWS = 1_000_000
"""Larger sheets are validated and held against the journal, but not sent: that takes an hour and shows no more."""

KMS_CALLS = 4
"""How many calls are under way at once, by default."""

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
    most_rows: int
    scale: float
    gallery: Gallery | None
    goals: list[Goal] = field(default_factory=list)
    """What was to be reached, of all that is measured."""

    def rows(self, count: int) -> int:
        """Return how many rows a measurement of `count` has at this scale."""
        return max(2 * IN_FLIGHT, round(count * self.scale))

    def trial(self) -> Trial:
        """Return a run of the engine against the null gateway."""
        return Trial(self.directory, self.gateway.base_url, self.rows(20_000), IN_FLIGHT)

    def side_by_side(self, contenders: Mapping[str, Measure], unit: str) -> dict[str, Figure]:
        """Measure the contenders in turn."""
        return side_by_side(contenders, self.repetitions, unit, tell)

    def table(self, title: str, found: Mapping[str, Figure], ratios: list[Ratio], note: str = "") -> str:
        """Return a section in Markdown, with a picture where pictures are drawn."""
        figures = list(found.values())
        picture = self.gallery.bars(title, figures) if self.gallery is not None else []
        return table(title, figures, ratios, note, picture)

    def picture(
        self, title: str, across: str, up: str, curves: Mapping[str, Curve], *, is_log: bool = False
    ) -> list[str]:
        """Return the lines that show curves, where pictures are drawn."""
        return self.gallery.curves(title, across, up, curves, is_log=is_log) if self.gallery is not None else []


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
            "payouts, a fresh connection each, by an address": run_of(
                replace(trial, base_url=bench.gateway.address_url, connections="fresh")
            ),
            "payouts, reused connections, no journal": run_of(replace(trial, journal="memory")),
            "payouts, reused connections, a flush of 5 ms": run_of(replace(trial, flush_s=SLOW_FLUSH_S)),
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
    bench.goals.extend(
        [
            Goal(
                "the run's own processor time a payout, reused connections", "us", reused.cpu_us, 150, 120, at_most=True
            ),
            Goal("the same, a fresh connection each", "us", fresh.cpu_us, 210, 165, at_most=True),
            Goal.ratio("durable payouts : bare signatures, reused connections", reused, signatures, 0.55, 0.60),
            Goal.ratio("the same, a fresh connection each", fresh, signatures, 0.43, 0.45),
        ]
    )
    note = f"{IN_FLIGHT} in flight. The gateway has a host name, but where an address is said."
    return bench.table("Payouts against the signing ceiling", found, ratios, note)


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
        bench.goals.append(Goal.ratio("durable : best aiohttp loop", ours, _best(found, "plain aiohttp"), 2, 2.2))
    bench.goals.append(Goal.ratio("durable : best plain httpx loop", ours, _best(found, "plain httpx"), 6, 7))
    note = "The plain loops sign inline and keep no journal."
    return bench.table("Payouts against plain loops", found, ratios, note)


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
    largest = list(found.values())[-1]
    bench.goals.append(Goal("of it the journal, both facts", "us", largest.cpu_us, 40, 25, at_most=True))
    return bench.table("The journal alone", found, [], "On disk, in groups as a run makes them.")


def latency(bench: Bench) -> str:
    """Measure how much of the rate that a slow gateway allows is reached, with and without the start and the end."""
    flush_s = sync_ms(bench.directory)[0] / 1000
    alone_s = {
        latency_s: answer_s(gateway.address_url, max(1, round(min(20, 1 / latency_s) * min(1.0, bench.scale))))
        for latency_s, gateway in bench.slow_gateways.items()
    }
    full = "payouts, no latency: the full cores"
    contenders, allowed = {full: run_of(bench.trial())}, {}
    for latency_s, n, rows in ((0.05, 64, 16_000), (0.05, 256, 30_000), (1.0, 256, 2_560)):
        name = f"payouts, {n} in flight, {1000 * latency_s:.0f} ms"
        slow = replace(bench.trial(), base_url=bench.slow_gateways[latency_s].base_url)
        contenders[name] = run_of(replace(slow, concurrency=n, rows=bench.rows(rows)))
        allowed[name] = n / (alone_s[latency_s] + flush_s)
    found = bench.side_by_side(contenders, "/s")
    cores, ratios = found[full], []
    for name, bound in allowed.items():
        achieved = found[name]
        for part, rates, most in (
            ("the whole run", achieved.samples, cores.samples),
            ("without start and end", achieved.steady, cores.steady),
        ):
            shares = tuple(one / min(bound, limit) for one, limit in zip(rates, most, strict=True))
            ratios.append(Ratio(f"achieved : allowed (at most {bound:,.0f}/s), {name}, {part}", shares, 0.95))
            bench.goals.append(Goal(f"achieved : allowed, {name}, {part}", "", shares, 0.95, 0.98))
    answers = " and ".join(f"{1000 * one:.2f} ms" for one in alone_s.values())
    note = (
        "Each answer takes so long. Allowed is the smaller of two rates: requests in flight : (the gateway's answer to "
        f"one request alone, {answers}, + flush of the disk), and that of the full cores. A run starts with one "
        "request in flight, and doubles with each answer: rates are said with that start, and without it."
    )
    return bench.table("Payouts against a slow gateway", found, ratios, note)


def validation(bench: Bench) -> str:
    """Measure validation against a scan of the same file, on every kind of sheet."""
    rows = bench.rows(min(bench.most_rows, 5_000_000) if bench.most_rows > SIZES[2] else 1_000_000)
    found = bench.side_by_side(validations(bench.directory, rows), "s")
    ratios = [
        Ratio(
            f"validation : scan, {kind}",
            cpu_ratio(found[f"validation: {kind}"], found[f"scan: {kind}"]),
            5.0,
            at_most=True,
        )
        for kind in KINDS
    ]
    worst = max((one for one in ratios if PARQUET not in one.name), key=lambda one: statistics.median(one.samples))
    half_bad, none_bad = found["validation: half bad"], found["validation: Tanzania's form among the rows"]
    bench.goals.extend(
        [
            Goal(f"{worst.name}: the worst kind of text", "", worst.samples, 5, 4, at_most=True),
            Goal("half the rows bad : none bad", "", cpu_ratio(half_bad, none_bad), 1.3, 1.1, at_most=True),
        ]
    )
    peaks = [apart(peak_mib, sheet_of_kind(bench.directory, KINDS[0], count)) for count in (rows, 2 * rows)]
    held = f"{rows:,} rows held {readable(peaks[0])} MiB at the most, {2 * rows:,} rows {readable(peaks[1])} MiB.\n"
    note = "Ratios are of processor time."
    return bench.table(f"Validation of {rows:,} rows", found, ratios, note) + "\n" + held


def opening(bench: Bench) -> str:
    """Measure how long it takes from Enter to the first byte of the first payout."""
    lines = [
        "### From Enter to the first byte",
        "",
        "| rows | median | spread | processor time | held at the most |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for rows in dict.fromkeys(bench.rows(size) for size in SIZES if size <= bench.most_rows):
        ended = []
        for _ in range(bench.repetitions if rows < SIZES[-1] else 1):
            with office(bench.directory, bench.merchant.key, bench.gateway) as place:
                ended.append(until_first_byte(place, place.make_sheet(rows)))
                tell(f"{rows:,} rows: {ended[-1].seconds:.1f} s to the first byte")
        seconds, cpu_s, peaks = zip(*((one.seconds, one.cpu_s, one.peak_mib) for one in ended), strict=True)
        spread = f"{readable(min(seconds))} to {readable(max(seconds))} s"
        middle = [readable(statistics.median(some)) for some in (seconds, cpu_s, peaks)]
        lines.append(f"| {rows:,} | {middle[0]} s | {spread} | {middle[1]} s | {middle[2]} MiB |")
        if rows == MAX_SENT_ROWS:
            bench.goals.append(Goal("a million rows: from Enter to the first byte", "s", seconds, 6, 3, at_most=True))
    return "\n".join([*lines, ""])


def commands(bench: Bench) -> str:
    """Measure whole commands, from the sheet's file to the reconciliation file."""
    parts = [
        "### Whole commands",
        "",
        "| rows | command | wall | a row | processor time a row | peak memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    costs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    held: dict[str, Curve] = {}
    for rows in dict.fromkeys(bench.rows(size) for size in SIZES if size <= bench.most_rows):
        for command, ended in _day(bench, rows, parts):
            costs[command].append((rows, 1e6 * ended.seconds / rows))
            if command == "submit" and ended.held:
                held[f"{rows:,} rows"] = thinned(ended.held)
            if command == "submit" and rows in {SIZES[-2], SIZES[-1]}:
                marks = (450, 300) if rows == SIZES[-2] else (700, 400)
                bench.goals.append(
                    Goal(f"peak memory of `submit`, {rows:,} rows", "MiB", (ended.peak_mib,), *marks, at_most=True)
                )
            if command == "verify" and rows == MAX_SENT_ROWS:
                bench.goals.append(Goal("`verify`, a row", "us", (1e6 * ended.seconds / rows,), 20, 10, at_most=True))
    parts.append("")
    parts += bench.picture("What a row costs", "rows", "us a row", costs, is_log=True)
    parts += bench.picture("Memory of submit", "seconds since Enter", "MiB", held)
    (low, low_us), (high, high_us) = costs["submit"][0], costs["submit"][-1]
    parts += [f"A row of {high:,.0f} costs {high_us / low_us:.2f} of what a row of {low:,.0f} costs to submit.", ""]
    return "\n".join(parts)


def _day(bench: Bench, rows: int, parts: list[str]) -> Iterator[tuple[str, Ended]]:
    """Run every command on a sheet of `rows` rows and a journal that begins empty."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        sheet = place.make_sheet(rows)
        if rows > MAX_SENT_ROWS:
            for command, words in {"validate": ("validate",), "submit": ("submit", "--dry-run")}.items():
                ended = place.call(*words, str(sheet))
                parts.append(_command_line(rows, " ".join(words), ended))
                yield command, ended
            return
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
    rows = bench.rows(min(bench.most_rows, MAX_SENT_ROWS))
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
        for words in (
            ("resume", str(sheet)),
            ("status", str(sheet)),
            ("status", str(sheet), "--row", "2"),
            ("verify",),
        ):
            ended = place.call(*words)
            parts.append(_command_line(rows, " ".join(word for word in words if word != str(sheet)), ended))
            tell(parts[-1])
            if "--row" in words and rows == MAX_SENT_ROWS:
                bench.goals.append(
                    Goal("`status --row`, a million rows", "s", (ended.seconds,), 0.7, 0.4, at_most=True)
                )
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
    helped = found["paygw-batch --help"].samples
    bench.goals.append(Goal("`--help`", "s", helped, 0.1, 0.1, at_most=True))
    return bench.table("Start", found, ratios)


def console(bench: Bench) -> str:
    """Measure the console: its pages over a long journal, an upload, and what tabs that ask cost a run."""
    rows, uploaded = bench.rows(min(bench.most_rows, MAX_SENT_ROWS)), bench.rows(UPLOADED_ROWS)
    parts = [
        "### The console",
        "",
        f"| page, {rows:,} rows in the journal | median | 95th percentile | processor time | length |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    p95s_ms = []
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        apart(open_sent, place.make_sheet(rows), place.journal, place.environment())
        with served_pages(place) as pages:
            for page in page_times(place, pages, max(3, round(PAGE_TIMES * min(1.0, bench.scale)))):
                parts.append(page.line())
                tell(parts[-1])
                p95s_ms.append(page.p95_ms)
            upload_s = pages.upload(place.make_sheet(uploaded, prefix="NEW", bad_share=0.01))
            peak_mib = pages.peak_mib()
    contenders = {f"a run, {tabs} tabs": partial(_polled_run, bench, tabs) for tabs in (0, TABS)}
    found = bench.side_by_side(contenders, "s")
    alone, polled = found.values()
    costs = Ratio.of(f"a run with {TABS} tabs to one without", polled, alone, 1.03, at_most=True)
    bench.goals.extend(
        [
            Goal("slowest page, 95th percentile", "ms", (max(p95s_ms),), 300, 300, at_most=True),
            Goal("console, peak memory", "MiB", (peak_mib,), 300, 300, at_most=True),
            Goal(f"first defects of {uploaded:,} rows", "s", (upload_s,), 5, 5, at_most=True),
        ]
    )
    parts += [
        "",
        f"The console held {peak_mib:,.0f} MiB at the most. A sheet of {uploaded:,} rows was on its page, with its",
    ]
    parts += [f"defects, {upload_s:.1f} s after the upload began.", ""]
    return "\n".join([*parts, bench.table("Tabs that ask while a run is on", found, [costs])])


def _polled_run(bench: Bench, tabs: int) -> Sample:
    """Pay a sheet beside a console; `tabs` tabs look at a payout of before."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        place.call("submit", str(place.make_sheet(10, prefix="BEFORE")))
        sheet = place.make_sheet(bench.rows(20_000))
        with served_pages(place) as pages, polling_tabs(pages, tabs):
            return place.call("submit", str(sheet)).sample()


def several(bench: Bench) -> str:
    """Measure a sheet that workers pay from one journal in PostgreSQL, beside a journal in a file; and their rate."""
    parts = []
    with server_on_disk() as server:
        for rows in (bench.rows(20_000), *(size for size in SIZES if MAX_SENT_ROWS <= size <= bench.most_rows)):
            repetitions = bench.repetitions if rows < MAX_SENT_ROWS else 1
            parts.append(_several(replace(bench, repetitions=repetitions), server, rows))
        parts.append(_shared_rate(bench, server))
    return "\n".join(parts)


def _several(bench: Bench, server: PostgresServer, rows: int) -> str:
    shared: dict[str, list[Shared]] = defaultdict(list)

    def in_a_file() -> Sample:
        with office(bench.directory, bench.merchant.key, bench.gateway) as place:
            return paid_from_a_file(place, rows)

    def in_postgres(name: str, workers: int) -> Sample:
        with office(bench.directory, bench.merchant.key, bench.gateway) as place:
            shared[name].append(paid_by_workers(place, server, workers, rows))
        return shared[name][-1].paid_per_s

    names = {"PostgreSQL, `submit` alone": 0, "PostgreSQL, 1 worker": 1, "PostgreSQL, 4 workers": 4}
    by_workers = {name: partial(in_postgres, name, workers) for name, workers in names.items()}
    found = bench.side_by_side({"a journal in a file": in_a_file, **by_workers}, "/s")
    in_file, alone, _, four = found.values()
    ratios = [
        Ratio.of("4 workers : a journal in a file, one machine", four, in_file, 0.7),
        Ratio.of("`submit` alone, PostgreSQL : a journal in a file", alone, in_file, 0.7),
    ]
    costs = [
        f"{name}: the server takes {statistics.median(one.server_us for one in done):,.0f} us of processor time a row, "
        f"and {statistics.median(one.bytes_a_row for one in done):,.0f} bytes; `submit` held "
        f"{max(one.submit_mib for one in done):,.0f} MiB at the most"
        f"{''.join(f', {held}' for held in (done[-1].held(),) if held)}.\n"
        for name, done in shared.items()
    ]
    curves = {name: thinned(done[-1].workers_mib) for name, done in shared.items() if done[-1].workers_mib}
    picture = bench.picture(f"Memory of a worker, {rows:,} rows", "seconds", "MiB", curves)
    note = (
        f"`submit` of {rows:,} rows, from its start to its end; a server, workers and gateway on the same cores. Its "
        "processor time is that of `submit` and of all workers."
    )
    return "\n".join([bench.table(f"Several hosts, {rows:,} rows", found, ratios, note), *costs, *picture])


def _shared_rate(bench: Bench, server: PostgresServer) -> str:
    rows = max(int(SHARED_RATE_PER_S * 8), round(SHARED_RATE_PER_S * SHARED_RATE_S * min(1.0, bench.scale)))
    with office(bench.directory, bench.merchant.key, bench.gateway) as place:
        kept = kept_rate(place, server, 4, SHARED_RATE_PER_S, rows)
    bench.goals.append(
        Goal("most orders in any second : the rate, 4 workers", "", (kept.most,), 1.05, 1.05, at_most=True)
    )
    return (
        f"Four workers with a rate of {SHARED_RATE_PER_S} a second, {rows:,} rows, by the gateway's record: "
        f"{kept.mean:.1%} of the rate on the whole; over any second {kept.least:.1%} at the least and {kept.most:.1%} "
        "at the most.\n"
    )


def keys(bench: Bench) -> str:
    """Measure payouts with a key in a token and in a KMS of 20 ms, against what the key makes by itself."""
    measures: dict[str, Measure] = {}
    with ExitStack() as stack:
        places = [(f"a KMS of 20 ms, {KMS_CALLS} calls at once", stack.enter_context(in_slow_kms(KMS_CALLS)))]
        if softhsm() is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.directory))
            places.append(("a token (SoftHSM, RSA-2048, one session)", in_token(Path(folder), bench.merchant.key, 1)))
        else:
            tell(HOW_TO_GET_IT)
        rows = bench.rows(3_000)
        for name, key in places:
            measures[f"{name}: signatures alone"] = partial(apart, alone_per_s, key, rows)
            measures[f"{name}: payouts"] = run_of(replace(bench.trial(), rows=rows, key=key))
        found = bench.side_by_side(measures, "/s")
    alone, runs = list(found.values())[::2], list(found.values())[1::2]
    named = [(name, run, own) for (name, _), run, own in zip(places, runs, alone, strict=True)]
    ratios = [Ratio.of(f"{name}: payouts : signatures", run, own, 0.95) for name, run, own in named]
    return bench.table("Payouts with a key that is not a file", found, ratios)


SECTIONS: Mapping[str, Callable[[Bench], str]] = {
    "engine": engine,
    "plain": plain,
    "journal": journal,
    "latency": latency,
    "validation": validation,
    "opening": opening,
    "commands": commands,
    "resumed": resumed,
    "start": start,
    "console": console,
    "several": several,
    "keys": keys,
}
