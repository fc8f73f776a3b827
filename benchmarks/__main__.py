"""Run all benchmarks and print the results as Markdown: `python -m benchmarks`.

Contenders are measured side by side, one repetition after another. A default run takes some minutes. With `--most-rows
1000000`, whole commands also pay a million rows. The last tables compare this machine with the reference machine, and
the results with the goals.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.commands import WORKPLACE
from benchmarks.figures import format_goals
from benchmarks.machine import describe_machine
from benchmarks.machine_speed import contenders, slowdown_factor, speed_section
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import null_gateway
from benchmarks.pictures import Gallery, can_draw
from benchmarks.sections import SECTIONS, SIZES, SLOW_GATEWAYS_S, Bench

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


@contextmanager
def prepared_bench(options: argparse.Namespace) -> Iterator[Bench]:
    """Yield a bench with a merchant and running gateways."""
    options.directory.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        merchant = Merchant.load_or_create(directory)
        with ExitStack() as stack:
            gateway = stack.enter_context(null_gateway(directory / "gateway", bare=options.bare))
            slow = {
                latency_s: stack.enter_context(
                    null_gateway(directory / f"slow-{latency_s}", latency_s=latency_s, bare=options.bare)
                )
                for latency_s in SLOW_GATEWAYS_S
            }
            gallery = None if options.pictures is None else Gallery(options.pictures, options.pictures.name)
            yield Bench(
                directory, merchant, gateway, slow, options.repetitions, options.most_rows, options.scale, gallery
            )


def main() -> None:
    """Run the benchmarks that the command line selects."""
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
    options = parser.parse_args()
    if options.pictures is not None and not can_draw():
        parser.error("pictures need matplotlib: install the group `bench`")
    with prepared_bench(options) as bench:
        parts = [describe_machine(bench.directory, bench.gateway.server, bench.merchant.key)]
        parts += [SECTIONS[name](bench) for name in options.only or SECTIONS]
        if bench.goals:
            speed = bench.side_by_side(contenders(bench.directory, bench.merchant.key, bench.scale), "/s")
            parts += [speed_section(speed), format_goals(bench.goals, slowdown_factor(speed))]
    text = "\n".join(parts)
    print(text)
    if options.write is not None:
        before, _, rest = options.write.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        options.write.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
