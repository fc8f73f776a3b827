"""One seed's story: runs and what befalls them, people in between, and a calm end in which all must come right."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from paygw_batch.core.lifecycle import State
from paygw_batch.engine.engine import RunEnd
from paygw_batch.settle.kept_documents import check_kept_orders
from tests.promise.simulation.enquiries import refresh_rows
from tests.promise.simulation.forgetting import (
    CHANCE_OF_FORGETTING,
    CHANCE_OF_FORGETTING_ALL,
    forget,
    look_at_bytes,
    will_die,
)
from tests.promise.simulation.gateway import BEHAVIOURS, DEAD, LONGEST_SLEEP_S, TOTAL_TIMEOUT_S, USUAL
from tests.promise.simulation.people import come, come_early, look_in
from tests.promise.simulation.process import Process, resume, submit
from tests.promise.simulation.restoring import adopt, ask_the_gateway, copies_with_every_batch
from tests.promise.simulation.sheets import FEWEST_ROWS_OF_A_REPEAT
from tests.promise.simulation.world import EVERYTHING, SimWorld

DAY_S = 25 * 3600.0
REPEATS_UNTIL_S = 90 * 3600.0
"""Until then a sheet under other ids surely repeats a batch of the last days, by whichever clock."""
CHANCE_OF_A_REPLAY = 0.3
"""How often the whole journal is replayed at the end."""
CHANCE_OF_A_LOSS = 0.08
CHANCE_OF_ENQUIRIES = 0.15
MAX_STEPS = 30_000
LONGEST_RUN_S = 6 * 3600.0
LONGEST_DRAIN_S = 2 * TOTAL_TIMEOUT_S + 60.0 + LONGEST_SLEEP_S
"""Of a machine that may sleep once meanwhile: no run can end while it does."""
ALL = tuple(BEHAVIOURS)
SETTLED = {State.PAID, State.REJECTED, State.ACCEPTED, State.REPLACED}
Plant = Callable[[SimWorld], None]


def play(seed: int, plant: Plant | None = None) -> SimWorld:
    """Play the world of one seed, and return it at its end. Raises `Violation` or what the program raised."""
    world = SimWorld(seed)
    with world.undo:
        if plant is not None:
            plant(world)
        for _ in range(world.rng.randrange(1, 4)):
            _stormy_day(world)
            _people(world)
            _forget(world, CHANCE_OF_FORGETTING)
            if world.rng.random() < CHANCE_OF_A_LOSS:
                _lose_the_journal(world)
        for _ in range(12):
            if _is_settled(world):
                break
            _calm_day(world)
            _people(world, settle_all=True)
        _forget_all(world)
        world.let_pass(world.clock.now_s + 3 * DAY_S)
        run_all(world, [Process(world, look_in, is_run=False)], {})
        _look_at_the_end(world)
    return world


def _look_at_the_end(world: SimWorld) -> None:
    reader = world.disk.reader()
    if world.rng.random() < CHANCE_OF_A_REPLAY:
        reader.verify()
        check_kept_orders(reader)
    end = RunEnd(0, None, interrupted=False)
    world.judge.look_at_inbox(len(world.inbox.heard), world.disk.kept_notifications())
    world.judge.look_at_the_end([world.shown(reader, batch, end) for batch in reader.batches()])


def _is_settled(world: SimWorld) -> bool:
    return bool(world.disk.batches()) and world.disk.states() <= SETTLED


def _calm_day(world: SimWorld) -> None:
    """A run that nothing befalls. It ends, and it sends whatever is ready."""
    world.mood = ("approved",)
    _set_clock_right(world)
    batches = [record.batch for record in world.disk.batches()]
    if not batches:
        if world.approvals is not None:
            world.approvals.prepare("payroll", properly=True)
        run_all(world, [_run(world, "payroll")], {})
    for batch in batches:
        goes_on_without_its_sheet = world.rng.random() < 0.3
        again = partial(resume, batch=batch) if goes_on_without_its_sheet else None
        run_all(world, [Process(world, again, is_run=True) if again else _run(world, world.sheet_of_batch[batch])], {})


def _stormy_day(world: SimWorld) -> None:
    """Some runs side by side, and anything may befall them."""
    rng = world.rng
    world.mood = rng.choice((USUAL, EVERYTHING, EVERYTHING, DEAD, ALL))
    world.skew = _skew(world)
    if rng.random() < 0.15:
        _restore_older(world)
    usual, others = _sheets_to_submit(world)
    names = [usual] + [rng.choice(others) for _ in range(rng.choice((0, 0, 1, 3)))]
    if rng.random() < 0.2:
        rng.shuffle(names)
    if world.approvals is not None:
        for name in dict.fromkeys(names):
            if rng.random() < 0.6:
                world.approvals.prepare(name, properly=rng.random() < 0.4)
    runs = [_run(world, name) for name in names]
    happenings: dict[int, Callable[[], None]] = {}
    for run in runs:
        _befall(world, run, happenings)
    run_all(world, runs, happenings)
    if rng.random() < 0.3:
        world.disk.lose_power()


def _sheets_to_submit(world: SimWorld) -> tuple[str, Sequence[str]]:
    """Return the usual sheet of today, and what else people may submit.

    After some days the program no longer takes a list under other ids for a repeat: then nobody sends the other one.
    """
    others = ("payroll", "payroll", "longer", "edited", "respelled")
    # Nobody recognizes a payment of forgotten people under another id: the program forgets none that could come again.
    is_late = world.clock.now_s > REPEATS_UNTIL_S or world.has_forgotten
    if is_late and {world.sheet_of_batch[record.batch] for record in world.disk.batches()} == {"again"}:
        return "again", ("again",)
    return "payroll", others if is_late or world.row_count < FEWEST_ROWS_OF_A_REPEAT else (*others, "again")


def _skew(world: SimWorld) -> timedelta:
    """Return how wrong the clock is today. Where approvals are asked for it is right: that they grow old is told by it.

    A clock that is behind, but not behind the newest time of the journal, is found by the gateway's `Date` alone. Until
    the journal knows one nobody sets such a clock right: what left by it would leave its quarantine too early, which
    is not promised (README).
    """
    if world.approvals is not None:
        return timedelta()
    seconds = world.rng.choice((0, 0, 0, 0, -86_400, 3_600))
    return world.skew if world.clock_is_unknown else timedelta(seconds=seconds)


def _set_clock_right(world: SimWorld) -> None:
    if not world.clock_is_unknown:
        world.skew = timedelta()


def _run(world: SimWorld, name: str) -> Process:
    return Process(world, partial(submit, sheet=name), is_run=True)


def _befall(world: SimWorld, run: Process, happenings: dict[int, Callable[[], None]]) -> None:
    """Decide what befalls a run: nothing, a kill, signals, a pause, a failing disk."""
    rng = world.rng

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
            happenings[soon()] = partial(_pause, world, run, rng.choice((1.0, 100.0, 4_000.0)))
        case _:
            pass


def _pause(world: SimWorld, run: Process, seconds: float) -> None:
    """Stop a process for a while, and start another one meanwhile."""
    run.paused_until_s = world.clock.now_s + seconds
    run.was_paused = True
    world.later(seconds * world.rng.random(), lambda: world.newcomers.append(_sheets_to_submit(world)[0]))


def run_all(world: SimWorld, runs: Sequence[Process], happenings: dict[int, Callable[[], None]]) -> None:
    """Let processes run side by side, one callback of one of them at a time, until all have ended."""
    living = list(runs)
    try:
        for steps in range(MAX_STEPS):
            if (happening := happenings.get(steps)) is not None:
                happening()
            if world.newcomers:
                living += [_run(world, name) for name in world.newcomers]
                world.newcomers.clear()
            for process in living[:]:
                if process.is_done:
                    living.remove(process)
                    process.end()
            if not living:
                break
            _step(world, living)
        else:
            raise world.judge.found("I14", "the runs do not end")
    finally:
        for process in living:
            process.die()
            process.loop.bury()
    if world.unhandled:
        raise AssertionError(f"unhandled: {world.unhandled}")


def _step(world: SimWorld, living: Sequence[Process]) -> None:
    now_s = world.clock.now_s
    ready = [process for process in living if process.paused_until_s <= now_s and process.loop.is_ready(now_s)]
    if ready:
        process = ready[0] if len(ready) == 1 else world.rng.choice(ready)
        process.loop.step()
        if world.judge.violations:
            raise world.judge.violations[0]
        if not process.was_paused:
            _look_at_clock(world, process)
        return
    times = [world.next_happening_s()]
    times += [
        max(due_s, process.paused_until_s) if (due_s := process.loop.next_timer_s()) is not None else None
        for process in living
    ]
    times += [process.paused_until_s for process in living if process.paused_until_s > now_s]
    due = [time_s for time_s in times if time_s is not None]
    if not due:
        raise world.judge.found("I14", "a run waits for nothing")
    world.let_pass(max(now_s, min(due)))


def _look_at_clock(world: SimWorld, process: Process) -> None:
    """I14: a run ends, and a drain ends soon."""
    now_s = world.clock.now_s
    if now_s - process.started_at_s > LONGEST_RUN_S:
        raise world.judge.found("I14", "a run takes longer than all its bounds together")
    if process.drained_at_s is not None and now_s - process.drained_at_s > LONGEST_DRAIN_S:
        raise world.judge.found("I14", "a drain takes longer than a request may")


# Between runs.


def _people(world: SimWorld, *, settle_all: bool = False) -> None:
    """A day later people come; before, sometimes, somebody who asks the gateway, or does not wait for the day."""
    if not settle_all and world.rng.random() < CHANCE_OF_ENQUIRIES:
        asking = Process(world, refresh_rows, is_run=False)
        if world.rng.random() < 0.3:
            asking.dies_after_write = 1 + int(world.rng.expovariate(1 / 2))
        run_all(world, [asking], {})
    if not settle_all and world.rng.random() < 0.6:
        if world.rng.random() < 0.5:
            _set_clock_right(world)
        hours = world.rng.uniform(0.1, 20)
        world.let_pass(world.clock.now_s + hours * 3600)
        run_all(world, [Process(world, come_early, is_run=False)], {})
    world.let_pass(world.clock.now_s + DAY_S)
    run_all(world, [Process(world, partial(come, settle_all=settle_all), is_run=False)], {})


def _forget(world: SimWorld, chance: float) -> bool:
    """Sometimes people are forgotten; whoever does it may die in the middle, and it is done again."""
    if world.forgetting.random() >= chance or world.clock_is_unknown:
        return False
    for _ in range(3):
        process = will_die(Process(world, forget, is_run=False), world.forgetting)
        run_all(world, [process], {})
        if process.exit_code is not None:
            break
    return True


def _forget_all(world: SimWorld) -> None:
    """Everybody is forgotten once all is over, and the same sheets come again: nobody is paid twice."""
    world.let_pass(world.clock.now_s + 3 * DAY_S)
    if not _forget(world, CHANCE_OF_FORGETTING_ALL):
        return
    run_all(world, [Process(world, forget, is_run=False)], {})
    look_at_bytes(world)
    for _ in range(2):
        _calm_day(world)


def _restore_older(world: SimWorld) -> None:
    """Someone restores an older copy, at times on a machine that is new. A run must refuse it; then all is put back."""
    disk = world.disk
    newest, left = disk.copy(), disk.left
    older = world.rng.choice(disk.copies)
    if older.last_fact < disk.last_known:
        disk.put(older)
        world.restored_older = True
        if world.rng.random() < 0.5:
            disk.left = None
        run_all(world, [_run(world, "payroll")], {})
        if not world.was_refused_as_older():
            raise world.judge.found("I10", "an older copy of the journal was not refused")
        world.restored_older = False
        disk.put(newest)
        disk.left = left


def _lose_the_journal(world: SimWorld) -> None:
    """The journal is lost, and a copy takes its place. Before anything is sent the gateway is asked about all."""
    _set_clock_right(world)
    copies = copies_with_every_batch(world)
    if not copies or world.clock_is_unknown:
        return
    world.let_pass(world.clock.now_s + DAY_S)
    adopt(world, world.rng.choice(copies))
    run_all(world, [Process(world, ask_the_gateway, is_run=False)], {})
