"""The attempts that left from this host in commits that the journal has lost, and the fate of their rows.

If a row is ready, its lost attempt is written again as the next attempt, in doubt, and then settled like any other. The
row is held instead if the journal knows something else of it, or if several attempts left because decisions were lost
too. If the batch of an order is lost, its order id is kept, and every later row with that order id is held.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import EvidenceSource, Finding, Heard
from paygw_batch.core.lifecycle import Intended, Interrupted, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import LeftDamaged
from paygw_batch.journal.evidence import EvidenceLog, Record
from paygw_batch.journal.left import BESIDE, LeftLine, lines, writers
from paygw_batch.journal.states import RowStanding, row_standing
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import AcceptedRows, Entry, Remark, canonical

_LINES_AT_ONCE = 200
_ORDERS_AT_ONCE = 1_000
GUESSED = "a retired host"
"""The name of an attempt that may exist for any row, because a host was retired."""
Attempt = tuple[int, int]
"""An instruction and the number of its attempt."""
Has = Callable[[Sequence[LeftLine]], Collection[LeftLine]]
"""Returns those of some lines whose facts the journal has."""


class LostIntent(NamedTuple):
    """An attempt that may have left and that only this host knows: the time of its commit, and a unique name for it."""

    at: str
    order_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Loss:
    """The commits of this host that the journal lacks. `is_whole`: all of them are known.

    `left` has the attempts of each instruction, in the order in which they left. Several can have the same number,
    because a journal can be replaced by an older copy more than once. `unsent` are attempts that the journal may know,
    and of which nothing left.
    """

    commits: int = 0
    left: Mapping[int, Sequence[LostIntent]] = field(default_factory=dict)
    unsent: AbstractSet[Attempt] = frozenset()
    is_whole: bool = True


def find_loss(folder: Path, has: Has) -> Loss:
    """Return the commits that left from this host but that the journal lacks: those after the newest that it has."""
    left: dict[int, dict[tuple[str, int, str], LostIntent]] = {}
    unsent: set[Attempt] = set()
    commits, is_whole = 0, True
    for writer in writers(folder):
        lost, is_known = _lost_of(folder, writer, has)
        # More may have left before the first line, unless that is the line of a new journal. The writer BESIDE records
        # only notes, and these do not leave.
        is_whole = is_whole and (is_known or writer == BESIDE)
        commits += len(lost)
        for line in lost:
            name = f"a lost commit {line.number}.{line.hash[:16]}"
            for number, attempt, order_id in line.noted:
                known = left.setdefault(number, {})
                if order_id is not None:
                    known[writer, attempt, name] = LostIntent(line.at, order_id, name)
                    continue
                latest = next((key for key in reversed(known) if key[:2] == (writer, attempt)), None)
                if latest is None:
                    unsent.add((number, attempt))
                else:
                    del known[latest]
    attempts = {number: sorted(known.values()) for number, known in left.items() if known}
    return Loss(commits, dict(sorted(attempts.items(), key=lambda item: item[1][-1])), unsent, is_whole)


def _lost_of(folder: Path, writer: str, has: Has) -> tuple[list[LeftLine], bool]:
    """Return the lines of a writer that the journal lacks, oldest first, and whether it has the line before them."""
    newest_first: list[LeftLine] = []
    with suppress(LeftDamaged):
        for line in lines(folder, writer):
            newest_first.append(line)
            if len(newest_first) % _LINES_AT_ONCE == 0 and has(newest_first[-_LINES_AT_ONCE:]):
                break
    present = has(newest_first) if newest_first else ()
    lost = list(takewhile(lambda line: line not in present, newest_first))
    return lost[::-1], bool(present)


class LostRows:
    """Decides the fate of rows with lost attempts after `by` accepted the loss. `rows` counts those judged so far."""

    def __init__(self, tables: Tables, loss: Loss, *, by: str, at: str) -> None:
        self._tables, self._left, self._by, self._at = tables, loss.left, by, at
        self.rows = AcceptedRows()

    @property
    def numbers(self) -> list[int]:
        """The instructions with an attempt that may have left, in the order in which these left."""
        return list(self._left)

    def judge(self, numbers: Sequence[int]) -> tuple[list[Entry], list[Remark]]:
        """Return the facts that write lost attempts of these instructions again, and evidence that holds the others."""
        rows = {line[0]: row_standing(line) for line in self._tables.run("standings", numbers=list(numbers))}
        known = EvidenceLog(self._tables).contested(rows)
        before = {tuple(line) for line in self._tables.run("lost_before", numbers=list(numbers))}
        sent: list[Entry] = []
        held: list[Remark] = []
        for number in numbers:
            row = rows.get(number)
            of_row = [] if row is None else [intent for intent in self._left[number] if _is_of(row, intent.order_id)]
            self.rows.unknown_orders += sorted(
                {intent.order_id for intent in self._left[number] if intent not in of_row}
            )
            if row is None or not of_row:
                continue
            lost, is_only = of_row[-1], len(of_row) == 1  # if there are several, a reply can be about any of them
            is_next = row.standing.state is State.READY and row.order_id == lost.order_id
            if (number, canonical(lost.name)) in before:
                self.rows.held += 1
            elif (number, lost.name) in before:
                self.rows.in_doubt += 1
            elif row.standing.state is State.REPLACED:  # the row that uses the order id now is held
                self.rows.unknown_orders.append(lost.order_id)
            elif row.standing.state in {State.PAID, State.RETURNED}:
                self.rows.contradictions.append(lost.order_id)
            elif is_only and row.standing.state is State.IN_DOUBT and (number, GUESSED) in before:
                self.rows.in_doubt += 1
            # The row is in the state in which this attempt left. The attempt is written again, in doubt, so nothing
            # sends the row before the gateway or a person has said what happened to it.
            elif is_only and is_next and number not in known:
                self.rows.in_doubt += 1
                attempt, intended = row.standing.attempt + 1, Intended(lost.order_id, lost.name, 0, None)
                sent += [Entry(number, attempt, fact, lost.at) for fact in (intended, Interrupted())]
            else:
                self.rows.held += 1
                content = {"by": self._by, "order_id": lost.order_id, "sent_at": lost.at}
                held.append(Remark(_heard(Finding.AMBIGUOUS, content, canonical(lost.name)), self._at, number))
        return sent, held

    def keep_unknown(self, record: Record) -> None:
        """Record the orders of lost batches, each once, in the open transaction. Rows that use one of them are held."""
        new = sorted(set(self.rows.unknown_orders) - _lost_orders(self._tables))
        pages = [new[start : start + _ORDERS_AT_ONCE] for start in range(0, len(new), _ORDERS_AT_ONCE)]
        heard = (_heard(Finding.UNKNOWN_ORDER, {"by": self._by, "orders": page}) for page in pages)
        if pages:
            record([Remark(evidence, self._at) for evidence in heard])
        _hold(self._tables, record, self.rows.unknown_orders, 0)


def _is_of(row: RowStanding, order_id: str) -> bool:
    """Whether an attempt under an order id can belong to this row."""
    return row.client_orderid in {order_id, first_order_id(order_id)}


def hold_lost_orders(tables: Tables, record: Record, first: int) -> None:
    """Hold the instructions from `first` on whose order left in a lost commit, until a person has asked the gateway."""
    _hold(tables, record, _lost_orders(tables), first)


def _hold(tables: Tables, record: Record, orders: Collection[str], first: int) -> None:
    spellings = {spelled_alike(order_id) for order in orders for order_id in (order, first_order_id(order) or order)}
    held = tables.run("spelled_as_lost", spellings=sorted(spellings), first=first) if spellings else []
    if held:
        holds = ((number, _heard(Finding.AMBIGUOUS, {"order_id": order_id})) for number, order_id in held)
        record([Remark(heard, "", instruction) for instruction, heard in holds])


def _heard(finding: Finding, content: object, lasting: str = "") -> Heard:
    means = OutcomeKind.ACCEPTED if finding is Finding.AMBIGUOUS else None
    return Heard(EvidenceSource.WITNESS, finding, means, canonical(content), lasting)


def _lost_orders(tables: Tables) -> set[str]:
    return {str(order) for (content,) in tables.run("lost_orders") for order in json.loads(content)["orders"]}
