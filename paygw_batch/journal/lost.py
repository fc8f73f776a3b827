"""Finds attempts in commits that the journal lost, and decides what happens to their rows.

A ready row's lost attempt is restored as its next attempt, in doubt, and then settled like any other. The row is held
instead if the journal has other evidence about it, or if it lost several attempts, because decisions between them were
lost too. If a row's whole batch is lost, its order id is recorded, and later rows with that order id are held.
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
from paygw_batch.journal.evidence import EvidenceLog, RecordFacts
from paygw_batch.journal.sent_log import NOTES, SentLogLine, read_lines, writer_names
from paygw_batch.journal.states import RowStanding, parse_row_standing
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import AcceptedRows, Entry, Remark, canonical

_LINES_PER_CHECK = 200
_IDS_PER_FACT = 1_000
ASSUMED_ATTEMPT = "a retired host"
"""The name of an attempt that a retired host may have sent."""
Attempt = tuple[int, int]
FindPresent = Callable[[Sequence[SentLogLine]], Collection[SentLogLine]]
"""Returns the lines whose facts are in the journal."""


class LostIntent(NamedTuple):
    """A lost attempt that this host may have sent: its commit's time, its order id, and a unique name."""

    at: str
    order_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Loss:
    """This host's commits that are missing from the journal. `is_complete` if the sent log has all of them.

    `commits` is their number. `intents` maps each instruction to its lost attempts in the order they were sent.
    Attempts can share a number, because a journal can be replaced by an older copy more than once. `unsent` contains
    attempts that were certainly not sent. The journal may have these.
    """

    commits: int = 0
    intents: Mapping[int, Sequence[LostIntent]] = field(default_factory=dict)
    unsent: AbstractSet[Attempt] = frozenset()
    is_complete: bool = True


def find_loss(folder: Path, find_present: FindPresent) -> Loss:
    """Find the commits that are in the sent logs in `folder` but not in the journal, and their attempts."""
    intents: dict[int, dict[tuple[str, int, str], LostIntent]] = {}
    unsent: set[Attempt] = set()
    commits, is_complete = 0, True
    for writer in writer_names(folder):
        lost_lines, reaches_journal = _find_lost_lines(folder, writer, find_present)
        # Unless the journal has an earlier line, even older ones may be lost. The writer NOTES sends nothing.
        is_complete = is_complete and (reaches_journal or writer == NOTES)
        commits += len(lost_lines)
        for line in lost_lines:
            name = f"a lost commit {line.number}.{line.hash[:16]}"
            for number, attempt, order_id in line.attempts:
                row_intents = intents.setdefault(number, {})
                if order_id is not None:
                    row_intents[writer, attempt, name] = LostIntent(line.at, order_id, name)
                    continue
                newest_key = next((key for key in reversed(row_intents) if key[:2] == (writer, attempt)), None)
                if newest_key is None:
                    unsent.add((number, attempt))
                else:
                    del row_intents[newest_key]
    sorted_intents = {number: sorted(row_intents.values()) for number, row_intents in intents.items() if row_intents}
    return Loss(commits, dict(sorted(sorted_intents.items(), key=lambda item: item[1][-1])), unsent, is_complete)


def _find_lost_lines(folder: Path, writer: str, find_present: FindPresent) -> tuple[list[SentLogLine], bool]:
    """Return a writer's lost lines, oldest first, and whether the journal has an earlier one."""
    newest_first: list[SentLogLine] = []
    with suppress(SentLogDamaged):
        for line in read_lines(folder, writer):
            newest_first.append(line)
            if len(newest_first) % _LINES_PER_CHECK == 0 and find_present(newest_first[-_LINES_PER_CHECK:]):
                break
    present_lines = find_present(newest_first) if newest_first else ()
    lost_lines = list(takewhile(lambda line: line not in present_lines, newest_first))
    return lost_lines[::-1], bool(present_lines)


class LostRows:
    """Decides what happens to rows in a loss that the person `by` accepted. `rows` counts those already decided."""

    def __init__(self, tables: Tables, loss: Loss, *, by: str, at: str) -> None:
        self._tables, self._intents, self._by, self._at = tables, loss.intents, by, at
        self.rows = AcceptedRows()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the instructions that may have been sent, in the order they were sent."""
        return list(self._intents)

    def decide(self, numbers: Sequence[int]) -> tuple[list[Entry], list[Remark]]:
        """Return facts that restore these instructions' lost attempts, and evidence that holds the other rows."""
        rows = {line[0]: parse_row_standing(line) for line in self._tables.run("standings", numbers=list(numbers))}
        contested = EvidenceLog(self._tables).find_contested(rows)
        recorded = {tuple(line) for line in self._tables.run("recorded_losses", numbers=list(numbers))}
        restored: list[Entry] = []
        holds: list[Remark] = []
        for number in numbers:
            row, intents = rows.get(number), self._intents[number]
            row_intents = [] if row is None else [intent for intent in intents if _uses_order_id(row, intent.order_id)]
            self.rows.unknown_order_ids += sorted({intent.order_id for intent in intents if intent not in row_intents})
            if row is None or not row_intents:
                continue
            latest, is_only = row_intents[-1], len(row_intents) == 1  # if not, a reply could belong to any of them
            order_ids = list(dict.fromkeys(intent.order_id for intent in row_intents))
            is_next = row.standing.state is State.READY and row.order_id == latest.order_id
            if (number, canonical(latest.name)) in recorded:
                self.rows.held_order_ids.append(", ".join(order_ids))
            elif (number, latest.name) in recorded:
                self.rows.in_doubt += 1
            elif row.standing.state is State.REPLACED:  # the row that replaced it is held
                self.rows.unknown_order_ids.append(latest.order_id)
            elif row.standing.state in {State.PAID, State.RETURNED}:
                self.rows.contradictions.append(latest.order_id)
            elif is_only and row.standing.state is State.IN_DOUBT and (number, ASSUMED_ATTEMPT) in recorded:
                self.rows.in_doubt += 1
            # The row is in the same state as when this attempt was sent. The attempt is restored, in doubt, so that the
            # row is not sent until the gateway or a person settles it.
            elif is_only and is_next and number not in contested:
                self.rows.in_doubt += 1
                attempt, intended = row.standing.attempt + 1, Intended(latest.order_id, latest.name, 0, None)
                restored += [Entry(number, attempt, fact, latest.at) for fact in (intended, Interrupted())]
            else:
                self.rows.held_order_ids.append(", ".join(order_ids))
                content = {"by": self._by, "lost_orders": order_ids, "sent_at": latest.at}
                evidence = _witness_evidence(Finding.AMBIGUOUS, content, canonical(latest.name))
                holds.append(Remark(evidence, self._at, number))
        return restored, holds

    def record_unknown_order_ids(self, record: RecordFacts) -> None:
        """Record the order ids of lost batches in the open transaction, and hold rows that use them."""
        new_ids = sorted(set(self.rows.unknown_order_ids) - _load_lost_order_ids(self._tables))
        pages = [new_ids[start : start + _IDS_PER_FACT] for start in range(0, len(new_ids), _IDS_PER_FACT)]
        evidence_pages = (_witness_evidence(Finding.UNKNOWN_ORDER, {"by": self._by, "orders": page}) for page in pages)
        if pages:
            record([Remark(evidence, self._at) for evidence in evidence_pages])
        _hold_by_order_id(self._tables, record, self.rows.unknown_order_ids, 0)


def _uses_order_id(row: RowStanding, order_id: str) -> bool:
    return row.client_orderid in {order_id, first_order_id(order_id)}


def hold_lost_orders(tables: Tables, record: RecordFacts, first_instruction: int) -> None:
    """Hold instructions with number `first_instruction` or higher that use order ids of lost batches."""
    _hold_by_order_id(tables, record, _load_lost_order_ids(tables), first_instruction)


def _hold_by_order_id(tables: Tables, record: RecordFacts, order_ids: Collection[str], first_instruction: int) -> None:
    by_spelling: dict[str, list[str]] = {}
    for order_id in sorted(order_ids):
        for spelling in {normalise_spelling(variant) for variant in (order_id, first_order_id(order_id) or order_id)}:
            by_spelling.setdefault(spelling, []).append(order_id)
    values = {"spellings": sorted(by_spelling), "first": first_instruction}
    if by_spelling and (matches := tables.run("instructions_to_hold", **values)):
        contents = ((number, {"lost_orders": by_spelling[normalise_spelling(used)]}) for number, used in matches)
        record([Remark(_witness_evidence(Finding.AMBIGUOUS, content), "", number) for number, content in contents])


def _witness_evidence(finding: Finding, content: object, lasting: str = "") -> EvidenceRecord:
    means = OutcomeKind.ACCEPTED if finding is Finding.AMBIGUOUS else None
    return EvidenceRecord(EvidenceSource.WITNESS, finding, means, canonical(content), lasting)


def _load_lost_order_ids(tables: Tables) -> set[str]:
    return {str(order_id) for (content,) in tables.run("lost_orders") for order_id in json.loads(content)["orders"]}
