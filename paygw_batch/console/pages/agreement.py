"""Agreements on the pages: one person signs a document, enough others approve it, and then somebody starts it.

There are two kinds of documents: the plan of a payout, and an order about rows. A kind says when its document is
outdated, and how it is started. This module has everything else: progress, signing, approving and withdrawing.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

from starlette.responses import Response

from paygw_batch.approval.approval_keys import ApprovalKey, PublicKey, challenge_of
from paygw_batch.approval.policy import required_line, required_policy, sandbox_key
from paygw_batch.approval.signed_document import (
    Approval,
    Document,
    SignedDocument,
    approval_text,
    approve,
    approve_by_passkey,
    made_by_passkey,
    require_not_withdrawn,
    require_signatures,
    signatures_of,
    signed,
    write_document,
)
from paygw_batch.clock import utc_now
from paygw_batch.console.passkey_access import SignedInKey, signature_in
from paygw_batch.console.payout_folder import NamedFolder
from paygw_batch.console.permissions import Act, Member
from paygw_batch.console.start_run import StartedRun, last_summary, pause_run, run_shown, started_run
from paygw_batch.console.visits import NOTED_BEFORE, Console, PageOutdated, Visit, made_once
from paygw_batch.errors import ApprovalError, ConfigurationError, DocumentWithdrawn, PaygwError
from paygw_batch.journal import AuditResult, JournalReader
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.settle.kept_documents import withdrawn_at_a_page, withdrawn_with
from paygw_batch.show.batch_status import running_now
from paygw_batch.show.summary import ExitCode
from paygw_batch.submit.approvals import withdraw_document

_REFUSED = frozenset({ExitCode.UNEXPECTED, ExitCode.USAGE, ExitCode.DEFECTS, ExitCode.JOURNAL, ExitCode.APPROVAL})
"""The exit codes of a run that did nothing."""


class Stage(StrEnum):
    """The stage that a document has reached."""

    DRAFTING = "drafting"
    """The document is not ready to be signed."""
    TO_SIGN = "to_sign"
    SENT_BACK = "sent_back"
    TO_APPROVE = "to_approve"
    VOID = "void"
    """The maker's signature is no longer valid: the document was withdrawn, or its maker is no longer a maker."""
    OUTDATED = "outdated"
    """The rows or the payout have changed since, so the document can never be carried out."""
    APPROVED = "approved"
    """Enough people have approved the document, so it can be started."""
    FAILED = "failed"
    """The run ended before it did anything. The document can be started again."""
    STARTING = "starting"
    """A run for the batch is alive. It may still wait for another run to end."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class AgreementProgress:
    """The progress of a document.

    `problem` says why the document is void, outdated or failed. `approvers` has the time of each valid approval, by
    person. Once the document is carried out, these are the approvals that were valid then.
    """

    stage: Stage
    problem: str = ""
    approvers: Mapping[str, str] = field(default_factory=dict)


class Agreement(ABC, Generic[Document]):
    """A document that its maker signs, enough other people approve, and somebody starts.

    A new kind of document is a subclass with these texts and methods, and a page that extends `agreement.html`.
    """

    own_act: ClassVar[Act]
    approving_act: ClassVar[Act]
    starting_act: ClassVar[Act]
    approve_path: ClassVar[str]
    """The last part of the address of the form that approves, and of the form that starts (`start_path`)."""
    start_path: ClassVar[str]
    start_noted: ClassVar[str]
    """The name in the audit trail for starting the document."""
    gone: ClassVar[str]
    """The sentence for a missing document."""
    only_maker: ClassVar[str]
    """The sentence for a person who may not change the document, as only {name} may."""
    other_person: ClassVar[str]
    """The sentence for its maker, who may not approve it."""
    next_steps: ClassVar[Mapping[Stage, str]]
    """The next step at each stage, as a list shows it."""
    asks: ClassVar[Mapping[Stage, str]]
    """The request at each stage to the person who takes the next step, with placeholders for maker and action."""

    visit: Visit
    folder: NamedFolder
    path: str
    """The address that the addresses of its forms begin with. `page` is the address of its page."""
    page: str
    maker: str
    """The name of the person who prepares the document."""
    batch: str
    """The id of the batch that the document is about."""
    what: str = ""
    """The action that the document asks for, in a few words."""
    sent_back: str
    """The person who sent the document back, and the reason; empty if nobody did."""
    document: Document | None
    """The signed document with its approvals, kept in `signed_file`; None until its maker signs."""
    signed_file: Path

    @classmethod
    @abstractmethod
    def find(cls, visit: Visit) -> Self | None:
        """Return the document in the address of a visit; None if there is no such document."""

    @abstractmethod
    def draft(self) -> Document | None:
        """Return the unsigned document; None if there is nothing to sign."""

    @abstractmethod
    def stage_by_itself(self, journal: JournalReader) -> Stage | None:
        """Return the stage if it does not depend on signatures; None if it does."""

    @abstractmethod
    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        """Return the times of approvals by person, as the journal recorded them when the document was carried out."""

    @abstractmethod
    def changed(self, stage: Stage | None = None) -> PageOutdated:
        """Return the error for a document that has changed, or reached `stage`, since its page was opened."""

    @abstractmethod
    def draft_again(self, sent_back: str = "") -> None:
        """Replace the signed document with a new draft. `sent_back` says who sent it back and why, or is empty."""

    @abstractmethod
    def start(self) -> StartedRun | None:
        """Carry the document out. Return the run that does so, or None if it was done at once."""

    def note_end(self, exit_code: int) -> None:
        """Record in the audit trail that the start was refused, if the exit code says that the run did nothing."""
        if exit_code in _REFUSED:
            with suppress(PaygwError):
                said = f"{NOTED_BEFORE}exit {exit_code}"
                self.visit.note(self.start_noted, self.visit.thing, AuditResult.REFUSED, said=said)

    def outdated(self, journal: JournalReader) -> str | None:  # noqa: ARG002 (used by kinds that can be outdated)
        """Return why the document can never be carried out; None if it can."""
        return None

    def write(self, document: Document) -> None:
        """Store the document after its maker has signed it, or another person has approved it."""
        write_document(document, self.signed_file)
        self.document = document

    @classmethod
    def required(cls, visit: Visit) -> Self:
        """Return the document in the address of a visit. Raises the error of `Visit.gone` if there is none."""
        if (agreement := cls.find(visit)) is None:
            raise visit.gone(say(cls.gone))
        return agreement

    @classmethod
    @contextmanager
    def changing(cls, visit: Visit, act: Act) -> Iterator[Self]:
        """Yield the document for one change at a time. Raises `ActRefused` unless the person may do the action."""
        agreement = cls.required(visit)
        sentence = say(cls.only_maker if act is cls.own_act else cls.other_person, name=agreement.maker)
        visit.require(act, agreement.maker, sentence)
        with made_once(agreement.folder.number):
            yield cls.required(visit)

    @property
    def needed(self) -> int:
        """The number of other people who must approve."""
        return required_policy(self.visit.console.settings).needed

    @property
    def run(self) -> StartedRun | None:
        """The last run started for the batch; None if there was none, or if no run carries out such a document."""
        return started_run(self.visit.console.runs, self.batch)

    @property
    def is_own(self) -> bool:
        """Whether the person at the page prepares the document."""
        return self.visit.may(self.own_act, self.maker)

    @property
    def can_approve(self) -> bool:
        return self.visit.may(self.approving_act, self.maker)


@dataclass(frozen=True, slots=True)
class AgreementCard:
    """The part of a page that lets this person sign, approve and start `document`."""

    it: Agreement[Any]
    progress: AgreementProgress
    document: SignedDocument
    digest: str
    """The document's digest. It is computed only once, because a document may list many people."""
    can_approve: bool
    """Whether the person may approve the document, and has not approved it yet."""
    can_start: bool
    passkey: Mapping[str, str] | None
    """The values of the form that asks for a passkey; None if no passkey is needed."""
    run: str
    """The name of the last run. A form contains it, so that a form of an older page is refused."""
    running_since: str
    """The time since which a run has held the journal; empty if no run holds it."""

    @property
    def stage(self) -> Stage:
        return self.progress.stage


def progress_of(journal: JournalReader, agreement: Agreement[Any]) -> AgreementProgress:
    document = agreement.document
    approvers, void = ({}, "") if document is None else _approvers(journal, agreement, document)
    if (stage := agreement.stage_by_itself(journal)) is not None:
        return AgreementProgress(stage, "", agreement.recorded_approvers(journal) if stage is Stage.DONE else approvers)
    if (outdated := agreement.outdated(journal)) is not None:
        return AgreementProgress(Stage.OUTDATED, outdated, approvers)
    if document is None:
        return AgreementProgress(Stage.TO_SIGN)
    if void:
        return AgreementProgress(Stage.VOID, void, approvers)
    if len(approvers) < agreement.needed:
        return AgreementProgress(Stage.TO_APPROVE, "", approvers)
    run = agreement.run
    if run is not None and run.is_alive:
        return AgreementProgress(Stage.STARTING, "", approvers)
    failure = "" if run is None else _failure(agreement, document, run)
    return AgreementProgress(Stage.FAILED if failure else Stage.APPROVED, failure, approvers)


def _approvers(
    journal: JournalReader, agreement: Agreement[Any], document: SignedDocument
) -> tuple[Mapping[str, str], str]:
    """Return the times of valid approvals by person, and why the maker's signature is invalid; empty if it is valid."""
    try:
        signatures = signatures_of(document, required_policy(agreement.visit.console.settings), utc_now())
    except ApprovalError as error:
        return {}, error.message if agreement.needed else ""
    approvers = {person.name: approval.approved_at for person, approval in signatures.valid.items()}
    try:
        require_not_withdrawn(document, journal.withdrawals())
    except DocumentWithdrawn as error:
        return approvers, error.message
    return approvers, ""


def _failure(agreement: Agreement[Any], document: SignedDocument, run: StartedRun) -> str:
    """Return why the run for a document did nothing; empty if it did something, or was older than the approvals."""
    if run.at < max((approval.approved_at for approval in document.approvals), default=""):
        return ""
    summary = last_summary(agreement.visit.console.runs, agreement.batch)
    if summary is not None and summary.get("exit_code") not in _REFUSED:
        return ""
    return str((summary or {}).get("message") or say("The run ended before anything was sent."))


def asked_of_person(agreement: Agreement[Any], progress: AgreementProgress) -> str:
    """Return the sentence that asks the person at the page for the next step; empty if others take that step."""
    stage = progress.stage
    match stage:
        case Stage.TO_APPROVE:
            is_asked = agreement.can_approve and agreement.visit.member.name not in progress.approvers
        case Stage.APPROVED | Stage.FAILED:
            is_asked = agreement.visit.may(agreement.starting_act)
        case _:
            is_asked = agreement.is_own
    if not is_asked:
        return ""
    if stage in {Stage.DRAFTING, Stage.TO_SIGN, Stage.SENT_BACK} and agreement.sent_back:
        return say("Sent back by {who}", who=agreement.sent_back)
    if stage is Stage.VOID:
        return progress.problem
    return say(agreement.asks.get(stage, ""), by=agreement.maker, what=agreement.what)


@dataclass(frozen=True, slots=True)
class ListedAgreement:
    """A document as a list shows it. `needs` asks the viewer for the next step, or is empty."""

    path: str
    number: str
    name: str
    """The name of the payout, or of the sheet of an order."""
    what: str
    by: str
    at: str
    next: str
    needs: str
    rows: Sequence[int] = ()
    """The numbers of the rows that an order is about. Empty for a plan, which is about a whole sheet."""
    people: int = 0
    sums: Mapping[str, str] = field(default_factory=dict)
    """The sums by currency of a signed plan."""


def listed(
    agreement: Agreement[Any], progress: AgreementProgress, name: str, at: str, rows: Sequence[int] = ()
) -> ListedAgreement:
    """Return a document as a list shows it. `at` is the time when it was drafted."""
    path = agreement.path if progress.stage is Stage.DRAFTING else agreement.page
    needs, then = asked_of_person(agreement, progress), say(agreement.next_steps[progress.stage])
    return ListedAgreement(path, agreement.folder.number, name, agreement.what, agreement.maker, at, then, needs, rows)


SIGNED_AS = "?as=signed"
"""The query with which a page shows the signed document even after it was carried out."""


def is_left(visit: Visit, progress: AgreementProgress) -> bool:
    """Return whether the payout's page replaces this page: the document is done, and not asked for as signed."""
    return progress.stage is Stage.DONE and visit.query("as") != "signed"


def shown_document(agreement: Agreement[Document], stage: Stage) -> Document | None:
    """Return the document as its page shows it. A draft has the key with which the person at the page would sign."""
    document = agreement.document or agreement.draft()
    if document is not None and stage is Stage.TO_SIGN and agreement.is_own:
        return document.model_copy(update={"maker": signing_key(agreement.visit).text})
    return document


def agreement_card(agreement: Agreement[Any], document: SignedDocument, progress: AgreementProgress) -> AgreementCard:
    visit, running = agreement.visit, running_now(agreement.visit.console.settings)
    can_approve = agreement.can_approve and visit.member.name not in progress.approvers
    asks_maker = progress.stage is Stage.TO_SIGN and agreement.is_own
    asks_approver = progress.stage is Stage.TO_APPROVE and can_approve
    return AgreementCard(
        it=agreement,
        progress=progress,
        document=document,
        digest=document.digest(),
        can_approve=can_approve,
        can_start=progress.stage is not Stage.DONE and visit.may(agreement.starting_act),
        passkey=_passkey_form(visit, document, is_maker=asks_maker) if asks_maker or asks_approver else None,
        run=run_shown(agreement.run),
        running_since="" if running is None else running.since,
    )


@dataclass(frozen=True, slots=True)
class AgreementForms:
    """The actions on one kind of document. An action is done once, and only from a form of the present page."""

    kind: type[Agreement[Any]]

    def sign(self, visit: Visit) -> Response:
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            if agreement.document is not None:
                _same_document(agreement)
            else:
                progress = _progress(agreement, {Stage.TO_SIGN})
                # Another document may have been drafted since the page was opened. A person signs only the document
                # that the page showed, because the signature lets exactly these people be paid.
                document = shown_document(agreement, progress.stage)
                if document is None or document.digest() != visit.form.get("digest"):
                    raise agreement.changed()
                agreement.write(_signed_by_maker(visit, document))
        return visit.go_to(agreement.page)

    def approve(self, visit: Visit) -> Response:
        with self.kind.changing(visit, self.kind.approving_act) as agreement:
            document = _same_document(agreement)
            progress = _progress(agreement, _WITHDRAWABLE | {Stage.DONE})
            if not _has_approved_so(visit, document, progress):
                if progress.stage is not Stage.TO_APPROVE:
                    raise PageOutdated(say("Enough people have approved it since this page was opened."))
                agreement.write(_approved_by(visit, document))
        return visit.go_to(agreement.page)

    def send_back(self, visit: Visit) -> Response:
        """Send a document back to its maker with a reason. Its signatures are then no longer valid."""
        with self.kind.changing(visit, self.kind.approving_act) as agreement:
            reason = required_line(visit.form.get("reason", ""), say("The reason"))
            sent_back = f"{visit.member.name}: {reason}"
            if agreement.document is not None or agreement.sent_back != sent_back:
                # The journal is written before the folder. If this process dies in between, the signed document is
                # still in the folder, but no run accepts it.
                _withdraw_signed(agreement, _WITHDRAWABLE | {Stage.VOID})
                agreement.draft_again(sent_back)
        return visit.go_to("/")

    def withdraw(self, visit: Visit) -> Response:
        """Withdraw a signed document as its maker, for whom it is drafted again. A second click does nothing."""
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            if agreement.document is not None:
                _withdraw_signed(agreement, _WITHDRAWABLE)
                agreement.draft_again()
        return visit.go_to(agreement.page)

    def sign_again(self, visit: Visit) -> Response:
        """Draft a document again whose signature is no longer valid. A second click does nothing."""
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            if agreement.document is not None:
                _same_document(agreement)
                _progress(agreement, {Stage.VOID})
                agreement.draft_again()
        return visit.go_to(agreement.page)

    def take_back(self, visit: Visit) -> Response:
        """Remove a document that was not carried out, as its maker. A second click does nothing."""
        if self.kind.find(visit) is None:
            return visit.go_to("/")
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            stage = _progress(agreement, set(Stage) - {Stage.DONE, Stage.STARTING}).stage
            document = shown_document(agreement, stage)
            if document is None or (document.digest(), stage) != (visit.form.get("digest"), visit.form.get("stage")):
                raise agreement.changed()
            if agreement.document is not None:
                withdraw(visit, document)
            agreement.folder.remove()
        return visit.go_to("/")

    def start(self, visit: Visit) -> Response:
        """Start a document that enough people have approved. A second click does nothing."""
        with self.kind.changing(visit, self.kind.starting_act) as agreement:
            _same_document(agreement)
            progress = _progress(agreement, {Stage.APPROVED, Stage.FAILED, Stage.STARTING, Stage.DONE})
            # The form names the last run that its page showed. A late click on a page that is older than a failed or
            # paused run must not start another run, before somebody has seen the result of that run.
            is_as_shown = run_shown(agreement.run) == visit.form.get("run", "")
            if progress.stage in {Stage.APPROVED, Stage.FAILED} and is_as_shown:
                agreement.start()
        return visit.go_to(agreement.page)


def _same_document(agreement: Agreement[Document]) -> Document:
    """Return the signed document. Raises `PageOutdated` if the page showed another document."""
    document = agreement.document
    if document is None or document.digest() != agreement.visit.form.get("digest"):
        raise agreement.changed()
    return document


def _progress(agreement: Agreement[Any], allowed: Collection[Stage]) -> AgreementProgress:
    """Return the progress of a document. Raises `PageOutdated` or `ApprovalError` if its stage is not `allowed`."""
    settings, document = agreement.visit.console.settings, agreement.document
    with journal_for_planning(settings) as journal:
        progress = progress_of(journal, agreement)
    if progress.stage in allowed:
        return progress
    if progress.stage in {Stage.OUTDATED, Stage.VOID}:
        raise PageOutdated(progress.problem)
    if progress.stage is Stage.TO_APPROVE and document is not None:
        require_signatures(document, required_policy(settings), utc_now())
    raise agreement.changed(progress.stage)


# A person at a page signs with the passkey of the sign-in or, in the sandbox, with a key in a file.


def signing_key(visit: Visit) -> PublicKey:
    """Return the public key with which the person at the page signs."""
    return required_key(visit.console, visit.member).public if visit.passkey is None else visit.passkey.key


def _signed_by_maker(visit: Visit, draft: Document) -> Document:
    passkey = visit.passkey
    if passkey is None:
        return signed(draft, required_key(visit.console, visit.member))
    own = _by_passkey(draft, passkey)
    return made_by_passkey(own, signature_in(visit.form), required_policy(visit.console.settings))


def _approved_by(visit: Visit, document: Document) -> Document:
    policy, now, passkey = required_policy(visit.console.settings), utc_now(), visit.passkey
    if passkey is None:
        return approve(document, required_key(visit.console, visit.member), policy, now)
    approval = Approval(
        key=passkey.key.text,
        approved_at=visit.form.get("approved_at", ""),
        signature=signature_in(visit.form),
    )
    return approve_by_passkey(document, approval, policy, now)


def withdraw(visit: Visit, document: SignedDocument | None) -> None:
    """Withdraw a signed document in the journal, so that no copy of it is valid any more.

    Does nothing without a document, for a document for another journal, or for a document that is already withdrawn.
    """
    if document is None:
        return
    settings, now, policy = visit.console.settings, utc_now(), required_policy(visit.console.settings)
    with journal_for_planning(settings) as journal:
        is_of_journal = document.content.journal == journal.head().journal_id
        is_withdrawn = any(withdrawal.sha256 == document.digest() for withdrawal in journal.withdrawals())
    if is_of_journal and not is_withdrawn:
        withdrawal = (
            withdrawn_with(document, required_key(visit.console, visit.member), policy.people, now)
            if visit.passkey is None
            else withdrawn_at_a_page(document, visit.member.name, now)
        )
        withdraw_document(settings, document, withdrawal)


_WITHDRAWABLE = frozenset({Stage.TO_APPROVE, Stage.APPROVED, Stage.FAILED, Stage.STARTING})
"""The stages in which the signatures are valid, and nothing was carried out yet."""


def _withdraw_signed(agreement: Agreement[Document], allowed: Collection[Stage]) -> None:
    """Withdraw the signed document that the page showed, and stop its run if the run is only starting."""
    document = _same_document(agreement)
    stage = _progress(agreement, allowed).stage
    withdraw(agreement.visit, document)
    if stage is Stage.STARTING:
        pause_run(agreement.visit.console.runs, agreement.batch, run_shown(agreement.run))


def _has_approved_so(visit: Visit, document: SignedDocument, progress: AgreementProgress) -> bool:
    """Return whether a document already has the approval in the form, and it is valid, as after a second click."""
    if visit.member.name not in progress.approvers:
        return False
    approvals = [(approval.approved_at, approval.signature) for approval in document.approvals]
    return visit.passkey is None or (visit.form.get("approved_at", ""), signature_in(visit.form)) in approvals


def _passkey_form(visit: Visit, document: SignedDocument, *, is_maker: bool) -> Mapping[str, str] | None:
    """Return the values of the form that asks for the passkey; None if no passkey signs or may approve."""
    passkey, party = visit.passkey, visit.console.access.party
    if passkey is None or party is None:
        return None
    form = {"kind": "get", "rp_id": party.rp_id, "credential": passkey.credential}
    if is_maker:
        return {**form, "challenge": challenge_of(_by_passkey(document, passkey).signed_text())}
    with suppress(ApprovalError):  # a person who may not approve gets no form
        text = approval_text(document, passkey.key, required_policy(visit.console.settings), utc_now())
        return {**form, "challenge": text.challenge, "approved_at": text.approved_at}
    return None


def _by_passkey(draft: Document, passkey: SignedInKey) -> Document:
    """Return a draft with this passkey as the maker's key, because a maker may have several keys."""
    return draft.model_copy(update={"maker": passkey.key.text})


def required_key(console: Console, member: Member) -> ApprovalKey:
    """Return the person's key in the sandbox. Raises `ConfigurationError` if there is none."""
    key = sandbox_key(console.settings, member.name)
    if key is None:
        raise ConfigurationError(
            say("{name} has no key to sign with.", name=member.name),
            hint=say("In the sandbox the administrator makes one; with a real gateway people sign with a passkey."),
            for_terminal=False,
        )
    return key
