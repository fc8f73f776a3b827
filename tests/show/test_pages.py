"""Static pages: they equal their golden files with the style sheet inserted; contrast of colours (WCAG AA).

`python -m tests.show.test_pages` rewrites the golden files, and prints a folder with the complete pages. Check
every difference in a browser before you commit it.
"""

import hashlib
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from jinja2 import UndefinedError

from paygw_batch.approval.plan_document import PlanDocument, PlanFinding
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal import FoundPayment, NewBatch
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.sheet.columns import RECONCILIATION_COLUMNS
from paygw_batch.sheet.instructions import to_pages
from paygw_batch.show.page import page, template_environment
from paygw_batch.show.reconcile import reconciliation
from paygw_batch.show.remittance import render_advices
from paygw_batch.show.report_page import render_report
from paygw_batch.show.totals import STATE_COLOURS, batch_totals
from paygw_batch.submit.plan_to_approve import plan_page
from tests.support.golden_pages import GOLDEN, INSTEAD, STYLE_SHEET, read_golden_page
from tests.support.journal_rows import at, intent, memory_journal, new_instruction, outcome_of, resolved
from tests.support.signed_plans import plan_content

MINOR_UNITS = {"KES": 2, "UGX": 0}
OUTCOMES: Mapping[int, tuple[OutcomeKind, Mapping[str, object]]] = {
    2: (OutcomeKind.PAID, {"gateway_status": "approved", "gateway_reference": "R-2", "http_status": 200}),
    3: (OutcomeKind.ACCEPTED, {"gateway_status": "processing", "gateway_reference": "R-3", "http_status": 202}),
    4: (OutcomeKind.REJECTED, {"gateway_status": "declined", "error_code": "E17", "message": "<b>no & never</b>"}),
    5: (OutcomeKind.UNKNOWN, {"cause": "read.timeout"}),
    6: (OutcomeKind.UNKNOWN, {"cause": "read.timeout"}),
}
"""The outcome of each row's attempt. Row 7 is not sent, and row 8 is invalid."""


def sheet_rows() -> pl.DataFrame:
    lines = []
    for row in range(2, 9):
        instruction = new_instruction(row)
        line = dict.fromkeys(RECONCILIATION_COLUMNS[1:9]) | {"row": row, "valid": row < 8, "purpose": "WALLET-KE"}
        line |= {"client_orderid": instruction.client_orderid, "country": "KE", "currency": "KES"}
        line |= {"amount": instruction.amount, "account_name": f"Wanjiku <{row}>", "phone": f"+{instruction.payee}"}
        lines.append(line | {"error_code": None, "message": None})
    lines[-1] |= {"amount": "-5", "error_code": "amount.sign", "message": "-5 is not above 0. Write `5`"}
    schema = {"row": pl.UInt32, "valid": pl.Boolean}
    return pl.DataFrame(lines, schema={name: schema.get(name, pl.String) for name in lines[0]})


def report() -> str:
    """Return the report of a batch with rows in many states."""
    with closing(memory_journal()) as journal:
        batch = journal.open_batch(
            NewBatch("ba7c" * 4, "payout", "pay & roll.csv", "5ha", 7, 1, approvals=("prepared by ada",)),
            parts=[BatchPart(list(to_pages(sheet_rows())), InstructionRows(map(new_instruction, range(2, 8))))],
            known=(),
            amendments=(),
            at=at(0),
        )
        due = {row_due.row: row_due for row_due in journal.due(batch.number, after_row=0, limit=99)}
        journal.append([intent(due[row], at(row)) for row in OUTCOMES])
        journal.append(
            [outcome_of(due[row].number, 1, kind, at(2 * row), **words) for row, (kind, words) in OUTCOMES.items()]
        )
        journal.append([resolved(due[6].number, 1, Resolution.REJECTED, at(40), Basis.PERSON)])
        frame = reconciliation(journal, batch, MINOR_UNITS)
        return render_report(journal, batch, frame, batch_totals(frame, MINOR_UNITS), MINOR_UNITS, quarantine_h=72)


def plan() -> str:
    """Return a plan with each kind of difference, a row left out, and a warning."""
    lines = [
        (2, "Ada <b>", "254712345009", "KES", "20000.00"),
        (3, "Ben", "254712345002", "KES", "90000.00"),
        (4, "Cleo", "254712345003", "KES", "5.00"),
        (5, "Dan", "254712345004", "KES", "12.00"),
    ]
    people = "".join(f"{','.join(map(str, line))}\n" for line in lines)

    def finding(number: int, code: str, **more: Any) -> PlanFinding:
        row, name, account, currency, amount = lines[number]
        return PlanFinding(row=row, code=code, name=name, account=account, currency=currency, amount=amount, **more)

    earlier: Mapping[str, Any] = {"before_batch": "0c7", "before_sheet": "october.csv", "before_at": "2026-10-21"}
    totals = {"KES": str(sum(Decimal(line[4]) for line in lines))}
    sha256 = {"instructions_sha256": "c" * 64, "people_sha256": hashlib.sha256(people.encode()).hexdigest()}
    content = plan_content(sheet="pay & roll.csv", rows=6, invalid=1, totals=totals, **sha256)
    findings = [
        PlanFinding(row=0, code="payee.compared", people=4, found=3, paid_before=3, **earlier),
        finding(0, "payee.account", old_account="254712345001", before="20000.00", **earlier),
        finding(1, "payee.amount", before="9000.00", **earlier),
        finding(2, "payee.new"),
        PlanFinding(row=0, code="payee.gone", name="Eve", currency="KES", before="7.00", **earlier),
        PlanFinding(row=6, code="row.left_out", name="Fay", currency="KES", amount="3", reasons="phone.length"),
        *(finding(3, "row.look_alike", message=f"like row {row}") for row in range(2, 6)),
        PlanFinding(row=0, code="payee.known_since", rows="3 5", at="2026-01-02"),
    ]
    signed: Mapping[str, Any] = {"made_at": at(0), "maker": "", "signature": "", "approvals": []}
    document = PlanDocument(content=content, findings=findings, people=people, **signed)
    return plan_page(document, "A headline with `a command`.", ["Prepared by ada."])


def remittance() -> str:
    """Return the advices of a person paid in two currencies and of another person."""

    def paid(row: int, currency: str, amount: str, name: str = "Jane <b>") -> FoundPayment:
        batch = ("b" * 16, "payroll.csv", "payout", at(0), row, f"ORD-{row}", "KE", currency, amount, "account")
        payee = ({"account_name": name, "account_number": "254712345001"}, "254712345001", State.PAID, 1)
        sent: tuple[Any, ...] = (
            None if row == 2 else "SENT-3",
            "approved",
            "R<1>",
            None,
            None,
            None,
            at(1),
            at(10 - row),
        )
        return FoundPayment(*batch, *payee, *sent)

    return render_advices([[paid(2, "UGX", "50000"), paid(3, "KES", "1500.50")], [paid(4, "KES", "7", "Ben")]], None)


PAGES = {PageKind.REPORT: report, PageKind.PLAN: plan, PageKind.REMITTANCE: remittance}


@pytest.mark.parametrize("kind", PageKind)
def test_page_matches_golden_file(kind: PageKind) -> None:
    assert PAGES[kind]().encode() == read_golden_page(kind).encode()


# Colours and templates.


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    pairs = [digits[at : at + 2] for at in (0, 2, 4)] if len(digits) == 6 else [digit * 2 for digit in digits]
    parts = [int(pair, 16) / 255 for pair in pairs]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("state", STATE_COLOURS)
def test_workbook_state_colours_have_sufficient_contrast(state: str) -> None:
    assert contrast(*STATE_COLOURS[state]) >= 4.5


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_page_colours_have_sufficient_contrast(mode: int) -> None:
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", root))
        for root in re.findall(r":root \{(.*?)\}", STYLE_SHEET, re.DOTALL)
    )
    palette = [light, light | dark][mode]
    pairs = [(ink, f"{ink}-fill") for ink in ("good", "bad", "warn", "info")]
    pairs += [(ink, ground) for ink in ("ink", "ink-soft", "link") for ground in ("paper", "ground")]
    assert [(ink, ground) for ink, ground in pairs if contrast(palette[ink], palette[ground]) < 4.5] == []


def test_style_sheet_covers_states_and_darkens_only_screens() -> None:
    assert [state for state in STATE_COLOURS if f".{state} {{ --state: var(--{state});" not in STYLE_SHEET] == []
    assert re.findall("@media.*dark.*", STYLE_SHEET) == ["@media screen and (prefers-color-scheme: dark) {"]


def test_pages_are_self_contained_and_require_all_values() -> None:
    text, parts = render_advices([], None), cast(Any, template_environment().get_template("parts.html").module)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert STYLE_SHEET in text
    assert not re.search(r"<(a|link|script|img)\b|url\(|@import", text)
    assert str(parts.sentence("Run `a <b>` now & then")) == "<p>Run <code>a &lt;b&gt;</code> now &amp; then</p>"
    with pytest.raises(UndefinedError, match="advices"):
        page(PageKind.REMITTANCE)


if __name__ == "__main__":
    whole = Path(tempfile.mkdtemp(prefix="paygw-pages-"))
    sys.stdout.write(f"{whole}\n")
    for kind, instruction in PAGES.items():
        (whole / f"{kind}.html").write_bytes(instruction().encode())
        (GOLDEN / f"{kind}.html").write_bytes(instruction().replace(STYLE_SHEET, INSTEAD).encode())
