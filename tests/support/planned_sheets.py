"""Sheets that are planned and stored, without settings."""

from datetime import timedelta
from pathlib import Path

from paygw_batch.core.choices import Choices
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms
from paygw_batch.journal.journal import JournalReader
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from tests.support.scripted_scenario import NOW, ScriptedGateway, build_engine, run

RULES = load_rules("payout", {"KE": OperatorTerms(purpose="WALLET")})


MINOR_UNITS = {"KES": 2}


def sheet(tmp_path: Path, *rows: str) -> Validated:
    """Validate a sheet with rows of order id, amount, and last digits of the account."""
    lines = ["country,client_orderid,amount,currency,account_name,account_number,phone,note"]
    for row in rows:
        order_id, amount, digits = row.split()
        lines.append(f"KE,{order_id},{amount},KES,Jane,254712345{digits},+254712345{digits},n-{order_id}")
    path = tmp_path / "payroll.csv"
    path.write_text("\n".join(lines) + "\n")
    return validate(read_sheet(path, ReadOptions()), RULES)


def plan(validated: Validated, journal: JournalReader, *, amend: bool = False, days: int = 0) -> Plan:
    later = NOW + timedelta(days=days)
    return plan_submission(validated, journal, Choices(amend=amend), now=lambda: later, quarantine_h=24)


def submit(plan: Plan, journal: SqliteJournal, gateway: ScriptedGateway | None = None) -> BatchRecord:
    batch = open_planned_batch(plan, journal, RULES, sheet_path=Path("payroll.csv"), now=lambda: NOW)
    run(build_engine(journal, gateway or ScriptedGateway()), batch)
    return batch


def rows(prefix: str, count: int, first: int = 1) -> list[str]:
    return [f"{prefix}{n} 100 {n:03}" for n in range(first, first + count)]
