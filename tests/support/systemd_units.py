"""The systemd units in the documents."""

from pathlib import Path

from tests.support.checkout import ROOT

DOCS = ROOT / "docs"


UNITS = DOCS / "systemd"


def unit_keys(unit: Path) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            result.setdefault(name, []).append(value)
    return result
