"""Agreements between people on the pages: one person signs a document, enough others approve, then it is started.

There are two kinds: a payout, and an order about rows. A kind defines its document, when that is outdated, and how it
is started. Its progress, and every action of two people, is here.
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
"""The exit codes of a run that carried nothing out."""


class Stage(StrEnum):
    """How far a document has come."""

    DRAFTING = "drafting"
    """There is nothing to sign yet."""
    TO_SIGN = "to_sign"
    SENT_BACK = "sent_back"
    TO_APPROVE = "to_approve"
    VOID = "void"
    """Its signature is no longer valid: it was withdrawn, or its maker is no longer a maker."""
    OUTDATED = "outdated"
    """Its subject has changed: it can never be carried out."""
    APPROVED = "approved"
    """It can be started."""
    FAILED = "failed"
    """Its run ended before doing anything. It can be started again."""
    STARTING = "starting"
    """A run is under way: its own, or one that has to end first."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class AgreementProgress:
    """How far a document has come.

    `problem` says why it is void, outdated or failed. `approvers` are the people whose approval counts now or, once the
    document is carried out, counted then, each with the time of the approval.
    """

    stage: Stage
    problem: str = ""
    approvers: Mapping[str, str] = field(default_factory=dict)


class Agreement(ABC, Generic[Document]):
    """A document that its maker signs, enough others approve, and someone starts.

    A new kind adds these texts and actions, and its own page on top of `agreement.html`.
    """

    own_act: ClassVar[Act]
    approving_act: ClassVar[Act]
    starting_act: ClassVar[Act]
    approve_path: ClassVar[str]
    """The last part of the addresses of two of its forms; the others have the same names for every kind."""
    start_path: ClassVar[str]
    start_noted: ClassVar[str]
    """The name of its start in the audit trail."""
    gone: ClassVar[str]
    """The sentences for a missing document, for one that only {name} may change, and for one for someone else."""
    only_maker: ClassVar[str]
    other_person: ClassVar[str]
    next_steps: ClassVar[Mapping[Stage, str]]
    """The next step as a list shows it, and the request (with `by` and `what`) to the person who takes it."""
    asks: ClassVar[Mapping[Stage, str]]

    visit: Visit
    folder: NamedFolder
    path: str
    """The base address of its forms; `page` is the address of its page."""
    page: str
    maker: str
    """The person who prepares it."""
    batch: str
    """The batch that it is about."""
    what: str = ""
    """The action that it asks for, in a few words."""
    sent_back: str
    """Who sent it back and why; empty if nobody did."""
    document: Document | None
    """The signed document with its approvals, kept in `signed_file`; None until its maker signs."""
    signed_file: Path

    @classmethod
    @abstractmethod
    def find(cls, visit: Visit) -> Self | None:
        """Return the document at an address; None if it is gone."""

    @abstractmethod
    def draft(self) -> Document | None:
        """Return the unsigned document; None if there is nothing to sign."""

    @abstractmethod
    def stage_by_itself(self, journal: JournalReader) -> Stage | None:
        """Return the stage, if it does not depend on signatures; otherwise None."""

    @abstractmethod
    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        """Return who approved it, and when, as the journal recorded it when it was carried out."""

    @abstractmethod
    def changed(self, stage: Stage | None = None) -> PageOutdated:
        """Return the error that the document has moved on (to `stage`) or back since its page was opened."""

    @abstractmethod
    def draft_again(self, sent_back: str = "") -> None:
        """Replace the signed document with a new draft; `sent_back` says who sent it back and why."""

    @abstractmethod
    def start(self) -> StartedRun | None:
        """Have the document carried out, by a run or (None) at once."""

    def note_end(self, exit_code: int) -> None:
        """Record in the audit trail that the start was refused, if its run ended so."""
        if exit_code in _REFUSED:
            with suppress(PaygwError):
                said = f"{NOTED_BEFORE}exit {exit_code}"
                self.visit.note(self.start_noted, self.visit.thing, AuditResult.REFUSED, said=said)

    def outdated(self, journal: JournalReader) -> str | None:  # noqa: ARG002 (for kinds that can be)
        """Return why it can never be carried out; None if it can."""
        return None

    def write(self, document: Document) -> None:
        """Store the document after its maker has signed or another person has approved it."""
        write_document(document, self.signed_file)
        self.document = document

    @classmethod
    def required(cls, visit: Visit) -> Self:
        """Return the document at an address. Raises as `Visit.gone` says if it is gone."""
        if (agreement := cls.find(visit)) is None:
            raise visit.gone(say(cls.gone))
        return agreement

    @classmethod
    @contextmanager
    def changing(cls, visit: Visit, act: Act) -> Iterator[Self]:
        """Yield an address's document for an action, one at a time. Raises `ActRefused` unless the person may do it."""
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
        """The last run started for its batch; None if there was none, or no run carries it out."""
        return started_run(self.visit.console.runs, self.batch)

    @property
    def is_own(self) -> bool:
        """Whether it is prepared by the person at the page."""
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
    """The document's digest, computed only once because it covers everyone who is paid."""
    can_approve: bool
    """Whether the person may approve it, and has not done so yet."""
    can_start: bool
    passkey: Mapping[str, str] | None
    """The parts of the form that asks for a passkey; None if it needs none."""
    run: str
    """The last run, named by forms so that a form from an older page is refused."""
    running_since: str
    """Since when another run has held the journal; empty: none does."""

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
    """Return a document's valid approvers with the times, and why its signature is no longer valid; empty if it is."""
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
    """Return why the run for a document did nothing; empty if it did something, or was for another document."""
    if run.at < max((approval.approved_at for approval in document.approvals), default=""):
        return ""
    summary = last_summary(agreement.visit.console.runs, agreement.batch)
    if summary is not None and summary.get("exit_code") not in _REFUSED:
        return ""
    return str((summary or {}).get("message") or say("The run ended before anything was sent."))


def asked_of_person(agreement: Agreement[Any], progress: AgreementProgress) -> str:
    """Return a document's request to the person at the page; empty if there is none."""
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
    """A document in a list. `needs` is its request to the viewer; empty if there is none."""

    path: str
    number: str
    name: str
    """The name of its sheet."""
    what: str
    by: str
    at: str
    next: str
    needs: str
    rows: Sequence[int] = ()
    """The rows that it is about, if it is not about a whole sheet."""
    people: int = 0
    sums: Mapping[str, str] = field(default_factory=dict)
    """By currency, once it is signed."""


def listed(
    agreement: Agreement[Any], progress: AgreementProgress, name: str, at: str, rows: Sequence[int] = ()
) -> ListedAgreement:
    """Return a document drafted at time `at` as a list shows it."""
    path = agreement.path if progress.stage is Stage.DRAFTING else agreement.page
    needs, then = asked_of_person(agreement, progress), say(agreement.next_steps[progress.stage])
    return ListedAgreement(path, agreement.folder.number, name, agreement.what, agreement.maker, at, then, needs, rows)


SIGNED_AS = "?as=signed"
"""The end of a page's address that shows what was signed, even after it was carried out."""


def is_left(visit: Visit, progress: AgreementProgress) -> bool:
    """Whether a page gives way to the payout's: its document was carried out, and nobody asked for what was signed."""
    return progress.stage is Stage.DONE and visit.query("as") != "signed"


def shown_document(agreement: Agreement[Document], stage: Stage) -> Document | None:
    """Return the document as its page shows it; an unsigned one as the person at the page would sign it."""
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
    """The actions on one kind of document. Each is done once, and only from a form of the current page."""

    kind: type[Agreement[Any]]

    def sign(self, visit: Visit) -> Response:
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            if agreement.document is not None:
                _same_document(agreement)
            else:
                progress = _progress(agreement, {Stage.TO_SIGN})
                # The page showed one document, and another may have been drafted since. A person signs only the digest
                # that they saw: their signature lets exactly these people be paid.
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
        """Send a document back to its maker with a reason; its signatures are no longer valid."""
        with self.kind.changing(visit, self.kind.approving_act) as agreement:
            reason = required_line(visit.form.get("reason", ""), say("The reason"))
            sent_back = f"{visit.member.name}: {reason}"
            if agreement.document is not None or agreement.sent_back != sent_back:
                # First the journal, then the folder: if this process dies in between, the signed document is still
                # here, but no run accepts it.
                _withdraw_signed(agreement, _WITHDRAWABLE | {Stage.VOID})
                agreement.draft_again(sent_back)
        return visit.go_to("/")

    def withdraw(self, visit: Visit) -> Response:
        """Withdraw a signed document as its maker, who has its draft again. Repeated, it withdraws one."""
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            if agreement.document is not None:
                _withdraw_signed(agreement, _WITHDRAWABLE)
                agreement.draft_again()
        return visit.go_to(agreement.page)

    def sign_again(self, visit: Visit) -> Response:
        """Redraft a document whose signature is no longer valid, for its maker to sign. Repeated, it makes one."""
        with self.kind.changing(visit, self.kind.own_act) as agreement:
            if agreement.document is not None:
                _same_document(agreement)
                _progress(agreement, {Stage.VOID})
                agreement.draft_again()
        return visit.go_to(agreement.page)

    def take_back(self, visit: Visit) -> Response:
        """Remove a document that was not carried out, as its maker. A second click finds it gone."""
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
        """Have a sufficiently approved document carried out. Repeating this carries it out once."""
        with self.kind.changing(visit, self.kind.starting_act) as agreement:
            _same_document(agreement)
            progress = _progress(agreement, {Stage.APPROVED, Stage.FAILED, Stage.STARTING, Stage.DONE})
            # The form names the last run that its page showed. A late click, from before a run that failed or was
            # paused, must not start another one: somebody first sees the result.
            is_as_shown = run_shown(agreement.run) == visit.form.get("run", "")
            if progress.stage in {Stage.APPROVED, Stage.FAILED} and is_as_shown:
                agreement.start()
        return visit.go_to(agreement.page)


def _same_document(agreement: Agreement[Document]) -> Document:
    """Return the signed document. Raises `PageOutdated` if the page showed another one."""
    document = agreement.document
    if document is None or document.digest() != agreement.visit.form.get("digest"):
        raise agreement.changed()
    return document


def _progress(agreement: Agreement[Any], allowed: Collection[Stage]) -> AgreementProgress:
    """Return how far a document has come. Raises `PageOutdated` or `ApprovalError` if that is not in `allowed`."""
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


# Signatures of the person at a page: with the sign-in's passkey or, in the sandbox, with the person's own key.


def signing_key(visit: Visit) -> PublicKey:
    """Return the key of the person at the page."""
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

    A document for another journal opens nothing here, and one already withdrawn needs no second withdrawal.
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
"""The stages in which nothing was carried out yet, and the signatures are valid."""


def _withdraw_signed(agreement: Agreement[Document], allowed: Collection[Stage]) -> None:
    """Withdraw the signed document that the page showed, and stop its run if that waits for another one."""
    document = _same_document(agreement)
    stage = _progress(agreement, allowed).stage
    withdraw(agreement.visit, document)
    if stage is Stage.STARTING:
        pause_run(agreement.visit.console.runs, agreement.batch, run_shown(agreement.run))


def _has_approved_so(visit: Visit, document: SignedDocument, progress: AgreementProgress) -> bool:
    """Whether a document already has the very approval in the form, and it is valid: a second click finds it there."""
    if visit.member.name not in progress.approvers:
        return False
    approvals = [(approval.approved_at, approval.signature) for approval in document.approvals]
    return visit.passkey is None or (visit.form.get("approved_at", ""), signature_in(visit.form)) in approvals


def _passkey_form(visit: Visit, document: SignedDocument, *, is_maker: bool) -> Mapping[str, str] | None:
    """Return the parts of the form that asks for the passkey; None if no passkey signs."""
    passkey, party = visit.passkey, visit.console.access.party
    if passkey is None or party is None:
        return None
    form = {"kind": "get", "rp_id": party.rp_id, "credential": passkey.credential}
    if is_maker:
        return {**form, "challenge": challenge_of(_by_passkey(document, passkey).signed_text())}
    with suppress(ApprovalError):  # a person who may not approve sees why, without a form
        text = approval_text(document, passkey.key, required_policy(visit.console.settings), utc_now())
        return {**form, "challenge": text.challenge, "approved_at": text.approved_at}
    return None


def _by_passkey(draft: Document, passkey: SignedInKey) -> Document:
    """Return a draft as this passkey's owner would sign it. A maker may have several keys."""
    return draft.model_copy(update={"maker": passkey.key.text})


def required_key(console: Console, member: Member) -> ApprovalKey:
    """Return the key that signs for a person. Raises `ConfigurationError` if there is none."""
    key = sandbox_key(console.settings, member.name)
    if key is None:
        raise ConfigurationError(
            say("{name} has no key to sign with.", name=member.name),
            hint=say("In the sandbox the administrator makes one; with a real gateway people sign with a passkey."),
            for_terminal=False,
        )
    return key
