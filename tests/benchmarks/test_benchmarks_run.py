"""The benchmarks run, at a tiny size and against the gateway that every machine has. No figure is judged here."""

from pathlib import Path

import pytest

from benchmarks.__main__ import BEGIN, END, SECTIONS, main
from benchmarks.figures import Figure, Ratio, Sample, side_by_side, table


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_comes_to_its_figures(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"Before.\n{BEGIN}\nOld figures.\n{END}\nAfter.\n", encoding="utf-8")
    words = ["--only", section, "--scale", "0.001", "--repetitions", "1", "--bare", "--directory", str(tmp_path)]
    monkeypatch.setattr("benchmarks.__main__.apart", lambda measure, *args: measure(*args))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.argv", ["benchmarks", *words, "--write", str(document)])
    main()
    written = document.read_text(encoding="utf-8")
    assert written.startswith(f"Before.\n{BEGIN}\n")
    assert written.endswith(f"{END}\nAfter.\n")
    assert "Old figures" not in written
    assert "\n### " in written


def test_a_ratio_is_taken_repetition_by_repetition() -> None:
    one, other = Figure("one", "/s", (10.0, 40.0, 90.0)), Figure("other", "/s", (10.0, 20.0, 30.0))
    assert Ratio.of("ratio", one, other, goal=1.5).samples == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("goal", "at_most", "verdict"), [(2.0, False, "yes"), (4.0, False, "no, by 50%"), (1, True, "no, by 100%")]
)
def test_a_ratio_says_whether_it_is_reached_and_by_how_much_not(goal: float, at_most: bool, verdict: str) -> None:
    assert Ratio("ratio", (1.0, 2.0, 3.0), goal, at_most).line().endswith(f"| {verdict} |")


def test_contenders_take_turns() -> None:
    turns: list[str] = []

    def contender(name: str, value: float) -> Sample:
        turns.append(name)
        return Sample(value)

    found = side_by_side({"a": lambda: contender("a", 1), "b": lambda: contender("b", 2)}, 2, "/s", lambda _: None)
    assert turns == ["a", "b", "a", "b"]
    assert found["b"].samples == (2, 2)


def test_a_table_shows_median_spread_and_processor_time() -> None:
    figure = Figure("payouts", "/s", (1000.0, 3000.0, 2000.0), (250.0, 260.0, 270.0))
    assert "| payouts | 2,000 /s | 1,000 to 3,000 | 260 us |" in table("Title", [figure], [])


def test_a_table_is_followed_by_a_plot_of_its_medians() -> None:
    figures = [Figure("ours", "/s", (1500.5, 1.0, 9000.0)), Figure("theirs", "/s", (0.05, 0.05, 0.05))]
    text = table("Payouts", figures, [])
    assert '    title "Payouts (medians, /s)"\n    x-axis ["ours", "theirs"]\n    bar [1500.5, 0.05]\n' in text
    assert "mermaid" not in table("Payouts", [], [])
