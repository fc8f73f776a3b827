"""Shows the progress of a run: a bar with counts, rate and remaining time on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import counted_state
from paygw_batch.journal import Due
from paygw_batch.language import say, say_count

PLAIN_LINE_EVERY_S = 10.0
"""The seconds between two lines of progress, when there is no bar."""

_STATES = {
    OutcomeKind.PAID: "paid",
    OutcomeKind.ACCEPTED: "accepted",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.UNKNOWN: "in_doubt",
    OutcomeKind.NOT_SENT: "ready",
}


class _RateColumn(ProgressColumn):
    """The number of rows a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else say("{speed:,.0f} rows/s", speed=speed))


def _bar(console: Console, title: str, *further: ProgressColumn) -> Progress:
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn(), *further)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def bar_on(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal. Yield a function that updates the bar with the number done and the total."""
    with _bar(console, title) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


class RunProgress:
    """Shows the outcomes of a run's attempts: as a live bar on a terminal, elsewhere as a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._outcomes: Counter[OutcomeKind] = Counter()
        self._console = console
        self._due = 0
        self._next_line_s = 0.0
        self._bar = _bar(console, say("Sending"), TextColumn("{task.fields[counts]}"))
        self._task = self._bar.add_task(say("Sending"), total=None, counts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, due: int) -> None:
        self._due = due
        self._bar.update(self._task, total=due)
        if not self._console.is_terminal:
            self._next_line_s = time.monotonic() + PLAIN_LINE_EVERY_S
            self.note(say_count(due, "Sending {count:,} row.", "Sending {count:,} rows."))

    def concluded(self, due: Due, outcome: Outcome) -> None:  # noqa: ARG002 (counts need no row)
        self._outcomes[outcome.kind] += 1
        self._show()

    def counted(self, counts: Mapping[OutcomeKind, int]) -> None:
        """Show the counts of the workers instead of those of this process."""
        self._outcomes = Counter(counts)
        self._show()

    def note(self, sentence: str) -> None:
        self._console.print(sentence, soft_wrap=not self._console.is_terminal)

    def _show(self) -> None:
        is_due = time.monotonic() >= self._next_line_s
        if not self._console.is_terminal and not is_due:  # counts are only added up when they are shown
            return
        done = sum(count for kind, count in self._outcomes.items() if kind is not OutcomeKind.NOT_SENT)
        counts = ", ".join(
            counted_state(self._outcomes[kind], state) for kind, state in _STATES.items() if self._outcomes[kind]
        )
        self._bar.update(self._task, completed=done, counts=counts)
        if not self._console.is_terminal:
            self._next_line_s = time.monotonic() + PLAIN_LINE_EVERY_S
            self.note(say("{done:,} of {due:,}: {counts}.", done=done, due=self._due, counts=counts))
