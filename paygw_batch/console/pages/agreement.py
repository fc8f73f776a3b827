"""Agreements in the console: one person signs a document, enough others approve it, and somebody starts it.

There are two kinds of documents: a payout's plan and an order about rows. Each kind defines when its document is
outdated and how it is started. This module handles progress, signing, approving and withdrawing.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

from starlette.responses import Response

from paygw_batch.approval.approval_keys import ApprovalKey, PublicKey, passkey_challenge
from paygw_batch.approval.policy import load_sandbox_key, require_line, require_policy
from paygw_batch.approval.signed_document import (
    Approval,
    Document,
    SignedDocument,
    approval_text,
    approve,
    approve_by_passkey,
    require_not_withdrawn,
    require_signatures,
    sign_by_passkey,
    sign_document,
    verify_signatures,
    write_document,
)
from paygw_batch.clock import utc_now
from paygw_batch.console.passkey_access import SignInKey, parse_signature
from paygw_batch.console.payout_folder import NamedFolder
from paygw_batch.console.permissions import Action, Member
from paygw_batch.console.start_run import StartedRun, last_run, last_summary, pause_run, run_reference
from paygw_batch.console.visits import RECORDED_AS_DONE, Console, PageOutdated, Visit, hold_lock
from paygw_batch.errors import ApprovalError, ConfigurationError, DocumentWithdrawn, PaygwError
from paygw_batch.journal import AuditResult, JournalReader
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.settle.kept_documents import sign_withdrawal, withdraw_on_page
from paygw_batch.show.batch_status import running_process
from paygw_batch.show.summary import ExitCode
from paygw_batch.submit.approvals import withdraw_document

_NO_OP_CODES = frozenset({ExitCode.UNEXPECTED, ExitCode.USAGE, ExitCode.DEFECTS, ExitCode.JOURNAL, ExitCode.APPROVAL})
"""Exit codes of runs that did nothing."""


class Stage(StrEnum):
    """The stage of a document on its way to being carried out."""

    DRAFTING = "drafting"
    TO_SIGN = "to_sign"
    SENT_BACK = "sent_back"
    TO_APPROVE = "to_approve"
    VOID = "void"
    """The maker's signature is invalid: the document was withdrawn, or its maker is no longer a maker."""
    OUTDATED = "outdated"
    """The rows or the payout have since changed, so the document can never be carried out."""
    APPROVED = "approved"
    """Enough people have approved the document, so it can be started."""
    FAILED = "failed"
    """The run ended without doing anything. The document can be started again."""
    STARTING = "starting"
    """A run for the batch is alive, but may be waiting for another run to end."""
    DONE = "done"


_WITHDRAWABLE = frozenset({Stage.TO_APPROVE, Stage.APPROVED, Stage.FAILED, Stage.STARTING})
"""The stages at which the signatures are valid and nothing has been carried out yet."""


@dataclass(frozen=True, slots=True)
class AgreementProgress:
    """The progress of a document.

    `problem` says why the document is void, outdated or failed. `approvers` holds the time of each valid approval by
    person. After the document has been carried out, it holds the recorded approvals.
    """

    stage: Stage
    problem: str = ""
    approvers: Mapping[str, str] = field(default_factory=dict)


class Agreement(ABC, Generic[Document]):
    """A document that its maker signs, others approve, and somebody starts.

    To add a kind of document, subclass this and write a page that extends `agreement.html`.
    """

    maker_action: ClassVar[Action]
    approving_action: ClassVar[Action]
    starting_action: ClassVar[Action]
    approve_path: ClassVar[str]
    """The last part of the approval form's path."""
    start_path: ClassVar[str]
    """The last part of the start form's path."""
    start_audit_action: ClassVar[str]
    missing_message: ClassVar[str]
    not_maker_message: ClassVar[str]
    """Says that only {name} may change the document."""
    maker_message: ClassVar[str]
    """Tells the maker that another person must approve the document."""
    next_steps: ClassVar[Mapping[Stage, str]]
    """The next step at each stage, for lists."""
    request_messages: ClassVar[Mapping[Stage, str]]
    """The request to the person who must take the next step at each stage, with placeholders."""

    visit: Visit
    folder: NamedFolder
    path: str
    """The prefix of the paths of the document's forms."""
    page: str
    """The path of the document's page."""
    maker: str
    batch: str
    summary: str = ""
    sent_back: str
    """Who sent the document back and why, or empty."""
    document: Document | None
    """The signed document in `signed_file` with its approvals, or None until the maker signs."""
    signed_file: Path

    @classmethod
    @abstractmethod
    def find(cls, visit: Visit) -> Self | None:
        """Return the document named in the address, or None if it does not exist."""

    @abstractmethod
    def draft(self) -> Document | None:
        """Return the unsigned document, or None if there is nothing to sign."""

    @abstractmethod
    def stage_without_signatures(self, journal: JournalReader) -> Stage | None:
        """Return the stage if it does not depend on signatures, otherwise None."""

    @abstractmethod
    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        """Return the recorded approval times by person, if the document has been carried out."""

    @abstractmethod
    def outdated_error(self, stage: Stage | None = None) -> PageOutdated:
        """Return the error for a document that has changed, or reached `stage`, since its page was opened."""

    @abstractmethod
    def redraft(self, sent_back: str = "") -> None:
        """Replace the signed document with a new draft. `sent_back` says who sent it back and why, or is empty."""

    @abstractmethod
    def start(self) -> StartedRun | None:
        """Carry out the document. Returns the started run, or None if no run is needed."""

    def record_failed_start(self, exit_code: int) -> None:
        """Record the start as refused in the audit trail if the run did nothing."""
        if exit_code in _NO_OP_CODES:
            with suppress(PaygwError):
                reason, visit = f"{RECORDED_AS_DONE}exit {exit_code}", self.visit
                visit.record_action(self.start_audit_action, visit.subject, AuditResult.REFUSED, reason=reason)

    def outdated_reason(self, journal: JournalReader) -> str | None:  # noqa: ARG002 (used by kinds that can be outdated)
        """Return why the document can never be carried out, or None if it can."""
        return None

    def write(self, document: Document) -> None:
        """Store the document with a new signature or approval."""
        write_document(document, self.signed_file)
        self.document = document

    @classmethod
    def require(cls, visit: Visit) -> Self:
        """Return the document named in the address. Raises `Visit.missing_error` if it does not exist."""
        if (agreement := cls.find(visit)) is None:
            raise visit.missing_error(say(cls.missing_message))
        return agreement

    @classmethod
    @contextmanager
    def lock_for_change(cls, visit: Visit, action: Action) -> Iterator[Self]:
        """Lock the document for one change. Raises `ActionRefused` if the person may not make it."""
        agreement = cls.require(visit)
        message = say(cls.not_maker_message if action is cls.maker_action else cls.maker_message, name=agreement.maker)
        visit.require(action, agreement.maker, message)
        with hold_lock(agreement.folder.number):
            yield cls.require(visit)

    @property
    def needed(self) -> int:
        """The number of other people who must approve."""
        return require_policy(self.visit.console.settings).needed

    @property
    def run(self) -> StartedRun | None:
        """The batch's last run. None if there was none, or if carrying out the document needs no run."""
        return last_run(self.visit.console.runs, self.batch)

    @property
    def can_change(self) -> bool:
        return self.visit.may(self.maker_action, self.maker)

    @property
    def can_approve(self) -> bool:
        return self.visit.may(self.approving_action, self.maker)


@dataclass(frozen=True, slots=True)
class AgreementCard:
    """The part of a page on which people sign, approve and start `document`."""

    agreement: Agreement[Any]
    progress: AgreementProgress
    document: SignedDocument
    digest: str
    """The document's digest, computed once because the document may list many people."""
    can_approve: bool
    """Whether the person may approve the document and has not approved it yet."""
    can_start: bool
    passkey: Mapping[str, str] | None
    """The values of the passkey form, or None if no passkey is needed."""
    run: str
    """The reference of the last run. The form sends it back, so that outdated pages are refused."""
    running_since: str
    """When the current run began to hold the journal. Empty if no run holds it."""

    @property
    def stage(self) -> Stage:
        return self.progress.stage


def read_progress(journal: JournalReader, agreement: Agreement[Any]) -> AgreementProgress:
    document = agreement.document
    approvers, void_reason = ({}, "") if document is None else _check_signatures(journal, agreement, document)
    if (stage := agreement.stage_without_signatures(journal)) is not None:
        return AgreementProgress(stage, "", agreement.recorded_approvers(journal) if stage is Stage.DONE else approvers)
    if (outdated_reason := agreement.outdated_reason(journal)) is not None:
        return AgreementProgress(Stage.OUTDATED, outdated_reason, approvers)
    if document is None:
        return AgreementProgress(Stage.TO_SIGN)
    if void_reason:
        return AgreementProgress(Stage.VOID, void_reason, approvers)
    if len(approvers) < agreement.needed:
        return AgreementProgress(Stage.TO_APPROVE, "", approvers)
    run = agreement.run
    if run is not None and run.is_alive:
        return AgreementProgress(Stage.STARTING, "", approvers)
    failure_reason = "" if run is None else _failure_reason(agreement, document, run)
    return AgreementProgress(Stage.FAILED if failure_reason else Stage.APPROVED, failure_reason, approvers)


def _check_signatures(
    journal: JournalReader, agreement: Agreement[Any], document: SignedDocument
) -> tuple[Mapping[str, str], str]:
    """Return valid approval times by person, and why the document is void (empty if it is not)."""
    try:
        signatures = verify_signatures(document, require_policy(agreement.visit.console.settings), utc_now())
    except ApprovalError as error:
        return {}, error.message if agreement.needed else ""
    approvers = {person.name: approval.approved_at for person, approval in signatures.valid.items()}
    try:
        require_not_withdrawn(document, journal.withdrawals())
    except DocumentWithdrawn as error:
        return approvers, error.message
    return approvers, ""


def _failure_reason(agreement: Agreement[Any], document: SignedDocument, run: StartedRun) -> str:
    """Return why the run did nothing. Empty if it did something or started before the approvals."""
    if run.at < max((approval.approved_at for approval in document.approvals), default=""):
        return ""
    summary = last_summary(agreement.visit.console.runs, agreement.batch)
    if summary is not None and summary.get("exit_code") not in _NO_OP_CODES:
        return ""
    return str((summary or {}).get("message") or say("The run ended before anything was sent."))


def request_to_visitor(agreement: Agreement[Any], progress: AgreementProgress) -> str:
    """Return a sentence that asks the visitor to take the next step. Empty if other people must take it."""
    stage = progress.stage
    match stage:
        case Stage.TO_APPROVE:
            is_asked = agreement.can_approve and agreement.visit.member.name not in progress.approvers
        case Stage.APPROVED | Stage.FAILED:
            is_asked = agreement.visit.may(agreement.starting_action)
        case _:
            is_asked = agreement.can_change
    if not is_asked:
        return ""
    if stage in {Stage.DRAFTING, Stage.TO_SIGN, Stage.SENT_BACK} and agreement.sent_back:
        return say("Sent back by {who}", who=agreement.sent_back)
    if stage is Stage.VOID:
        return progress.problem
    return say(agreement.request_messages.get(stage, ""), by=agreement.maker, what=agreement.summary)


@dataclass(frozen=True, slots=True)
class ListedAgreement:
    """A list entry for a document. `visitor_request` asks the visitor to take the next step, or is empty."""

    path: str
    number: str
    name: str
    """The name of the payout, or of the order's sheet."""
    summary: str
    by: str
    at: str
    next: str
    visitor_request: str
    rows: Sequence[int] = ()
    """The row numbers of an order. Empty for a plan, which covers the whole sheet."""
    people: int = 0
    sums: Mapping[str, str] = field(default_factory=dict)


def build_list_entry(
    agreement: Agreement[Any], progress: AgreementProgress, name: str, time: str, rows: Sequence[int] = ()
) -> ListedAgreement:
    path = agreement.path if progress.stage is Stage.DRAFTING else agreement.page
    request, next_step = request_to_visitor(agreement, progress), say(agreement.next_steps[progress.stage])
    return ListedAgreement(
        path, agreement.folder.number, name, agreement.summary, agreement.maker, time, next_step, request, rows
    )


SIGNED_QUERY = "?as=signed"
"""The query that shows a signed document even after it has been carried out."""


def is_superseded(visit: Visit, progress: AgreementProgress) -> bool:
    """Return whether to show the payout's page because the document has been carried out."""
    return progress.stage is Stage.DONE and visit.query("as") != "signed"


def displayed_document(agreement: Agreement[Document], stage: Stage) -> Document | None:
    """Return the document to show. A draft contains the key that the visitor would sign with."""
    document = agreement.document or agreement.draft()
    if document is not None and stage is Stage.TO_SIGN and agreement.can_change:
        return document.model_copy(update={"maker": signing_key(agreement.visit).text})
    return document


def build_card(agreement: Agreement[Any], document: SignedDocument, progress: AgreementProgress) -> AgreementCard:
    visit, process = agreement.visit, running_process(agreement.visit.console.settings)
    can_approve = agreement.can_approve and visit.member.name not in progress.approvers
    is_signing = progress.stage is Stage.TO_SIGN and agreement.can_change
    is_approving = progress.stage is Stage.TO_APPROVE and can_approve
    return AgreementCard(
        agreement=agreement,
        progress=progress,
        document=document,
        digest=document.digest(),
        can_approve=can_approve,
        can_start=progress.stage is not Stage.DONE and visit.may(agreement.starting_action),
        passkey=_passkey_form(visit, document, is_maker=is_signing) if is_signing or is_approving else None,
        run=run_reference(agreement.run),
        running_since="" if process is None else process.since,
    )


@dataclass(frozen=True, slots=True)
class AgreementActions:
    """The actions on one kind of document. Each runs only once, and only if its page was up to date."""

    kind: type[Agreement[Any]]

    def sign(self, visit: Visit) -> Response:
        with self.kind.lock_for_change(visit, self.kind.maker_action) as agreement:
            if agreement.document is not None:
                _require_same_document(agreement)
            else:
                progress = _require_stage(agreement, {Stage.TO_SIGN})
                # Another document may have been drafted since the page was opened. A person must only sign the document
                # shown on the page, because the signature allows payment to exactly the people in it.
                document = displayed_document(agreement, progress.stage)
                if document is None or document.digest() != visit.form.get("digest"):
                    raise agreement.outdated_error()
                agreement.write(_sign_as_maker(visit, document))
        return visit.redirect(agreement.page)

    def approve(self, visit: Visit) -> Response:
        with self.kind.lock_for_change(visit, self.kind.approving_action) as agreement:
            document = _require_same_document(agreement)
            progress = _require_stage(agreement, _WITHDRAWABLE | {Stage.DONE})
            if not _has_same_approval(visit, document, progress):
                if progress.stage is not Stage.TO_APPROVE:
                    raise PageOutdated(say("Enough people have approved it since this page was opened."))
                agreement.write(_add_approval(visit, document))
        return visit.redirect(agreement.page)

    def send_back(self, visit: Visit) -> Response:
        """Send a document back to its maker with a reason. This invalidates its signatures."""
        with self.kind.lock_for_change(visit, self.kind.approving_action) as agreement:
            reason = require_line(visit.form.get("reason", ""), say("The reason"))
            sent_back = f"{visit.member.name}: {reason}"
            if agreement.document is not None or agreement.sent_back != sent_back:
                # Withdraw in the journal before changing the folder. If this process dies in between, the folder still
                # holds the signed document, but no run accepts it.
                _withdraw_shown_document(agreement, _WITHDRAWABLE | {Stage.VOID})
                agreement.redraft(sent_back)
        return visit.redirect("/")

    def withdraw(self, visit: Visit) -> Response:
        """Withdraw the visitor's own signed document and redraft it. A second click does nothing."""
        with self.kind.lock_for_change(visit, self.kind.maker_action) as agreement:
            if agreement.document is not None:
                _withdraw_shown_document(agreement, _WITHDRAWABLE)
                agreement.redraft()
        return visit.redirect(agreement.page)

    def sign_again(self, visit: Visit) -> Response:
        """Redraft a document whose signature is invalid, so that its maker can sign it again."""
        with self.kind.lock_for_change(visit, self.kind.maker_action) as agreement:
            if agreement.document is not None:
                _require_same_document(agreement)
                _require_stage(agreement, {Stage.VOID})
                agreement.redraft()
        return visit.redirect(agreement.page)

    def remove_own_document(self, visit: Visit) -> Response:
        """Remove the visitor's own document unless it has been carried out. A second click does nothing."""
        if self.kind.find(visit) is None:
            return visit.redirect("/")
        with self.kind.lock_for_change(visit, self.kind.maker_action) as agreement:
            stage = _require_stage(agreement, set(Stage) - {Stage.DONE, Stage.STARTING}).stage
            document = displayed_document(agreement, stage)
            if document is None or (document.digest(), stage) != (visit.form.get("digest"), visit.form.get("stage")):
                raise agreement.outdated_error()
            if agreement.document is not None:
                withdraw(visit, document)
            agreement.folder.remove()
        return visit.redirect("/")

    def start(self, visit: Visit) -> Response:
        """Start a document that enough people have approved. A second click is recorded as refused."""
        with self.kind.lock_for_change(visit, self.kind.starting_action) as agreement:
            _require_same_document(agreement)
            progress = _require_stage(agreement, {Stage.APPROVED, Stage.FAILED, Stage.STARTING, Stage.DONE})
            # The form names the last run shown on its page. A late click on a page opened before a failed or paused run
            # must not start another run before somebody has seen that run's result.
            is_same_run = run_reference(agreement.run) == visit.form.get("run", "")
            if progress.stage in {Stage.APPROVED, Stage.FAILED} and is_same_run:
                agreement.start()
            else:
                reason = f"{RECORDED_AS_DONE}{PageOutdated.__name__}"
                visit.record_action(agreement.start_audit_action, visit.subject, AuditResult.REFUSED, reason=reason)
        return visit.redirect(agreement.page)


def _require_same_document(agreement: Agreement[Document]) -> Document:
    """Return the signed document. Raises `PageOutdated` if the page showed a different one."""
    document = agreement.document
    if document is None or document.digest() != agreement.visit.form.get("digest"):
        raise agreement.outdated_error()
    return document


def _require_stage(agreement: Agreement[Any], allowed: Collection[Stage]) -> AgreementProgress:
    """Return the document's progress. Raises `PageOutdated` or `ApprovalError` unless its stage is `allowed`."""
    settings, document = agreement.visit.console.settings, agreement.document
    with journal_for_planning(settings) as journal:
        progress = read_progress(journal, agreement)
    if progress.stage in allowed:
        return progress
    if progress.stage in {Stage.OUTDATED, Stage.VOID}:
        raise PageOutdated(progress.problem)
    if progress.stage is Stage.TO_APPROVE and document is not None:
        require_signatures(document, require_policy(settings), utc_now())
    raise agreement.outdated_error(progress.stage)


# People sign with the passkey that they signed in with or, in the sandbox, with a key in a file.


def signing_key(visit: Visit) -> PublicKey:
    return require_sandbox_key(visit.console, visit.member).public if visit.passkey is None else visit.passkey.key


def _sign_as_maker(visit: Visit, draft: Document) -> Document:
    passkey = visit.passkey
    if passkey is None:
        return sign_document(draft, require_sandbox_key(visit.console, visit.member))
    draft = _with_maker_key(draft, passkey)
    return sign_by_passkey(draft, parse_signature(visit.form), require_policy(visit.console.settings))


def _add_approval(visit: Visit, document: Document) -> Document:
    policy, now, passkey = require_policy(visit.console.settings), utc_now(), visit.passkey
    if passkey is None:
        return approve(document, require_sandbox_key(visit.console, visit.member), policy, now)
    approval = Approval(
        key=passkey.key.text, approved_at=visit.form.get("approved_at", ""), signature=parse_signature(visit.form)
    )
    return approve_by_passkey(document, approval, policy, now)


def withdraw(visit: Visit, document: SignedDocument | None) -> None:
    """Record in the journal that a signed document is withdrawn. This invalidates every copy.

    Does nothing if there is no document, or if it belongs to another journal or is already withdrawn.
    """
    if document is None:
        return
    settings, now, policy = visit.console.settings, utc_now(), require_policy(visit.console.settings)
    with journal_for_planning(settings) as journal:
        is_same_journal = document.content.journal == journal.head().journal_id
        is_withdrawn = any(withdrawal.sha256 == document.digest() for withdrawal in journal.withdrawals())
    if is_same_journal and not is_withdrawn:
        withdrawal = (
            sign_withdrawal(document, require_sandbox_key(visit.console, visit.member), policy.people, now)
            if visit.passkey is None
            else withdraw_on_page(document, visit.member.name, now)
        )
        withdraw_document(settings, document, withdrawal)


def _withdraw_shown_document(agreement: Agreement[Document], allowed: Collection[Stage]) -> None:
    """Withdraw the document shown on the page. Stops its run if the run is still starting."""
    document = _require_same_document(agreement)
    stage = _require_stage(agreement, allowed).stage
    withdraw(agreement.visit, document)
    if stage is Stage.STARTING:
        pause_run(agreement.visit.console.runs, agreement.batch, run_reference(agreement.run))


def _has_same_approval(visit: Visit, document: SignedDocument, progress: AgreementProgress) -> bool:
    """Return whether the document already has this approval, for example after a second click."""
    if visit.member.name not in progress.approvers:
        return False
    approvals = [(approval.approved_at, approval.signature) for approval in document.approvals]
    return visit.passkey is None or (visit.form.get("approved_at", ""), parse_signature(visit.form)) in approvals


def _passkey_form(visit: Visit, document: SignedDocument, *, is_maker: bool) -> Mapping[str, str] | None:
    """Return the values of the passkey form, or None if the visitor cannot sign with a passkey."""
    passkey, party = visit.passkey, visit.console.access.party
    if passkey is None or party is None:
        return None
    form = {"kind": "get", "rp_id": party.rp_id, "credential": passkey.credential}
    if is_maker:
        return {**form, "challenge": passkey_challenge(_with_maker_key(document, passkey).signed_text())}
    with suppress(ApprovalError):  # This person may not approve.
        text = approval_text(document, passkey.key, require_policy(visit.console.settings), utc_now())
        return {**form, "challenge": text.challenge, "approved_at": text.approved_at}
    return None


def _with_maker_key(draft: Document, passkey: SignInKey) -> Document:
    """Set the maker's key in a draft to this passkey, because a maker may have several keys."""
    return draft.model_copy(update={"maker": passkey.key.text})


def require_sandbox_key(console: Console, member: Member) -> ApprovalKey:
    key = load_sandbox_key(console.settings, member.name)
    if key is None:
        raise ConfigurationError(
            say("{name} does not have a signing key.", name=member.name),
            hint=say(
                "In the sandbox, an administrator creates the key. With a real gateway, people sign with a passkey."
            ),
            for_terminal=False,
        )
    return key
