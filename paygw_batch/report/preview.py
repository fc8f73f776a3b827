"""Shows the result of submitting a sheet, without sending or writing anything."""

from collections.abc import Collection, Iterable, Mapping

import polars as pl

from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, shown_state
from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.journal import JournalReader
from paygw_batch.report.reconcile import reconciliation
from paygw_batch.run.submit import Plan


def preview(plan: Plan, journal: JournalReader, minor_units: Mapping[str, int]) -> pl.DataFrame:
    """Return every row of the sheet with the state it has now: `country, currency, amount, state`.

    What is `ready` is what would be sent.
    """
    if plan.existing is not None:
        return reconciliation(journal, plan.existing, minor_units)
    known = pl.DataFrame(
        [(row.row, shown_state(row.state)) for row in plan.known],
        schema={"row": pl.UInt32, "known_state": pl.String},
        orient="row",
    )
    return plan.validated.rows.join(known, on="row", how="left", maintain_order="left").with_columns(
        state=pl.when("valid").then(pl.coalesce("known_state", pl.lit(State.READY.value))).otherwise(pl.lit(INVALID))
    )


def filled_in(rule: CountryRule) -> str:
    """Return what a country's rows are sent with where the sheet says nothing, as `name = "value"`; empty for none."""
    return ", ".join(f'{name} = "{value}"' for name, value in sorted(rule.defaults.items()))


def filled_in_notes(rules: Rules, countries: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return a sentence for each country of a sheet about what is filled in, where the sheet lacks a whole column.

    A column that the sheet has can have empty cells: what fills those is said as well.
    """
    notes = []
    for code in sorted(set(countries) & set(rules)):
        filled = sorted(rules[code].defaults.items())
        absent = [f'{name} = "{value}"' for name, value in filled if name not in columns]
        empty = [f'{name} = "{value}"' for name, value in filled if name in columns]
        if absent:
            notes.append(f"{code}: the sheet does not say these, so they are filled in: {', '.join(absent)}.")
        if empty:
            notes.append(f"{code}: empty cells are filled in: {', '.join(empty)}.")
    return notes
