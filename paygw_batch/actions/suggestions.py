"""Suggests answers to the open questions of a sheet, once for every conversation."""

from datetime import datetime

from paygw_batch.core.batch import PAYOUT


def suggested_reference(operation: str, now: datetime) -> str:
    """Return a name for a payment run of this month: `payroll-2026-11`. A person decides whether it is the right one.

    The name makes order ids: under a name that was used before, rows that are equal count as known, and are not paid.
    """
    return f"{'payroll' if operation == PAYOUT else 'collection'}-{now:%Y-%m}"
