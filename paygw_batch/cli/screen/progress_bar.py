"""Shows the progress of a run: a bar with counts, rate and remaining time on a terminal, plain lines elsewhere."""

import time
from abc import ABC, abstractmethod
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
"""The seconds between two lines of progress, if there is no bar."""

_STATES = {
    OutcomeKind.PAID: "paid",
    OutcomeKind.ACCEPTED: "accepted",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.UNKNOWN: "in_doubt",
    OutcomeKind.NOT_SENT: "ready",
}


class _RateColumn(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else say("{speed:,.0f} rows/s", speed=speed))


class _RunProgress(ABC):
    """The outcomes of a run's attempts so far, shown as they change. Used as a context manager."""

    def __init__(self) -> None:
        self._outcomes: Counter[OutcomeKind] = Counter()

    def __enter__(self) -> Self:
        return self

    def concluded(self, due: Due, outcome: Outcome) -> None:  # noqa: ARG002 (counts need no row)
        self._outcomes[outcome.kind] += 1
        self._show()

    def counted(self, counts: Mapping[OutcomeKind, int]) -> None:
        """Show the counts of the workers in place of this process's own."""
        self._outcomes = Counter(counts)
        self._show()

    @abstractmethod
    def _show(self) -> None:
        """Show the outcomes."""

    @property
    def _done(self) -> int:
        return sum(count for kind, count in self._outcomes.items() if kind is not OutcomeKind.NOT_SENT)

    def _sentence(self) -> str:
        return ", ".join(
            counted_state(self._outcomes[kind], state) for kind, state in _STATES.items() if self._outcomes[kind]
        )


@contextmanager
def bar_on(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, and yield a function that updates it with the number done and the total."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


class BarProgress(_RunProgress):
    """A live bar on the terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn(say("Sending")),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[counts]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(say("Sending"), total=None, counts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, due: int) -> None:
        self._bar.update(self._task, total=due)

    def _show(self) -> None:
        self._bar.update(self._task, completed=self._done, counts=self._sentence())

    def note(self, sentence: str) -> None:
        self._bar.console.print(sentence)


class PlainProgress(_RunProgress):
    """Lines for a log: one at the start, one every few seconds, and every note."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._due = 0
        self._next_line_s = 0.0

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, due: int) -> None:
        self._due = due
        self._next_line_s = time.monotonic() + PLAIN_LINE_EVERY_S
        self.note(say_count(due, "Sending {count:,} row.", "Sending {count:,} rows."))

    def _show(self) -> None:
        if time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + PLAIN_LINE_EVERY_S
            self.note(say("{done:,} of {due:,}: {counts}.", done=self._done, due=self._due, counts=self._sentence()))

    def note(self, sentence: str) -> None:
        self._console.print(sentence, soft_wrap=True)


def progress_on(console: Console) -> BarProgress | PlainProgress:
    return BarProgress(console) if console.is_terminal else PlainProgress(console)
