"""The rows of a batch in memory by where they stand: counted, and found."""

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError
from paygw_batch.journal.chain import Line
from paygw_batch.journal.codec import BATCH_OPENED, decode_batch
from paygw_batch.journal.evidence_memory import Held
from paygw_batch.journal.port import LINE_COLUMNS, BatchRecord, Due, NewBatch, RowStanding, Tally
from paygw_batch.journal.progress import Progress, storable


class MemoryStates:
    """The part of the journal's twin that speaks of states: it looks at every row."""

    journal_id = "0" * 32
    _batches: list[BatchRecord]
    _lines: list[Line]

    def opened_by_plan(self, plan_sha256: str) -> BatchRecord | None:
        """Return the batch that the plan with this digest opened, if it has opened one."""
        opened = (line for line in self._lines if plan_sha256 and line.kind == BATCH_OPENED)
        found = (line.batch for line in opened if decode_batch(line.details).plan_sha256 == plan_sha256)
        return next((self._batches[number - 1] for number in found), None)

    def storable_once(self, batch: NewBatch) -> NewBatch:
        """Return the batch with its names as they are stored. Raises `InternalError` when its plan opened another."""
        if batch.plan_sha256 and self.opened_by_plan(batch.plan_sha256):
            raise InternalError("a plan that has opened a batch was about to open another")
        return replace(batch, sheet_name=storable(batch.sheet_name), sheet_path=storable(batch.sheet_path))

    _instructions: dict[int, Held]
    _covered: dict[int, dict[int, int]]
    _progress: dict[int, Progress]

    def due_counts(self, batch: int) -> Mapping[str, int]:
        """Return how many rows of each country `due` has for a batch."""
        return Counter(due.instruction.country for due in self.due(batch, after_row=0, limit=sys.maxsize))

    def standing_lines(self, batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
        """Yield what `standings` has as plain lines (see the port)."""
        columns = attrgetter(*LINE_COLUMNS)
        yield [(row, state.value, *rest) for row, state, *rest in map(columns, self.standings(batch))]

    def standings_in(
        self,
        batch: int,
        states: Collection[State],
        *,
        accepted_until: str | None = None,
        limit: int | None = None,
    ) -> Iterator[RowStanding]:
        """Yield the first `limit` rows of a batch that stand in `states`, in the sheet's order (see the port)."""
        if State.READY in states:
            raise InternalError("rows that are ready are read as those that are due")
        found = (row for row in self.standings(batch) if row.state in states)
        if accepted_until is not None:
            found = (row for row in found if row.state is not State.ACCEPTED or _is_old(row, accepted_until))
        return islice(found, limit)

    def count_in(self, batch: int, states: Collection[State], *, accepted_until: str | None = None) -> int:
        """Return how many rows of a batch `standings_in` has."""
        return sum(1 for _ in self.standings_in(batch, states, accepted_until=accepted_until))

    def tallies(self, batch: int) -> Sequence[Tally]:
        """Return counts and sums of a batch, ordered by country, currency and state."""
        sums: dict[tuple[str, str, State], tuple[int, int]] = {}
        for number in self._covered.get(batch, {}).values():
            new = self._instructions[number].new
            key = (new.country, new.currency, self._progress[number].standing.state)
            count, minor = sums.get(key, (0, 0))
            sums[key] = (count + 1, minor + new.minor)
        return [Tally(*key, *sums[key]) for key in sorted(sums)]

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return what may be sent (see the port)."""
        raise NotImplementedError

    def standings(self, batch: int) -> Iterator[RowStanding]:
        """Yield every instruction that a batch covers, in the sheet's order."""
        raise NotImplementedError


def _is_old(row: RowStanding, until: str) -> bool:
    return row.intended_at is not None and row.intended_at <= until
