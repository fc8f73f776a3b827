"""Use cases without a command line: questions are functions, and refusals and next steps are data."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.silent_progress import SilentProgress
from paygw_batch.approval.policy import default_plan_path
from paygw_batch.clock import timestamp
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import State
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.errors import UsageError
from paygw_batch.journal import RowState
from paygw_batch.opening.gateway_access import SendJob, open_gateway
from paygw_batch.opening.given_sheet import SheetSource, rules_for
from paygw_batch.opening.open_journal import open_journal_for_run, open_journal_to_read
from paygw_batch.settings.configuration import Settings, load_settings
from paygw_batch.show.batch_status import batch_status, journal_status
from paygw_batch.show.next_step import RowStep, batch_steps, next_step, step_sentence
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.send import send
from paygw_batch.submit.submission import Conversation, RefusedSheet, Submission, plan_sheet
from paygw_batch.submit.submit_sheet import (
    find_unfinished_batch,
    open_batch_to_continue,
    release_rejected_rows,
    submit_sheet,
)
from tests.support.program import Program, kenyan_rows, sandbox_toml

WORK = "a test"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(tmp_path, config)


def settings_for(program: Program) -> Settings:
    return load_settings(program.config, environ={})


def build_submission(program: Program, rows: Sequence[str], name: str = "payroll.csv") -> Submission:
    sheet = program.sheet(list(rows), name)
    settings = settings_for(program)
    given = SheetSource(settings, rules_for(settings, PAYOUT), sheet)
    return Submission.read(given, Choices(decided_by="Jane"), default_plan_path(sheet))


def send_all(task: SendJob, _plan: Plan) -> RunEnd:
    return send(task, SilentProgress(), lambda _engine: None)


def submit(program: Program, asked: Submission, conversation: Conversation | None = None) -> RunEnd | RefusedSheet:
    settings = settings_for(program)
    rules = rules_for(settings, PAYOUT)
    with (
        open_gateway(settings, rules, {}) as gateway,
        open_journal_for_run(settings, WORK, lambda _sentence: None) as journal,
    ):
        return submit_sheet(asked, gateway, journal, conversation or Conversation(), send_all)


@contextmanager
def continue_batch(program: Program) -> Iterator[SendJob]:
    with open_batch_to_continue(settings_for(program), WORK, find_unfinished_batch, {}, lambda _sentence: None) as task:
        yield task


def test_use_cases_import_no_command_line_modules() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "for room in ('approval', 'opening', 'settle', 'show', 'submit', 'unattended'):\n"
        "    for found in pkgutil.iter_modules([f'paygw_batch/{room}'], f'paygw_batch.{room}.'):\n"
        "        if found.name != 'paygw_batch.settle.settle_rows':\n"  # httpx loads click and rich by itself
        "            importlib.import_module(found.name)\n"
        "print(*(name for name in sys.modules if name.startswith(('click', 'rich', 'paygw_batch.cli'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == []


def test_submission_without_user_interface_records_submitter(program: Program) -> None:
    end = submit(program, build_submission(program, kenyan_rows(3)))
    assert isinstance(end, RunEnd)
    assert end.sent == 3
    with open_journal_to_read(settings_for(program)) as journal:
        (record,) = journal.batches()
        assert [entry.by for entry in journal.history(record.number)] == ["Jane"]


def test_sheet_with_defects_is_refused_and_not_opened(program: Program) -> None:
    shown: list[Plan] = []
    rows = [*kenyan_rows(2), "KE,PAY-3,-5,KES,Jane Wanjiku,254712345003,+254712345003"]
    refused = submit(program, build_submission(program, rows), Conversation(show=shown.append))
    assert isinstance(refused, RefusedSheet)
    assert refused.question is None
    assert refused.states == {"invalid": 1, "ready": 2}
    assert shown == [refused.plan]
    with open_journal_to_read(settings_for(program)) as journal:
        assert journal.batches() == []


@pytest.mark.parametrize("answer", [True, False, None])
def test_repeated_sheet_is_refused_without_confirmation(program: Program, answer: bool | None) -> None:
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return bool(answer)

    submit(program, build_submission(program, kenyan_rows(4)))
    again = build_submission(program, kenyan_rows(4, prefix="AGAIN"), "again.csv")
    result = submit(program, again, None if answer is None else Conversation(confirm=confirm))
    assert isinstance(result, RunEnd) is bool(answer)
    assert len(questions) == (answer is not None)
    if isinstance(result, RefusedSheet):
        assert result.question is not None
        assert result.question.code == "sheet.repeats_a_batch"
    assert len(program.record()) == (8 if answer else 4)


def test_planning_writes_nothing(program: Program) -> None:
    submit(program, build_submission(program, kenyan_rows(1)))
    with open_journal_to_read(settings_for(program)) as journal:
        before = journal.head()
        plan = plan_sheet(build_submission(program, kenyan_rows(2), "more.csv"), journal)
        assert (plan.existing, plan.known_row_count) == (None, 1)
        assert journal.head() == before


def test_continued_batch_sends_only_remaining_rows(program: Program) -> None:
    asked = build_submission(program, kenyan_rows(3))
    assert isinstance(submit(program, replace(asked, choices=Choices(first=1))), RunEnd)
    with continue_batch(program) as task:
        assert send(task, SilentProgress(), lambda _engine: None).sent == 2
    with continue_batch(program) as task:
        assert send(task, SilentProgress(), lambda _engine: None).sent == 0
        assert release_rejected_rows(task, (), "Jane").rows == 0
        with pytest.raises(UsageError, match=r"Row 2 is paid\."):
            release_rejected_rows(task, (2,), "Jane")


def test_batch_status_counts_states_and_rows(program: Program) -> None:
    submit(program, replace(build_submission(program, kenyan_rows(3)), choices=Choices(first=1)))
    settings = settings_for(program)
    with open_journal_to_read(settings) as journal:
        (record,) = journal.batches()
        status = batch_status(settings, journal, record)
        all_of = journal_status(journal)
    assert (status.attention_count, status.rows, status.summary.states) == (0, [], {"ready": 2, "paid": 1})
    assert [batch.record.batch for batch in all_of.batches] == [record.batch]
    assert (all_of.states, all_of.attention_count) == ({"ready": 2, "paid": 1}, 0)


@pytest.mark.parametrize(
    ("states", "interrupted", "steps"),
    [
        ({"paid": 3}, False, []),
        ({"ready": 2, "paid": 1}, False, ["To send the rows that have not been sent yet, run `paygw-batch resume B`."]),
        ({"ready": 2, "paid": 1}, True, ["Interrupted: run the same command again to continue."]),
        (
            {"in_doubt": 1, "rejected": 4},
            False,
            [
                (
                    "Rows in doubt may have been paid and are never sent again automatically. To see what to do about "
                    "each, run `paygw-batch status B`."
                ),
                "To retry rejected rows, run `paygw-batch retry B`.",
            ],
        ),
    ],
)
def test_batch_state_determines_next_steps(states: dict[str, int], interrupted: bool, steps: list[str]) -> None:
    assert list(batch_steps(states, "B", contradictions=0, waiting=0, interrupted=interrupted)) == steps


def standing(state: State, intended_at: str, *, by_person: bool) -> RowState:
    of_gateway = (None, None, None, None, None)
    sent = ("PAY-1", None, *of_gateway, None, intended_at, intended_at, intended_at)
    return RowState(2, 1, 1, "PAY-1", "KE", "KES", 150050, state, 1, *sent, intended_at if by_person else None)


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "by_person", "left_h", "step", "has_to_wait"),
    [
        (State.IN_DOUBT, False, 1, RowStep.RESOLVE_DOUBT, True),
        (State.IN_DOUBT, False, 25, RowStep.RESOLVE_DOUBT, False),
        (State.ACCEPTED, False, 1, None, False),
        (State.ACCEPTED, False, 25, RowStep.RESOLVE_ACCEPTED, False),
        (State.REJECTED, True, 1, RowStep.RETRY_AFTER_PERSON, True),
        (State.REJECTED, False, 25, RowStep.RETRY, False),
        (State.RETURNED, False, 25, RowStep.PAY_AGAIN, False),
        (State.PAID, False, 25, None, False),
    ],
)
def test_row_state_determines_next_step(
    state: State, by_person: bool, left_h: int, step: RowStep | None, has_to_wait: bool
) -> None:
    row = standing(state, timestamp(NOW - timedelta(hours=left_h)), by_person=by_person)
    next_action = next_step(row, batch="abc", verb="pay", quarantine=Quarantine(24), now=NOW)
    assert (next_action and next_action.kind) == step
    if next_action is not None:
        assert bool(next_action.not_before) is has_to_wait
        assert step_sentence(next_action)
