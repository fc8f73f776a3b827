"""Holds a sheet against the journal by the settings.

Apart from `parts.py`, so that a command that plans nothing loads no contracts of countries.
"""

from paygw_batch.clock import utc_now
from paygw_batch.journal import JournalReader
from paygw_batch.run.submit import Plan, plan_submission
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.model import Validated


def planned_submission(
    settings: Settings, validated: Validated, journal: JournalReader, *, operation: str, amend: bool, strict: bool
) -> Plan:
    """Hold a validated sheet against the journal, by the settings and the wall clock."""
    return plan_submission(
        validated,
        journal,
        operation=operation,
        amend=amend,
        now=utc_now,
        quarantine_h=settings.submission.quarantine_h,
        strict=strict,
        repeat_days=settings.sheet.repeat_days,
        look_alike_days=settings.sheet.look_alike_days,
    )
