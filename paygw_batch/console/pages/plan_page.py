"""The page of a payout's plan, on which people sign and approve the plan and start the payout."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from starlette.responses import Response

from paygw_batch.approval.approval_keys import normalise_name
from paygw_batch.approval.plan_document import (
    CORRECTED,
    NAMED_ENCODING,
    REASSIGNED_HEADING,
    SPELLED_COLUMN,
    PlanDocument,
    PlanFinding,
    needs_approval,
)
from paygw_batch.approval.policy import require_policy
from paygw_batch.console.check_payout import kind_meaning
from paygw_batch.console.pages.agreement import (
    SIGNED_QUERY,
    Agreement,
    Stage,
    build_card,
    displayed_document,
    is_superseded,
    read_progress,
)
from paygw_batch.console.pages.preparing import (
    NO_SUCH_SHEET,
    ONLY_MAKER,
    STARTED,
    reading_page,
    require_folder,
    start_check,
)
from paygw_batch.console.payout_folder import CheckedSheet, PayoutFolder, payout_folders
from paygw_batch.console.permissions import Action
from paygw_batch.console.rendering import format_date, format_time, page_links
from paygw_batch.console.start_run import StartedRun, start_run
from paygw_batch.console.visits import PageNotFound, PageOutdated, Visit, download_response
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import format_amount
from paygw_batch.core.shown_states import decode_record
from paygw_batch.journal import JournalReader
from paygw_batch.language import mark, say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.sheet.check.corrections import LEFT_OUT
from paygw_batch.sheet.columns import column_label, operation_columns
from paygw_batch.sheet.write.table import write_frame
from paygw_batch.show.remittance import mask_number
from paygw_batch.submit.changes import CHANGED_ACCOUNT
from paygw_batch.submit.notices import add_notices, plan_notices
from paygw_batch.submit.plan_to_approve import (
    ListedPayee,
    Piece,
    comparison_text,
    difference_pieces,
    difference_word,
    differences,
    double_payment_line,
    double_payments,
    earlier_payment_text,
    finding_sentence,
    first_payment_text,
    left_out_sums,
    listed_payees,
    mask_pieces,
    people_table,
    sent_before,
    shared_account_text,
    warning_groups,
    warning_line,
    worksheets_text,
)

PEOPLE_PER_PAGE = 50


class PlanAgreement(Agreement[PlanDocument]):
    """The agreement on a plan for a payout in preparation."""

    folder: PayoutFolder

    maker_action, approving_action, starting_action = Action.CORRECT, Action.APPROVE, Action.START
    approve_path, start_path, start_audit_action = "approve", "start", "start"
    missing_message, not_maker_message = NO_SUCH_SHEET, ONLY_MAKER
    maker_message = mark("You prepared this payout, so another person must approve it.")
    next_steps: ClassVar[Mapping[Stage, str]] = {
        Stage.DRAFTING: mark("Check the sheet"),
        Stage.TO_SIGN: mark("Check what will be paid"),
        Stage.TO_APPROVE: mark("A second person approves"),
        Stage.VOID: mark("Sign it again"),
        Stage.APPROVED: mark("Start the payout"),
        Stage.FAILED: mark("Start the payout again"),
        Stage.STARTING: mark("Starting"),
    }
    request_messages: ClassVar[Mapping[Stage, str]] = {
        Stage.TO_APPROVE: mark("{by} asks for your approval."),
        **dict.fromkeys((Stage.APPROVED, Stage.FAILED), mark("Approved: it can be started.")),
    }

    def __init__(self, visit: Visit, payout: PayoutFolder, *, is_checking: bool = False) -> None:
        uploaded, result, self.is_checking = payout.uploaded, payout.check_result, is_checking
        self.visit, self.folder, self.signed_file = visit, payout, payout.plan_file
        self.checked = result if isinstance(result, CheckedSheet) else None
        self.path = f"/sheets/{payout.number}"
        self.page = f"{self.path}/plan"
        self.maker, self.sent_back = uploaded.by, uploaded.sent_back
        self.batch = "" if self.checked is None else self.checked.batch
        self.document = payout.plan

    @classmethod
    def find(cls, visit: Visit) -> Self | None:
        """Check the sheet in the address and return its agreement, or None if the sheet does not exist."""
        payout = PayoutFolder.find(visit.console.directory, visit.path_param("sheet"))
        if payout is None:
            return None
        is_checking = start_check(visit, payout, to_sign=True) is None  # a large sheet is checked in the background
        return cls(visit, payout, is_checking=is_checking)

    def draft(self) -> PlanDocument | None:
        return None if self.is_checking else self.folder.draft

    @property
    def needed(self) -> int:
        """The number of other people who must approve, which is 0 for sums below the configured limit."""
        policy, document = require_policy(self.visit.console.settings), self.document or self.draft()
        return policy.needed if document is not None and needs_approval(document.content, policy) else 0

    def has_opened(self, journal: JournalReader) -> bool:
        """Return whether this plan, rather than another plan for the same sheet, opened the payout."""
        return self.document is not None and bool(journal.batches(plan_sha256=self.document.digest()))

    def stage_without_signatures(self, journal: JournalReader) -> Stage | None:
        """Return the stage if the payout has started or there is nothing to sign yet, otherwise None."""
        if self.document is not None and any(record.batch == self.batch for record in journal.batches()):
            return Stage.DONE
        if self.checked is None or not self.checked.is_ready:
            return Stage.DRAFTING
        is_starting = self.document is not None and (run := self.run) is not None and run.is_alive
        return Stage.STARTING if is_starting else None

    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        record, approvers = journal.batch(self.batch), dict[str, str]()
        for entry in [] if record is None else journal.history(record.number):
            match decode_record(entry.said):
                case "approved", [name, at, _]:
                    approvers[name] = at
                case _:
                    pass
        return approvers

    def outdated_error(self, stage: Stage | None = None) -> PageOutdated:
        if stage in {Stage.STARTING, Stage.DONE}:
            return PageOutdated(say(STARTED))
        if self.sent_back:
            return PageOutdated(
                say("This payout has been sent back since this page was opened: {who}", who=self.sent_back)
            )
        if self.document is None:
            return PageOutdated(say("This payout has changed since this page was opened. It is not signed."))
        return PageOutdated(say("This payout has been changed and signed again since this page was opened."))

    def write(self, document: PlanDocument) -> None:
        super().write(document)
        console = self.visit.console
        notices = plan_notices(console.settings, document, self.page)
        add_notices(console.settings, notices)
        self.folder.write_upload(replace(self.folder.uploaded, sent_back=""))
        if notices:
            # Another process sends the notices, because a slow mail server would delay the page.
            command = [*console.program, "--json", "notices", "send"]
            runs, by = console.runs, self.visit.member.name
            with suppress(OSError):  # The plan is signed even if no process can be started.
                start_run(runs, "notices", command, by=by, environ=self.visit.environ)

    def redraft(self, sent_back: str = "") -> None:
        """Remove the plan and recheck the sheet, which drafts a new one."""
        self.folder.remove_plan(sent_back)
        self.folder.remove_check_result()
        start_check(self.visit, self.folder)

    def start(self) -> StartedRun:
        console, payout, uploaded = self.visit.console, self.folder, self.folder.uploaded
        command = [*console.program, "--json", "submit", str(payout.sheet), "--wait", "--skip-invalid", "--force"]
        command += ["--plan", str(payout.plan_file), "--mended", str(payout.corrections_file)]
        command += ["--expect-rows", str(uploaded.stated_rows)] if uploaded.stated_rows is not None else []
        for currency, amount in uploaded.stated_sums.items():
            command += ["--expect-total", f"{currency}={amount}"]
        by, out = self.visit.member.name, payout.path / f"{payout.sheet.stem}.reconciliation.csv"
        command += ["--out", str(out), "--by", by, *uploaded.reading.words]
        return start_run(
            console.runs, self.batch, command, by=by, environ=self.visit.environ, on_end=self.record_failed_start
        )


def signed_plan_path(visit: Visit, journal: JournalReader, batch: str) -> str:
    """Return the path of the signed plan that opened a payout. Empty if the console does not have the plan."""
    folders = (folder for folder in payout_folders(visit.console.directory) if folder.batch_and_upload[0] == batch)
    digests = ((folder, folder.plan_digest) for folder in folders)
    opening_folders = (folder for folder, digest in digests if digest and journal.batches(plan_sha256=digest))
    return next((f"/sheets/{folder.number}/plan{SIGNED_QUERY}" for folder in opening_folders), "")


@dataclass(frozen=True, slots=True)
class DifferenceView:
    """A difference from earlier payouts. `accounts` holds the old and new account in pieces if they differ."""

    finding: PlanFinding
    accounts: Sequence[Sequence[Piece]]
    sentences: Sequence[str]


def format_finding(finding: PlanFinding) -> str:
    """Format a finding as a sentence, with times in the console's time zone and labels for columns."""
    column = column_label(finding.column) if finding.code == REASSIGNED_HEADING and finding.column else finding.column
    return finding_sentence(_format_values(finding).model_copy(update={"column": column}))


def _format_values(finding: PlanFinding) -> PlanFinding:
    formatted_values = {"at": format_time(finding.at)}
    formatted_values |= {"before_at": format_date(finding.before_at), "first_at": format_date(finding.first_at)}
    formatted_values |= {"before": format_amount(finding.before), "first_amount": format_amount(finding.first_amount)}
    return finding.model_copy(update=formatted_values)


def show_plan(visit: Visit) -> Response:
    payout = require_folder(visit)
    if start_check(visit, payout, to_sign=True) is None:
        return reading_page(visit, payout)
    agreement = PlanAgreement.require(visit)
    with journal_for_planning(visit.console.settings) as journal:
        progress = read_progress(journal, agreement)
        document = displayed_document(agreement, progress.stage)
        is_done = progress.stage is Stage.DONE
        has_moved = is_superseded(visit, progress) or (is_done and not agreement.has_opened(journal))
    if has_moved:
        return visit.redirect(f"/payouts/{agreement.batch}")
    if agreement.checked is None or document is None or progress.stage is Stage.DRAFTING:
        return visit.redirect(agreement.path)
    payees = listed_payees(document)
    payee_counts = Counter(payee.currency for payee in payees)  # Like the sums, these come from the document.
    return visit.page(
        "plan.html",
        card=build_card(agreement, document, progress),
        uploaded=agreement.folder.uploaded,
        document=document,
        sums=[(currency, payee_counts[currency], amount) for currency, amount in document.content.totals.items()],
        worksheets=worksheets_text(document),
        double_payments=double_payments(document),
        sent_before=sent_before(document),
        comparison_text=comparison_text(
            document.model_copy(update={"findings": list(map(_format_values, document.findings))}), is_for_officers=True
        ),
        differences=differences(document),
        build_difference=partial(_build_difference, visit),
        # Amounts come first. Corrections with identical old and new texts are grouped.
        corrections=_group_corrections(document, agreement.checked.headings.get("amount", "amount")),
        names={payee.row: payee.name for payee in payees},
        left_out=document.select_findings(LEFT_OUT),
        left_out_sums=left_out_sums(document),
        people=payees[:PEOPLE_PER_PAGE],
        interpretations=document.select_findings(REASSIGNED_HEADING, NAMED_ENCODING, SPELLED_COLUMN),
        warnings=warning_groups(document),
        warning_texts=_warning_texts,
        difference_word=difference_word,
        format_finding=format_finding,
        warning_line=warning_line,
        double_payment_line=double_payment_line,
    )


def _group_corrections(document: PlanDocument, amount_column: str) -> Sequence[Sequence[PlanFinding]]:
    groups: dict[tuple[str, str, str], list[PlanFinding]] = {}
    for finding in document.select_findings(CORRECTED):
        groups.setdefault((finding.column, finding.value, finding.becomes), []).append(finding)
    return sorted(groups.values(), key=lambda findings: findings[0].column != amount_column)


def show_people(visit: Visit) -> Response:
    payout, document = _require_plan(visit)
    search_text, order = visit.query("text").strip(), visit.query("order")
    query = normalise_name(search_text)
    all_payees = listed_payees(document)
    matching = [payee for payee in all_payees if _matches(payee, query, is_masked=visit.member.sees_only_last_digits)]
    if order in _SORT_KEYS:
        matching.sort(key=_SORT_KEYS[order])
    start = min(visit.query_number("after"), max(len(matching) - 1, 0))
    previous_start = max(start - PEOPLE_PER_PAGE, 0) if start else None
    next_start = start + PEOPLE_PER_PAGE if start + PEOPLE_PER_PAGE < len(matching) else None
    return visit.page(
        "plan_people.html",
        uploaded=payout.uploaded,
        number=payout.number,
        search_text=search_text,
        order=order if order in _SORT_KEYS else "",
        count=len(all_payees),
        fitting=len(matching),
        pages=page_links(
            "after",
            {say("Previous page"): previous_start, say("Next page"): next_start},
            "people",
            text=search_text,
            order=order,
        ),
        people=matching[start : start + PEOPLE_PER_PAGE],
        difference_word=difference_word,
    )


def download_people(visit: Visit) -> Response:
    payout, document = _require_plan(visit)

    def write(path: Path) -> str:
        write_frame(people_table(document), path)
        return f"{Path(payout.uploaded.name).stem}.people.csv"

    return download_response(visit, "csv", write)


_SORT_KEYS: Mapping[str, Callable[[ListedPayee], Any]] = {
    "amount": lambda payee: (-Decimal(payee.amount), payee.row),
    "smallest": lambda payee: (Decimal(payee.amount), payee.row),
    "name": lambda payee: (normalise_name(payee.name), payee.row),
    "row": lambda payee: payee.row,
}
"""The sort orders for the list of people. By default, people with a difference come first."""


def _matches(payee: ListedPayee, query: str, *, is_masked: bool) -> bool:
    # A person who sees only the last digits must not be able to find the others by searching.
    account = mask_number(payee.account).lstrip(".") if is_masked else payee.account
    return query in normalise_name(payee.name) or query in account.casefold()


def _require_plan(visit: Visit) -> tuple[PayoutFolder, PlanDocument]:
    agreement = PlanAgreement.require(visit)
    document = agreement.document or agreement.draft()
    if document is None:
        raise PageNotFound(say("This sheet cannot be paid yet, so it has no list of payments."))
    return agreement.folder, document


def _build_difference(visit: Visit, finding: PlanFinding) -> DifferenceView:
    formatted = _format_values(finding)
    if formatted.code == CHANGED_ACCOUNT:
        pieces: Sequence[Sequence[Piece]] = difference_pieces(formatted.old_account, formatted.account)
        if visit.member.sees_only_last_digits:
            pieces = [mask_pieces(account) for account in pieces]
        sentences = [earlier_payment_text(formatted), first_payment_text(formatted), shared_account_text(formatted)]
    else:
        pieces, sentences = [[(visit.account(formatted.account), False)]], [format_finding(finding)]
    return DifferenceView(formatted, pieces, [f"{text[:1].upper()}{text[1:]}" for text in sentences if text])


def _warning_texts(code: str) -> tuple[str, str]:
    column_labels = {name: column_label(name) for name in operation_columns(PAYOUT)}
    label, _, suggestion = kind_meaning(code, column_labels, is_defect=False)
    return label, suggestion
