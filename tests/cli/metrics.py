"""Reads the metrics that a run writes."""

import re

from tests.support.program import Program

SAMPLE = re.compile(r"([a-z_]+)(\{.*\})? (\S+)")


def read_gauges(program: Program) -> dict[str, float]:
    """Return the value of each gauge by name and labels, parsed by the rules of the text format."""
    found: dict[str, float] = {}
    helped, typed = set(), set()
    for line in (program.home / "paygw.prom").read_text().splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line.split()[3] == "gauge"
            typed.add(line.split()[2])
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            name, labels, value = sample.groups(default="")
            assert name in helped & typed
            assert f"{name}{labels}" not in found
            found[f"{name}{labels}"] = float(value)
    return found
