"""Decides the effect of evidence from outside a run: a notification, a statement, an answer.

Pure. The one question here is what a claim may do to the instruction it names, and the answer goes through the one
table of `lifecycle.py`. A claim that does not move a row is kept as well, under a finding that says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from paygw_batch.core.batch import attempt_order_id
from paygw_batch.core.lifecycle import TRANSITIONS, Concluded, Standing, State, kind_of
from paygw_batch.core.outcome import Outcome, OutcomeKind


class Proof(StrEnum):
    """Whether the sender of evidence is proven to be the gateway."""

    PROVEN = "proven"
    """It passed the configured check, or answers a question that we asked the gateway."""
    VOUCHED = "vouched"
    """A person brings it: it can hold a row, and moves none. Only a person's settlement does."""
    UNPROVEN = "unproven"
    """No check is configured: evidence for a person, never an authority."""
    FORGED = "forged"
    """It failed the configured check."""


class EvidenceSource(StrEnum):
    """Where evidence comes from."""

    NOTIFICATION = "notification"
    ENQUIRY = "enquiry"
    STATEMENT = "statement"
    """A line of a statement that a person gave to `resolve`."""
    PERSON = "person"
    """A person's word about a row that was held."""
    REPLY = "reply"
    """The head of a reply to a request of ours."""
    WITNESS = "witness"
    """The file of a host that sent orders by commits which the database has lost."""


class Finding(StrEnum):
    """The effect of a claim, or the reason why it had none."""

    MOVED = "moved"
    """It was proven and fitted: the instruction moved."""
    REPEATED = "repeated"
    """It says nothing new: the journal knows this already."""
    LATE = "late"
    """It is an earlier word than the one that is known: it came out of order."""
    CONTRADICTING = "contradicting"
    """It is proven and cannot be true together with the known facts: kept as a fact of the instruction as well."""
    TO_CONFIRM = "to_confirm"
    """Nothing proves it: a person has to find out whether it is true."""
    AMBIGUOUS = "ambiguous"
    """More than one attempt or instruction has this order id: a person has to find out which one."""
    UNMATCHED = "unmatched"
    """It names our order, and another amount or currency, or none."""
    SUPERSEDED = "superseded"
    """It is about an attempt that another one followed."""
    NOT_FOUND = "not_found"
    """The gateway says that it does not know the order: evidence for a person, never a release."""
    UNLISTED = "unlisted"
    """The configuration does not list its status word."""
    FORGED = "forged"
    """It failed the authenticity check."""
    UNKNOWN_ORDER = "unknown_order"
    """The journal has no such order."""
    UNREADABLE = "unreadable"
    """It could not be read, or names no order."""
    RESOLVED = "resolved"
    """A person's word about a row that was held: earlier evidence holds the row no longer."""


HOLDING = (Finding.CONTRADICTING, Finding.AMBIGUOUS)
"""The findings that hold a ready row, where the word says that the gateway has it: see `GATEWAY_HAS_ORDER`."""
GATEWAY_HAS_ORDER = (OutcomeKind.PAID, OutcomeKind.ACCEPTED)
"""The meanings of words by which the gateway has an order. Sending the order again could pay it twice."""
FOR_A_PERSON = (Finding.TO_CONFIRM, Finding.AMBIGUOUS, Finding.UNMATCHED, Finding.NOT_FOUND)
"""The findings that wait for a person until the instruction moves."""


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """An order of people about rows of a batch that was carried out: the text of its document, with the signatures.

    `at` is empty for one that is about to be, and only that one has a digest.
    """

    batch: str
    document: str
    at: str = ""
    sha256: str = ""
    """The digest of the text that its maker signed."""


class Meant(StrEnum):
    """Which attempt of an instruction a claim is about, by the times that it states."""

    UNSTATED = "unstated"
    """It states no time, or one that leaves it open."""
    LATEST = "latest"
    EARLIER = "earlier"
    NONE = "none"
    """It names the time of an attempt that there is not."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stated time, as long as the unit it is stated in: from `start` up to `end`, UTC, ISO 8601 with `Z`."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class StatedTimes:
    """The times that a claim states: when it was true, and `sent_at`, the very time of the attempt it is about."""

    true_at: tuple[Span, ...] = ()
    sent_at: Span | None = None


def meant_attempt(times: StatedTimes, intended_at: str | None) -> Meant:
    """Return the attempt that this is about, if the latest one was intended at `intended_at` (None: there is none).

    Words from before an attempt left cannot be about it. A time that holds the intent within its unit (a bare date
    of the same day) leaves it open.
    """
    if intended_at is None:
        return Meant.UNSTATED
    stated = [*times.true_at, times.sent_at] if times.sent_at is not None else list(times.true_at)
    if any(span.end <= intended_at for span in stated):
        return Meant.EARLIER
    if times.sent_at is not None and times.sent_at.start > intended_at:
        return Meant.NONE
    is_named = times.sent_at is not None and times.sent_at.start == intended_at
    is_later = any(span.start >= intended_at for span in times.true_at)
    return Meant.LATEST if is_named or is_later else Meant.UNSTATED


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the gateway about an order; None if it says nothing. `amount` is the text of a number.

    `is_current`: it gives the state of now, as a statement does, and cannot come late.
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
    """The number of an instruction's attempts when the claim was first read: it covers no later one."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim as it is kept: `content` is the whole message, as text. `arrival` is the fact that it arrived by, if any.

    `lasting` is what stays of it after its people are forgotten, as canonical JSON; empty: nothing.
    """

    source: EvidenceSource
    claim: Claim
    content: str
    arrival: int | None = None
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """Evidence as a fact of the journal: by itself, or with the move that it led to. See `Evidence` and `Ruling`."""

    source: EvidenceSource
    finding: Finding
    means: OutcomeKind | None = None
    content: str = field(default="", repr=False)
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instruction that uses, or used, the order id of a claim."""

    number: int
    client_orderid: str
    amount: str
    currency: str
    standing: Standing
    sent_order_id: str | None
    """The order id of its latest attempt."""
    has_left_once: bool
    """Whether no attempt before the latest one can have left."""
    intended_at: str | None = None
    """Time of its latest intent."""
    endpoint_id: str | None = None
    """The id of the endpoint that the latest attempt was sent to, if it is known."""
    is_attempt_unknown: bool = False
    """Whether the order id is that of a later attempt, of which the journal knows nothing (`later_attempt_of`)."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision about a claim. Its `outcome`, if any, is for attempt `attempt` of `instruction`.

    `said` is what the claim's word means, if the configuration lists it; of an ambiguous claim that nothing proves
    it is None. `others` are further instructions that an ambiguous claim may be about.
    """

    finding: Finding
    instruction: int | None = None
    attempt: int | None = None
    said: OutcomeKind | None = None
    outcome: Outcome | None = None
    others: tuple[int, ...] = ()


class Waits:
    """The instruction is in flight: the claim can only be judged when its outcome is known."""


def rule(claim: Claim, candidates: Sequence[Candidate], words: Mapping[str, OutcomeKind]) -> Ruling | Waits:
    """Decide about `claim`, given the instructions that go by its order id. `words` is the operator's `[outcomes]`."""
    matching = _named(claim, candidates)
    if isinstance(matching, Ruling):
        return matching
    if any(candidate.standing.state is State.IN_FLIGHT for candidate in matching):
        return Waits()
    meaning = words.get(claim.status or "")
    candidate, *others = matching
    if others:
        proven = meaning if claim.proof in {Proof.PROVEN, Proof.VOUCHED} else None
        numbers = tuple(other.number for other in others)
        return Ruling(Finding.AMBIGUOUS, candidate.number, candidate.standing.attempt, proven, others=numbers)
    standing = candidate.standing
    if claim.is_not_found:
        return Ruling(Finding.NOT_FOUND, candidate.number, standing.attempt)
    if meaning is None:
        return Ruling(Finding.UNLISTED, candidate.number, standing.attempt)
    finding, attempt = _finding(claim, meaning, candidate)
    outcome = None
    if finding in {Finding.MOVED, Finding.CONTRADICTING}:
        # Only the gateway's proven word moves a row: after a forged "rejected", a paid row could be sent again. A
        # statement that a person vouches for may hold a row, and moves none.
        if claim.proof is Proof.UNPROVEN or (claim.proof is Proof.VOUCHED and finding is Finding.MOVED):
            return Ruling(Finding.TO_CONFIRM, candidate.number, attempt, meaning)
        outcome = Outcome(meaning, gateway_status=claim.status, gateway_reference=claim.reference)
    return Ruling(finding, candidate.number, attempt, meaning, outcome)


def _named(claim: Claim, candidates: Sequence[Candidate]) -> Sequence[Candidate] | Ruling:
    """Return the instructions that a claim may be about, at least one, or the ruling that it is about none."""
    if claim.order_id is None:
        return Ruling(Finding.UNREADABLE)
    if not candidates:
        return Ruling(Finding.UNKNOWN_ORDER)
    if claim.proof is Proof.FORGED:
        return Ruling(Finding.FORGED, candidates[0].number)
    return fitting(claim, candidates) or Ruling(Finding.UNMATCHED, candidates[0].number)


def fitting(claim: Claim, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the instructions whose amount and currency are those that a claim names."""
    return [candidate for candidate in candidates if _is_about(claim, candidate)]


def later_attempt_of(first: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the instructions that a later attempt would be of, which no journal knows: the first left as `first`.

    A journal that was restored from a copy does not know the attempts since. The gateway may have paid one.
    """
    own = (candidate for candidate in candidates if candidate.client_orderid == first)
    return [replace(candidate, is_attempt_unknown=True) for candidate in own]


def _is_about(claim: Claim, candidate: Candidate) -> bool:
    """Whether a claim names exactly this amount and currency. One that it leaves out does not match."""
    if claim.amount is None:
        return False
    try:
        is_same = Decimal(claim.amount) == Decimal(candidate.amount)
    except InvalidOperation:
        return False
    return is_same and claim.currency == candidate.currency


def _finding(claim: Claim, meaning: OutcomeKind, candidate: Candidate) -> tuple[Finding, int]:
    """Return the outcome that a proven claim would give, and the attempt it is about."""
    standing = candidate.standing
    if _is_unheard_of(claim, candidate):
        return Finding.CONTRADICTING, max(standing.attempt - candidate.is_attempt_unknown, 0)
    if candidate.sent_order_id is None:
        # Never sent: the gateway has it from someone else, and a person must check the row before it leaves.
        return (Finding.LATE if meaning is OutcomeKind.REJECTED else Finding.CONTRADICTING), standing.attempt
    if claim.order_id != candidate.sent_order_id:
        # After a person's word an "accepted" of the attempt before is not a late message: that word was wrong.
        is_telling = claim.is_current or standing.possible_duplicate_of is not None
        has_it = meaning in GATEWAY_HAS_ORDER if is_telling else meaning is OutcomeKind.PAID
        return (Finding.CONTRADICTING if has_it else Finding.SUPERSEDED), max(standing.attempt - 1, 0)
    if _meant(claim, candidate) is Meant.EARLIER:
        if meaning not in GATEWAY_HAS_ORDER:
            return Finding.SUPERSEDED, max(standing.attempt - 1, 0)
        if is_only_attempt(candidate):
            return Finding.AMBIGUOUS, standing.attempt  # no earlier one left from here: a person finds out whose it is
        return Finding.CONTRADICTING, standing.attempt - 1
    return _of_latest(claim, meaning, candidate), standing.attempt


def _meant(claim: Claim, candidate: Candidate) -> Meant:
    """Return which attempt a claim means. The journal's own order comes first: no clock can change it."""
    if came_first(claim.attempts, candidate.number, candidate.standing.attempt):
        return Meant.EARLIER
    return meant_attempt(claim.times, candidate.intended_at)


def came_first(attempts: Mapping[int, int], instruction: int, attempt: int) -> bool:
    """Whether a claim was first read before an attempt was intended: `attempts` are those there were by then."""
    return attempts.get(instruction, attempt) < attempt


def _is_unheard_of(claim: Claim, candidate: Candidate) -> bool:
    """Whether nothing left from here under the order id of a claim: another attempt did, of which nothing is known.

    Also that it was rejected must hold the row. The next attempt would leave under the very id, and the answer to the
    other one would be taken for the answer to it.
    """
    standing = candidate.standing
    own_id = attempt_order_id(candidate.client_orderid, standing.generation)
    is_fresh = standing.state is State.READY and standing.possible_duplicate_of is None and claim.order_id == own_id
    return candidate.is_attempt_unknown or is_fresh


def _of_latest(claim: Claim, meaning: OutcomeKind, candidate: Candidate) -> Finding:
    state = candidate.standing.state
    is_known = _meant(claim, candidate) is Meant.LATEST
    if state == meaning.value:
        return Finding.REPEATED
    if state is State.READY and meaning in GATEWAY_HAS_ORDER:
        return Finding.CONTRADICTING  # whichever attempt it is about, sending another would pay twice
    if meaning is OutcomeKind.ACCEPTED and state in {State.PAID, State.REJECTED, State.RETURNED, State.REPLACED}:
        is_telling = claim.is_current or candidate.standing.is_rejected_by_word
        return Finding.CONTRADICTING if is_telling and state is State.REJECTED else Finding.LATE
    if meaning is OutcomeKind.PAID and state is State.RETURNED:
        return Finding.LATE
    if meaning is OutcomeKind.REJECTED and state in {State.READY, State.REPLACED}:
        return Finding.LATE  # it was rejected, released or called not received since
    if not is_known and not is_only_attempt(candidate) and (meaning is not OutcomeKind.PAID or claim.is_current):
        # "No" may be the answer to an earlier attempt under the same id, while the latest one is being paid. A line of
        # a statement is a person's to read: also its "paid" may be about either.
        return Finding.AMBIGUOUS
    is_legal = (state, kind_of(Concluded(Outcome(meaning)))) in TRANSITIONS
    return Finding.MOVED if is_legal else Finding.CONTRADICTING


def is_only_attempt(candidate: Candidate) -> bool:
    """Whether no other attempt than the latest can have left under the latest one's order id."""
    standing, marked = candidate.standing, candidate.standing.possible_duplicate_of
    if marked is not None and (marked == 0 or marked < standing.attempt):
        # It was said to be paid, before any attempt of ours left or by an earlier one: that may come again.
        return False
    if candidate.has_left_once:
        return True
    if marked is not None:
        return False
    own_id = attempt_order_id(candidate.client_orderid, standing.generation)
    return standing.generation == 1 or candidate.sent_order_id == own_id
