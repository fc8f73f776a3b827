"""Shows a plan to an approver: differences from earlier payments, warnings by kind, and everyone who is paid.

A plan is shown as text or as an HTML page to people who may see the sheet. Messages are built here from the values of
the findings, except warnings, which come from the validation. The plan's maker writes none of the text.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import SequenceMatcher
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

import polars as pl

from paygw_batch.approval.plan_document import (
    ACCOUNTS_FIRST_PAID,
    ALREADY_SENT,
    COMPARED_BATCH,
    CORRECTED,
    FIRST_RUN,
    NAMED_ENCODING,
    OTHER_WORKSHEET,
    REASSIGNED_HEADING,
    SPELLED_COLUMN,
    WORKSHEET,
    PlanDocument,
    PlanFinding,
)
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.money import format_amount, parse_amount
from paygw_batch.core.shown_states import HELD
from paygw_batch.language import format_number, mark, mark_all, say, say_count
from paygw_batch.sheet.check.catalogue import DEFECTS, WARNINGS, code_meaning
from paygw_batch.sheet.check.corrections import LEFT_OUT
from paygw_batch.show.page import page
from paygw_batch.submit.changes import CHANGED_ACCOUNT, DANGER_RANK, NEW_PAYEE, PAYEE_GONE, UNUSUAL_AMOUNT
from paygw_batch.submit.open_questions import MISSING_PAYEE, PAYEE_TWICE, REPEATS_A_BATCH, USED_REFERENCE
from paygw_batch.submit.open_questions import NEW_PAYEE as NEW_IN_REFERENCE

MAX_EXAMPLES = 3
"""The maximum number of warnings of one kind on the page. The plan contains all of them."""
_NOT_WARNINGS = frozenset(
    {
        *(*DANGER_RANK, FIRST_RUN, COMPARED_BATCH, ACCOUNTS_FIRST_PAID, LEFT_OUT, CORRECTED, REASSIGNED_HEADING),
        *(NAMED_ENCODING, ALREADY_SENT, SPELLED_COLUMN, WORKSHEET, OTHER_WORKSHEET),
    }
)
_DOUBLE_PAYMENTS = (
    *(USED_REFERENCE, NEW_IN_REFERENCE, MISSING_PAYEE, PAYEE_TWICE, REPEATS_A_BATCH),
    *("row.look_alike", "account_number.two_meanings", "account_name.two_names"),
)
"""The codes of warnings that a payment may already have been made. They are shown first, and in full."""
_WITHOUT_NAME = frozenset({"row.look_alike", "account_name.two_names"})
"""The codes in `_DOUBLE_PAYMENTS` whose messages give an order id instead of the person's name."""
_SHOWN_DIGITS = 3
"""How many final digits, and how many differing digits, a masked account shows."""
_MAX_DECIMALS = 4
_HEADINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        CHANGED_ACCOUNT: mark_all("changed account", "changed accounts"),
        UNUSUAL_AMOUNT: mark_all("amount differs", "amounts differ"),
        NEW_PAYEE: mark_all("new person", "new people"),
        PAYEE_GONE: mark_all("person missing", "people missing"),
    }
)
"""The name of each kind of change, in the singular and plural."""
_SENT_HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        "in_doubt": mark("In doubt (may have been paid), not sent now ({count:,})"),
        HELD: mark("Held (may have been paid), not sent now ({count:,})"),
        "rejected": mark("Rejected before, not sent again ({count:,})"),
        "returned": mark("Returned (the money came back), not sent again ({count:,})"),
        "": mark("Already paid or with the gateway, not sent again ({count:,})"),
    }
)
"""The heading for rows sent before, by the `value` of their findings."""


@dataclass(frozen=True, slots=True)
class DifferenceGroup:
    """The differences of one kind from earlier payments. `label` names the kind, in the singular or plural."""

    label: str
    findings: Sequence[PlanFinding]

    @property
    def heading(self) -> str:
        return f"{format_number(len(self.findings))} {self.label}"


@dataclass(frozen=True, slots=True)
class WarningGroup:
    """The warnings with one code: their number, and the first few."""

    code: str
    count: int
    examples: Sequence[PlanFinding]


@dataclass(frozen=True, slots=True)
class ListedPayee:
    """A row to pay. `code` is that of its most dangerous difference. `known_since` is empty for a new account."""

    row: int
    name: str
    account: str
    currency: str
    amount: str
    code: str
    known_since: str


Piece = tuple[str, bool]
"""A part of an account number, and whether it differs from the other account."""


def difference_pieces(old: str, new: str) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """Split two account numbers into pieces that are the same and pieces that differ."""
    if len(old) == len(new):
        runs = groupby(range(len(old)), key=lambda position: old[position] != new[position])
        ranges = [(differs, list(positions)) for differs, positions in runs]
        slices = [(differs, slice(positions[0], positions[-1] + 1)) for differs, positions in ranges]
        return [(old[part], differs) for differs, part in slices], [(new[part], differs) for differs, part in slices]
    both: tuple[list[Piece], list[Piece]] = ([], [])
    for tag, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for pieces, piece in ((both[0], old[start:end]), (both[1], new[new_start:new_end])):
            if piece:
                pieces.append((piece, tag != "equal"))
    return both


def mask_pieces(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Mask most digits of an account, leaving enough to compare but too few to make a payment."""
    length, position, shown_differences = sum(len(piece) for piece, _ in pieces), 0, 0
    masked: list[Piece] = []
    for piece, differs in pieces:
        text = ""
        for character in piece:
            is_shown = position >= length - _SHOWN_DIGITS or (differs and shown_differences < _SHOWN_DIGITS)
            shown_differences += differs and position < length - _SHOWN_DIGITS
            text += character if is_shown else "*"
            position += 1
        masked.append((text, differs))
    return masked


def _parse_row_ranges(ranges: str) -> Iterator[int]:
    for part in ranges.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def listed_payees(document: PlanDocument) -> Sequence[ListedPayee]:
    """Return all rows to pay: first those with dangerous differences, then the largest amounts."""
    findings = document.select_findings(ACCOUNTS_FIRST_PAID)
    dates = {row: finding.at for finding in findings for row in _parse_row_ranges(finding.rows)}
    codes: dict[tuple[str, str, str], str] = {}
    for finding in _dangerous_findings(document):
        codes.setdefault((finding.name, finding.account, finding.currency), finding.code)
    text = io.StringIO(document.people, newline="")
    payees = [
        ListedPayee(
            int(row), name, account, currency, amount, codes.get((name, account, currency), ""), dates.get(int(row), "")
        )
        for row, name, account, currency, amount in csv.reader(text)
    ]
    return sorted(payees, key=lambda row: (DANGER_RANK.get(row.code, len(DANGER_RANK)), -Decimal(row.amount), row.row))


def people_table(document: PlanDocument) -> pl.DataFrame:
    """Return all payees as a table for download, in the sheet's order."""
    headings = ("row", "name", "account", "currency", "amount", "known_since", "differs")
    lines = [
        (str(row.row), row.name, row.account, row.currency, row.amount, row.known_since, difference_word(row.code))
        for row in sorted(listed_payees(document), key=attrgetter("row"))
    ]
    return pl.DataFrame(lines, schema=dict.fromkeys(headings, pl.String), orient="row")


def difference_word(code: str) -> str:
    """Return the name of a kind of difference, or an empty string if `code` is not a difference."""
    return say(_HEADINGS[code][0]) if code in _HEADINGS else ""


def differences(document: PlanDocument) -> Sequence[DifferenceGroup]:
    """Return all differences from earlier payments, grouped by kind, most dangerous first."""
    groups = groupby(_dangerous_findings(document), key=attrgetter("code"))
    grouped = ((code, list(findings)) for code, findings in groups)
    return [DifferenceGroup(say(_HEADINGS[code][len(findings) != 1]), findings) for code, findings in grouped]


def _dangerous_findings(document: PlanDocument) -> Sequence[PlanFinding]:
    return sorted(document.select_findings(*DANGER_RANK), key=lambda finding: DANGER_RANK[finding.code])


def comparison_text(document: PlanDocument, *, is_for_officers: bool = False) -> str:
    """Describe how many people were paid before, and in which batch. Officers do not see the batch's id."""
    finding = next(iter(document.select_findings(COMPARED_BATCH, FIRST_RUN)), None)
    if finding is None:
        return ""
    if finding.code == FIRST_RUN:
        return say("There is no earlier payment to compare with.")
    if not finding.paid_before:
        return say("None of these people has been paid before.")
    batch = finding.before_batch
    figures = {"found": finding.found, "people": finding.people, "sheet": finding.before_sheet, "at": finding.before_at}
    comparison = (
        say("{found:,} of {people:,} people are in {sheet} ({at}).", **figures)
        if is_for_officers
        else say("{found:,} of {people:,} people are in {sheet} ({at}, batch {batch}).", **figures, batch=batch)
    )
    sentences = [say("No earlier batch paid half of these people.")] if finding.found * 2 < finding.people else []
    sentences.append(comparison)
    if (extra := finding.paid_before - finding.found) > 0:
        sentences.append(
            say_count(extra, "{count:,} more was paid in other batches.", "{count:,} more were paid in other batches.")
        )
    sentences.append(say("Each person is compared with the last similar batch that paid them."))
    if not differences(document):
        sentences.append(say("Nothing differs."))
    return " ".join(sentences)


def worksheets_text(document: PlanDocument) -> str:
    """Describe which worksheets a plan pays and which it does not. Empty if the workbook has only one."""
    sheet = next(iter(document.select_findings(WORKSHEET)), None)
    if sheet is None:
        return ""
    others = [
        f"{other.value!r} ({say_count(other.people, '{count:,} row', '{count:,} rows')})"
        if other.people
        else repr(other.value)
        for other in document.select_findings(OTHER_WORKSHEET)
    ]
    if not others:
        return say("This plan pays the worksheet {name!r}.", name=sheet.value)
    return say("This plan pays only the worksheet {name!r}, not: {others}.", name=sheet.value, others=", ".join(others))


def left_out_sums(document: PlanDocument) -> Sequence[tuple[str, int, str]]:
    """Return each currency with the number and sum of the rows left out. Unreadable amounts count as 0."""
    sums: dict[str, Decimal] = {}
    row_counts: Counter[str] = Counter()
    for finding in document.select_findings(LEFT_OUT):
        row_counts[finding.currency] += 1
        value = parse_amount(finding.amount, minor_units=_MAX_DECIMALS) or Decimal(0)
        sums[finding.currency] = sums.get(finding.currency, Decimal(0)) + value
    return [(currency, row_counts[currency], f"{sums[currency]:f}") for currency in sorted(sums)]


def double_payments(document: PlanDocument) -> Sequence[PlanFinding]:
    """Return all warnings about possible double payments, ordered by kind."""
    return [finding for code in _DOUBLE_PAYMENTS for finding in document.select_findings(code)]


def sent_before(document: PlanDocument) -> Sequence[tuple[str, Sequence[PlanFinding]]]:
    """Return the rows already sent, which are not sent again, with a heading for each state."""
    by_state: dict[str, list[PlanFinding]] = {state: [] for state in _SENT_HEADINGS}
    for finding in document.select_findings(ALREADY_SENT):
        by_state[finding.value if finding.value in by_state else "in_doubt"].append(finding)
    return [
        (say(_SENT_HEADINGS[state], count=len(findings)), findings) for state, findings in by_state.items() if findings
    ]


def warning_groups(document: PlanDocument) -> Sequence[WarningGroup]:
    """Return the remaining warnings by kind: those about the whole sheet first, then rare kinds before common ones."""
    by_code: dict[str, list[PlanFinding]] = {}
    for finding in document.findings:
        if finding.code not in _NOT_WARNINGS and finding.code not in _DOUBLE_PAYMENTS:
            by_code.setdefault(finding.code, []).append(finding)
    groups = [
        WarningGroup(code, len(findings), sorted(findings, key=attrgetter("row"))[:MAX_EXAMPLES])
        for code, findings in by_code.items()
    ]
    return sorted(groups, key=lambda group: (group.examples[0].row > 0, group.count))


def earlier_payment_text(finding: PlanFinding) -> str:
    """Describe the earlier payment that a finding refers to."""
    values = {"sheet": finding.before_sheet, "at": finding.before_at}
    if finding.before:
        amount = format_amount(finding.before)
        return say("{currency} {amount} in {sheet} ({at})", currency=finding.currency, amount=amount, **values)
    if finding.before_sheet:
        return say("in {sheet} ({at})", **values)
    return say("never in {currency}", currency=finding.currency)


def first_payment_text(finding: PlanFinding) -> str:
    if not finding.first_at:
        return say("this account has never been paid before")
    return say(
        "this account was first paid on {at}: {currency} {amount} in {sheet}",
        at=finding.first_at,
        currency=finding.currency,
        amount=format_amount(finding.first_amount),
        sheet=finding.first_sheet,
    )


def shared_account_text(finding: PlanFinding) -> str:
    """Describe the other name under which the account was paid. Empty if there is none."""
    return say("this account was paid under the name {name}", name=finding.shared_with) if finding.shared_with else ""


def finding_sentence(finding: PlanFinding) -> str:
    """Describe a finding using its values. Warnings have their own message."""
    match finding.code:
        case "payee.account":
            parts = (
                say("paid to another account before: {earlier}", earlier=earlier_payment_text(finding)),
                first_payment_text(finding),
                shared_account_text(finding),
            )
            return "; ".join(part for part in parts if part)
        case "payee.amount":
            return earlier_payment_text(finding)
        case "payee.new":
            return say("never paid before")
        case "payee.gone":
            return say("{earlier}, but not in this sheet", earlier=earlier_payment_text(finding))
        case "row.left_out":
            return _left_out_text(finding)
        case "cell.mended":
            texts = {"was": finding.value or say("empty"), "now": finding.becomes or say("empty")}
            who = {"by": finding.by, "at": finding.at}
            return say("{column} was {was} and is now {now} ({by}, {at})", column=finding.column, **texts, **who)
        case "column.meant" | "sheet.encoding" | "sheet.spelling":
            return _reading_text(finding)
        case "payee.sent_before":
            return say("in {sheet} ({at})", sheet=finding.before_sheet, at=finding.before_at)
        case "payee.known_since":
            return say("rows {rows}: the account was first paid on {at}", rows=finding.rows, at=finding.at)
        case _:
            return finding.message


def _reading_text(finding: PlanFinding) -> str:
    if finding.code == NAMED_ENCODING:
        return say("the file was read as {encoding}: check that names are spelled correctly", encoding=finding.value)
    if finding.code == SPELLED_COLUMN:
        rows, read = finding.rows.replace(" ", ", "), {"value": finding.value, "text": finding.becomes}
        return say("{column}: {value} was read as {text}, rows {rows}", column=finding.column, rows=rows, **read)
    values = {"heading": finding.value, "column": finding.column, "by": finding.by, "at": finding.at}
    if finding.column:
        return say("the heading {heading} means {column} ({by}, {at})", **values)
    return say("the heading {heading} is not used ({by}, {at})", **values)


def _left_out_text(finding: PlanFinding) -> str:
    reasons = ", ".join(_defect_label(code) for code in finding.reasons.split() if code != LEFT_OUT)
    if finding.by:
        text = say("left out by {by} at {at}", by=finding.by, at=finding.at)
        return f"{text} ({reasons})" if reasons else text
    return say("left out because it has defects: {reasons}", reasons=reasons) if reasons else say("left out")


def _defect_label(code: str) -> str:
    try:
        return code_meaning(code, DEFECTS).label.replace("_", " ")
    except KeyError:
        return code


def finding_line(finding: PlanFinding) -> str:
    """Return a finding as one line: row, name, amount and description."""
    row = say("Row {row}", row=finding.row) if finding.row else ""
    amount = f"{finding.currency} {format_amount(finding.amount or finding.before)}"
    return f"{', '.join(part for part in (row, finding.name, amount) if part.strip())}: {finding_sentence(finding)}"


def _difference_lines(finding: PlanFinding) -> Iterator[str]:
    """Yield the lines about a difference. For a changed account, carets mark the digits that differ."""
    yield f"- {finding_line(finding)}"
    if finding.code == CHANGED_ACCOUNT:
        names = (say("before"), say("now"))
        width = max(map(len, names))
        old, new = difference_pieces(finding.old_account, finding.account)
        yield f"    {names[0]:<{width}}  {finding.old_account}"
        yield f"    {names[1]:<{width}}  {finding.account}"
        marks = "".join(("^" if differs else " ") * len(piece) for piece, differs in new)
        # If digits were only removed, none differ in the new account, so those of the old one are marked.
        marks = marks if marks.strip() else "".join(("^" if differs else " ") * len(piece) for piece, differs in old)
        yield f"    {'':<{width}}  {marks.rstrip()}"


def plan_lines(document: PlanDocument) -> Iterator[str]:
    """Yield a plan's findings as text: possible double payments, differences, then all others."""
    if worksheets := worksheets_text(document):
        yield worksheets
    if doubles := double_payments(document):
        yield say("Could someone be paid twice? Check this first:")
        for finding in doubles:
            batch = say(" It is batch {batch}.", batch=finding.value) if finding.code == REPEATS_A_BATCH else ""
            yield f"- {double_payment_line(finding)}{batch}"
        if document.answered:
            yield say("The maker confirms that this is intended.")
    for heading, findings in sent_before(document):
        yield say("{heading}:", heading=heading)
        yield from (f"- {finding_line(finding)}" for finding in findings)
    if comparison := comparison_text(document):
        yield comparison
    if groups := differences(document):
        yield say("Check this first: {headings}.", headings=", ".join(group.heading for group in groups))
    for group in groups:
        yield say("{heading}:", heading=group.heading)
        for finding in group.findings:
            yield from _difference_lines(finding)
    yield from _left_out_lines(document)
    yield from _correction_lines(document)
    yield from _warning_lines(warning_groups(document))


def _correction_lines(document: PlanDocument) -> Iterator[str]:
    if corrections := document.select_findings(CORRECTED, REASSIGNED_HEADING, NAMED_ENCODING, SPELLED_COLUMN):
        yield say("Changed after the upload:")
    for finding in corrections:
        prefix = f"{say('Row {row}', row=finding.row)}: " if finding.row else ""
        yield f"- {prefix}{finding_sentence(finding)}"


def _warning_lines(groups: Sequence[WarningGroup]) -> Iterator[str]:
    if groups:
        total = sum(group.count for group in groups)
        yield say_count(total, "{count:,} warning, by kind:", "{count:,} warnings, by kind:")
    for group in groups:
        yield f"{group.code}: {format_number(group.count)}"
        for finding in group.examples:
            yield f"  {warning_line(finding)}"
        if group.count > len(group.examples):
            unlisted_count = group.count - len(group.examples)
            yield "  " + say("... and {count:,} more in the plan.", count=unlisted_count)


def warning_line(finding: PlanFinding) -> str:
    return say("Row {row}: {message}", row=finding.row, message=finding.message) if finding.row else finding.message


def double_payment_line(finding: PlanFinding) -> str:
    """Return a warning about a double payment as one line, with the person's name if known."""
    return finding_line(finding) if finding.row and finding.code in _WITHOUT_NAME else warning_line(finding)


def _left_out_lines(document: PlanDocument) -> Iterator[str]:
    if findings := document.select_findings(LEFT_OUT):
        sums = ", ".join(f"{currency} {format_amount(amount)}" for currency, _, amount in left_out_sums(document))
        yield say_count(
            len(findings), "Left out: {count:,} row ({sums}):", "Left out: {count:,} rows ({sums}):", sums=sums.strip()
        )
    for finding in findings:
        yield f"- {finding_line(finding)}"


def people_lines(document: PlanDocument) -> Iterator[str]:
    """Yield all payees as text: differences first, then the largest amounts."""
    payees = listed_payees(document)
    yield say_count(len(payees), "{count:,} payment in all:", "{count:,} payments in all:")
    for payee in payees:
        amount = f"{payee.currency} {format_amount(payee.amount)}"
        line = ", ".join((say("Row {row}", row=payee.row), payee.name, payee.account, amount, _known_since_text(payee)))
        yield f"- {line}{f' ({word})' if (word := difference_word(payee.code)) else ''}"


def _known_since_text(payee: ListedPayee) -> str:
    return say("first paid on {at}", at=payee.known_since) if payee.known_since else say("new account")


def plan_page(document: PlanDocument, headline: str, signatures: Sequence[str]) -> str:
    """Return a plan as one HTML page with all its findings and payees."""
    return page(
        PageKind.PLAN,
        content=document.content,
        headline=headline,
        signatures=signatures,
        worksheets=worksheets_text(document),
        comparison_text=comparison_text(document),
        doubles=double_payments(document),
        sent_before=sent_before(document),
        differences=differences(document),
        left_out=document.select_findings(LEFT_OUT),
        left_out_sums=left_out_sums(document),
        warnings=warning_groups(document),
        double_payment_line=double_payment_line,
        people=listed_payees(document),
        difference_pieces=difference_pieces,
        finding_sentence=finding_sentence,
        advice=_warning_advice,
        since=_known_since_text,
        difference_word=difference_word,
    )


def _warning_advice(code: str) -> str:
    """Return what a warning means and what to do about it. Empty for an unknown code."""
    try:
        meaning = code_meaning(code, WARNINGS)
    except KeyError:
        return ""
    return f"{meaning.sentence} {meaning.suggestion}"
