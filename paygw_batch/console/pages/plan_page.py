"""Shows a payout before it is sent: its maker signs it, another person approves it, and it is started."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from starlette.responses import Response

from paygw_batch.approval.approval_keys import plain_name
from paygw_batch.approval.plan_document import (
    MEANT,
    MENDED,
    READ_AS,
    SENT_BEFORE,
    SPELLED,
    PlanDocument,
    PlanFinding,
    needs_approval,
)
from paygw_batch.approval.policy import required_policy
from paygw_batch.console.pages.agreement import (
    Agreement,
    AgreementCard,
    Stage,
    agreement_card,
    progress_of,
    shown_document,
)
from paygw_batch.console.pages.preparing import (
    NO_SUCH_SHEET,
    ONLY_MAKER,
    STARTED,
    checked_or_reading,
    folder,
    reading_page,
)
from paygw_batch.console.payout_folder import CheckedSheet, PayoutFolder, UploadedSheet
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import Page, PageLink, day, page_links, when
from paygw_batch.console.start_run import StartedRun, start_run
from paygw_batch.console.visits import (
    PageNotFound,
    PageOutdated,
    Visit,
    called_in,
    file_to_take_away,
)
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import with_separators
from paygw_batch.journal import JournalReader
from paygw_batch.language import mark, say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.sheet.check.catalogue import WARNINGS, meaning_of
from paygw_batch.sheet.check.mending import LEFT_OUT
from paygw_batch.sheet.columns import columns_of_operation, label_of
from paygw_batch.sheet.write.table import write_frame
from paygw_batch.show.remittance import masked
from paygw_batch.submit.changes import CHANGED_ACCOUNT
from paygw_batch.submit.notices import add_notices, plan_notices
from paygw_batch.submit.plan_to_approve import (
    KindOfDifference,
    KindOfWarning,
    ListedPayee,
    Piece,
    comparison,
    difference_word,
    differences,
    differing,
    double_line,
    double_payments,
    earlier,
    first_paid,
    kinds_of_warnings,
    left_out_sums,
    masked_pieces,
    payees,
    people_table,
    sentence_of,
    shared_with,
    warning_line,
)

PEOPLE_A_PAGE = 50
"""The maximum number of people on a page."""


class PlanAgreement(Agreement[PlanDocument]):
    """The plan of a payout in preparation."""

    folder: PayoutFolder

    own_act, approving_act, starting_act = Act.MEND, Act.APPROVE, Act.START
    approve_path, start_path = "approve", "start"
    gone, only_maker = NO_SUCH_SHEET, ONLY_MAKER
    other_person = mark("You prepared this payout, so another person must approve it.")
    next_steps: ClassVar[Mapping[Stage, str]] = {
        Stage.DRAFTING: mark("Check the sheet"),
        Stage.TO_SIGN: mark("Check what will be paid"),
        Stage.TO_APPROVE: mark("A second person approves"),
        Stage.VOID: mark("Sign it again"),
        Stage.APPROVED: mark("Start the payout"),
        Stage.FAILED: mark("Start the payout again"),
        Stage.STARTING: mark("Starting"),
    }
    asks: ClassVar[Mapping[Stage, str]] = {
        Stage.TO_APPROVE: mark("{by} asks for your approval."),
        **dict.fromkeys((Stage.APPROVED, Stage.FAILED), mark("Approved: it can be started.")),
    }

    def __init__(self, visit: Visit, found: PayoutFolder) -> None:
        uploaded, result = found.uploaded, found.checked
        self.visit, self.folder, self.signed_file = visit, found, found.plan_file
        self.checked = result if isinstance(result, CheckedSheet) else None
        self.path = f"/sheets/{found.number}"
        self.page = f"{self.path}/plan"
        self.maker, self.sent_back = uploaded.by, uploaded.sent_back
        self.batch = "" if self.checked is None else self.checked.batch
        self.document = found.plan

    @classmethod
    def find(cls, visit: Visit) -> Self | None:
        """Return the plan of a sheet after checking it; None if there is no such sheet."""
        found = PayoutFolder.named(visit.console.directory, visit.path("sheet"))
        if found is None:
            return None
        checked_or_reading(visit, found, to_sign=True)
        return cls(visit, found)

    def draft(self) -> PlanDocument | None:
        """Return the unsigned plan; None while the sheet cannot be paid."""
        return self.folder.draft

    @property
    def needed(self) -> int:
        """The number of other people who must approve: 0 for small sums."""
        policy, document = required_policy(self.visit.console.settings), self.document or self.draft()
        return policy.needed if document is not None and needs_approval(document.content, policy) else 0

    def stage_by_itself(self, journal: JournalReader) -> Stage | None:
        """Return whether a payout has started, or has nothing to sign yet, as a stage."""
        if self.document is not None and any(one.batch == self.batch for one in journal.batches()):
            return Stage.DONE
        if self.checked is None or not self.checked.is_ready:
            return Stage.DRAFTING
        is_starting = self.document is not None and (run := self.run) is not None and run.is_alive
        return Stage.STARTING if is_starting else None

    def changed(self, stage: Stage | None = None) -> PageOutdated:
        """Return the error for a form about another plan than the present one, with the differences."""
        if stage in {Stage.STARTING, Stage.DONE}:
            return PageOutdated(say(STARTED))
        if self.sent_back:
            return PageOutdated(say("This payout was sent back since this page was opened: {who}", who=self.sent_back))
        if self.document is None:
            return PageOutdated(say("This payout was changed since this page was opened. It isn't signed."))
        return PageOutdated(say("This payout was changed and signed again since this page was opened."))

    def write(self, document: PlanDocument) -> None:
        """Store the signed plan."""
        super().write(document)
        console = self.visit.console
        notices = plan_notices(console.settings, document, self.page)
        add_notices(console.settings, notices)
        self.folder.note(replace(self.folder.uploaded, sent_back=""))
        if notices:
            # In a separate process, so that a slow mail server does not hold up the page. Cron sends what it leaves.
            command = [*console.program, "--json", "notices", "send"]
            runs, by = console.runs, self.visit.member.name
            with suppress(OSError):  # the plan is signed, even if this host cannot start a process
                start_run(runs, "notices", command, by=by, environ=self.visit.environ)

    def draft_again(self, sent_back: str = "") -> None:
        """Remove the plan, and have the sheet checked again, which drafts a new one."""
        self.folder.forget_plan(sent_back)
        self.folder.forget_check()
        checked_or_reading(self.visit, self.folder)

    def start(self) -> StartedRun:
        """Start the run that opens and sends the payout, in another process."""
        console, found, uploaded = self.visit.console, self.folder, self.folder.uploaded
        command = [*console.program, "--json", "submit", str(found.sheet), "--wait", "--skip-invalid", "--force"]
        command += ["--plan", str(found.plan_file), "--mended", str(found.mending_file)]
        command += ["--expect-rows", str(uploaded.stated_rows)] if uploaded.stated_rows is not None else []
        for currency, amount in uploaded.stated_sums.items():
            command += ["--expect-total", f"{currency}={amount}"]
        command += ["--out", str(found.path / f"{found.sheet.stem}.reconciliation.csv"), "--by", self.visit.member.name]
        command += uploaded.reading.words
        runs, by = console.runs, self.visit.member.name
        return start_run(runs, self.batch, command, by=by, environ=self.visit.environ)


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """A difference as the page shows it; a changed account as the old and the new one, in pieces."""

    finding: PlanFinding
    accounts: Sequence[Sequence[Piece]]
    told: Sequence[str]


def page_sentence(one: PlanFinding) -> str:
    """Return a finding as a sentence for the pages, with times in their zone and columns in words."""
    column = label_of(one.column) if one.code == MEANT and one.column else one.column
    return sentence_of(_as_shown(one).model_copy(update={"column": column}))


def _as_shown(one: PlanFinding) -> PlanFinding:
    """Return a finding with times, days and amounts formatted for the pages."""
    shown = {"at": when(one.at), "before_at": day(one.before_at), "first_at": day(one.first_at)}
    shown |= {"before": with_separators(one.before), "first_amount": with_separators(one.first_amount)}
    return one.model_copy(update=shown)


@dataclass(frozen=True, slots=True)
class PlanPage(Page):
    """A payout as it would be paid."""

    template: ClassVar[str] = "plan.html"

    card: AgreementCard
    uploaded: UploadedSheet
    document: PlanDocument
    sums: Sequence[tuple[str, int, str]]
    """Currency, people and sum."""
    doubles: Sequence[PlanFinding]
    """What could pay somebody twice, in full."""
    sent_before: Sequence[PlanFinding]
    """The people who are in an earlier payout, and are not paid again."""
    comparison: str
    """The number of people who were paid before."""
    changes: Sequence[KindOfDifference]
    shown: Callable[[PlanFinding], ShownDifference]
    corrections: Sequence[Sequence[PlanFinding]]
    """The cells corrected, those of money first; cells that had one text and have another are together."""
    names: Mapping[int, str]
    left_out: Sequence[PlanFinding]
    left_out_sums: Sequence[tuple[str, int, str]]
    people: Sequence[ListedPayee]
    """The first page of everyone who is paid."""
    meant: Sequence[PlanFinding]
    """The columns that were given another meaning."""
    warnings: Sequence[KindOfWarning]
    meaning: Callable[[str], tuple[str, str]]
    """Returns the name of a kind of warnings, and the advice about them."""
    difference: Callable[[str], str] = difference_word
    sentence: Callable[[PlanFinding], str] = page_sentence
    warning_line: Callable[[PlanFinding], str] = warning_line
    double_line: Callable[[PlanFinding], str] = double_line


def payout_plan(visit: Visit) -> Response:
    """Show the payout to the person who prepared it and to the one who approves it."""
    found = folder(visit)
    if checked_or_reading(visit, found, to_sign=True) is None:
        return reading_page(visit, found)
    it = PlanAgreement.required(visit)
    with journal_for_planning(visit.console.settings) as journal:
        progress = progress_of(journal, it)
        document = shown_document(it, progress.stage)
    if progress.stage is Stage.DONE:
        return visit.go_to(f"/payouts/{it.batch}")
    if it.checked is None or document is None or progress.stage is Stage.DRAFTING:
        return visit.go_to(it.path)
    listed = payees(document)
    people = Counter(one.currency for one in listed)  # of what is signed, as the sums are
    return visit.page(
        PlanPage(
            card=agreement_card(it, document, progress),
            uploaded=it.folder.uploaded,
            document=document,
            sums=[(currency, people[currency], amount) for currency, amount in document.content.totals.items()],
            doubles=double_payments(document),
            sent_before=document.findings_of(SENT_BEFORE),
            comparison=comparison(
                document.model_copy(update={"findings": list(map(_as_shown, document.findings))}), is_for_officers=True
            ),
            changes=differences(document),
            shown=partial(_shown_difference, visit),
            corrections=_corrections(document, it.checked.headings.get("amount", "amount")),
            names={one.row: one.name for one in listed},
            left_out=document.findings_of(LEFT_OUT),
            left_out_sums=left_out_sums(document),
            people=listed[:PEOPLE_A_PAGE],
            meant=document.findings_of(MEANT, READ_AS, SPELLED),
            warnings=kinds_of_warnings(document),
            meaning=_meaning,
        )
    )


def _corrections(document: PlanDocument, money: str) -> Sequence[Sequence[PlanFinding]]:
    alike: dict[tuple[str, str, str], list[PlanFinding]] = {}
    for one in document.findings_of(MENDED):
        alike.setdefault((one.column, one.value, one.becomes), []).append(one)
    return sorted(alike.values(), key=lambda ones: ones[0].column != money)


def _called(visit: Visit, journal: JournalReader, batch: str) -> str:
    """Return a batch's name for people; empty if there is none."""
    record = journal.batch(batch) if batch else None
    return batch if record is None else called_in(visit.console)(batch, record.sheet_name)


@dataclass(frozen=True, slots=True)
class PeoplePage(Page):
    """The people paid by a payout: a page of those that match the search."""

    template: ClassVar[str] = "plan_people.html"

    uploaded: UploadedSheet
    number: str
    typed: str
    order: str
    count: int
    fitting: int
    pages: Sequence[PageLink]
    people: Sequence[ListedPayee]
    difference: Callable[[str], str] = difference_word


def payout_people(visit: Visit) -> Response:
    """Show everyone paid by a payout, in pages, with a search by name or account and a choice of order."""
    found, document = _plan_to_look_at(visit)
    typed, order = visit.query("text").strip(), visit.query("order")
    wanted = plain_name(typed)
    everybody = payees(document)
    fitting = [one for one in everybody if _fits(one, wanted, is_masked=visit.member.is_masked)]
    if order in _ORDERS:
        fitting.sort(key=_ORDERS[order])
    start = min(visit.query_number("after"), max(len(fitting) - 1, 0))
    return visit.page(
        PeoplePage(
            uploaded=found.uploaded,
            number=found.number,
            typed=typed,
            order=order if order in _ORDERS else "",
            count=len(everybody),
            fitting=len(fitting),
            pages=page_links(
                "after",
                {
                    say("Previous page"): max(start - PEOPLE_A_PAGE, 0) if start else None,
                    say("Next page"): start + PEOPLE_A_PAGE if start + PEOPLE_A_PAGE < len(fitting) else None,
                },
                "people",
                text=typed,
                order=order,
            ),
            people=fitting[start : start + PEOPLE_A_PAGE],
            difference=difference_word,
        )
    )


def download_people(visit: Visit) -> Response:
    """Return everyone paid by a payout as a CSV file."""
    found, document = _plan_to_look_at(visit)

    def write(path: Path) -> str:
        write_frame(people_table(document), path)
        return f"{Path(found.uploaded.name).stem}.people.csv"

    return file_to_take_away(visit, "csv", write)


_ORDERS: Mapping[str, Callable[[ListedPayee], Any]] = {
    "amount": lambda one: (-Decimal(one.amount), one.row),
    "smallest": lambda one: (Decimal(one.amount), one.row),
    "name": lambda one: (plain_name(one.name), one.row),
    "row": lambda one: one.row,
}
"""The orders in which people can be listed; without one, those with a difference come first."""


def _fits(one: ListedPayee, wanted: str, *, is_masked: bool) -> bool:
    # Someone who sees masked accounts must not find the hidden digits by searching.
    account = masked(one.account).lstrip(".") if is_masked else one.account
    return wanted in plain_name(one.name) or wanted in account.casefold()


def _plan_to_look_at(visit: Visit) -> tuple[PayoutFolder, PlanDocument]:
    """Return a payout's plan, signed or drafted. Raises `PageNotFound` if the sheet has none."""
    it = PlanAgreement.required(visit)
    document = it.document or it.draft()
    if document is None:
        raise PageNotFound(say("This sheet cannot be paid yet: it has no list of payments."))
    return it.folder, document


def _shown_difference(visit: Visit, found: PlanFinding) -> ShownDifference:
    one = _as_shown(found)
    if one.code == CHANGED_ACCOUNT:
        pieces: Sequence[Sequence[Piece]] = differing(one.old_account, one.account)
        if visit.member.is_masked:
            pieces = [masked_pieces(some) for some in pieces]
        told = [earlier(one), first_paid(one), shared_with(one)]
    else:
        pieces, told = [[(visit.account(one.account), False)]], [page_sentence(found)]
    return ShownDifference(one, pieces, [f"{part[:1].upper()}{part[1:]}" for part in told if part])


def _meaning(code: str) -> tuple[str, str]:
    try:
        meaning = meaning_of(code, WARNINGS, {name: label_of(name) for name in columns_of_operation(PAYOUT)})
    except KeyError:
        return code, ""
    return meaning.label[:1].upper() + meaning.label[1:].replace("_", " "), meaning.suggestion
