"""Decides the effect of evidence from outside a run: a notification, a statement, or a reply to an enquiry.

The module is pure. The table of moves in `lifecycle.py` limits the effect of a claim on the instruction that it names.
A claim without effect is kept too, with a finding that says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from paygw_batch.core.batch import attempt_order_id
from paygw_batch.core.lifecycle import TRANSITIONS, Concluded, Standing, State, fact_kind
from paygw_batch.core.outcome import Outcome, OutcomeKind


class Proof(StrEnum):
    """Whether evidence is proven to come from the gateway."""

    PROVEN = "proven"
    """The evidence passed the configured check, or answers an enquiry that we sent to the gateway."""
    VOUCHED = "vouched"
    """A person brought the evidence: it can hold a row, but moves none. Only a person's settlement does."""
    UNPROVEN = "unproven"
    """No check is configured: the evidence is for a person to read, and moves no row."""
    FORGED = "forged"
    """The evidence failed the configured check."""


class EvidenceSource(StrEnum):
    """The source of evidence."""

    NOTIFICATION = "notification"
    ENQUIRY = "enquiry"
    STATEMENT = "statement"
    """A line of a statement that a person gave to `resolve`."""
    PERSON = "person"
    """A person's decision about a row that was held."""
    REPLY = "reply"
    """The head of a reply to a request of ours."""
    WITNESS = "witness"
    """The record, on a host, of orders that were sent in commits which the journal has lost."""


class Finding(StrEnum):
    """The effect of a claim, or the reason why it has none."""

    MOVED = "moved"
    """The claim was proven and fitted the state: the instruction moved."""
    REPEATED = "repeated"
    """The journal knew the claim already."""
    LATE = "late"
    """The claim came out of order: the journal knows a later state."""
    CONTRADICTING = "contradicting"
    """The claim is proven, and cannot be true together with the known facts. It is kept as a contradiction as well."""
    TO_CONFIRM = "to_confirm"
    """Nothing proves the claim: a person has to find out whether it is true."""
    AMBIGUOUS = "ambiguous"
    """More than one attempt or instruction has this order id: a person has to find out which one the claim means."""
    UNMATCHED = "unmatched"
    """The claim names our order, but another amount or currency, or none."""
    SUPERSEDED = "superseded"
    """The claim is about an attempt that another one followed."""
    NOT_FOUND = "not_found"
    """The gateway does not know the order. This is for a person to read, and never releases a row."""
    UNLISTED = "unlisted"
    """The configuration does not list the claim's status word."""
    FORGED = "forged"
    """The claim failed the configured check."""
    UNKNOWN_ORDER = "unknown_order"
    """The journal has no such order."""
    UNREADABLE = "unreadable"
    """The message could not be read, or names no order."""
    RESOLVED = "resolved"
    """A person decided about a row that was held: earlier evidence no longer holds it."""


HOLDING_FINDINGS = (Finding.CONTRADICTING, Finding.AMBIGUOUS)
"""The findings that hold a ready row, if the claim's word means that the gateway has it (`GATEWAY_HAS_ORDER`)."""
GATEWAY_HAS_ORDER = (OutcomeKind.PAID, OutcomeKind.ACCEPTED)
"""The meanings of words that say that the gateway has an order. Sending the order again could pay it twice."""
PERSON_FINDINGS = (Finding.TO_CONFIRM, Finding.AMBIGUOUS, Finding.UNMATCHED, Finding.NOT_FOUND)
"""The findings that wait for a person until the instruction moves."""


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """A signed order about rows of a batch: the text of its document, with the signatures.

    `at` is empty until the order is carried out, and only until then does the order have a digest.
    """

    batch: str
    document: str
    at: str = ""
    sha256: str = ""
    """The digest of the text that the order's maker signed."""


class AttemptMatch(StrEnum):
    """The attempt of an instruction that a claim is about, judged by the times that it states."""

    UNSTATED = "unstated"
    """The claim states no time, or one that does not decide it."""
    LATEST = "latest"
    EARLIER = "earlier"
    NONE = "none"
    """The claim states the time of an attempt that does not exist."""


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """A stated time, which spans the unit in which it is stated: from `start` to `end`, in UTC, ISO 8601 with `Z`."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class StatedTimes:
    """The times in a claim: when it was true, and `sent_at`, the exact time of its attempt."""

    true_at: tuple[TimeInterval, ...] = ()
    sent_at: TimeInterval | None = None


def match_attempt(times: StatedTimes, intended_at: str | None) -> AttemptMatch:
    """Return the attempt that a claim with these times refers to.

    `intended_at` is the time of the latest attempt's intent, or None without an attempt. A claim from before an attempt
    cannot be about it. A time that contains the intent, such as the date of the same day, decides nothing.
    """
    if intended_at is None:
        return AttemptMatch.UNSTATED
    stated = [*times.true_at, times.sent_at] if times.sent_at is not None else list(times.true_at)
    if any(span.end <= intended_at for span in stated):
        return AttemptMatch.EARLIER
    if times.sent_at is not None and times.sent_at.start > intended_at:
        return AttemptMatch.NONE
    is_named = times.sent_at is not None and times.sent_at.start == intended_at
    is_later = any(span.start >= intended_at for span in times.true_at)
    return AttemptMatch.LATEST if is_named or is_later else AttemptMatch.UNSTATED


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim by the gateway about an order. Values that the gateway does not state are None. `amount` is text.

    If `is_current`, it reports the current state, as a statement does, and so cannot be late.
    """

    order_id: str | None
    amount: str | None = None
    currency: str | None = None
    status: str | None = None
    reference: str | None = None
    proof: Proof = Proof.UNPROVEN
    is_not_found: bool = False
    is_current: bool = False
    times: StatedTimes = StatedTimes()
    attempts: Mapping[int, int] = field(default_factory=dict)
    """The number of attempts of each instruction when the claim was first read. The claim covers no later attempt."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim as it is stored. `content` is the whole message as text, and `arrival` the fact of its arrival, if any.

    `lasting` is the canonical JSON that remains after the people in it are forgotten, or empty if nothing remains.
    """

    source: EvidenceSource
    claim: Claim
    content: str
    arrival: int | None = None
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceRecord:
    """Evidence as a fact in the journal, with the move that it caused, if any. See `Evidence` and `Ruling`."""

    source: EvidenceSource
    finding: Finding
    means: OutcomeKind | None = None
    content: str = field(default="", repr=False)
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instruction that uses or used a claim's order id."""

    number: int
    client_orderid: str
    amount: str
    currency: str
    standing: Standing
    sent_order_id: str | None
    """The order id of the instruction's latest attempt."""
    was_sent_once: bool
    """Whether no attempt before the latest one can have been sent."""
    intended_at: str | None = None
    """The time of the instruction's latest intent."""
    endpoint_id: str | None = None
    """The id of the endpoint that the latest attempt was sent to, if it is known."""
    is_attempt_unknown: bool = False
    """Whether the claim's order id is that of a later attempt that is missing from the journal."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision about a claim. Its `outcome`, if any, is for attempt `attempt` of `instruction`.

    `meaning` is the meaning of the claim's status word, if the configuration lists it. It is None for an unproven
    ambiguous claim. `others` are further instructions that an ambiguous claim may be about.
    """

    finding: Finding
    instruction: int | None = None
    attempt: int | None = None
    meaning: OutcomeKind | None = None
    outcome: Outcome | None = None
    others: tuple[int, ...] = ()


class Deferral:
    """A claim about an instruction in flight, which can be judged only once its outcome is known."""


def judge_claim(claim: Claim, candidates: Sequence[Candidate], words: Mapping[str, OutcomeKind]) -> Ruling | Deferral:
    """Judge `claim` for the instructions with its order id. `words` are the operator's `[outcomes]`."""
    matching = _select_candidates(claim, candidates)
    if isinstance(matching, Ruling):
        return matching
    if any(candidate.standing.state is State.IN_FLIGHT for candidate in matching):
        return Deferral()
    meaning = words.get(claim.status or "")
    candidate, *others = matching
    if others:
        proven = meaning if claim.proof in {Proof.PROVEN, Proof.VOUCHED} else None
        numbers = tuple(other.number for other in others)
        return Ruling(Finding.AMBIGUOUS, candidate.number, candidate.standing.attempt, proven, others=numbers)
    current = candidate.standing
    if claim.is_not_found:
        return Ruling(Finding.NOT_FOUND, candidate.number, current.attempt)
    if meaning is None:
        return Ruling(Finding.UNLISTED, candidate.number, current.attempt)
    finding, attempt = _proven_finding(claim, meaning, candidate)
    outcome = None
    if finding in {Finding.MOVED, Finding.CONTRADICTING}:
        # Only a proven claim moves a row: after a forged "rejected", a paid row could be sent again. A statement that a
        # person vouches for may hold a row, but moves none.
        if claim.proof is Proof.UNPROVEN or (claim.proof is Proof.VOUCHED and finding is Finding.MOVED):
            return Ruling(Finding.TO_CONFIRM, candidate.number, attempt, meaning)
        outcome = Outcome(meaning, gateway_status=claim.status, gateway_reference=claim.reference)
    return Ruling(finding, candidate.number, attempt, meaning, outcome)


def _select_candidates(claim: Claim, candidates: Sequence[Candidate]) -> Sequence[Candidate] | Ruling:
    """Return the instructions that a claim may be about, or a ruling if there are none."""
    if claim.order_id is None:
        return Ruling(Finding.UNREADABLE)
    if not candidates:
        return Ruling(Finding.UNKNOWN_ORDER)
    if claim.proof is Proof.FORGED:
        return Ruling(Finding.FORGED, candidates[0].number)
    return matching_candidates(claim, candidates) or Ruling(Finding.UNMATCHED, candidates[0].number)


def matching_candidates(claim: Claim, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the instructions with the amount and currency of a claim."""
    return [candidate for candidate in candidates if _has_same_amount(claim, candidate)]


def unknown_attempt_candidates(first_id: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the instructions that an unknown later attempt may belong to: those first sent as `first_id`.

    A journal restored from a copy does not know later attempts, and the gateway may have paid one of them.
    """
    matching = (candidate for candidate in candidates if candidate.client_orderid == first_id)
    return [replace(candidate, is_attempt_unknown=True) for candidate in matching]


def _has_same_amount(claim: Claim, candidate: Candidate) -> bool:
    """Return whether a claim states exactly this amount and currency. A value that the claim omits does not match."""
    if claim.amount is None:
        return False
    try:
        is_same = Decimal(claim.amount) == Decimal(candidate.amount)
    except InvalidOperation:
        return False
    return is_same and claim.currency == candidate.currency


def _proven_finding(claim: Claim, meaning: OutcomeKind, candidate: Candidate) -> tuple[Finding, int]:
    current = candidate.standing
    if _is_unknown_attempt(claim, candidate):
        return Finding.CONTRADICTING, max(current.attempt - candidate.is_attempt_unknown, 0)
    if candidate.sent_order_id is None:
        # The row was never sent. The gateway has the order from another sender, so a person must check the row first.
        return (Finding.LATE if meaning is OutcomeKind.REJECTED else Finding.CONTRADICTING), current.attempt
    if claim.order_id != candidate.sent_order_id:
        # If a person had settled the attempt as not paid, its "accepted" is not late: the person was wrong.
        is_conclusive = claim.is_current or current.possible_duplicate_of is not None
        has_it = meaning in GATEWAY_HAS_ORDER if is_conclusive else meaning is OutcomeKind.PAID
        return (Finding.CONTRADICTING if has_it else Finding.SUPERSEDED), max(current.attempt - 1, 0)
    if _match_claim(claim, candidate) is AttemptMatch.EARLIER:
        if meaning not in GATEWAY_HAS_ORDER:
            return Finding.SUPERSEDED, max(current.attempt - 1, 0)
        if is_only_attempt(candidate):
            return Finding.AMBIGUOUS, current.attempt  # no earlier attempt left from here, so a person must find out
        return Finding.CONTRADICTING, current.attempt - 1
    return _latest_attempt_finding(claim, meaning, candidate), current.attempt


def _match_claim(claim: Claim, candidate: Candidate) -> AttemptMatch:
    """Return the attempt that a claim refers to. The order in the journal comes first, because no clock affects it."""
    if predates_attempt(claim.attempts, candidate.number, candidate.standing.attempt):
        return AttemptMatch.EARLIER
    return match_attempt(claim.times, candidate.intended_at)


def predates_attempt(attempts: Mapping[int, int], instruction: int, attempt: int) -> bool:
    """Return whether a claim was first read before an attempt was intended.

    `attempts` has each instruction's number of attempts at that time.
    """
    return attempts.get(instruction, attempt) < attempt


def _is_unknown_attempt(claim: Claim, candidate: Candidate) -> bool:
    """Return whether a claim is about an unknown attempt, because no attempt was sent from here under its order id.

    Such a claim must hold the row, even if it says "rejected". The next attempt would use the same id, and the answer
    to the unknown attempt would be taken for its answer.
    """
    current = candidate.standing
    own_id = attempt_order_id(candidate.client_orderid, current.generation)
    is_fresh = current.state is State.READY and current.possible_duplicate_of is None and claim.order_id == own_id
    return candidate.is_attempt_unknown or is_fresh


def _latest_attempt_finding(claim: Claim, meaning: OutcomeKind, candidate: Candidate) -> Finding:
    state = candidate.standing.state
    is_known = _match_claim(claim, candidate) is AttemptMatch.LATEST
    if state == meaning.value:
        return Finding.REPEATED
    if state is State.READY and meaning in GATEWAY_HAS_ORDER:
        return Finding.CONTRADICTING  # sending another attempt could pay twice, no matter which one the claim is about
    if meaning is OutcomeKind.ACCEPTED and state in {State.PAID, State.REJECTED, State.RETURNED, State.REPLACED}:
        is_conclusive = claim.is_current or candidate.standing.is_rejected_by_word
        return Finding.CONTRADICTING if is_conclusive and state is State.REJECTED else Finding.LATE
    if meaning is OutcomeKind.PAID and state is State.RETURNED:
        return Finding.LATE
    if meaning is OutcomeKind.REJECTED and state in {State.READY, State.REPLACED}:
        return Finding.LATE  # after the rejection the row was released or replaced, or a person called it not received
    if not is_known and not is_only_attempt(candidate) and (meaning is not OutcomeKind.PAID or claim.is_current):
        # A rejection may answer an earlier attempt under the same id, while the latest one is being paid. In a
        # statement a "paid" may be about either attempt too, so a person must read that.
        return Finding.AMBIGUOUS
    is_legal = (state, fact_kind(Concluded(Outcome(meaning)))) in TRANSITIONS
    return Finding.MOVED if is_legal else Finding.CONTRADICTING


def is_only_attempt(candidate: Candidate) -> bool:
    """Return whether only the latest attempt can have been sent under its order id."""
    current, duplicate_of = candidate.standing, candidate.standing.possible_duplicate_of
    if duplicate_of is not None and (duplicate_of == 0 or duplicate_of < current.attempt):
        # A person settled an earlier attempt, or one that was not ours, and the gateway may report it again.
        return False
    if candidate.was_sent_once:
        return True
    if duplicate_of is not None:
        return False
    own_id = attempt_order_id(candidate.client_orderid, current.generation)
    return current.generation == 1 or candidate.sent_order_id == own_id
