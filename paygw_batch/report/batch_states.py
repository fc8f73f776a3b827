"""Counts the rows of a batch by state from the journal's own tallies, without its sheet."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import INVALID, STATES, shown_state
from paygw_batch.journal import BatchRecord, JournalReader, StateTally
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
        end_sentence(record, states, contradictions, waiting),
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
    """Return what a run came to, and what a person should do next; so much evidence is `waiting` for one."""
    parts = [", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in states.items()) + "."]
    if stop_reason:
        parts.append(f"The run stopped early: {stop_reason}")
    if states.get("in_doubt"):
        parts.append(
            "Rows in doubt may have been paid and are never sent again by themselves: "
            f"`paygw-batch status {batch.batch}` says what to do about each."
        )
    if contradictions:
        parts.append(
            f"The journal holds {contradictions} contradicting messages: `paygw-batch status` shows them, and "
            "which rows they hold."
        )
    if waiting:
        parts.append(
            f"{waiting:,} messages of the gateway wait for a person: `paygw-batch status {batch.batch}` shows them."
        )
    if interrupted:
        parts.append("Interrupted: run the same command again to continue.")
    elif states.get("ready"):
        parts.append(f"`paygw-batch resume {batch.batch}` sends the rows that are ready.")
    if states.get("rejected"):
        parts.append(f"`paygw-batch retry {batch.batch}` gives rejected rows another attempt.")
    return " ".join(parts)
