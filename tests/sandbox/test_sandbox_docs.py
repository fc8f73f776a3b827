"""docs/sandbox.md describes the shipped behaviour correctly."""

import re
from pathlib import Path

from paygw_batch.sandbox.reply import parse_behaviour, shipped_behaviour
from paygw_batch.sandbox.verifier import MAX_BODY_BYTES

TEXT = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")


def test_documented_amounts_match_shipped_behaviour() -> None:
    documented = re.findall(r"^\| (9[0-9]{3}) \| `([a-z0-9_-]+)`.*? \| (yes|no) \|", TEXT, re.MULTILINE)
    shipped = [
        (str(rule.amount_whole), rule.fault or rule.status, "yes" if rule.commits else "no")
        for rule in shipped_behaviour().rule
    ]

    assert documented == shipped


def test_documented_behaviour_file_is_valid() -> None:
    (example,) = re.findall(r"((?:    [^\n]+\n|\n)*    \[default\]\n(?:    [^\n]+\n|\n)+)", TEXT)

    behaviour = parse_behaviour(example, name="docs/sandbox.md")

    assert behaviour.default.delay_s == 0.05
    assert [rule.every_nth for rule in behaviour.rule] == [1000]


def test_body_limit_is_documented() -> None:
    assert f"{MAX_BODY_BYTES:,} bytes" in TEXT
