"""Shows a plan to an approver: differences from the last run first, then warnings by kind. As lines and as a page.

The page names payees, so it is for the same eyes as the sheet.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

from paygw_batch.core.money import with_separators
from paygw_batch.language import mark_all, say, say_all, say_count
from paygw_batch.report.changes import AMOUNT_OFF, CHANGED_ACCOUNT, DANGER, GONE, NEW_PAYEE
from paygw_batch.report.page import html_table, page, paragraph
from paygw_batch.run.approval import PlanDocument, PlanFinding
from paygw_batch.sheet.check.catalogue import WARNINGS, meaning_of

EXAMPLES_OF_KIND = 3
"""How many warnings of a kind are shown; the plan has all of them."""
_WIDTHS = (3, 14, 5, 8, 8)
"""Of row, payee, currency, amount, and the amount of the last time."""
ABOUT_COMPARISON = frozenset({"payee.compared", "payee.first_run"})
"""The codes that say with which run the sheet was compared."""
_HEADINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        CHANGED_ACCOUNT: mark_all("changed account", "changed accounts"),
        AMOUNT_OFF: mark_all("amount off", "amounts off"),
        NEW_PAYEE: mark_all("new person", "new people"),
        GONE: mark_all("person missing", "people missing"),
    }
)
"""How one and how several changes of a kind are called."""


@dataclass(frozen=True, slots=True)
class KindOfWarning:
    """The warnings of a plan with one code: all of them, counted, and the first few."""

    code: str
    count: int
    examples: Sequence[PlanFinding]


def differences(document: PlanDocument) -> Sequence[tuple[str, Sequence[PlanFinding]]]:
    """Return the differences from the last run, by kind under a heading: all of them, in the plan's order."""
    found = sorted((one for one in document.findings if one.code in DANGER), key=lambda one: DANGER[one.code])
    grouped = ((code, list(ones)) for code, ones in groupby(found, key=attrgetter("code")))
    return [(f"{len(ones):,} {say(_HEADINGS[code][len(ones) != 1])}", ones) for code, ones in grouped]


def comparison(document: PlanDocument) -> str:
    """Return the sentence that says with which run the sheet was compared."""
    return next((one.message for one in document.findings if one.code in ABOUT_COMPARISON), "")


def kinds_of_warnings(document: PlanDocument) -> Sequence[KindOfWarning]:
    """Return the warnings by kind: first those about the whole sheet, then rare kinds before frequent ones."""
    of_code: dict[str, list[PlanFinding]] = {}
    for one in document.findings:
        if one.code not in DANGER and one.code not in ABOUT_COMPARISON:
            of_code.setdefault(one.code, []).append(one)
    kinds = [
        KindOfWarning(code, len(ones), sorted(ones, key=attrgetter("row"))[:EXAMPLES_OF_KIND])
        for code, ones in of_code.items()
    ]
    return sorted(kinds, key=lambda kind: (kind.examples[0].row > 0, kind.count))


def finding_line(finding: PlanFinding) -> str:
    """Return a difference as one line: row, name, amount and message."""
    where = say("Row {row}", row=finding.row) if finding.row else ""
    paid = f"{finding.currency} {with_separators(finding.amount or finding.before)}"
    return f"{', '.join(part for part in (where, finding.name, paid) if part.strip())}: {finding.message}"


def plan_lines(document: PlanDocument) -> Iterator[str]:
    """Yield the findings of a plan as lines of text: every difference, then warnings counted by kind."""
    if told := comparison(document):
        yield told
    found = differences(document)
    if found:
        yield say("Look at this first: {headings}.", headings=", ".join(heading for heading, _ in found))
    for heading, ones in found:
        yield say("{heading}:", heading=heading)
        for one in ones:
            yield f"- {finding_line(one)}"
    kinds = kinds_of_warnings(document)
    if kinds:
        total = sum(kind.count for kind in kinds)
        yield say_count(total, "{count:,} warning, by kind:", "{count:,} warnings, by kind:")
    for kind in kinds:
        yield f"{kind.code}: {kind.count:,}"
        for one in kind.examples:
            yield f"  {one.message}"
        if kind.count > len(kind.examples):
            left = kind.count - len(kind.examples)
            yield "  " + say("... and {count:,} more, in the plan.", count=left)


def plan_page(document: PlanDocument, headline: str, signatures: Sequence[str]) -> str:
    """Return a plan as one page of HTML: totals, then all differences from the last run, then warnings by kind."""
    content, found, kinds = document.content, differences(document), kinds_of_warnings(document)
    sums = [(currency, with_separators(amount)) for currency, amount in content.totals.items()]
    return page(
        say("{sheet}: plan", sheet=content.sheet),
        [
            f"<h1>{escape(content.sheet)}</h1>",
            paragraph(say("Plan of batch {batch}. {headline}", batch=content.batch, headline=headline), "soft"),
            *(paragraph(sentence) for sentence in signatures),
            f"<h2>{say('Totals by currency')}</h2>",
            html_table((*say_all("currency", "sum"), ""), [(*line, "") for line in sums], right={1}, widths=(6, 14)),
            f"<h2>{say('What differs from the last run')}</h2>",
            paragraph(comparison(document)),
            _differences_tiles(found),
            *(_differences_part(heading, ones) for heading, ones in found),
            f"<h2>{_warnings_heading(kinds)}</h2>",
            *(_warnings_part(kind) for kind in kinds),
        ],
    )


def _warnings_heading(kinds: Sequence[KindOfWarning]) -> str:
    count = sum(kind.count for kind in kinds)
    return say("Warnings: {count}", count=count) if count else say("Warnings: none")


def _differences_tiles(found: Sequence[tuple[str, Sequence[PlanFinding]]]) -> str:
    if not found:
        return paragraph(say("Nothing."))
    tiles = "".join(
        f'<li class="in_doubt"><b>{number}</b>{escape(words)}</li>'
        for number, _, words in (heading.partition(" ") for heading, _ in found)
    )
    return f'<ul class="tiles">{tiles}</ul>'


def _differences_part(heading: str, ones: Sequence[PlanFinding]) -> str:
    lines = [
        (
            *(one.row or "", one.name, one.currency, with_separators(one.amount), with_separators(one.before)),
            f"{one.message[:1].upper()}{one.message[1:]}.",
        )
        for one in ones
    ]
    headings = say_all("row", "payee", "currency", "amount", "the last time", "what differs")
    return f"<h3>{escape(heading)}</h3>{html_table(headings, lines, right={0, 3, 4}, widths=_WIDTHS)}"


def _warnings_part(kind: KindOfWarning) -> str:
    lines = [
        (
            *(one.row or "", one.name, one.currency, with_separators(one.amount)),
            one.message.removeprefix(say("Row {row}: ", row=one.row)),
        )
        for one in kind.examples
    ]
    left = kind.count - len(kind.examples)
    more = paragraph(say("... and {count:,} more, in the plan.", count=left)) if left else ""
    headings = say_all("row", "payee", "currency", "amount", "what is known")
    table = html_table(headings, lines, right={0, 3}, widths=_WIDTHS[:4])
    return f"<h3>{escape(kind.code)}: {kind.count:,}</h3>{_advice(kind.code)}{table}{more}"


def _advice(code: str) -> str:
    """Return the meaning of a kind of warning and the suggestion for it; nothing for one outside the catalogue."""
    try:
        meaning = meaning_of(code, WARNINGS)
    except KeyError:
        return ""
    return paragraph(f"{meaning.sentence} {meaning.suggestion}")
