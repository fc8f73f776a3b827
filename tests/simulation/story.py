"""One seed's story: runs and what befalls them, people in between, and a calm end in which all must come right."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from paygw_batch.core.lifecycle import Concluded, Resolution, Resolved, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.port import Entry

from .disk import HeldJournal
from .gateway import BEHAVIOURS, DEAD, TOTAL_TIMEOUT_S, USUAL
from .judge import row_of
from .process import Process, hear, hold, submit
from .world import EVERYTHING, SimWorld

DAY_S = 25 * 3600.0
MOST_STEPS = 30_000
LONGEST_RUN_S = 6 * 3600.0
LONGEST_DRAIN_S = 2 * TOTAL_TIMEOUT_S + 60.0
ALL = tuple(BEHAVIOURS)
Plant = Callable[[SimWorld], None]


def play(seed: int, plant: Plant | None = None) -> SimWorld:
    """Play the world of one seed, and return it at its end. Raises `Violation` or what the program raised."""
    world = SimWorld(seed)
    if plant is not None:
        plant(world)
    for _ in range(world.rng.randrange(1, 4)):
        _stormy_day(world)
        people(world)
    for _ in range(12):
        if _is_settled(world):
            break
        _calm_day(world)
        people(world, settle=True)
    world.let_pass(world.clock.now_s + DAY_S)
    world.judge.look_at_the_end(world.disk)
    return world


def _is_settled(world: SimWorld) -> bool:
    progress = world.disk.journal._progress.values()
    return bool(progress) and all(
        one.standing.state in {State.PAID, State.REJECTED, State.ACCEPTED} for one in progress
    )


def _calm_day(world: SimWorld) -> None:
    """A run that nothing befalls. It ends, and it sends whatever is ready."""
    world.mood = ("approved",)
    world.skew = timedelta()
    for name in [record.batch for record in world.disk.journal.batches()] or ["payroll"]:
        run_all(world, [_run(world, name)], {})


def _stormy_day(world: SimWorld) -> None:
    """Some runs side by side, and anything may befall them."""
    rng = world.rng
    world.mood = rng.choice((USUAL, EVERYTHING, EVERYTHING, DEAD, ALL))
    world.skew = timedelta(seconds=rng.choice((0, 0, -86_400, 3_600)))
    if rng.random() < 0.15:
        _restore_older(world)
    names = ["payroll"] + [
        rng.choice(("payroll", "payroll", "longer", "edited")) for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    if rng.random() < 0.2:
        rng.shuffle(names)
    runs = [_run(world, name) for name in names]
    happenings: dict[int, Callable[[], None]] = {}
    for run in runs:
        _befall(world, run, happenings)
    run_all(world, runs, happenings)
    if rng.random() < 0.3:
        world.disk.lose_power()


def _run(world: SimWorld, name: str) -> Process:
    rows = world.rows + ([30, 31] if name == "longer" else [])
    return Process(world, partial(submit, rows=rows, name=name), is_run=True)


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
    world.later(seconds * world.rng.random(), lambda: world.newcomers.append("payroll"))


def run_all(world: SimWorld, runs: Sequence[Process], happenings: dict[int, Callable[[], None]]) -> None:
    """Let processes run side by side, one callback of one of them at a time, until all have ended."""
    living = list(runs)
    try:
        for steps in range(MOST_STEPS):
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


# People, between runs.


def people(world: SimWorld, *, settle: bool = False) -> None:
    """A day later: people look at the gateway's own books, settle rows, and release some."""
    world.let_pass(world.clock.now_s + DAY_S)
    run_all(world, [Process(world, partial(_settle, everything=settle), is_run=False)], {})


async def _settle(process: Process, *, everything: bool) -> int:
    world, rng = process.world, process.world.rng
    journal = await hold(process)
    facts: list[Entry] = []
    for number, progress in list(world.disk.journal._progress.items()):
        standing = progress.standing
        nonce = world.judge.nonces.get((number, standing.attempt))
        was_paid = nonce in world.judge.paid_nonces
        if standing.state is State.IN_DOUBT and (everything or rng.random() < 0.5):
            facts.append(Entry(number, standing.attempt, _word(world, number, was_paid=was_paid), world.at()))
        elif standing.state in {State.PAID, State.REJECTED} and rng.random() < 0.1:
            late = Concluded(Outcome(rng.choice((OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.ACCEPTED))))
            facts.append(Entry(number, standing.attempt, late, world.at()))
        elif standing.state is State.ACCEPTED and rng.random() < 0.5:
            kind = OutcomeKind.PAID if was_paid else OutcomeKind.REJECTED
            facts.append(Entry(number, standing.attempt, Concluded(Outcome(kind)), world.at()))
    if facts:
        journal.append(facts)
    if rng.random() < 0.2 and not everything:
        hear(world, journal)
    _lift(world, journal, everything=everything)
    if not everything and rng.random() < 0.4:
        _release(world, journal_release=journal.release)
    return 0


def _lift(world: SimWorld, journal: HeldJournal, *, everything: bool) -> None:
    """Find out what became of the rows that are held, and say so: the truth."""
    words, rng = [], world.rng
    for number, progress in world.disk.journal._progress.items():
        row = row_of(world.disk.journal._instructions[number].new.client_orderid)
        # What held a row may be durable though whoever took it in died before telling the judge.
        is_held = row in world.judge.held or (
            progress.standing.state is State.READY and world.disk.journal._is_contested(number)
        )
        if not is_held or not (everything or rng.random() < 0.5):
            continue
        was_paid = world.judge.payments[row] > 0
        word = Resolution.PAID if was_paid else rng.choice((Resolution.REJECTED, Resolution.NOT_RECEIVED))
        words.append((row, Entry(number, progress.standing.attempt, Resolved(word, "support", "amina"), world.at())))
    if words:
        journal.settle([entry for _, entry in words])
        world.judge.held -= {row for row, _ in words}


def _word(world: SimWorld, number: int, *, was_paid: bool) -> Resolved | Concluded:
    """What a person, or a late message of the gateway, says of a row in doubt: the truth."""
    row = row_of(world.disk.journal._instructions[number].new.client_orderid)
    if world.rng.random() < 0.3:
        return Concluded(Outcome(OutcomeKind.PAID if was_paid else OutcomeKind.REJECTED))
    if was_paid:
        return Resolved(Resolution.PAID, "statement", "amina")
    if world.rng.random() < 0.7:
        world.judge.releases[row] += 1
        return Resolved(Resolution.NOT_RECEIVED, "statement", "amina")
    return Resolved(Resolution.REJECTED, "statement", "amina")


def _release(world: SimWorld, journal_release: Callable[..., int]) -> None:
    journal = world.disk.journal
    for record in journal.batches():
        released = [one.row for one in journal.standings(record.number) if one.state is State.REJECTED]
        for row in released:
            world.judge.releases[row] += 1
            world.judge.states[journal._covered[record.number][row]] = State.READY
        journal_release(record.number, released, suffix=world.rng.random() < 0.7, by="amina", at=world.at())


def _restore_older(world: SimWorld) -> None:
    """Someone restores an older copy. A run must refuse it; then the newest one is put back."""
    disk = world.disk
    seen, newest, writes = disk.witness, disk.journal, disk.writes
    if seen is None or not writes:
        return
    disk.restore(world.rng.randrange(len(writes)))
    if disk.journal.head().seq < seen.seq:
        world.restored_older = True
        run_all(world, [_run(world, "payroll")], {})
        if not world.was_refused_as_older():
            raise world.judge.found("I10", "an older copy of the journal was not refused")
        world.restored_older = False
    disk.journal, disk.writes, disk.durable = newest, writes, len(writes)
