"""A batch that was almost fully sent, for measuring `resume` and `status`.

Sending a million rows takes minutes that are not measured here. So their facts are written into the journal in bulk, as
the engine would write them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Concluded, Intended
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.countries.data import config_dir
from paygw_batch.journal.values import DueRow, Entry
from paygw_batch.opening.given_sheet import SheetSource, rules_for
from paygw_batch.opening.open_journal import file_location
from paygw_batch.settings.configuration import load_settings
from paygw_batch.submit.plan import open_planned_batch, plan_submission

LEFT_PERCENT = 1
_AT_ONCE = 512


def open_sent_batch(sheet: Path, journal: Path, environment: Mapping[str, str]) -> int:
    """Open a sheet's batch in a journal, record all but its last rows as accepted, and return their number.

    The journal was created by a command in this environment. This process uses its state directory for the sent log.
    """
    os.environ["XDG_STATE_HOME"] = environment["XDG_STATE_HOME"]
    settings = load_settings(
        config_dir() / "sandbox.toml", environ=environment, flags={("journal", "path"): str(journal)}
    )
    rules = rules_for(settings, "payout")
    validated = SheetSource(settings, rules, sheet).validated()
    held = file_location(settings).open_to_write("a benchmark")
    try:
        plan = plan_submission(validated, held, Choices(), now=utc_now, quarantine_h=24)
        batch = open_planned_batch(plan, held, rules, sheet_path=sheet, now=utc_now)
        sent, after_row = 0, 0
        while due := held.due(batch.number, after_row=after_row, limit=_AT_ONCE):
            some = due[: batch.rows * (100 - LEFT_PERCENT) // 100 - sent]
            if not some:
                break
            sent, after_row = sent + len(some), some[-1].row
            held.append([build_intent(item) for item in some])
            held.append([build_outcome(item) for item in some])
        return sent
    finally:
        held.close()


def build_intent(due: DueRow) -> Entry:
    """Return the intent of a row's first attempt, as the engine would record it."""
    fact = Intended(due.order_id, f"{due.number:032x}", int(utc_now().timestamp()), "WALLET")
    return Entry(due.number, 1, fact, timestamp(utc_now()))


def build_outcome(due: DueRow) -> Entry:
    """Return the outcome of that attempt."""
    outcome = Outcome(
        OutcomeKind.ACCEPTED, gateway_status="processing", gateway_reference=f"{due.number:020}", http_status=200
    )
    return Entry(due.number, 1, Concluded(outcome), timestamp(utc_now()))
