"""Shows the result of submitting a sheet, without sending or writing anything."""

from collections.abc import Mapping

import polars as pl

from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, shown_state
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
