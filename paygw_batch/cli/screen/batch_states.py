"""Where a batch stands by the journal's own counts: what status, resolve and others tell of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from paygw_batch.compose.send import end_sentence
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT, STATES, shown_state
from paygw_batch.engine.engine import RunEnd
from paygw_batch.journal import BatchRecord, JournalReader, StateTally
from paygw_batch.report.metrics import JournalTotals
from paygw_batch.report.summary import Summary, of_states


def batch_summary(journal: JournalReader, record: BatchRecord, minor_units: Mapping[str, int]) -> Summary:
    """Return the summary of a batch as it stands, without reading its sheet."""
    return summary_of(journal, record, journal.tallies(record.number), minor_units)


def summary_of(
    journal: JournalReader, record: BatchRecord, tallies: Sequence[StateTally], minor_units: Mapping[str, int]
) -> Summary:
    """Return the summary of a batch whose `tallies` were read already."""
    states = states_of(record, tallies)
    contradictions, waiting = len(journal.contradictions(record.number)), len(journal.evidence_waiting(record.number))
    return Summary(
        of_states(states, contradictions=contradictions + waiting),
        end_sentence(record, states, RunEnd(0, None, interrupted=False), contradictions, waiting),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=record.rows,
        states=states,
        totals=totals_of(tallies, minor_units),
        defects=record.defects,
    )


def states_of(record: BatchRecord, tallies: Sequence[StateTally]) -> Mapping[str, int]:
    """Return how many rows of a batch's sheet stand in each state: those without an instruction are invalid."""
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts[shown_state(tally.state)] += tally.count
    if left_out := record.rows - counts.total():
        counts[INVALID] += left_out
    return {state: counts[state] for state in STATES if counts[state]}


def figures_of(journal: JournalReader, minor_units: Mapping[str, int]) -> JournalTotals:
    """Return what a journal holds over all batches, each row once."""
    tallies: list[StateTally] = []
    known: list[StateTally] = []
    counts: Counter[str] = Counter()
    oldest: list[str] = []
    for record in journal.batches():
        of_batch = journal.tallies(record.number)
        tallies += of_batch
        known += journal.known_tallies(record.number)
        counts[INVALID] += states_of(record, of_batch).get(INVALID, 0)
        in_doubt = journal.rows(record.number, states=SHOWN_IN_DOUBT)
        oldest += [row.intended_at for row in in_doubt if row.intended_at is not None]
    once = counted_once(tallies, known)
    for tally in once:
        counts[shown_state(tally.state)] += tally.count
    return JournalTotals(
        {state: counts[state] for state in STATES},
        totals_of(once, minor_units),
        datetime.fromisoformat(min(oldest)) if oldest else None,
    )


def counted_once(tallies: Iterable[StateTally], known: Iterable[StateTally]) -> Sequence[StateTally]:
    """Return the tallies of several batches together, less those of `known` rows: each row counts once."""
    counts: Counter[tuple[str, str, State]] = Counter()
    sums: Counter[tuple[str, str, State]] = Counter()
    for sign, part in ((1, tallies), (-1, known)):
        for tally in part:
            key = (tally.country, tally.currency, tally.state)
            counts[key] += sign * tally.count
            sums[key] += sign * tally.minor
    return [StateTally(*key, count, sums[key]) for key, count in counts.items() if count]


def totals_of(tallies: Iterable[StateTally], minor_units: Mapping[str, int]) -> Mapping[str, Mapping[str, str]]:
    """Return currency -> state -> exact sum, as text with the currency's decimals."""
    sums: dict[str, Counter[str]] = {}
    for tally in tallies:
        sums.setdefault(tally.currency, Counter())[shown_state(tally.state)] += tally.minor
    return {
        currency: {state: from_minor(minor, minor_units=minor_units[currency]) for state, minor in by_state.items()}
        for currency, by_state in sorted(sums.items())
    }
