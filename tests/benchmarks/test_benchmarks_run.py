"""The benchmarks run at a tiny size against the built-in null gateway. No result is judged here."""

from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name

import apsw
import pytest

from benchmarks.__main__ import BEGIN, END, main
from benchmarks.figures import Figure, Goal, Ratio, Sample, format_goals, side_by_side
from benchmarks.opening import BESIDE, STEPS
from benchmarks.sections import SECTIONS
from benchmarks.sheets import KINDS, sheet_of_kind
from benchmarks.slow_disk import slow_flushes
from benchmarks.validation import OPTIONS, invented_terms
from paygw_batch.countries.load import load_rules
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.support.long_part import long

LONG = {"several", "console", "commands", "latency", "resumed", "keys"}
"""Sections that take seconds, and whose programs the rest of the tests starts as well."""


@pytest.mark.parametrize("path", [*(path for _, path, _ in STEPS), *BESIDE.values()])
def test_opening_timings_name_existing_functions(path: str) -> None:
    assert callable(resolve_name(path))


@pytest.mark.share(3)
@pytest.mark.parametrize("section", [long(name) if name in LONG else name for name in SECTIONS])
def test_every_benchmark_section_writes_its_figures(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"Before.\n{BEGIN}\nOld figures.\n{END}\nAfter.\n", encoding="utf-8")
    words = ["--only", section, "--scale", "0.001", "--repetitions", "1", "--bare", "--directory", str(tmp_path)]
    for place in ("sections", "validation"):
        monkeypatch.setattr(f"benchmarks.{place}.run_isolated", lambda measure, *args: measure(*args))
    monkeypatch.setattr("benchmarks.sections.SIZES", (1_000, 10_000, 100_000))
    monkeypatch.setattr("benchmarks.sections.SLOW_FLUSH_S", 0.0001)
    monkeypatch.setattr("benchmarks.sections.SHARED_RATE_PER_S", 20)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.argv", ["benchmarks", *words, "--write", str(document)])
    main()
    written = document.read_text(encoding="utf-8")
    assert written.startswith(f"Before.\n{BEGIN}\n")
    assert written.endswith(f"{END}\nAfter.\n")
    assert ("Old figures" in written, "\n### " in written) == (False, True)


def test_ratio_of_repetitions_ends_with_verdict() -> None:
    item, other = Figure("one", "/s", (10.0, 40.0, 90.0)), Figure("other", "/s", (10.0, 20.0, 30.0))
    ratio = Ratio.between("ratio", item, other, goal=1.5)
    assert ratio.samples == (1.0, 2.0, 3.0)
    for goal, at_most, verdict in ((2.0, False, "yes"), (4.0, False, "no, by 50%"), (1.0, True, "no, by 100%")):
        assert Ratio("ratio", ratio.samples, goal, at_most).line().endswith(f"| {verdict} |")


def test_contenders_run_alternately() -> None:
    turns: list[str] = []

    def contender(name: str, value: float) -> Sample:
        turns.append(name)
        return Sample(value)

    result = side_by_side({"a": lambda: contender("a", 1), "b": lambda: contender("b", 2)}, 2, "/s", lambda _: None)
    assert turns == ["a", "b", "a", "b"]
    assert result["b"].samples == (2, 2)


def test_goals_table_scales_times_and_shows_verdicts() -> None:
    for sample, at_most, verdict in (
        *((4.0, True, "goal"), (5.0, True, "reach"), (10.0, True, "no, by 100%"), (1.0, False, "no, by 80%")),
    ):
        goal = Goal("ratio", "us", (sample,), 5, 4, at_most=at_most)
        assert f"| 5 | 4 | {verdict} |" in format_goals([goal], 1.0)
    time, ratio = Goal("time", "us", (300.0,), 150, 120, at_most=True), Goal("ratio", "", (0.5,), 0.55, 0.6)
    *_, first, second = format_goals([time, ratio], 2.0).rstrip().splitlines()
    assert first == "| time | 300 us | 300 to 300 | 150 | 120 | no, by 100% | 150 us |"
    assert second.endswith("| 0.55 | 0.6 | no, by 9% |  |")  # Only times depend on the machine.


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", KINDS)
def test_sheet_of_each_kind_has_stated_defects(kind: str, tmp_path: Path) -> None:
    rows = 600
    result = validate(read_sheet(sheet_of_kind(tmp_path, kind, rows), OPTIONS), load_rules("payout", invented_terms()))
    share = {"half bad": 0.5, "1 % bad": 0.01, "everything at once": 0.01}.get(kind, 0)
    assert result.height == rows
    assert abs(result.defects["row"].n_unique() - share * rows) <= 0.05 * rows * (share > 0)
    assert not result.warnings.height


def test_simulated_slow_disk_delays_each_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("benchmarks.slow_disk.time.sleep", waits.append)
    before = apsw.vfs_names()
    with slow_flushes(0.005), closing(apsw.Connection(str(tmp_path / "a.sqlite3"))) as connection:
        connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full; CREATE TABLE a (b)").fetchall()
        already = len(waits)
        connection.execute("INSERT INTO a VALUES (1)").fetchall()
        assert waits[already:] == [0.005]
    assert apsw.vfs_names() == before
