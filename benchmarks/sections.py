"""The sections of the results. Each measures one part side by side, and returns its Markdown."""

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

from benchmarks.commands import CommandResult, office, run_timed
from benchmarks.commands_resumed import open_sent_batch
from benchmarks.console_pages import TABS, page_times, polling_tabs, served_pages
from benchmarks.figures import Figure, Goal, Ratio, Sample, format_figure, run_isolated, side_by_side, table
from benchmarks.first_byte import measure_first_byte
from benchmarks.journal_alone import journal_payouts_per_s
from benchmarks.keys_elsewhere import import_into_token, key_signatures_per_s, slow_kms_key
from benchmarks.machine import sync_ms
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import NullGateway, response_time_s
from benchmarks.payouts import Trial, payouts_per_s
from benchmarks.pictures import Curve, Gallery, thin_curve
from benchmarks.plain_loops import Client, plain_payouts_per_s
from benchmarks.several_hosts import Shared, paid_from_a_file, pay_by_workers, server_on_disk
from benchmarks.shared_rate import measure_shared_rate
from benchmarks.sheets import KINDS, PARQUET, sheet_of_kind
from benchmarks.signatures import signatures_per_s
from benchmarks.validation import contenders as validations
from benchmarks.validation import cpu_ratio, peak_mib
from tests.support.postgres_server import PostgresServer
from tests.support.tokens import HOW_TO_GET_IT, find_softhsm

SLOW_GATEWAYS_S = (0.05, 1.0)
GROUPS_FACTS = (16, 64, 128)
"""The commit sizes of a run (`paygw_batch/engine/pacing.py`)."""
IN_FLIGHT = 64
PLAIN_IN_FLIGHT = (1, 10, 20, 64)
SLOW_FLUSH_S = 0.005
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PAGE_TIMES = 40
"""The number of requests for each page of the console."""
UPLOADED_ROWS = 100_000
SHARED_RATE_PER_S, SHARED_RATE_S = 200, 60
"""The shared rate limit of four workers, and the duration of the measurement."""
MAX_SENT_ROWS = 1_000_000
"""Larger sheets are validated and compared with the journal, but not sent, which would take an hour."""

KMS_CALLS = 4
"""The default number of concurrent calls."""

Measure = Callable[[], Sample]


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of the measurements. `scale` is 1, or a small fraction that only tests the benchmarks."""

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
        """Return the number of rows for a measurement of `count` rows at this scale."""
        return max(2 * IN_FLIGHT, round(count * self.scale))

    def trial(self) -> Trial:
        """Return a run of the engine against the null gateway."""
        return Trial(self.directory, self.gateway.base_url, self.rows(20_000), IN_FLIGHT)

    def side_by_side(self, contenders: Mapping[str, Measure], unit: str) -> dict[str, Figure]:
        """Measure the contenders in turn."""
        return side_by_side(contenders, self.repetitions, unit, report_progress)

    def table(self, title: str, found: Mapping[str, Figure], ratios: list[Ratio], note: str = "") -> str:
        """Return a Markdown section, with a picture if pictures are drawn."""
        figures = list(found.values())
        picture = self.gallery.bars(title, figures) if self.gallery is not None else []
        return table(title, figures, ratios, note, picture)

    def picture(
        self, title: str, across: str, up: str, curves: Mapping[str, Curve], *, is_log: bool = False
    ) -> list[str]:
        """Return the Markdown lines that show curves, or none if no pictures are drawn."""
        return self.gallery.curves(title, across, up, curves, is_log=is_log) if self.gallery is not None else []


def report_progress(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def trial_measurement(trial: Trial) -> Measure:
    """Return a measurement of an engine run in a separate process."""
    return partial(run_isolated, payouts_per_s, trial)


# Each section returns itself in Markdown.


def engine(bench: Bench) -> str:
    """Measure durable payouts against bare signatures, with and without journal, new connections and TLS."""
    trial = bench.trial()
    tls = replace(trial, base_url=bench.gateway.tls_url, ca_bundle=bench.gateway.ca_bundle)
    found = bench.side_by_side(
        {
            "bare signatures, two threads": partial(
                run_isolated, signatures_per_s, bench.merchant.key, bench.rows(20_000)
            ),
            "payouts, reused connections": trial_measurement(trial),
            "payouts, a fresh connection each": trial_measurement(replace(trial, connections="fresh")),
            "payouts, a fresh connection each, by an address": trial_measurement(
                replace(trial, base_url=bench.gateway.address_url, connections="fresh")
            ),
            "payouts, reused connections, no journal": trial_measurement(replace(trial, journal="memory")),
            "payouts, reused connections, a flush of 5 ms": trial_measurement(replace(trial, flush_s=SLOW_FLUSH_S)),
            "payouts, reused connections, TLS": trial_measurement(tls),
            "payouts, a fresh connection each, TLS": trial_measurement(replace(tls, connections="fresh")),
        },
        "/s",
    )
    signatures, reused, fresh, _, unrecorded, *_ = found.values()
    ratios = [
        Ratio.between("durable payouts, reused connections : signatures", reused, signatures, 0.60),
        Ratio.between("durable payouts, fresh connections : signatures", fresh, signatures, 0.45),
        Ratio.between("journal on : journal off", reused, unrecorded, 0.85),
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
    """Measure durable payouts against plain loops without this program."""
    url = bench.merchant.url(bench.gateway.base_url)
    for_s = 2.0 * min(1.0, bench.scale * 10)

    def loop(client: Client, in_flight: int) -> Measure:
        return partial(run_isolated, plain_payouts_per_s, client, bench.merchant.key, url, in_flight, for_s)

    contenders = {"durable payouts": trial_measurement(bench.trial())}
    contenders |= {f"plain httpx, {n} in flight": loop("httpx", n) for n in PLAIN_IN_FLIGHT}
    has_aiohttp = importlib.util.find_spec("aiohttp") is not None
    if has_aiohttp:
        contenders |= {f"plain aiohttp, {n} in flight": loop("aiohttp", n) for n in PLAIN_IN_FLIGHT}
    found = bench.side_by_side(contenders, "/s")
    ours = found["durable payouts"]
    ratios = [Ratio.between("durable payouts : best plain httpx loop", ours, _best_of_each(found, "plain httpx"), 5.0)]
    if has_aiohttp:
        ratios.append(
            Ratio.between("durable payouts : best plain aiohttp loop", ours, _best_of_each(found, "plain aiohttp"), 1.5)
        )
        bench.goals.append(
            Goal.ratio("durable : best aiohttp loop", ours, _best_of_each(found, "plain aiohttp"), 2, 2.2)
        )
    bench.goals.append(Goal.ratio("durable : best plain httpx loop", ours, _best_of_each(found, "plain httpx"), 6, 7))
    note = "The plain loops sign inline and keep no journal."
    return bench.table("Payouts against plain loops", found, ratios, note)


def _best_of_each(found: Mapping[str, Figure], start: str) -> Figure:
    """Return the best figure of each repetition, among those whose name has this prefix."""
    some = [figure.samples for name, figure in found.items() if name.startswith(start)]
    return Figure(f"best {start}", "/s", tuple(max(item) for item in zip(*some, strict=True)))


def journal(bench: Bench) -> str:
    """Measure the cost of the journal alone, by the size of a commit."""
    found = bench.side_by_side(
        {
            f"both facts of a payout, {facts} facts a commit": partial(
                run_isolated, journal_payouts_per_s, bench.directory, bench.rows(20_000), facts
            )
            for facts in GROUPS_FACTS
        },
        "/s",
    )
    largest = list(found.values())[-1]
    bench.goals.append(Goal("of it the journal, both facts", "us", largest.cpu_us, 40, 25, at_most=True))
    return bench.table("The journal alone", found, [], "On disk, in groups as a run makes them.")


def latency(bench: Bench) -> str:
    """Measure the share of a slow gateway's maximum rate that is reached, with and without warm-up and end."""
    flush_s = sync_ms(bench.directory)[0] / 1000
    alone_s = {
        latency_s: response_time_s(gateway.address_url, max(1, round(min(20, 1 / latency_s) * min(1.0, bench.scale))))
        for latency_s, gateway in bench.slow_gateways.items()
    }
    full = "payouts, no latency: the full cores"
    contenders, allowed = {full: trial_measurement(bench.trial())}, {}
    for latency_s, n, rows in ((0.05, 64, 16_000), (0.05, 256, 30_000), (1.0, 256, 2_560)):
        name = f"payouts, {n} in flight, {1000 * latency_s:.0f} ms"
        slow = replace(bench.trial(), base_url=bench.slow_gateways[latency_s].base_url)
        contenders[name] = trial_measurement(replace(slow, concurrency=n, rows=bench.rows(rows)))
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
    """Measure validation against a scan of the same file, for every kind of sheet."""
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
    peaks = [run_isolated(peak_mib, sheet_of_kind(bench.directory, KINDS[0], count)) for count in (rows, 2 * rows)]
    once, twice = (format_figure(peak) for peak in peaks)
    held = f"{rows:,} rows held {once} MiB at the most, {2 * rows:,} rows {twice} MiB.\n"
    note = "Ratios are of processor time."
    return bench.table(f"Validation of {rows:,} rows", found, ratios, note) + "\n" + held


def opening(bench: Bench) -> str:
    """Measure the time from Enter to the first byte of the first payout."""
    lines = [
        "### From Enter to the first byte",
        "",
        "| rows | median | spread | processor time | held at the most |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for rows in dict.fromkeys(bench.rows(size) for size in SIZES if size <= bench.most_rows):
        ended = []
        for _ in range(bench.repetitions if rows < SIZES[-1] else 1):
            with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
                ended.append(measure_first_byte(machine, machine.make_sheet(rows)))
                report_progress(f"{rows:,} rows: {ended[-1].seconds:.1f} s to the first byte")
        seconds, cpu_s, peaks = zip(*((one.seconds, one.cpu_s, one.peak_mib) for one in ended), strict=True)
        spread = f"{format_figure(min(seconds))} to {format_figure(max(seconds))} s"
        middle = [format_figure(statistics.median(some)) for some in (seconds, cpu_s, peaks)]
        lines.append(f"| {rows:,} | {middle[0]} s | {spread} | {middle[1]} s | {middle[2]} MiB |")
        if rows == MAX_SENT_ROWS:
            bench.goals.append(Goal("a million rows: from Enter to the first byte", "s", seconds, 6, 3, at_most=True))
    return "\n".join([*lines, ""])


def commands(bench: Bench) -> str:
    """Measure whole commands, from the sheet to the reconciliation file."""
    parts = [
        "### Whole commands",
        "",
        "| rows | command | wall | a row | processor time a row | peak memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    costs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    held: dict[str, Curve] = {}
    for rows in dict.fromkeys(bench.rows(size) for size in SIZES if size <= bench.most_rows):
        for command, ended in _run_all_commands(bench, rows, parts):
            costs[command].append((rows, 1e6 * ended.seconds / rows))
            if command == "submit" and ended.held:
                held[f"{rows:,} rows"] = thin_curve(ended.held)
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


def _run_all_commands(bench: Bench, rows: int, parts: list[str]) -> Iterator[tuple[str, CommandResult]]:
    """Run every command on a sheet of `rows` rows with an empty journal."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
        sheet = machine.make_sheet(rows)
        if rows > MAX_SENT_ROWS:
            for command, words in {"validate": ("validate",), "submit": ("submit", "--dry-run")}.items():
                ended = machine.call(*words, str(sheet))
                parts.append(_command_row(rows, " ".join(words), ended))
                yield command, ended
            return
        for command, words in {
            "validate": ("validate", str(sheet)),
            "submit": ("submit", str(sheet)),
            "submit again": ("submit", str(sheet)),
            "resume": ("resume", str(sheet)),
            "status": ("status", str(sheet)),
            "reconcile": ("reconcile", str(sheet), "--out", str(machine.directory / "again.csv")),
            "verify": ("verify",),
        }.items():
            ended = machine.call(*words)
            parts.append(_command_row(rows, command, ended))
            report_progress(parts[-1])
            yield command, ended
        parts.append(f"| {rows:,} | journal | | {machine.journal_bytes() / rows:,.0f} bytes | | |")


def _command_row(rows: int, command: str, ended: CommandResult) -> str:
    wall_us, cpu_us = 1e6 * ended.seconds / rows, 1e6 * ended.cpu_s / rows
    wall = f"{ended.seconds:,.1f} s | {wall_us:,.0f} us | {cpu_us:,.0f} us"
    return f"| {rows:,} | {command} | {wall} | {ended.peak_mib:,.0f} MiB |"


def resumed(bench: Bench) -> str:
    """Measure commands on a batch that was almost fully sent."""
    rows = bench.rows(min(bench.most_rows, MAX_SENT_ROWS))
    parts = [
        "### A batch of which 1 % is left",
        "",
        "What is left is sent by `resume`; every row before it was accepted.",
        "",
        "| rows | command | wall | a row | processor time a row | peak memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
        sheet = machine.make_sheet(rows)
        run_isolated(open_sent_batch, sheet, machine.journal, machine.environment())
        for words in (
            ("resume", str(sheet)),
            ("status", str(sheet)),
            ("status", str(sheet), "--row", "2"),
            ("verify",),
        ):
            ended = machine.call(*words)
            parts.append(_command_row(rows, " ".join(word for word in words if word != str(sheet)), ended))
            report_progress(parts[-1])
            if "--row" in words and rows == MAX_SENT_ROWS:
                bench.goals.append(
                    Goal("`status --row`, a million rows", "s", (ended.seconds,), 0.7, 0.4, at_most=True)
                )
    return "\n".join([*parts, ""])


def start(bench: Bench) -> str:
    """Measure the start-up time of the program."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
        sheet = machine.make_sheet(10)
        program = [sys.executable, "-m", "paygw_batch"]
        found = bench.side_by_side(
            {
                "python -c pass": lambda: run_timed([sys.executable, "-c", "pass"]).sample(),
                "paygw-batch --help": lambda: run_timed([*program, "--help"]).sample(),
                "validate, ten rows": lambda: machine.call("validate", str(sheet)).sample(),
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
    """Measure the console: its pages with a long journal, an upload, and the cost of polling tabs for a run."""
    rows, uploaded = bench.rows(min(bench.most_rows, MAX_SENT_ROWS)), bench.rows(UPLOADED_ROWS)
    parts = [
        "### The console",
        "",
        f"| page, {rows:,} rows in the journal | median | 95th percentile | processor time | length |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    p95s_ms = []
    with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
        run_isolated(open_sent_batch, machine.make_sheet(rows), machine.journal, machine.environment())
        with served_pages(machine) as pages:
            for page in page_times(machine, pages, max(3, round(PAGE_TIMES * min(1.0, bench.scale)))):
                parts.append(page.line())
                report_progress(parts[-1])
                p95s_ms.append(page.p95_ms)
            upload_s = pages.upload(machine.make_sheet(uploaded, prefix="NEW", bad_share=0.01))
            peak_mib = pages.peak_mib()
    contenders = {f"a run, {tabs} tabs": partial(_pay_while_polled, bench, tabs) for tabs in (0, TABS)}
    found = bench.side_by_side(contenders, "s")
    alone, polled = found.values()
    costs = Ratio.between(f"a run with {TABS} tabs to one without", polled, alone, 1.03, at_most=True)
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


def _pay_while_polled(bench: Bench, tabs: int) -> Sample:
    """Pay a sheet while `tabs` tabs of a console poll an earlier payout."""
    with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
        machine.call("submit", str(machine.make_sheet(10, prefix="BEFORE")))
        sheet = machine.make_sheet(bench.rows(20_000))
        with served_pages(machine) as pages, polling_tabs(pages, tabs):
            return machine.call("submit", str(sheet)).sample()


def several(bench: Bench) -> str:
    """Measure a sheet that workers pay from a journal in PostgreSQL, against a journal in a file; and their rate."""
    parts = []
    with server_on_disk() as server:
        for rows in (bench.rows(20_000), *(size for size in SIZES if MAX_SENT_ROWS <= size <= bench.most_rows)):
            repetitions = bench.repetitions if rows < MAX_SENT_ROWS else 1
            parts.append(_compare_workers(replace(bench, repetitions=repetitions), server, rows))
        parts.append(_shared_rate(bench, server))
    return "\n".join(parts)


def _compare_workers(bench: Bench, server: PostgresServer, rows: int) -> str:
    shared: dict[str, list[Shared]] = defaultdict(list)

    def pay_from_file() -> Sample:
        with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
            return paid_from_a_file(machine, rows)

    def pay_from_postgres(name: str, workers: int) -> Sample:
        with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
            shared[name].append(pay_by_workers(machine, server, workers, rows))
        return shared[name][-1].paid_per_s

    names = {"PostgreSQL, `submit` alone": 0, "PostgreSQL, 1 worker": 1, "PostgreSQL, 4 workers": 4}
    by_workers = {name: partial(pay_from_postgres, name, workers) for name, workers in names.items()}
    found = bench.side_by_side({"a journal in a file": pay_from_file, **by_workers}, "/s")
    in_file, alone, _, four = found.values()
    ratios = [
        Ratio.between("4 workers : a journal in a file, one machine", four, in_file, 0.7),
        Ratio.between("`submit` alone, PostgreSQL : a journal in a file", alone, in_file, 0.7),
    ]
    costs = [
        f"{name}: the server takes {statistics.median(one.server_us for one in completed):,.0f} us "
        "of processor time a row, "
        f"and {statistics.median(one.bytes_a_row for one in completed):,.0f} bytes; `submit` held "
        f"{max(one.submit_mib for one in completed):,.0f} MiB at the most"
        f"{''.join(f', {held}' for held in (completed[-1].held(),) if held)}.\n"
        for name, completed in shared.items()
    ]
    curves = {
        name: thin_curve(completed[-1].workers_mib) for name, completed in shared.items() if completed[-1].workers_mib
    }
    picture = bench.picture(f"Memory of a worker, {rows:,} rows", "seconds", "MiB", curves)
    note = (
        f"`submit` of {rows:,} rows, from its start to its end; a server, workers and gateway on the same cores. Its "
        "processor time is that of `submit` and of all workers."
    )
    return "\n".join([bench.table(f"Several hosts, {rows:,} rows", found, ratios, note), *costs, *picture])


def _shared_rate(bench: Bench, server: PostgresServer) -> str:
    rows = max(int(SHARED_RATE_PER_S * 8), round(SHARED_RATE_PER_S * SHARED_RATE_S * min(1.0, bench.scale)))
    with office(bench.directory, bench.merchant.key, bench.gateway) as machine:
        kept = measure_shared_rate(machine, server, 4, SHARED_RATE_PER_S, rows)
    bench.goals.append(
        Goal("most orders in any second : the rate, 4 workers", "", (kept.most,), 1.05, 1.05, at_most=True)
    )
    return (
        f"Four workers with a rate of {SHARED_RATE_PER_S} a second, {rows:,} rows, by the gateway's record: "
        f"{kept.mean:.1%} of the rate on the whole; over any second {kept.least:.1%} at the least and {kept.most:.1%} "
        "at the most.\n"
    )


def keys(bench: Bench) -> str:
    """Measure payouts with a key in a token and in a KMS of 20 ms, against the key's own rate."""
    measures: dict[str, Measure] = {}
    with ExitStack() as stack:
        places = [(f"a KMS of 20 ms, {KMS_CALLS} calls at once", stack.enter_context(slow_kms_key(KMS_CALLS)))]
        if find_softhsm() is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.directory))
            places.append(
                ("a token (SoftHSM, RSA-2048, one session)", import_into_token(Path(folder), bench.merchant.key, 1))
            )
        else:
            report_progress(HOW_TO_GET_IT)
        rows = bench.rows(3_000)
        for name, key in places:
            measures[f"{name}: signatures alone"] = partial(run_isolated, key_signatures_per_s, key, rows)
            measures[f"{name}: payouts"] = trial_measurement(replace(bench.trial(), rows=rows, key=key))
        found = bench.side_by_side(measures, "/s")
    alone, runs = list(found.values())[::2], list(found.values())[1::2]
    named = [(name, run, own) for (name, _), run, own in zip(places, runs, alone, strict=True)]
    ratios = [Ratio.between(f"{name}: payouts : signatures", run, own, 0.95) for name, run, own in named]
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
