"""The API without a run: validate, plan, approve, find, settle, release; other frames; the page about it."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from paygw_batch import api
from paygw_batch.api import (
    ApprovalError,
    BatchState,
    Conclusion,
    Finished,
    OutcomeKind,
    Payouts,
    Planned,
    Refused,
    Resolution,
    SheetError,
    UsageError,
)
from tests.api.frames import NAME, finished, people
from tests.support.approving import policy
from tests.support.checkout import ROOT, copy_versioned
from tests.support.program import HEADING, Program, kenyan_rows, sandbox_toml


class OtherFrame:
    """A frame of an unknown library, which has only Arrow's interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


def pay_frame(payouts: Payouts, rows: int, **amount: str) -> Finished:
    with payouts.submit(people(rows, **amount), name=NAME) as run:
        return finished(run.wait())


def test_validate_reports_defects_and_creates_no_journal(payouts: Payouts, program: Program) -> None:
    bad = people(3).with_columns(amount=pl.Series(["1", "1e3", "2"]))
    found = payouts.validate(bad, name=NAME)
    assert (found.rows, found.payable, found.totals) == (3, 2, {"KES": "3.00"})
    assert found.defects.select("row", "code").rows() == [(3, "amount.exponent")]
    assert found.headings["amount"] == "amount"
    assert not program.journal.exists()
    assert found.batch == payouts.validate(bad, name="another.csv").batch


def test_ambiguous_sheet_raises_until_arguments_resolve_it(payouts: Payouts, program: Program) -> None:
    heading = HEADING.replace("client_orderid,", "")
    rows = [",".join([row.split(",")[0], *row.split(",")[2:]]).replace("Jane", "Aïcha") for row in kenyan_rows(2)]
    path = program.home / "paie.csv"
    path.write_bytes("\n".join([heading, *rows]).encode("cp1252"))
    with pytest.raises(SheetError, match="Aïcha"):
        payouts.validate(path)
    with pytest.raises(SheetError, match="no order ids"):
        payouts.validate(path, encoding="cp1252")
    assert payouts.validate(path, encoding="cp1252", reference=NAME).payable == 2


def test_frame_from_other_library_is_paid(payouts: Payouts) -> None:
    with payouts.submit(OtherFrame(people(4)), name=NAME) as run:
        result = finished(run.wait())
    assert result.states == {"paid": 4}
    exact = people(4).with_columns(pl.col("amount").cast(pl.Decimal(20, 4)))
    for same in (people(4), people(4).lazy(), exact):
        with payouts.submit(same, name=NAME) as again:
            assert list(again) == []
        assert finished(again.result).batch == result.batch


def test_arrow_stream_is_read_once_for_plan(program: Program) -> None:
    """A stream can be read only once, although `submit` computes the findings of its plan again."""

    class Reader(OtherFrame):
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            rows, self._frame = self._frame, self._frame.clear()
            return rows.__arrow_c_stream__(requested_schema)

    program.config.write_text(sandbox_toml() + policy(program.home))
    payouts, home = Payouts(program.config, environ=program.environ), program.home
    plan = home / "plan.json"
    payouts.plan(Reader(people(2)), plan, home / "ada.pem", name=NAME)
    payouts.approve(plan, home / "ben.pem")
    with payouts.submit(Reader(people(2)), name=NAME, plan=plan) as run:
        assert finished(run.wait()).states == {"paid": 2}


@pytest.mark.parametrize("sheet", [None, b"country", [1], 7])
def test_missing_file_and_frame_is_usage_error(payouts: Payouts, sheet: object) -> None:
    with pytest.raises(UsageError, match="a file path or a data frame"):
        payouts.validate(sheet, name=NAME)  # type: ignore[arg-type]


def test_run_reports_batch_and_progress(payouts: Payouts) -> None:
    with payouts.submit(people(5), name=NAME) as run:
        assert (run.batch, run.total) == (payouts.batches()[0].batch, 5)
        outcomes = list(run)
        assert run.counts == {OutcomeKind.PAID: 5}
    first = min(outcomes, key=lambda one: one.row)
    shown = (first.client_orderid, first.payee, first.account, first.amount, first.currency)
    assert shown == ("PAY-1", "Jane Wanjiku", "254712345001", "1500.50", "KES")
    assert first.outcome.gateway_status == "approved"
    assert not [text for text in ("Jane", "approved") if text in repr(first)]
    assert json.loads(json.dumps(first.to_dict()))["payee"] == "Jane Wanjiku"


def test_status_and_find_match_commands(payouts: Payouts, program: Program) -> None:
    batch = pay_frame(payouts, 3).batch
    state = payouts.status(batch[:8])
    assert (state.conclusion, state.states, state.rows, state.needs_person) == (Conclusion.DONE, {"paid": 3}, 3, ())
    assert state.totals == program.json("status", batch)["totals"]
    assert [one.row for one in payouts.find("wanjiku")] == [4, 3, 2]
    assert [one.row for one in payouts.find("0712345002", limit=1)] == [3]
    with pytest.raises(UsageError):
        payouts.find(" ")


def test_retry_releases_rejected_rows(payouts: Payouts) -> None:
    first = pay_frame(payouts, 1, amount="9001")
    assert first.conclusion is Conclusion.SOME_REJECTED
    waiting = payouts.status(first.batch).needs_person
    assert [(one.row, one.state, one.amount, one.currency) for one in waiting] == [(2, "rejected", "9001.00", "KES")]
    with pytest.raises(UsageError), payouts.retry(first.batch, rows=[7]):
        pass
    with payouts.retry(first.batch, by="Ms Njeri") as run:
        again = finished(run.wait())
    assert (again.sent, again.reconciliation["sent_orderid"].to_list()) == (1, ["PAY-1-r2"])


def test_person_settles_row_in_doubt(payouts: Payouts, program: Program) -> None:
    first = pay_frame(payouts, 1, amount="9007")
    assert first.conclusion is Conclusion.PERSON_NEEDED
    (row,) = payouts.status(first.batch).needs_person
    assert (row.state, row.order_id, row.since is not None) == ("in_doubt", "PAY-1", True)
    with pytest.raises(UsageError):
        payouts.resolve(first.batch, [row.row], Resolution.NOT_RECEIVED, "ticket 4711")
    state = payouts.resolve(first.batch, [row.row], Resolution.PAID, "ticket 4711", by="Ms Njeri")
    assert (state.conclusion, state.states) == (Conclusion.DONE, {"paid": 1})
    history = program.json("status", first.batch, "--history")["history"]
    assert any("Ms Njeri" in deed["by"] for deed in history)


def test_waiting_row_repr_hides_payee(payouts: Payouts) -> None:
    result = pay_frame(payouts, 1, amount="9007")
    state = payouts.status(result.batch)
    (waiting,) = state.needs_person
    found = (result, state, payouts.validate(people(1, amount="x"), name=NAME), *payouts.find("Jane"))
    for one in found:
        assert not [text for text in ("Jane", "254712345", "shape") if text in repr(one)], repr(one)
    assert "'KES': {'in_doubt': '9007.00'}" in repr(result)
    assert "'KES': {'in_doubt': '9007.00'}" in repr(state)
    shown = (waiting.payee, waiting.account, waiting.amount, waiting.currency)
    assert shown == ("Jane Wanjiku", "254712345001", "9007.00", "KES")
    assert "Jane" not in repr(waiting)
    assert waiting.to_dict()["payee"] == "Jane Wanjiku"


def test_approved_plan_is_paid_through_api(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    payouts, plan = Payouts(program.config, environ=program.environ), program.home / "plan.json"
    keys = {name: program.home / f"{name}.pem" for name in ("ada", "cleo", "stranger")}
    paid_before = program.json("submit", program.sheet(kenyan_rows(1, amount="5", prefix="OLD"), "old.csv"))
    assert paid_before["exit_code"] == 0
    created = payouts.plan(people(3), plan, keys["ada"], name=NAME)
    assert isinstance(created, Planned)
    assert (created.rows, created.approvals, created.needed, created.totals) == (3, 0, 1, {"KES": "4501.50"})
    for name in ("ada", "stranger"):
        with pytest.raises(ApprovalError):
            payouts.approve(plan, keys[name])
    with pytest.raises(ApprovalError), payouts.submit(people(3), name=NAME, plan=plan):
        pass
    assert payouts.approve(plan, keys["cleo"]).approvals == 1
    with payouts.submit(people(3), name=NAME, plan=plan) as run:
        assert finished(run.wait()).states == {"paid": 3}
    assert isinstance(payouts.plan(people(1, amount="1e3"), plan, keys["ada"], name=NAME), Refused)


def test_run_with_wait_waits_for_journal(payouts: Payouts) -> None:
    with payouts.submit(people(2), name=NAME) as first, payouts.submit(people(2), name=NAME, wait=True) as second:
        assert finished(second.wait()).known == 2
        assert finished(first.wait()).states == {"paid": 2}


def test_every_result_converts_to_json(payouts: Payouts) -> None:
    completed = pay_frame(payouts, 2)
    results: Sequence[Finished | Refused | BatchState] = [completed, payouts.status(completed.batch)]
    for result in results:
        exported = json.loads(json.dumps(result.to_dict()))
        assert exported["batch" if not isinstance(result, Refused) else "message"]
    assert json.loads(json.dumps(completed.to_dict()))["reconciliation"][0]["state"] == "paid"
    found, batches = payouts.find("Jane"), payouts.batches()
    exported = [one.to_dict() for one in found] + [one.to_dict() for one in batches]
    assert {one["batch"] for one in json.loads(json.dumps(exported))} == {completed.batch}
    checked = payouts.validate(people(1, amount="x"), name=NAME).to_dict()
    assert json.loads(json.dumps(checked))["defects"][0]["code"] == "amount.format"


PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.share(2)
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_example_programs_on_api_page_run(number: int, tmp_path: Path) -> None:
    copy_versioned(tmp_path, "config", "samples")
    (tmp_path / "program.py").write_text(PROGRAMS[number])
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py"]
    completed = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    displayed = ("batch 9031919f17b351a1: {'EGP'", "PAY-0000001 paid")
    assert (displayed[number] in completed.stdout, len(PROGRAMS)) == (True, len(displayed))


@pytest.mark.long
def test_example_programs_on_api_page_are_typed(tmp_path: Path) -> None:
    for number, text in enumerate(PROGRAMS):
        (tmp_path / f"program_{number}.py").write_text(text)
    config = ROOT / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    command += map(str, tmp_path.glob("*.py"))
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout


def test_api_page_lists_every_conclusion_in_order() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, flags=re.MULTILINE) == [item.name for item in Conclusion]


def test_every_exported_name_exists() -> None:
    assert all(hasattr(api, name) for name in api.__all__)
