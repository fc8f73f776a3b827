"""Shows a plan to an approver: differences from earlier payments, warnings by kind, and everyone who is paid.

A plan is shown as lines or as a page, for people who may see the sheet. Every sentence is built here from the values of
the findings, except warnings, which have the words of the validation. None comes from the plan's maker.
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
from paygw_batch.language import format_number, mark_all, say, say_count
from paygw_batch.sheet.check.catalogue import DEFECTS, WARNINGS, code_meaning
from paygw_batch.sheet.check.corrections import LEFT_OUT
from paygw_batch.show.page import page
from paygw_batch.submit.changes import AMOUNT_OFF, CHANGED_ACCOUNT, DANGER, NEW_PAYEE, PAYEE_GONE
from paygw_batch.submit.open_questions import MISSING_PAYEE, PAYEE_TWICE, REPEATS_A_BATCH, USED_REFERENCE
from paygw_batch.submit.open_questions import NEW_PAYEE as NEW_IN_REFERENCE

EXAMPLES_OF_KIND = 3
"""The maximum number of warnings of one kind on the page. The plan has all of them."""
_NO_WARNINGS = frozenset(
    {
        *(*DANGER, FIRST_RUN, COMPARED_BATCH, ACCOUNTS_FIRST_PAID, LEFT_OUT, CORRECTED, REASSIGNED_HEADING),
        *(NAMED_ENCODING, ALREADY_SENT, SPELLED_COLUMN, WORKSHEET, OTHER_WORKSHEET),
    }
)
_DOUBLE_PAYMENTS = (
    *(USED_REFERENCE, NEW_IN_REFERENCE, MISSING_PAYEE, PAYEE_TWICE, REPEATS_A_BATCH),
    *("row.look_alike", "account_number.two_meanings", "account_name.two_names"),
)
"""The kinds of warnings about a payment that may have been made already. They are shown first, and in full."""
_WITHOUT_NAME = frozenset({"row.look_alike", "account_name.two_names"})
"""The kinds in `_DOUBLE_PAYMENTS` whose sentence names an order id and not the person."""
_SHOWN_DIGITS = 3
"""The number of last digits, and of differing digits, shown to people who may not see a whole account."""
_MAX_DECIMALS = 4
_HEADINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        CHANGED_ACCOUNT: mark_all("changed account", "changed accounts"),
        AMOUNT_OFF: mark_all("amount differs", "amounts differ"),
        NEW_PAYEE: mark_all("new person", "new people"),
        PAYEE_GONE: mark_all("person missing", "people missing"),
    }
)
"""The name of each kind of change, in the singular and the plural."""


@dataclass(frozen=True, slots=True)
class DifferenceGroup:
    """The differences of one kind from earlier payments. `words` is the name of the kind, in singular or plural."""

    words: str
    findings: Sequence[PlanFinding]

    @property
    def heading(self) -> str:
        return f"{format_number(len(self.findings))} {self.words}"


@dataclass(frozen=True, slots=True)
class WarningGroup:
    """The warnings of a plan with one code: their number, and the first few."""

    code: str
    count: int
    examples: Sequence[PlanFinding]


@dataclass(frozen=True, slots=True)
class ListedPayee:
    """A row to be paid. `code` is its payee's most dangerous difference, or empty if there is none.

    `known_since` is the date on which the account was first paid, or empty for a new account.
    """

    row: int
    name: str
    account: str
    currency: str
    amount: str
    code: str
    known_since: str


Piece = tuple[str, bool]
"""Some characters of an account, and whether they differ from those of the other account."""


def difference_pieces(old: str, new: str) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """Return two accounts as pieces, each marked if it differs from the other account."""
    if len(old) == len(new):
        runs = groupby(range(len(old)), key=lambda position: old[position] != new[position])
        ranges = [(differs, list(positions)) for differs, positions in runs]
        slices = [(differs, slice(positions[0], positions[-1] + 1)) for differs, positions in ranges]
        return [(old[part], differs) for differs, part in slices], [(new[part], differs) for differs, part in slices]
    pieces_of_both: tuple[list[Piece], list[Piece]] = ([], [])
    for tag, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for pieces, piece in ((pieces_of_both[0], old[start:end]), (pieces_of_both[1], new[new_start:new_end])):
            if piece:
                pieces.append((piece, tag != "equal"))
    return pieces_of_both


def mask_pieces(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return an account with most digits masked, leaving enough for comparison but too few for a payment."""
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
    """Return all payees: people with a dangerous difference first, then the largest amounts."""
    findings = document.select_findings(ACCOUNTS_FIRST_PAID)
    times = {row: finding.at for finding in findings for row in _parse_row_ranges(finding.rows)}
    codes: dict[tuple[str, str, str], str] = {}
    for finding in _dangerous_findings(document):
        codes.setdefault((finding.name, finding.account, finding.currency), finding.code)
    text = io.StringIO(document.people, newline="")
    unsorted = [
        ListedPayee(
            int(row), name, account, currency, amount, codes.get((name, account, currency), ""), times.get(int(row), "")
        )
        for row, name, account, currency, amount in csv.reader(text)
    ]
    return sorted(unsorted, key=lambda payee: (DANGER.get(payee.code, len(DANGER)), -Decimal(payee.amount), payee.row))


def people_table(document: PlanDocument) -> pl.DataFrame:
    """Return all payees as a table for download, in the sheet's order."""
    headings = ("row", "name", "account", "currency", "amount", "known_since", "differs")
    lines = [
        (str(row.row), row.name, row.account, row.currency, row.amount, row.known_since, difference_word(row.code))
        for row in sorted(listed_payees(document), key=attrgetter("row"))
    ]
    return pl.DataFrame(lines, schema=dict.fromkeys(headings, pl.String), orient="row")


def difference_word(code: str) -> str:
    """Return the name of a kind of difference, or an empty string if there is none."""
    return say(_HEADINGS[code][0]) if code in _HEADINGS else ""


def differences(document: PlanDocument) -> Sequence[DifferenceGroup]:
    """Return all differences from earlier payments by kind, in the order of the plan."""
    groups = groupby(_dangerous_findings(document), key=attrgetter("code"))
    grouped = ((code, list(findings)) for code, findings in groups)
    return [DifferenceGroup(say(_HEADINGS[code][len(findings) != 1]), findings) for code, findings in grouped]


def _dangerous_findings(document: PlanDocument) -> Sequence[PlanFinding]:
    return sorted(document.select_findings(*DANGER), key=lambda finding: DANGER[finding.code])


def comparison_text(document: PlanDocument, *, is_for_officers: bool = False) -> str:
    """Describe the number of people who were paid before, and the batch with most of them.

    For officers, a batch is named by its sheet and its date.
    """
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
    sentences = [say("No earlier batch paid even half of these people.")] if finding.found * 2 < finding.people else []
    sentences.append(comparison)
    if (extra := finding.paid_before - finding.found) > 0:
        sentences.append(
            say_count(extra, "{count:,} more was paid in other batches.", "{count:,} more were paid in other batches.")
        )
    sentences.append(say("Each person is compared with the last similar batch that paid them."))
    if not differences(document):
        sentences.append(say("Nothing differs."))
    return " ".join(sentences)


def worksheets_sentence(document: PlanDocument) -> str:
    """Return a sentence on which worksheets a plan pays and which not, or empty without a choice."""
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
        return say("This pays the worksheet {name!r}.", name=sheet.value)
    return say(
        "This pays the worksheet {name!r}. It does not pay: {others}.", name=sheet.value, others=", ".join(others)
    )


def left_out_sums(document: PlanDocument) -> Sequence[tuple[str, int, str]]:
    """Return the currency, number and sum of the rows left out. An unreadable amount counts as 0."""
    sums: dict[str, Decimal] = {}
    rows: Counter[str] = Counter()
    for finding in document.select_findings(LEFT_OUT):
        rows[finding.currency] += 1
        value = parse_amount(finding.amount, minor_units=_MAX_DECIMALS) or Decimal(0)
        sums[finding.currency] = sums.get(finding.currency, Decimal(0)) + value
    return [(currency, rows[currency], f"{sums[currency]:f}") for currency in sorted(sums)]


def double_payments(document: PlanDocument) -> Sequence[PlanFinding]:
    """Return all warnings about payments that may have been made already, by kind."""
    return [finding for code in _DOUBLE_PAYMENTS for finding in document.select_findings(code)]


def warning_groups(document: PlanDocument) -> Sequence[WarningGroup]:
    """Return the other warnings by kind: those about the whole sheet first, then rarer kinds first."""
    by_code: dict[str, list[PlanFinding]] = {}
    for finding in document.findings:
        if finding.code not in _NO_WARNINGS and finding.code not in _DOUBLE_PAYMENTS:
            by_code.setdefault(finding.code, []).append(finding)
    kinds = [
        WarningGroup(code, len(findings), sorted(findings, key=attrgetter("row"))[:EXAMPLES_OF_KIND])
        for code, findings in by_code.items()
    ]
    return sorted(kinds, key=lambda kind: (kind.examples[0].row > 0, kind.count))


def earlier_payment_text(finding: PlanFinding) -> str:
    """Describe the payment with which a finding is compared."""
    values = {"sheet": finding.before_sheet, "at": finding.before_at}
    if finding.before:
        amount = format_amount(finding.before)
        return say("{currency} {amount} in {sheet} ({at})", currency=finding.currency, amount=amount, **values)
    if finding.before_sheet:
        return say("in {sheet} ({at})", **values)
    return say("never in {currency}", currency=finding.currency)


def first_payment_text(finding: PlanFinding) -> str:
    if not finding.first_at:
        return say("this account was never paid before")
    return say(
        "this account was first paid on {at}: {currency} {amount} in {sheet}",
        at=finding.first_at,
        currency=finding.currency,
        amount=format_amount(finding.first_amount),
        sheet=finding.first_sheet,
    )


def shared_account_text(finding: PlanFinding) -> str:
    """Describe the other name under which a finding's account was paid. Empty if there is none."""
    return say("this account was paid under the name {name}", name=finding.shared_with) if finding.shared_with else ""


def finding_sentence(finding: PlanFinding) -> str:
    """Return a finding as a sentence built from its values, or a warning's own message."""
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
            return say("{earlier}, and not in this sheet", earlier=earlier_payment_text(finding))
        case "row.left_out":
            return _left_out_sentence(finding)
        case "cell.mended":
            texts = {"was": finding.value or say("empty"), "now": finding.becomes or say("empty")}
            who = {"by": finding.by, "at": finding.at}
            return say("{column} was {was}, is {now} ({by}, {at})", column=finding.column, **texts, **who)
        case "column.meant" | "sheet.encoding" | "sheet.spelling":
            return _reading_sentence(finding)
        case "payee.sent_before":
            return say("in {sheet} ({at})", sheet=finding.before_sheet, at=finding.before_at)
        case "payee.known_since":
            return say("rows {rows}: the account was first paid on {at}", rows=finding.rows, at=finding.at)
        case _:
            return finding.message


def _reading_sentence(finding: PlanFinding) -> str:
    if finding.code == NAMED_ENCODING:
        return say("the file is read as {encoding}: check the letters in the names", encoding=finding.value)
    if finding.code == SPELLED_COLUMN:
        rows, read = finding.rows.replace(" ", ", "), {"value": finding.value, "text": finding.becomes}
        return say("{column}: {value} is read as {text}, rows {rows}", column=finding.column, rows=rows, **read)
    values = {"heading": finding.value, "column": finding.column, "by": finding.by, "at": finding.at}
    if finding.column:
        return say("the heading {heading} means {column} ({by}, {at})", **values)
    return say("the heading {heading} is not used ({by}, {at})", **values)


def _left_out_sentence(finding: PlanFinding) -> str:
    reasons = ", ".join(_defect_label(code) for code in finding.reasons.split() if code != LEFT_OUT)
    if finding.by:
        words = say("left out by {by} at {at}", by=finding.by, at=finding.at)
        return f"{words} ({reasons})" if reasons else words
    return say("left out, because it has defects: {reasons}", reasons=reasons) if reasons else say("left out")


def _defect_label(code: str) -> str:
    try:
        return code_meaning(code, DEFECTS).label.replace("_", " ")
    except KeyError:
        return code


def finding_line(finding: PlanFinding) -> str:
    """Return a finding as one line: row, name, amount and sentence."""
    row = say("Row {row}", row=finding.row) if finding.row else ""
    amount = f"{finding.currency} {format_amount(finding.amount or finding.before)}"
    return f"{', '.join(part for part in (row, finding.name, amount) if part.strip())}: {finding_sentence(finding)}"


def _finding_lines(finding: PlanFinding) -> Iterator[str]:
    """Yield a difference as lines. A changed account shows both numbers, with the differing digits marked."""
    yield f"- {finding_line(finding)}"
    if finding.code == CHANGED_ACCOUNT:
        names = (say("before"), say("now"))
        width = max(map(len, names))
        old, new = difference_pieces(finding.old_account, finding.account)
        yield f"    {names[0]:<{width}}  {finding.old_account}"
        yield f"    {names[1]:<{width}}  {finding.account}"
        caret = "".join(("^" if is_other else " ") * len(piece) for piece, is_other in new)
        # If digits were only removed, the new account has nothing to mark, so the old one is marked.
        caret = caret if caret.strip() else "".join(("^" if is_other else " ") * len(piece) for piece, is_other in old)
        yield f"    {'':<{width}}  {caret.rstrip()}"


def plan_lines(document: PlanDocument) -> Iterator[str]:
    """Yield the findings of a plan as lines of text: possible double payments, every difference, then all others."""
    if worksheets := worksheets_sentence(document):
        yield worksheets
    if doubles := double_payments(document):
        yield say("Could somebody be paid twice? Look at this first:")
        for finding in doubles:
            batch = say(" It is batch {batch}.", batch=finding.value) if finding.code == REPEATS_A_BATCH else ""
            yield f"- {double_payment_line(finding)}{batch}"
        if document.answered:
            yield say("Its maker confirms that this is intended.")
    if sent_before := document.select_findings(ALREADY_SENT):
        yield say_count(
            len(sent_before),
            "{count:,} person was paid before and is not paid again:",
            "{count:,} people were paid before and are not paid again:",
        )
        yield from (f"- {finding_line(finding)}" for finding in sent_before)
    if sentences := comparison_text(document):
        yield sentences
    kinds = differences(document)
    if kinds:
        yield say("Look at this first: {headings}.", headings=", ".join(kind.heading for kind in kinds))
    for kind in kinds:
        yield say("{heading}:", heading=kind.heading)
        for finding in kind.findings:
            yield from _finding_lines(finding)
    yield from _left_out_lines(document)
    yield from _correction_lines(document)
    yield from _warning_lines(warning_groups(document))


def _correction_lines(document: PlanDocument) -> Iterator[str]:
    corrections = document.select_findings(CORRECTED, REASSIGNED_HEADING, NAMED_ENCODING, SPELLED_COLUMN)
    if corrections:
        yield say("Changed after the upload:")
    for finding in corrections:
        prefix = f"{say('Row {row}', row=finding.row)}: " if finding.row else ""
        yield f"- {prefix}{finding_sentence(finding)}"


def _warning_lines(kinds: Sequence[WarningGroup]) -> Iterator[str]:
    if kinds:
        total = sum(kind.count for kind in kinds)
        yield say_count(total, "{count:,} warning, by kind:", "{count:,} warnings, by kind:")
    for kind in kinds:
        yield f"{kind.code}: {format_number(kind.count)}"
        for finding in kind.examples:
            yield f"  {warning_line(finding)}"
        if kind.count > len(kind.examples):
            unlisted_count = kind.count - len(kind.examples)
            yield "  " + say("... and {count:,} more, in the plan.", count=unlisted_count)


def warning_line(finding: PlanFinding) -> str:
    return say("Row {row}: {message}", row=finding.row, message=finding.message) if finding.row else finding.message


def double_payment_line(finding: PlanFinding) -> str:
    """Return a warning about a double payment as one line with the person's name."""
    return finding_line(finding) if finding.row and finding.code in _WITHOUT_NAME else warning_line(finding)


def _left_out_lines(document: PlanDocument) -> Iterator[str]:
    findings = document.select_findings(LEFT_OUT)
    if findings:
        sums = ", ".join(f"{currency} {format_amount(amount)}" for currency, _, amount in left_out_sums(document))
        yield say_count(
            len(findings), "Left out: {count:,} row ({sums}):", "Left out: {count:,} rows ({sums}):", sums=sums.strip()
        )
    for finding in findings:
        yield f"- {finding_line(finding)}"


def people_lines(document: PlanDocument) -> Iterator[str]:
    """Yield all payees as lines of text: first people with a difference, then the largest amounts."""
    payees = listed_payees(document)
    yield say_count(len(payees), "{count:,} payment in all:", "{count:,} payments in all:")
    for payee in payees:
        amount = f"{payee.currency} {format_amount(payee.amount)}"
        line = ", ".join((say("Row {row}", row=payee.row), payee.name, payee.account, amount, _known_since_text(payee)))
        yield f"- {line}{f' ({word})' if (word := difference_word(payee.code)) else ''}"


def _known_since_text(payee: ListedPayee) -> str:
    return say("known since {at}", at=payee.known_since) if payee.known_since else say("new account")


def plan_page(document: PlanDocument, headline: str, signatures: Sequence[str]) -> str:
    """Return a plan as one HTML page: totals, all differences, rows left out, warnings by kind, and all people."""
    return page(
        PageKind.PLAN,
        content=document.content,
        headline=headline,
        signatures=signatures,
        worksheets=worksheets_sentence(document),
        comparison_text=comparison_text(document),
        doubles=double_payments(document),
        sent_before=document.select_findings(ALREADY_SENT),
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
    """Return the meaning of a kind of warning and its suggestion, or an empty string if it is unknown."""
    try:
        meaning = code_meaning(code, WARNINGS)
    except KeyError:
        return ""
    return f"{meaning.sentence} {meaning.suggestion}"
