"""The story of one seed: runs with mishaps, people in between, and a calm end at which everything must be right."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from paygw_batch.core.lifecycle import State
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import JournalNotAdopted, JournalTooOld
from paygw_batch.settle.kept_documents import check_recorded_orders
from tests.promise.simulation import people
from tests.promise.simulation.gateway import BEHAVIOURS, DEAD, LONGEST_SLEEP_S, TOTAL_TIMEOUT_S, USUAL
from tests.promise.simulation.process import Process, open_for_run, resume, submit
from tests.promise.simulation.scenario import EVERYTHING, Scenario
from tests.promise.simulation.sheets import FEWEST_ROWS_OF_A_REPEAT

DAY_S = 25 * 3600.0
REPEATS_UNTIL_S = 90 * 3600.0  # until this time, a sheet with other ids surely repeats a recent batch, by any clock
LONGEST_DRAIN_S = 2 * TOTAL_TIMEOUT_S + 60.0 + LONGEST_SLEEP_S
"""The maximum duration of a drain on a machine that may sleep once meanwhile."""
ALL = tuple(BEHAVIOURS)
Happenings = dict[int, Callable[[], None]]  # what happens at which step of the processes
SETTLED = {State.PAID, State.REJECTED, State.ACCEPTED, State.REPLACED}


def play(seed: int, plant: Callable[[Scenario], None] | None = None) -> Scenario:
    """Play the scenario of one seed and return it. Raises `Violation` or the program's error."""
    scenario = Scenario(seed)
    with scenario.undo:
        if plant is not None:
            plant(scenario)
        for _ in range(scenario.rng.randrange(1, 4)):
            _run_stormy_day(scenario)
            _let_people_act(scenario)
            _maybe_forget_people(scenario, 0.12)
            if scenario.rng.random() < 0.08:
                _lose_the_journal(scenario)
        for _ in range(12):
            if _is_settled(scenario):
                break
            _run_calm_day(scenario)
            _let_people_act(scenario, settle_all=True)
        _forget_everybody(scenario)
        scenario.advance_clock(scenario.clock.now_s + 3 * DAY_S)
        run_all(scenario, [Process(scenario, _open_and_close)])
        _check_end(scenario)
    return scenario


async def _open_and_close(process: Process) -> int:
    await open_for_run(process)
    return 0


def _check_end(scenario: Scenario) -> None:
    reader = scenario.disk.reader()
    if scenario.rng.random() < 0.3:  # the whole journal is replayed
        reader.verify()
        check_recorded_orders(reader)
    end = RunEnd(0, None, interrupted=False)
    scenario.judge.check_inbox(len(scenario.inbox.heard), scenario.disk.kept_notifications())
    scenario.judge.check_end([scenario.shown(reader, batch, end) for batch in reader.batches()])


def _is_settled(scenario: Scenario) -> bool:
    if not scenario.disk.batches() or not {state for _, state in scenario.disk.states_by_row()} <= SETTLED:
        return False
    reader = scenario.disk.reader()
    return not any(people.contradicted_rows(scenario, reader, record) for record in reader.batches())


def _run_calm_day(scenario: Scenario) -> None:
    """Run without mishaps until it ends and all ready rows are sent."""
    scenario.mood = ("approved",)
    _set_clock_right(scenario)
    batches = [record.batch for record in scenario.disk.batches()]
    if not batches:
        if scenario.approvals is not None:
            scenario.approvals.prepare("payroll", properly=True)
        run_all(scenario, [_start_run(scenario, "payroll")])
    for batch in batches:
        resumes = scenario.rng.random() < 0.3
        story = partial(resume, batch=batch) if resumes else partial(submit, sheet=scenario.sheet_of_batch[batch])
        run_all(scenario, [Process(scenario, story)])


def _run_stormy_day(scenario: Scenario) -> None:
    """Run several processes at once, with any mishaps."""
    rng = scenario.rng
    scenario.mood = rng.choice((USUAL, EVERYTHING, EVERYTHING, DEAD, ALL))
    scenario.skew = _choose_clock_skew(scenario)
    if rng.random() < 0.15:
        _restore_older(scenario)
    usual, others = _sheets_to_submit(scenario)
    names = [usual] + [rng.choice(others) for _ in range(rng.choice((0, 0, 1, 3)))]
    if rng.random() < 0.2:
        rng.shuffle(names)
    if scenario.approvals is not None:
        for name in dict.fromkeys(names):
            if rng.random() < 0.6:
                scenario.approvals.prepare(name, properly=rng.random() < 0.4)
    runs = [_start_run(scenario, name) for name in names]
    happenings: Happenings = {}
    for run in runs:
        _plan_mishaps(scenario, run, happenings)
    run_all(scenario, runs, happenings)
    if rng.random() < 0.3 and not scenario.disk.synchronous:  # the power fails
        scenario.disk.put(scenario.disk.durable)


def _sheets_to_submit(scenario: Scenario) -> tuple[str, Sequence[str]]:
    """Return today's sheet, and another list that people may submit while it is recognised as a repeat."""
    others = ("payroll", "payroll", "longer", "edited", "respelled")
    # Payments of forgotten people are not recognised under another id, so no repeatable ones are forgotten.
    is_late = scenario.clock.now_s > REPEATS_UNTIL_S or scenario.has_forgotten
    if is_late and {scenario.sheet_of_batch[record.batch] for record in scenario.disk.batches()} == {"again"}:
        return "again", ("again",)
    return "payroll", others if is_late or scenario.row_count < FEWEST_ROWS_OF_A_REPEAT else (*others, "again")


def _choose_clock_skew(scenario: Scenario) -> timedelta:
    """Return the error of today's clock. It is right if approvals are needed, because their age is measured with it.

    A slow clock that is not behind the journal's newest time is detected only by the gateway's `Date`. Until the
    journal has recorded one, nobody sets such a clock right: its attempts would leave quarantine too early (README).
    """
    if scenario.approvals is not None:
        return timedelta()
    seconds = scenario.rng.choice((0, 0, 0, 0, -86_400, 3_600))
    return scenario.skew if scenario.clock_is_unknown else timedelta(seconds=seconds)


def _set_clock_right(scenario: Scenario) -> None:
    if not scenario.clock_is_unknown:
        scenario.skew = timedelta()


def _start_run(scenario: Scenario, name: str) -> Process:
    return Process(scenario, partial(submit, sheet=name))


def _plan_mishaps(scenario: Scenario, run: Process, happenings: Happenings) -> None:
    """Choose the mishaps of a run: none, a kill, signals, a pause, or a failing disk."""
    rng = scenario.rng

    def soon() -> int:
        return 1 + int(rng.expovariate(1 / 150))

    match rng.randrange(9):
        case 0 | 1:
            happenings[soon()] = run.die
        case 2:
            run.dies_before_write = 1 + int(rng.expovariate(1 / 6))
        case 3:
            run.dies_after_write = 1 + int(rng.expovariate(1 / 6))
        case 4:
            run.fails_at_write = 1 + int(rng.expovariate(1 / 6))
            run.failed_write_is_there = rng.random() < 0.5
        case 5:
            happenings[first := soon()] = run.drain
            if rng.random() < 0.5:
                happenings[first + soon()] = run.die
        case 6:
            happenings[soon()] = partial(_pause_process, scenario, run, rng.choice((1.0, 100.0, 4_000.0)))
        case _:
            pass


def _pause_process(scenario: Scenario, run: Process, seconds: float) -> None:
    """Stop a process for a while, and start another one meanwhile."""
    run.paused_until_s = scenario.clock.now_s + seconds
    run.was_paused = True
    scenario.later(seconds * scenario.rng.random(), lambda: scenario.newcomers.append(_sheets_to_submit(scenario)[0]))


def run_all(scenario: Scenario, runs: Sequence[Process], happenings: Happenings | None = None) -> None:
    """Interleave processes, one callback at a time, until all have ended."""
    living = list(runs)
    try:
        for steps in range(30_000):
            if happenings and steps in happenings:
                happenings[steps]()
            if scenario.newcomers:
                living += [_start_run(scenario, name) for name in scenario.newcomers]
                scenario.newcomers.clear()
            for process in living[:]:
                if process.is_done:
                    living.remove(process)
                    process.end()
            if not living:
                break
            _step(scenario, living)
        else:
            raise scenario.judge.found("I14", "the runs do not end")
    finally:
        for process in living:
            process.die()
            process.loop.bury()
    if scenario.unhandled:
        raise AssertionError(f"unhandled: {scenario.unhandled}")


def _step(scenario: Scenario, living: Sequence[Process]) -> None:
    now_s = scenario.clock.now_s
    ready = [process for process in living if process.paused_until_s <= now_s and process.loop.is_ready(now_s)]
    if ready:
        process = ready[0] if len(ready) == 1 else scenario.rng.choice(ready)
        process.loop.step()
        if scenario.judge.violations:
            raise scenario.judge.violations[0]
        if not process.was_paused:
            _check_clock(scenario, process)
        return
    times = [scenario.next_happening_s()]
    times += [
        max(due_s, process.paused_until_s) if (due_s := process.loop.next_timer_s()) is not None else None
        for process in living
    ]
    times += [process.paused_until_s for process in living if process.paused_until_s > now_s]
    due = [time_s for time_s in times if time_s is not None]
    if not due:
        raise scenario.judge.found("I14", "a run waits for nothing")
    scenario.advance_clock(max(now_s, min(due)))


def _check_clock(scenario: Scenario, process: Process) -> None:
    """I14: a run ends, and a drain ends soon."""
    now_s = scenario.clock.now_s
    if now_s - process.started_at_s > 6 * 3600.0:
        raise scenario.judge.found("I14", "a run takes longer than all its bounds together")
    if process.drained_at_s is not None and now_s - process.drained_at_s > LONGEST_DRAIN_S:
        raise scenario.judge.found("I14", "a drain takes longer than a request may")


def _let_people_act(scenario: Scenario, *, settle_all: bool = False) -> None:
    """Let people act a day later, and sometimes ask the gateway or settle rows earlier."""
    if not settle_all and scenario.rng.random() < 0.15:
        asking = Process(scenario, people.refresh_rows)
        if scenario.rng.random() < 0.3:
            asking.dies_after_write = 1 + int(scenario.rng.expovariate(1 / 2))
        run_all(scenario, [asking])
    if not settle_all and scenario.rng.random() < 0.6:
        if scenario.rng.random() < 0.5:
            _set_clock_right(scenario)
        scenario.advance_clock(scenario.clock.now_s + scenario.rng.uniform(0.1, 20) * 3600)
        run_all(scenario, [Process(scenario, people.settle_early)])
    scenario.advance_clock(scenario.clock.now_s + DAY_S)
    run_all(scenario, [Process(scenario, partial(people.review_batches, settle_all=settle_all))])


def _maybe_forget_people(scenario: Scenario, chance: float) -> bool:
    """Sometimes forget people. The process may die meanwhile, and is then repeated."""
    if scenario.forgetting.random() >= chance or scenario.clock_is_unknown:
        return False
    for _ in range(3):
        process = people.plan_death(Process(scenario, people.forget), scenario.forgetting)
        run_all(scenario, [process])
        if process.exit_code is not None:
            break
    return True


def _forget_everybody(scenario: Scenario) -> None:
    """Forget everybody at the end, and submit the same sheets again: nobody is paid twice."""
    scenario.advance_clock(scenario.clock.now_s + 3 * DAY_S)
    if not _maybe_forget_people(scenario, 0.4):
        return
    run_all(scenario, [Process(scenario, people.forget)])
    people.check_bytes_are_gone(scenario)
    for _ in range(2):
        _run_calm_day(scenario)
    if not _is_settled(scenario):  # a late notification holds a row until people settle it
        _let_people_act(scenario, settle_all=True)
        _run_calm_day(scenario)


def _restore_older(scenario: Scenario) -> None:
    """Restore an older copy, sometimes on a new machine. A run must refuse it. Then undo this."""
    disk = scenario.disk
    newest, sent_log = disk.copy(), disk.sent_log
    older = scenario.rng.choice(disk.copies)
    if older.last_fact < disk.last_known:
        disk.put(older)
        scenario.restored_older = True
        if scenario.rng.random() < 0.5:
            disk.sent_log = None
        run_all(scenario, [_start_run(scenario, "payroll")])
        if not isinstance(scenario.refused, JournalTooOld | JournalNotAdopted):
            raise scenario.judge.found("I10", "an older copy of the journal was not refused")
        scenario.restored_older = False
        disk.put(newest)
        disk.sent_log = sent_log


def _lose_the_journal(scenario: Scenario) -> None:
    """Lose the journal and adopt a copy. The gateway is asked about everything before anything is sent."""
    _set_clock_right(scenario)
    last = scenario.disk.last_batch
    copies = [copy for copy in scenario.disk.copies if copy.last_batch == last]
    if not last or not copies or scenario.clock_is_unknown:
        return
    scenario.advance_clock(scenario.clock.now_s + DAY_S)
    people.adopt(scenario, scenario.rng.choice(copies))
    run_all(scenario, [Process(scenario, people.ask_the_gateway)])
