"""Measure everything and print it as Markdown: `python -m benchmarks`.

What is compared is measured side by side, one repetition after another. A default run takes some minutes; with
`--most-rows 1000000` whole commands pay a million rows, which takes some more. The last tables say how fast this
machine is beside the one on which the goals were set, what was to be reached, and whether it was.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.commands import WORKPLACE
from benchmarks.figures import goals_table
from benchmarks.machine import machine
from benchmarks.machine_speed import contenders, section, times_slower
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import null_gateway
from benchmarks.pictures import Gallery, can_draw
from benchmarks.sections import SECTIONS, SIZES, SLOW_GATEWAYS_S, Bench

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


@contextmanager
def prepared(told: argparse.Namespace) -> Iterator[Bench]:
    """Yield a bench with a merchant and gateways that run."""
    told.directory.mkdir(mode=0o700, exist_ok=True)
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
            gallery = None if told.pictures is None else Gallery(told.pictures, told.pictures.name)
            yield Bench(directory, merchant, gateway, slow, told.repetitions, told.most_rows, told.scale, gallery)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything, side by side.")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="measure this (default: everything)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--most-rows", type=int, default=SIZES[2], help="the largest sheet: 1000000 takes long, 10000000 very long"
    )
    parser.add_argument("--pictures", type=Path, help="draw pictures into this folder (group `bench`)")
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction, to try the machinery itself")
    parser.add_argument("--bare", action="store_true", help="use our own null gateway even where there is nginx")
    parser.add_argument(
        "--directory", type=Path, default=WORKPLACE, help="on the disk to measure (default: %(default)s)"
    )
    parser.add_argument("--write", type=Path, help="put the figures between the marks in this document")
    told = parser.parse_args()
    if told.pictures is not None and not can_draw():
        parser.error("pictures need matplotlib: install the group `bench`")
    with prepared(told) as bench:
        parts = [machine(bench.directory, bench.gateway.server, bench.merchant.key)]
        parts += [SECTIONS[name](bench) for name in told.only or SECTIONS]
        if bench.goals:
            speed = bench.side_by_side(contenders(bench.directory, bench.merchant.key, bench.scale), "/s")
            parts += [section(speed), goals_table(bench.goals, times_slower(speed))]
    text = "\n".join(parts)
    print(text)
    if told.write is not None:
        before, _, rest = told.write.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        told.write.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
