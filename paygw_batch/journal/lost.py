"""The attempts that this host sent in commits that the journal lost, and the treatment of their rows.

If a row is ready, its lost attempt is written again as the next attempt, in doubt, and then settled like any other. The
row is held instead if the journal has other evidence about it, or if it was sent several times because decisions were
lost too. If an order's whole batch is lost, its order id is recorded, and every later row with that order id is held.
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
from paygw_batch.core.evidence import EvidenceRecord, EvidenceSource, Finding
from paygw_batch.core.lifecycle import Intended, Interrupted, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import SentLogDamaged
from paygw_batch.journal.evidence import EvidenceLog, Record
from paygw_batch.journal.sent_log import NOTES, SentLogLine, read_lines, writer_names
from paygw_batch.journal.states import RowStanding, parse_row_standing
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import AcceptedRows, Entry, Remark, canonical

_LINES_PER_CHECK = 200
_ORDERS_PER_FACT = 1_000
ASSUMED_ATTEMPT = "a retired host"
"""The name of an attempt that is assumed for a row, because a retired host may have sent it."""
Attempt = tuple[int, int]
"""An instruction and the number of its attempt."""
FindPresent = Callable[[Sequence[SentLogLine]], Collection[SentLogLine]]
"""Returns the lines whose facts the journal has."""


class LostIntent(NamedTuple):
    """An attempt known only to this host that may have left, with the time of its commit and a unique name."""

    at: str
    order_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Loss:
    """The commits of this host that the journal lacks. `is_whole` is set if all of them are known.

    `intents` has each instruction's attempts in the order of sending. Several can have the same number, because a
    journal can be replaced by an older copy more than once. `unsent` are attempts that were not
    sent. The journal may know them.
    """

    commits: int = 0
    intents: Mapping[int, Sequence[LostIntent]] = field(default_factory=dict)
    unsent: AbstractSet[Attempt] = frozenset()
    is_whole: bool = True


def find_loss(folder: Path, find_present: FindPresent) -> Loss:
    """Return the commits that this host logged after the newest one in the journal."""
    intents: dict[int, dict[tuple[str, int, str], LostIntent]] = {}
    unsent: set[Attempt] = set()
    commits, is_whole = 0, True
    for writer in writer_names(folder):
        lost_lines, is_known = _find_lost_lines(folder, writer, find_present)
        # More may have been sent before the first line, unless it is the line of a new journal. The writer NOTES logs
        # only notes, which send nothing.
        is_whole = is_whole and (is_known or writer == NOTES)
        commits += len(lost_lines)
        for line in lost_lines:
            name = f"a lost commit {line.number}.{line.hash[:16]}"
            for number, attempt, order_id in line.attempts:
                row_intents = intents.setdefault(number, {})
                if order_id is not None:
                    row_intents[writer, attempt, name] = LostIntent(line.at, order_id, name)
                    continue
                latest = next((key for key in reversed(row_intents) if key[:2] == (writer, attempt)), None)
                if latest is None:
                    unsent.add((number, attempt))
                else:
                    del row_intents[latest]
    attempts = {number: sorted(row_intents.values()) for number, row_intents in intents.items() if row_intents}
    return Loss(commits, dict(sorted(attempts.items(), key=lambda item: item[1][-1])), unsent, is_whole)


def _find_lost_lines(folder: Path, writer: str, find_present: FindPresent) -> tuple[list[SentLogLine], bool]:
    """Return a writer's lines that the journal lacks, oldest first, and whether it has the line before them."""
    newest_first: list[SentLogLine] = []
    with suppress(SentLogDamaged):
        for line in read_lines(folder, writer):
            newest_first.append(line)
            if len(newest_first) % _LINES_PER_CHECK == 0 and find_present(newest_first[-_LINES_PER_CHECK:]):
                break
    present_lines = find_present(newest_first) if newest_first else ()
    lost = list(takewhile(lambda line: line not in present_lines, newest_first))
    return lost[::-1], bool(present_lines)


class LostRows:
    """Decides about rows with lost attempts after `by` accepted the loss. `rows` counts those judged so far."""

    def __init__(self, tables: Tables, loss: Loss, *, by: str, at: str) -> None:
        self._tables, self._intents, self._by, self._at = tables, loss.intents, by, at
        self.rows = AcceptedRows()

    @property
    def numbers(self) -> list[int]:
        """The instructions with an attempt that may have been sent, in the order of sending."""
        return list(self._intents)

    def judge(self, numbers: Sequence[int]) -> tuple[list[Entry], list[Remark]]:
        """Return facts that restore lost attempts of these instructions, and evidence to hold the others."""
        rows = {line[0]: parse_row_standing(line) for line in self._tables.run("standings", numbers=list(numbers))}
        contested = EvidenceLog(self._tables).contested_instructions(rows)
        recorded = {tuple(line) for line in self._tables.run("lost_before", numbers=list(numbers))}
        restored: list[Entry] = []
        holds: list[Remark] = []
        for number in numbers:
            row, intents = rows.get(number), self._intents[number]
            row_intents = [] if row is None else [intent for intent in intents if _belongs_to(row, intent.order_id)]
            self.rows.unknown_orders += sorted({intent.order_id for intent in intents if intent not in row_intents})
            if row is None or not row_intents:
                continue
            latest, is_only = row_intents[-1], len(row_intents) == 1  # a reply can belong to any of several attempts
            is_next = row.standing.state is State.READY and row.order_id == latest.order_id
            if (number, canonical(latest.name)) in recorded:
                self.rows.held += 1
            elif (number, latest.name) in recorded:
                self.rows.in_doubt += 1
            elif row.standing.state is State.REPLACED:  # the row that now uses the order id is held
                self.rows.unknown_orders.append(latest.order_id)
            elif row.standing.state in {State.PAID, State.RETURNED}:
                self.rows.contradictions.append(latest.order_id)
            elif is_only and row.standing.state is State.IN_DOUBT and (number, ASSUMED_ATTEMPT) in recorded:
                self.rows.in_doubt += 1
            # The row is still in the state it had when this attempt was sent. The attempt is restored, in doubt, so
            # that nothing sends the row before the gateway or a person has settled it.
            elif is_only and is_next and number not in contested:
                self.rows.in_doubt += 1
                attempt, intended = row.standing.attempt + 1, Intended(latest.order_id, latest.name, 0, None)
                restored += [Entry(number, attempt, fact, latest.at) for fact in (intended, Interrupted())]
            else:
                self.rows.held += 1
                content = {"by": self._by, "order_id": latest.order_id, "sent_at": latest.at}
                evidence = _witness_evidence(Finding.AMBIGUOUS, content, canonical(latest.name))
                holds.append(Remark(evidence, self._at, number))
        return restored, holds

    def record_unknown_orders(self, record: Record) -> None:
        """Record each order of the lost batches once, in the open transaction. Hold the rows that use them."""
        new = sorted(set(self.rows.unknown_orders) - _load_lost_orders(self._tables))
        pages = [new[start : start + _ORDERS_PER_FACT] for start in range(0, len(new), _ORDERS_PER_FACT)]
        evidence_pages = (_witness_evidence(Finding.UNKNOWN_ORDER, {"by": self._by, "orders": page}) for page in pages)
        if pages:
            record([Remark(evidence, self._at) for evidence in evidence_pages])
        _hold_orders(self._tables, record, self.rows.unknown_orders, 0)


def _belongs_to(row: RowStanding, order_id: str) -> bool:
    """Return whether an attempt under an order id can belong to this row."""
    return row.client_orderid in {order_id, first_order_id(order_id)}


def hold_lost_orders(tables: Tables, record: Record, first: int) -> None:
    """Hold the instructions from `first` on whose order was sent in a lost commit, until a person checks them."""
    _hold_orders(tables, record, _load_lost_orders(tables), first)


def _hold_orders(tables: Tables, record: Record, orders: Collection[str], first: int) -> None:
    spellings = {normalise_spelling(variant) for order in orders for variant in (order, first_order_id(order) or order)}
    matching = tables.run("spelled_as_lost", spellings=sorted(spellings), first=first) if spellings else []
    if matching:
        holds = ((number, _witness_evidence(Finding.AMBIGUOUS, {"order_id": order})) for number, order in matching)
        record([Remark(evidence, "", instruction) for instruction, evidence in holds])


def _witness_evidence(finding: Finding, content: object, lasting: str = "") -> EvidenceRecord:
    means = OutcomeKind.ACCEPTED if finding is Finding.AMBIGUOUS else None
    return EvidenceRecord(EvidenceSource.WITNESS, finding, means, canonical(content), lasting)


def _load_lost_orders(tables: Tables) -> set[str]:
    return {str(order) for (content,) in tables.run("lost_orders") for order in json.loads(content)["orders"]}
