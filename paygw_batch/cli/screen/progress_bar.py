"""Shows the progress of a run: a bar on a terminal, and plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import format_state_count
from paygw_batch.journal import DueRow
from paygw_batch.language import say, say_count

PLAIN_LINE_INTERVAL_S = 10.0
"""The interval between progress lines if there is no bar."""

_STATE_BY_OUTCOME = {
    OutcomeKind.PAID: "paid",
    OutcomeKind.ACCEPTED: "accepted",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.UNKNOWN: "in_doubt",
    OutcomeKind.NOT_SENT: "ready",
}


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else say("{speed:,.0f} rows/s", speed=speed))


def _build_bar(console: Console, title: str, *extra: ProgressColumn) -> Progress:
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn(), *extra)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def show_bar(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal. Yields a function that updates the completed count and the total."""
    with _build_bar(console, title) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class RunProgress:
    """Counts a run's outcomes. Shows them in a bar on a terminal, and elsewhere as a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._outcomes: Counter[OutcomeKind] = Counter()
        self._console = console
        self._total = 0
        self._next_line_s = 0.0
        self._bar = _build_bar(console, say("Sending"), TextColumn("{task.fields[counts]}"))
        self._task = self._bar.add_task(say("Sending"), total=None, counts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def set_total(self, total: int) -> None:
        self._total = total
        self._bar.update(self._task, total=total)
        if not self._console.is_terminal:
            self._next_line_s = time.monotonic() + PLAIN_LINE_INTERVAL_S
            self.echo(say_count(total, "Sending {count:,} row.", "Sending {count:,} rows."))

    def record_outcome(self, row: DueRow, outcome: Outcome) -> None:  # noqa: ARG002 (counts need no row)
        self._outcomes[outcome.kind] += 1
        self._update()

    def record_counts(self, counts: Mapping[OutcomeKind, int]) -> None:
        """Show the outcomes counted by workers instead of those counted by this process."""
        self._outcomes = Counter(counts)
        self._update()

    def echo(self, message: str) -> None:
        self._console.print(message, soft_wrap=not self._console.is_terminal)

    def _update(self) -> None:
        is_due = time.monotonic() >= self._next_line_s
        # Summing the counts is expensive, so it is done only when they are shown.
        if not self._console.is_terminal and not is_due:
            return
        completed_count = sum(count for kind, count in self._outcomes.items() if kind is not OutcomeKind.NOT_SENT)
        counts = ", ".join(
            format_state_count(self._outcomes[kind], state)
            for kind, state in _STATE_BY_OUTCOME.items()
            if self._outcomes[kind]
        )
        self._bar.update(self._task, completed=completed_count, counts=counts)
        if not self._console.is_terminal:
            self._next_line_s = time.monotonic() + PLAIN_LINE_INTERVAL_S
            self.echo(say("{done:,} of {due:,} rows: {counts}.", done=completed_count, due=self._total, counts=counts))
