"""The list of batches, and watching a batch that is being sent."""

import json

import pytest

from tests.cli.conftest import MachineCache
from tests.cli.paying import block_first_reply, run_gateway
from tests.support.program import Program, kenyan_rows


def prepare_three_batches(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(2, prefix="A"), name="small.csv"))
    program.json("submit", program.sheet(kenyan_rows(2, amount="9001", prefix="B"), name="declined.csv"))
    program.json("submit", program.sheet(kenyan_rows(5, prefix="C"), name="large.csv"))


@pytest.fixture
def batches(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_three_batches)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("order", "sheets"),
    [
        ("opened", ["small.csv", "declined.csv", "large.csv"]),
        ("age", ["large.csv", "declined.csv", "small.csv"]),
        ("rows", ["large.csv", "small.csv", "declined.csv"]),
        ("sheet", ["declined.csv", "large.csv", "small.csv"]),
        ("person", ["declined.csv", "small.csv", "large.csv"]),
    ],
)
def test_status_lists_batches_in_requested_order(batches: Program, order: str, sheets: list[str]) -> None:
    assert [batch["sheet"] for batch in batches.json("status", "--sort", order)["batches"]] == sheets


def test_batch_list_shows_age_totals_and_open_rows(batches: Program) -> None:
    summary = batches.json("status")
    assert summary["states"] == {"paid": 7, "rejected": 2}
    assert summary["totals"] == {"KES": {"paid": "10503.50", "rejected": "18002.00"}}
    assert [batch["needs_person"] for batch in summary["batches"]] == [0, 2, 0]
    assert all(0 <= batch["age_s"] < 600 for batch in summary["batches"])
    assert "1 of them needs a decision" in summary["message"]
    listed = [line.split() for line in batches.run("status").stdout.splitlines() if ".csv" in line]
    assert [line[1:2] + line[3:] for line in listed] == [
        ["small.csv", "2", "2", "0", "0"],
        ["declined.csv", "2", "0", "0", "2"],
        ["large.csv", "5", "5", "0", "0"],
    ]


def test_status_lists_rows_in_doubt_up_to_limit(program: Program) -> None:
    text = program.config.read_text().replace("[submission]", "[submission]\nstop_after_rejected = 0")
    program.config.write_text(text)
    rows = [*kenyan_rows(30, amount="9001", prefix="NO"), *kenyan_rows(2, amount="9010", prefix="WHAT")]
    sheet = program.sheet(rows)
    program.json("submit", sheet)
    lines = program.run("status", sheet).stdout.splitlines()
    row_lines = [line for line in lines if line.startswith("- Row ")]
    assert "What to do next (32 rows need a decision):" in lines
    assert [int(line.split()[2].rstrip(",")) for line in row_lines] == [32, 33, *range(2, 20)]
    assert "... and 12 more. To list all of them, use --json." in lines
    summary = program.json("status", sheet)
    assert [row["row"] for row in summary["needs_person"]] == list(range(2, 34))
    assert [row["row"] for row in summary["in_doubt"]] == [32, 33]
    doubtful = program.run("status", sheet, "--in-doubt").stdout.splitlines()
    assert "What to do next (2 rows need a decision):" in doubtful


def test_watch_follows_batch_until_it_ends(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    with run_gateway(program) as gateway:
        with block_first_reply(program, gateway, "submit", sheet):
            watch = program.start("--json", "status", sheet, "--watch")
            assert watch.stderr is not None
            assert any("not sent yet" in line for line in watch.stderr), watch.communicate()  # the answers arrive now
        shown, _ = watch.communicate()
    assert json.loads(shown)["states"] == {"paid": 5}


def test_conflicting_status_options_are_refused(batches: Program) -> None:
    for arguments in (["--watch"], ["--in-doubt"], ["small.csv", "--out", "x.csv"]):
        assert batches.run("status", *arguments).exit_code == 2
