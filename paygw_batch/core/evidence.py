"""Decides the effect of evidence from outside a run: a notification, a statement, or a reply to an enquiry.

The table of moves in `lifecycle.py` limits the effect of a claim on the instruction that it names. A claim without
effect is stored too, with a finding that says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from paygw_batch.core.batch import attempt_order_id
from paygw_batch.core.lifecycle import TRANSITIONS, Concluded, Standing, State, fact_kind
from paygw_batch.core.outcome import Outcome, OutcomeKind


class Proof(StrEnum):
    """How strong the proof is that evidence comes from the gateway."""

    PROVEN = "proven"
    """The evidence passed the configured check, or answers our own enquiry."""
    VOUCHED = "vouched"
    """A person provided the evidence. It can hold a row, but only a person's settlement moves one."""
    UNPROVEN = "unproven"
    """No check is configured. The evidence is for a person to read, and moves no row."""
    FORGED = "forged"
    """The evidence failed the configured check."""


class EvidenceSource(StrEnum):
    """The source of evidence."""

    NOTIFICATION = "notification"
    ENQUIRY = "enquiry"
    STATEMENT = "statement"
    """A line of a statement, which a person passed to `resolve`."""
    PERSON = "person"
    """A person's decision about a held row."""
    REPLY = "reply"
    """The head of a reply to one of our requests."""
    WITNESS = "witness"
    """The sent log of a host, about orders whose commits the journal has lost."""


class Finding(StrEnum):
    """The effect of a claim, or why it has none."""

    MOVED = "moved"
    """The claim is proven and fits the state, so the instruction's state has changed."""
    REPEATED = "repeated"
    """The journal already had the claim."""
    LATE = "late"
    """The claim arrived out of order: the journal already has a later state."""
    CONTRADICTING = "contradicting"
    """The claim is proven, but contradicts the facts in the journal. It is also stored as a contradiction."""
    TO_CONFIRM = "to_confirm"
    """The claim is not proven. A person must find out whether it is true."""
    AMBIGUOUS = "ambiguous"
    """Several attempts or instructions have this order id. A person must find out which one the claim is about."""
    UNMATCHED = "unmatched"
    """The claim names our order, but not its amount and currency."""
    SUPERSEDED = "superseded"
    """The claim is about an attempt that was followed by another."""
    NOT_FOUND = "not_found"
    """The gateway does not know the order. No row is released: a person must deal with this."""
    UNLISTED = "unlisted"
    """The configuration does not list the claim's status word."""
    FORGED = "forged"
    """The claim failed the configured check."""
    UNKNOWN_ORDER = "unknown_order"
    """The journal has no such order."""
    UNREADABLE = "unreadable"
    """The message cannot be read, or names no order."""
    RESOLVED = "resolved"
    """A person decided about a held row, so earlier evidence no longer holds it."""


HOLDING_FINDINGS = (Finding.CONTRADICTING, Finding.AMBIGUOUS)
"""The findings that hold a row, if the claim means that the gateway has the order (`GATEWAY_HAS_ORDER`)."""
HOLDABLE_STATES = (State.READY, State.REJECTED)
"""The states of rows that evidence can hold. A held row is not sent, and a held rejected row is not replaced."""
GATEWAY_HAS_ORDER = (OutcomeKind.PAID, OutcomeKind.ACCEPTED)
"""The outcomes after which the gateway has the order, so that sending it again could pay twice."""
PERSON_FINDINGS = (Finding.TO_CONFIRM, Finding.AMBIGUOUS, Finding.UNMATCHED, Finding.NOT_FOUND)
"""The findings that a person must deal with, unless the instruction moves."""


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """A signed order for rows in a batch. `document` is its text with the signatures.

    `at` is when the order was carried out. Until then, `at` is empty and `sha256` is set.
    """

    batch: str
    document: str
    at: str = ""
    sha256: str = ""
    """The digest of the text that the maker signed."""


class AttemptMatch(StrEnum):
    """Which attempt a claim is about, according to the times in the claim."""

    UNSTATED = "unstated"
    """The claim states no time, or only times that do not show which attempt it is about."""
    LATEST = "latest"
    EARLIER = "earlier"
    NONE = "none"
    """The claim states the time of an attempt that does not exist."""


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """A stated time, as an interval that reflects its precision. Both ends are UTC, ISO 8601 with `Z`."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class StatedTimes:
    """The times in a claim: when it was true, and when the attempt was sent."""

    true_at: tuple[TimeInterval, ...] = ()
    sent_at: TimeInterval | None = None


def match_attempt(times: StatedTimes, intended_at: str | None) -> AttemptMatch:
    """Return which attempt a claim with these times is about.

    `intended_at` is the time of the latest intent, or None if there is none. A claim from before an attempt cannot be
    about it. An interval that contains the intent, such as the whole day, does not identify the attempt.
    """
    if intended_at is None:
        return AttemptMatch.UNSTATED
    intervals = [*times.true_at, times.sent_at] if times.sent_at is not None else list(times.true_at)
    if any(interval.end <= intended_at for interval in intervals):
        return AttemptMatch.EARLIER
    if times.sent_at is not None and times.sent_at.start > intended_at:
        return AttemptMatch.NONE
    is_exact = times.sent_at is not None and times.sent_at.start == intended_at
    is_later = any(interval.start >= intended_at for interval in times.true_at)
    return AttemptMatch.LATEST if is_exact or is_later else AttemptMatch.UNSTATED


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim by the gateway about an order. Values that are not stated are None.

    With `is_current`, the claim reports the current state, as statements do, and so cannot be late.
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
    """How many attempts each instruction had when the claim was first read. Later attempts cannot be meant."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim and the whole message (`content`). `arrival` is the number of the fact that recorded it, if any.

    `lasting` is the part without personal data, as canonical JSON. It is kept when people are forgotten.
    """

    source: EvidenceSource
    claim: Claim
    content: str
    arrival: int | None = None
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceRecord:
    """Evidence as recorded in the journal. See `Evidence` and `Ruling`."""

    source: EvidenceSource
    finding: Finding
    means: OutcomeKind | None = None
    content: str = field(default="", repr=False)
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instruction that uses or has used the order id of a claim."""

    number: int
    client_orderid: str
    amount: str
    currency: str
    standing: Standing
    sent_order_id: str | None
    """The order id of the instruction's latest attempt."""
    was_sent_once: bool
    """Whether certainly no attempt was sent before the latest one."""
    intended_at: str | None = None
    """The time of the instruction's latest intent."""
    endpoint_id: str | None = None
    """The endpoint to which the latest attempt was sent, if known."""
    is_attempt_unknown: bool = False
    """Whether the order id belongs to a later attempt that is missing from the journal."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision about a claim. `outcome`, if any, is that of the instruction's `attempt`.

    `meaning` is what the claim's status word means, if the configuration lists it and the claim is not both ambiguous
    and unproven. `others` lists further instructions that an ambiguous claim may be about.
    """

    finding: Finding
    instruction: int | None = None
    attempt: int | None = None
    meaning: OutcomeKind | None = None
    outcome: Outcome | None = None
    others: tuple[int, ...] = ()


class Deferral:
    """The claim is about an instruction in flight, and cannot be decided until its outcome is known."""


def assess_claim(claim: Claim, candidates: Sequence[Candidate], words: Mapping[str, OutcomeKind]) -> Ruling | Deferral:
    """Decide the effect of a claim. All `candidates` have its order id. `words` maps status words to outcomes."""
    matching = _select_candidates(claim, candidates)
    if isinstance(matching, Ruling):
        return matching
    if any(candidate.standing.state is State.IN_FLIGHT for candidate in matching):
        return Deferral()
    meaning = words.get(claim.status or "")
    candidate, *others = matching
    if others:
        known_meaning = meaning if claim.proof in {Proof.PROVEN, Proof.VOUCHED} else None
        numbers = tuple(other.number for other in others)
        return Ruling(Finding.AMBIGUOUS, candidate.number, candidate.standing.attempt, known_meaning, others=numbers)
    standing = candidate.standing
    if claim.is_not_found:
        return Ruling(Finding.NOT_FOUND, candidate.number, standing.attempt)
    if meaning is None:
        return Ruling(Finding.UNLISTED, candidate.number, standing.attempt)
    finding, attempt = _decide_finding(claim, meaning, candidate)
    outcome = None
    if finding in {Finding.MOVED, Finding.CONTRADICTING}:
        # Only a proven claim moves a row, because after a forged "rejected" a paid row could be sent again. A statement
        # that a person vouches for may hold a row, but moves none.
        if claim.proof is Proof.UNPROVEN or (claim.proof is Proof.VOUCHED and finding is Finding.MOVED):
            return Ruling(Finding.TO_CONFIRM, candidate.number, attempt, meaning)
        outcome = Outcome(meaning, gateway_status=claim.status, gateway_reference=claim.reference)
    return Ruling(finding, candidate.number, attempt, meaning, outcome)


def _select_candidates(claim: Claim, candidates: Sequence[Candidate]) -> Sequence[Candidate] | Ruling:
    if claim.order_id is None:
        return Ruling(Finding.UNREADABLE)
    if not candidates:
        return Ruling(Finding.UNKNOWN_ORDER)
    if claim.proof is Proof.FORGED:
        return Ruling(Finding.FORGED, candidates[0].number)
    return matching_candidates(claim, candidates) or Ruling(Finding.UNMATCHED, candidates[0].number)


def matching_candidates(claim: Claim, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates with the claim's amount and currency."""
    return [candidate for candidate in candidates if _has_claimed_amount(claim, candidate)]


def candidates_with_unknown_attempt(first_id: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates first sent as `first_id`, marked as having an attempt that the journal lacks."""
    matching = (candidate for candidate in candidates if candidate.client_orderid == first_id)
    return [replace(candidate, is_attempt_unknown=True) for candidate in matching]


def _has_claimed_amount(claim: Claim, candidate: Candidate) -> bool:
    if claim.amount is None:
        return False
    try:
        is_same_amount = Decimal(claim.amount) == Decimal(candidate.amount)
    except InvalidOperation:
        return False
    return is_same_amount and claim.currency == candidate.currency


def _decide_finding(claim: Claim, meaning: OutcomeKind, candidate: Candidate) -> tuple[Finding, int]:
    standing = candidate.standing
    if _is_about_unknown_attempt(claim, candidate):
        return Finding.CONTRADICTING, max(standing.attempt - candidate.is_attempt_unknown, 0)
    if candidate.sent_order_id is None:
        # The row was never sent from this journal, so the gateway has the order from elsewhere: a person must check.
        return (Finding.LATE if meaning is OutcomeKind.REJECTED else Finding.CONTRADICTING), standing.attempt
    if claim.order_id != candidate.sent_order_id:
        # If a person settled the attempt as not paid, "accepted" is not late: it shows that the person was wrong.
        is_conclusive = claim.is_current or standing.possible_duplicate_of is not None
        has_order = meaning in GATEWAY_HAS_ORDER if is_conclusive else meaning is OutcomeKind.PAID
        return (Finding.CONTRADICTING if has_order else Finding.SUPERSEDED), max(standing.attempt - 1, 0)
    if _match_claim(claim, candidate) is AttemptMatch.EARLIER:
        if meaning not in GATEWAY_HAS_ORDER:
            return Finding.SUPERSEDED, max(standing.attempt - 1, 0)
        if is_only_attempt(candidate):
            return Finding.AMBIGUOUS, standing.attempt  # this journal sent no earlier attempt
        return Finding.CONTRADICTING, standing.attempt - 1
    return _latest_attempt_finding(claim, meaning, candidate), standing.attempt


def _match_claim(claim: Claim, candidate: Candidate) -> AttemptMatch:
    """Return which attempt a claim is about. The order in the journal takes precedence, because it needs no clock."""
    if predates_attempt(claim.attempts, candidate.number, candidate.standing.attempt):
        return AttemptMatch.EARLIER
    return match_attempt(claim.times, candidate.intended_at)


def predates_attempt(attempts: Mapping[int, int], instruction: int, attempt: int) -> bool:
    """Return whether a claim with these `attempts` (see `Claim`) was first read before the instruction's `attempt`."""
    return attempts.get(instruction, attempt) < attempt


def _is_about_unknown_attempt(claim: Claim, candidate: Candidate) -> bool:
    """Return whether a claim is about an attempt that is missing from the journal.

    Such a claim must hold the row, even if it says "rejected". Otherwise the next attempt would use the same id, and
    the answer to the missing attempt would be mistaken for its answer.
    """
    standing = candidate.standing
    own_id = attempt_order_id(candidate.client_orderid, standing.generation)
    is_unsent = standing.state is State.READY and standing.possible_duplicate_of is None and claim.order_id == own_id
    return candidate.is_attempt_unknown or is_unsent


def _latest_attempt_finding(claim: Claim, meaning: OutcomeKind, candidate: Candidate) -> Finding:
    state = candidate.standing.state
    is_latest = _match_claim(claim, candidate) is AttemptMatch.LATEST
    if state == meaning.value:
        return Finding.REPEATED
    if state is State.READY and meaning in GATEWAY_HAS_ORDER:
        return Finding.CONTRADICTING  # another attempt could pay twice, whichever attempt the claim is about
    if meaning is OutcomeKind.ACCEPTED and state in {State.PAID, State.REJECTED, State.RETURNED, State.REPLACED}:
        is_conclusive = claim.is_current or candidate.standing.is_rejected_by_person
        return Finding.CONTRADICTING if is_conclusive and state is State.REJECTED else Finding.LATE
    if meaning is OutcomeKind.PAID and state is State.RETURNED:
        return Finding.LATE
    if meaning is OutcomeKind.REJECTED and state in {State.READY, State.REPLACED}:
        return Finding.LATE  # the row has since been released, replaced or settled as not received
    if not is_latest and not is_only_attempt(candidate) and (meaning is not OutcomeKind.PAID or claim.is_current):
        # A rejection may be about an earlier attempt with the same id, and so may a "paid" in a statement.
        return Finding.AMBIGUOUS
    is_legal = (state, fact_kind(Concluded(Outcome(meaning)))) in TRANSITIONS
    return Finding.MOVED if is_legal else Finding.CONTRADICTING


def is_only_attempt(candidate: Candidate) -> bool:
    """Return whether only the latest attempt can have been sent with its order id."""
    standing, duplicate_of = candidate.standing, candidate.standing.possible_duplicate_of
    if duplicate_of is not None and (duplicate_of == 0 or duplicate_of < standing.attempt):
        # A person settled an earlier attempt, or one that is not in this journal, and the gateway may report it again.
        return False
    if candidate.was_sent_once:
        return True
    if duplicate_of is not None:
        return False
    own_id = attempt_order_id(candidate.client_orderid, standing.generation)
    return standing.generation == 1 or candidate.sent_order_id == own_id
