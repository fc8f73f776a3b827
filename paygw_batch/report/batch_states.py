"""Counts the rows of a batch by state from the journal's own tallies, without its sheet."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import INVALID, STATES, counted_state, shown_state
from paygw_batch.journal import BatchRecord, JournalReader, Messages, StateTally
from paygw_batch.language import say
from paygw_batch.report.next_step import batch_in_command_words, batch_steps
from paygw_batch.report.summary import Summary, of_states


def batch_summary(journal: JournalReader, record: BatchRecord, minor_units: Mapping[str, int]) -> Summary:
    """Return the summary of a batch as it is now, without reading its sheet."""
    return summary_of(record, journal.tallies(record.number), journal.messages(record.number), minor_units)


def summary_of(
    record: BatchRecord, tallies: Sequence[StateTally], messages: Messages, minor_units: Mapping[str, int]
) -> Summary:
    """Return the summary of a batch whose `tallies` and `messages` were read already."""
    states = states_of(record, tallies)
    contradictions, waiting = len(messages.contradictions), len(messages.waiting)
    return Summary(
        of_states(states, contradictions=contradictions + waiting),
        end_sentence(record, states, contradictions, waiting),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=record.rows,
        states=states,
        totals=totals_of(tallies, minor_units),
        defects=record.defects,
    )


def states_of(record: BatchRecord, tallies: Sequence[StateTally]) -> Mapping[str, int]:
    """Return how many rows of a batch's sheet have each state; rows without an instruction are invalid."""
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts[shown_state(tally.state)] += tally.count
    if left_out := record.rows - counts.total():
        counts[INVALID] += left_out
    return {state: counts[state] for state in STATES if counts[state]}


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


def end_sentence(
    batch: BatchRecord,
    states: Mapping[str, int],
    contradictions: int,
    waiting: int,
    *,
    stop_reason: str | None = None,
    interrupted: bool = False,
) -> str:
    """Return the message at the end of a run: states and next steps. `waiting` counts messages for a person."""
    parts = [", ".join(counted_state(count, state) for state, count in states.items()) + "."]
    if stop_reason:
        parts.append(say("The run stopped early: {reason}", reason=stop_reason))
    steps = batch_steps(states, contradictions=contradictions, waiting=waiting, interrupted=interrupted)
    return " ".join([*parts, *(batch_in_command_words(step, count, batch.batch) for step, count in steps)])
