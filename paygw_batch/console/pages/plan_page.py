"""The page of a payout's plan: its maker signs the plan, another person approves it, and somebody starts the payout."""

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
from paygw_batch.console.check_payout import kind_meaning
from paygw_batch.console.pages.agreement import (
    SIGNED_AS,
    Agreement,
    Stage,
    agreement_card,
    is_left,
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
from paygw_batch.console.payout_folder import CheckedSheet, PayoutFolder, all_folders
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import day, page_links, when
from paygw_batch.console.start_run import StartedRun, start_run
from paygw_batch.console.visits import (
    PageNotFound,
    PageOutdated,
    Visit,
    file_to_take_away,
)
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import with_separators
from paygw_batch.core.shown_states import code_of
from paygw_batch.journal import JournalReader
from paygw_batch.language import mark, say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.sheet.check.mending import LEFT_OUT
from paygw_batch.sheet.columns import columns_of_operation, label_of
from paygw_batch.sheet.write.table import write_frame
from paygw_batch.show.remittance import masked
from paygw_batch.submit.changes import CHANGED_ACCOUNT
from paygw_batch.submit.notices import add_notices, plan_notices
from paygw_batch.submit.plan_to_approve import (
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
    """The agreement about the plan of a payout in preparation."""

    folder: PayoutFolder

    own_act, approving_act, starting_act = Act.MEND, Act.APPROVE, Act.START
    approve_path, start_path, start_noted = "approve", "start", "start"
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

    def __init__(self, visit: Visit, payout: PayoutFolder) -> None:
        uploaded, result = payout.uploaded, payout.checked
        self.visit, self.folder, self.signed_file = visit, payout, payout.plan_file
        self.checked = result if isinstance(result, CheckedSheet) else None
        self.path = f"/sheets/{payout.number}"
        self.page = f"{self.path}/plan"
        self.maker, self.sent_back = uploaded.by, uploaded.sent_back
        self.batch = "" if self.checked is None else self.checked.batch
        self.document = payout.plan

    @classmethod
    def find(cls, visit: Visit) -> Self | None:
        """Return the plan of a sheet, after a check of the sheet; None if there is no such sheet."""
        payout = PayoutFolder.named(visit.console.directory, visit.path("sheet"))
        if payout is None:
            return None
        checked_or_reading(visit, payout, to_sign=True)
        return cls(visit, payout)

    def draft(self) -> PlanDocument | None:
        return self.folder.draft

    @property
    def needed(self) -> int:
        """The number of other people who must approve. It is 0 for sums below the limit in the configuration."""
        policy, document = required_policy(self.visit.console.settings), self.document or self.draft()
        return policy.needed if document is not None and needs_approval(document.content, policy) else 0

    def has_opened(self, journal: JournalReader) -> bool:
        """Return whether this plan opened its payout, rather than another plan of the same sheet."""
        return self.document is not None and bool(journal.batches(plan_sha256=self.document.digest()))

    def stage_by_itself(self, journal: JournalReader) -> Stage | None:
        """Return the stage of a payout that has started, or has nothing to sign yet; otherwise None."""
        if self.document is not None and any(record.batch == self.batch for record in journal.batches()):
            return Stage.DONE
        if self.checked is None or not self.checked.is_ready:
            return Stage.DRAFTING
        is_starting = self.document is not None and (run := self.run) is not None and run.is_alive
        return Stage.STARTING if is_starting else None

    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        record, found = journal.batch(self.batch), dict[str, str]()
        for entry in [] if record is None else journal.history(record.number):
            match code_of(entry.said):
                case "approved", [name, at, _]:
                    found[name] = at
                case _:
                    pass
        return found

    def changed(self, stage: Stage | None = None) -> PageOutdated:
        if stage in {Stage.STARTING, Stage.DONE}:
            return PageOutdated(say(STARTED))
        if self.sent_back:
            return PageOutdated(say("This payout was sent back since this page was opened: {who}", who=self.sent_back))
        if self.document is None:
            return PageOutdated(say("This payout was changed since this page was opened. It isn't signed."))
        return PageOutdated(say("This payout was changed and signed again since this page was opened."))

    def write(self, document: PlanDocument) -> None:
        super().write(document)
        console = self.visit.console
        notices = plan_notices(console.settings, document, self.page)
        add_notices(console.settings, notices)
        self.folder.note(replace(self.folder.uploaded, sent_back=""))
        if notices:
            # Another process sends the notices, so a slow mail server does not delay the page. Cron sends the rest.
            command = [*console.program, "--json", "notices", "send"]
            runs, by = console.runs, self.visit.member.name
            with suppress(OSError):  # the plan is signed, even if this host cannot start a process
                start_run(runs, "notices", command, by=by, environ=self.visit.environ)

    def draft_again(self, sent_back: str = "") -> None:
        """Remove the plan, and check the sheet again, which drafts a new plan."""
        self.folder.forget_plan(sent_back)
        self.folder.forget_check()
        checked_or_reading(self.visit, self.folder)

    def start(self) -> StartedRun:
        """Start the process that opens the payout and sends it."""
        console, payout, uploaded = self.visit.console, self.folder, self.folder.uploaded
        command = [*console.program, "--json", "submit", str(payout.sheet), "--wait", "--skip-invalid", "--force"]
        command += ["--plan", str(payout.plan_file), "--mended", str(payout.mending_file)]
        command += ["--expect-rows", str(uploaded.stated_rows)] if uploaded.stated_rows is not None else []
        for currency, amount in uploaded.stated_sums.items():
            command += ["--expect-total", f"{currency}={amount}"]
        by, out = self.visit.member.name, payout.path / f"{payout.sheet.stem}.reconciliation.csv"
        command += ["--out", str(out), "--by", by, *uploaded.reading.words]
        return start_run(console.runs, self.batch, command, by=by, environ=self.visit.environ, ended=self.note_end)


def signed_plan_page(visit: Visit, journal: JournalReader, batch: str) -> str:
    """Return the address of the signed plan that opened a payout; empty if these pages have no such plan."""
    folders = (folder for folder in all_folders(visit.console.directory) if folder.named_by_batch[0] == batch)
    found = (PlanAgreement(visit, folder) for folder in folders)
    return next((f"{plan.page}{SIGNED_AS}" for plan in found if plan.has_opened(journal)), "")


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """A difference as the page shows it. If the account changed, `accounts` has the old and the new one, in pieces."""

    finding: PlanFinding
    accounts: Sequence[Sequence[Piece]]
    told: Sequence[str]


def page_sentence(finding: PlanFinding) -> str:
    """Return a finding as a sentence for the pages, with times in the zone of the pages and columns in words."""
    column = label_of(finding.column) if finding.code == MEANT and finding.column else finding.column
    return sentence_of(_as_shown(finding).model_copy(update={"column": column}))


def _as_shown(finding: PlanFinding) -> PlanFinding:
    """Return a finding with times, days and amounts formatted for the pages."""
    shown = {"at": when(finding.at), "before_at": day(finding.before_at), "first_at": day(finding.first_at)}
    shown |= {"before": with_separators(finding.before), "first_amount": with_separators(finding.first_amount)}
    return finding.model_copy(update=shown)


def payout_plan(visit: Visit) -> Response:
    payout = folder(visit)
    if checked_or_reading(visit, payout, to_sign=True) is None:
        return reading_page(visit, payout)
    agreement = PlanAgreement.required(visit)
    with journal_for_planning(visit.console.settings) as journal:
        progress = progress_of(journal, agreement)
        document = shown_document(agreement, progress.stage)
        is_over = is_left(visit, progress) or (progress.stage is Stage.DONE and not agreement.has_opened(journal))
    if is_over:
        return visit.go_to(f"/payouts/{agreement.batch}")
    if agreement.checked is None or document is None or progress.stage is Stage.DRAFTING:
        return visit.go_to(agreement.path)
    listed = payees(document)
    people = Counter(payee.currency for payee in listed)  # counted in the signed document, as the sums are
    return visit.page(
        "plan.html",
        card=agreement_card(agreement, document, progress),
        uploaded=agreement.folder.uploaded,
        document=document,
        sums=[(currency, people[currency], amount) for currency, amount in document.content.totals.items()],
        doubles=double_payments(document),
        sent_before=document.findings_of(SENT_BEFORE),
        comparison=comparison(
            document.model_copy(update={"findings": list(map(_as_shown, document.findings))}), is_for_officers=True
        ),
        changes=differences(document),
        shown=partial(_shown_difference, visit),
        # Corrected cells of money come first. Cells with the same old text and the same new text are together.
        corrections=_corrections(document, agreement.checked.headings.get("amount", "amount")),
        names={payee.row: payee.name for payee in listed},
        left_out=document.findings_of(LEFT_OUT),
        left_out_sums=left_out_sums(document),
        people=listed[:PEOPLE_A_PAGE],
        meant=document.findings_of(MEANT, READ_AS, SPELLED),
        warnings=kinds_of_warnings(document),
        meaning=_meaning,
        difference=difference_word,
        sentence=page_sentence,
        warning_line=warning_line,
        double_line=double_line,
    )


def _corrections(document: PlanDocument, money: str) -> Sequence[Sequence[PlanFinding]]:
    alike: dict[tuple[str, str, str], list[PlanFinding]] = {}
    for finding in document.findings_of(MENDED):
        alike.setdefault((finding.column, finding.value, finding.becomes), []).append(finding)
    return sorted(alike.values(), key=lambda findings: findings[0].column != money)


def payout_people(visit: Visit) -> Response:
    payout, document = _plan_to_look_at(visit)
    typed, order = visit.query("text").strip(), visit.query("order")
    wanted = plain_name(typed)
    everybody = payees(document)
    fitting = [payee for payee in everybody if _fits(payee, wanted, is_masked=visit.member.is_masked)]
    if order in _ORDERS:
        fitting.sort(key=_ORDERS[order])
    start = min(visit.query_number("after"), max(len(fitting) - 1, 0))
    return visit.page(
        "plan_people.html",
        uploaded=payout.uploaded,
        number=payout.number,
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


def download_people(visit: Visit) -> Response:
    payout, document = _plan_to_look_at(visit)

    def write(path: Path) -> str:
        write_frame(people_table(document), path)
        return f"{Path(payout.uploaded.name).stem}.people.csv"

    return file_to_take_away(visit, "csv", write)


_ORDERS: Mapping[str, Callable[[ListedPayee], Any]] = {
    "amount": lambda payee: (-Decimal(payee.amount), payee.row),
    "smallest": lambda payee: (Decimal(payee.amount), payee.row),
    "name": lambda payee: (plain_name(payee.name), payee.row),
    "row": lambda payee: payee.row,
}
"""The orders in which people can be listed. By default, people with a difference come first."""


def _fits(payee: ListedPayee, wanted: str, *, is_masked: bool) -> bool:
    # A person who sees masked accounts must not find out the hidden digits by searching.
    account = masked(payee.account).lstrip(".") if is_masked else payee.account
    return wanted in plain_name(payee.name) or wanted in account.casefold()


def _plan_to_look_at(visit: Visit) -> tuple[PayoutFolder, PlanDocument]:
    """Return the signed or drafted plan of a payout. Raises `PageNotFound` if the sheet has no plan."""
    agreement = PlanAgreement.required(visit)
    document = agreement.document or agreement.draft()
    if document is None:
        raise PageNotFound(say("This sheet cannot be paid yet: it has no list of payments."))
    return agreement.folder, document


def _shown_difference(visit: Visit, finding: PlanFinding) -> ShownDifference:
    shown = _as_shown(finding)
    if shown.code == CHANGED_ACCOUNT:
        pieces: Sequence[Sequence[Piece]] = differing(shown.old_account, shown.account)
        if visit.member.is_masked:
            pieces = [masked_pieces(account) for account in pieces]
        sentences = [earlier(shown), first_paid(shown), shared_with(shown)]
    else:
        pieces, sentences = [[(visit.account(shown.account), False)]], [page_sentence(finding)]
    return ShownDifference(shown, pieces, [f"{part[:1].upper()}{part[1:]}" for part in sentences if part])


def _meaning(code: str) -> tuple[str, str]:
    names = {name: label_of(name) for name in columns_of_operation(PAYOUT)}
    label, _, suggestion = kind_meaning(code, names, is_defect=False)
    return label, suggestion
