"""The values passed to and returned by the journal."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from paygw_batch.core.batch import Instruction
from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import EvidenceRecord, EvidenceSource, Finding, SignedOrder
from paygw_batch.core.lifecycle import Fact, Standing, State

canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
"""Encodes canonical JSON: sorted keys, no spaces, ASCII only."""


@dataclass(frozen=True, slots=True)
class ClockComparison:
    """A comparison of our clock with a reply's `Date`. `ahead_s` is negative if our clock was behind.

    Earlier comparisons are summarised: our clock was at most `was_behind_s` seconds behind, from `behind_from` until
    `behind_until`.
    """

    our_time: str
    gateway_date: str
    ahead_s: int
    was_behind_s: int = 0
    behind_from: str = ""
    behind_until: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """A journal's identity and newest state. `seq` is its number of facts, and `hash` (hex) covers them all."""

    journal_id: str
    """32 hex digits, assigned when the journal is created."""
    seq: int
    hash: str
    newest_time: str
    last_processed_arrival: int
    """The fact number of the last processed notification, or 0 if there is none."""
    clock: ClockComparison | None
    """The last comparison of our clock with the gateway's, or None if no reply had a `Date`."""


class NewInstruction(NamedTuple):
    """A row about to become an instruction. It is a tuple for speed, because a batch can have a million of them.

    `content` is the canonical text of everything that a person decided (payee, amount, currency, country). Rows with
    identical `content` repeat each other. `minor` is the amount in minor units, `payee` the account or phone number.
    """

    row: int
    client_orderid: str
    country: str
    currency: str
    amount: str
    minor: int
    form: str
    fields: str
    """The form's fields as a JSON object of strings."""
    payee: str
    content: str


@dataclass(frozen=True, slots=True)
class Amendment:
    """A row that replaces `instruction`, a payment that was rejected or never sent.

    A payment reported as rejected only by a person is replaced only if it was sent no later than `cutoff`.
    """

    row: int
    instruction: int
    cutoff: str = ""


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that the person `by` is about to open. `sheet_sha256` is the digest of the sheet's file."""

    batch: str
    operation: str
    sheet_name: str
    sheet_sha256: str
    rows: int
    defects: int
    sheet_path: str = ""
    """The sheet's path when the batch was opened. The reconciliation is written next to it."""
    by: str = ""
    approvals: tuple[str, ...] = ()
    """A text about each person who prepared or approved the batch (see `core/shown_states.py`)."""
    plan_sha256: str = ""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch in the journal. `opened_at` is UTC, ISO 8601 with `Z`."""

    number: int
    batch: str
    operation: str
    sheet_name: str
    sheet_sha256: str
    rows: int
    defects: int
    opened_at: str
    sheet_path: str = ""
    reference: str = ""
    """The reference from which the order ids were derived. Empty if the sheet had order ids."""

    def to_dict(self) -> dict[str, object]:
        """Return the values by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A row with the same order id and content as `instruction` in an earlier batch, opened at `opened_at`."""

    row: int
    instruction: int
    state: State
    batch: str = field(default="", compare=False)
    opened_at: str = field(default="", compare=False)
    is_held: bool = False

    @property
    def is_due(self) -> bool:
        """Whether a run would send the row: it is ready and not held."""
        return self.state is State.READY and not self.is_held


def is_in_quarantine(quarantined_since: str | None, cutoff: str) -> bool:
    """Return whether a row's quarantine (None if it has none) began after `cutoff`, and so has not ended."""
    return quarantined_since is not None and quarantined_since > cutoff


@dataclass(frozen=True, slots=True)
class Clash:
    """A row whose order id was used for a payment with other content: `instruction`, in row `sheet_row` of `batch`.

    `is_amendable` if it is rejected or cannot have been paid, and not replaced or held. `quarantined_since` is when it
    was sent if only a person reported it as rejected, otherwise None.
    """

    row: int
    client_orderid: str
    instruction: int
    batch: str
    sheet_row: int
    opened_at: str
    state: State
    is_amendable: bool
    quarantined_since: str | None = None

    def is_replaceable(self, cutoff: str) -> bool:
        """Return whether an amended row may replace the payment now: it is amendable and not in quarantine."""
        return self.is_amendable and not is_in_quarantine(self.quarantined_since, cutoff)


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A row with the same amount and payee as another instruction, but another order id.

    If `is_rewritten`, one id looks like a retyped or converted form of the other.
    """

    row: int
    client_orderid: str
    """The other instruction's order id. `batch` and `opened_at` are those of its batch."""
    instruction: int
    state: State
    batch: str
    opened_at: str
    is_rewritten: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class DueRow:
    """An instruction that may be sent now, with its standing and the order id of its next attempt."""

    number: int
    row: int
    instruction: Instruction
    standing: Standing
    order_id: str


def reply_sha256(head: str, body: bytes) -> str:
    """Return the SHA-256 (hex) of a raw reply: its head, two line feeds, and its body."""
    return hashlib.sha256(head.encode() + b"\n\n" + body).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A raw reply from the gateway. `head` has the status line and the relevant headers, one per line."""

    head: str = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """The digest (hex) by which the resulting fact refers to the reply."""
        return reply_sha256(self.head, self.body)


@dataclass(frozen=True, slots=True)
class AttemptReply:
    """The raw reply to attempt `attempt`, whose outcome was recorded at `at` (UTC)."""

    attempt: int
    at: str
    reply: StoredReply


@dataclass(frozen=True, slots=True)
class Entry:
    """A fact to append about an attempt of `instruction`, with the time `at` (UTC)."""

    instruction: int
    attempt: int
    fact: Fact
    at: str
    reply: StoredReply | None = None
    """The raw reply that led to the fact, if it is stored."""
    evidence: EvidenceRecord | None = None


class MoveResult(Enum):
    """The effect of one appended fact."""

    MOVED = "moved"
    NOT_MOVED = "not_moved"
    """The instruction is in another state. The fact is stored as a contradiction."""
    HELD = "held"
    """The fact was an intent for a row held by evidence. It is not stored."""


@dataclass(frozen=True, slots=True)
class RowState:
    """A row of a batch with its state and latest attempt, to show to people. Values that do not apply are None.

    The row's latest attempt is number `attempt` of `instruction`. That number includes the attempts of any rows that
    this one replaced. `attempts` counts only its own.
    """

    row: int
    instruction: int
    attempt: int
    client_orderid: str
    country: str
    currency: str
    minor: int
    state: State
    attempts: int
    sent_orderid: str | None
    purpose: str | None
    gateway_status: str | None
    gateway_reference: str | None
    http_status: int | None
    error_code: str | None
    message: str | None
    """The gateway's message or our own, as recorded by `core/shown_states.py`."""
    possible_duplicate_of: int | None
    first_sent_at: str | None
    updated_at: str | None
    intended_at: str | None = None
    """The time of the latest intent."""
    quarantined_since: str | None = None
    """When the latest attempt was sent, if only a person reported it as rejected (as in `Clash`)."""
    endpoint_id: str | None = None
    """The id of the endpoint to which the latest attempt was sent, if known."""


LINE_COLUMNS = (
    *("row", "state", "attempts", "sent_orderid", "purpose", "gateway_status", "gateway_reference", "http_status"),
    *("error_code", "message", "first_sent_at", "updated_at", "minor"),
)
"""The fields of `RowState` in each line of `JournalReader.batch_lines`, in order. There, `state` is a string."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A person's action on a batch or one of its rows, such as opening, approving, resolving or releasing.

    `row` and `attempt` are None if the entry is about the whole batch. `by` is empty if nobody was recorded.
    """

    seq: int
    at: str
    kind: str
    row: int | None
    attempt: int | None
    by: str
    said: str
    order: str = ""
    """The digest of the signed order behind the action, or empty."""


@dataclass(frozen=True, slots=True)
class PaymentsToForget:
    """The payments whose payees may be forgotten now, as instruction numbers by batch number.

    If a batch in `batches` has no such payments, only its sheet is forgotten. `waiting` lists the unfinished batches,
    in which nobody can be forgotten yet. `before` is the date before which people are forgotten, or empty for a single
    person.
    """

    before: str
    batches: Mapping[int, Sequence[int]]
    waiting: Sequence[int]

    @property
    def instructions(self) -> int:
        """The number of payments."""
        return sum(map(len, self.batches.values()))

    @property
    def sha256(self) -> str:
        """The digest (hex) of these payments and batches."""
        lines = (f"{batch}:{','.join(map(str, numbers))}\n" for batch, numbers in sorted(self.batches.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class RemainingData(Enum):
    """Where forgotten people's data may remain in the journal's files."""

    NOWHERE = "nowhere"
    IN_LOG = "in_log"
    """The log cannot be emptied while another program reads the file. Forget again once it has stopped reading."""
    IN_DATABASE = "in_database"
    """The server keeps old lines until the owner of the tables rewrites them."""


@dataclass(frozen=True, slots=True)
class StateTally:
    """The count and sum of a batch's instructions in one state, country and currency."""

    country: str
    currency: str
    state: State
    count: int
    minor: int


class TallyKind(Enum):
    """Which rows of a batch are counted."""

    ALL = "all"
    KNOWN = "known"
    """The rows already in an earlier batch."""
    DUE = "due"
    """The rows that may be sent: ready and not held."""


@dataclass(frozen=True, slots=True)
class UsedSpelling:
    """A row with an order id that was used before, in `batch`, but spelled as `order_id`."""

    row: int
    order_id: str
    batch: str
    opened_at: str


@dataclass(frozen=True, slots=True)
class RepeatedBatch:
    """A batch with payments that `rows` rows of a sheet repeat under other order ids."""

    batch: str
    sheet_name: str
    opened_at: str
    rows: int


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A fact that did not fit its instruction's state. It was stored but changed nothing."""

    seq: int
    batch: str
    row: int
    client_orderid: str
    state: State
    kind: str
    attempt: int
    at: str


@dataclass(frozen=True, slots=True)
class WaitingEvidence:
    """Evidence, recorded at `taken_at`, that a person must check. It holds its row, or the row has not moved since.

    `said` is the outcome that the evidence states, or None if its status word has no configured meaning.
    """

    number: int
    batch: str
    row: int
    client_orderid: str
    state: State
    finding: Finding
    said: str | None
    source: EvidenceSource
    taken_at: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The evidence that keeps a row from being sent: fact `number`, recorded at `taken_at`.

    `said` is the outcome that the evidence states. `state` is that of the row: ready, or rejected and then still held
    after a release.
    """

    number: int
    source: EvidenceSource
    said: str | None
    taken_at: str
    state: State
    last_sent_at: str = ""
    """The latest time at which a lost attempt can have been sent: when the loss was found. Empty without a loss."""
    order_ids: tuple[str, ...] = ()
    """The order ids named in any evidence about the row. The latest attempt may have used another one."""


@dataclass(frozen=True, slots=True)
class StatementNote:
    """A statement applied to a batch: the file's name and SHA-256, who applied it, and when (empty if not yet).

    `attempts` holds (instruction, number of attempts) for each instruction in the file. Later attempts are not covered
    by the statement.
    """

    batch: str
    name: str
    sha256: str
    by: str
    at: str = ""
    attempts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FirstReading:
    """The first reading of a statement file: its time, and the number of attempts of each instruction in the file."""

    at: str = ""
    attempts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The withdrawal of a plan or order: its digest, who withdrew it, and the signed withdrawal."""

    sha256: str
    by: str
    document: str
    at: str


@dataclass(frozen=True, slots=True)
class AdoptionNote:
    """A person's confirmation that the copy of the journal at this path is the newest."""

    by: str
    path: str


@dataclass(frozen=True, slots=True)
class EndpointNote:
    """A further endpoint of the merchant. `by` is empty if a run recorded it."""

    endpoint: EndpointIdentity
    by: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """An unprocessed notification, encoded by `encode_notification`."""

    content: str = field(repr=False)
    at: str


@dataclass(frozen=True, slots=True)
class ProcessedArrivals:
    """A note that all notifications up to fact `number` were processed."""

    number: int


ConcurrentNote = Withdrawal | Arrival
"""A note that may be recorded while a run holds the journal."""
Note = StatementNote | ClockComparison | SignedOrder | ConcurrentNote | ProcessedArrivals | AdoptionNote | EndpointNote
"""A fact about the whole journal."""


@dataclass(frozen=True, slots=True)
class BatchOpened:
    """The fact that opens a batch, with digests that reveal any later change to its rows.

    `totals` maps each currency to the count and sum (in minor units) of the new rows. The digests are the SHA-256 (hex)
    of the rows' canonical texts in order (see `new_batch.py`).
    """

    batch: str
    operation: str
    sheet_name: str
    sheet_path: str
    sheet_sha256: str
    rows: int
    defects: int
    first_instruction: int
    instructions: int
    instructions_sha256: str
    known: int
    known_sha256: str
    pages: int
    pages_sha256: str
    totals: Mapping[str, tuple[int, int]]
    by: str
    approvals: tuple[str, ...]
    plan_sha256: str = ""
    """The digest of the approved plan. If no plan was needed, it is empty and not stored."""


@dataclass(frozen=True, slots=True)
class BatchForgotten:
    """The fact that people in a batch were forgotten: who decided it, and how many payments it concerns.

    `before` is the date before which people were forgotten, or empty if only one person was forgotten.
    """

    by: str
    before: str
    instructions: int
    order: str = ""
    """The digest of the signed order to forget them. Empty if no second person had to approve."""
    orders: tuple[int, ...] = ()
    """The facts of signed orders that were also forgotten, because they name a row of one of these people."""


BatchFact = BatchOpened | BatchForgotten
"""A fact about a whole batch."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A fact to append that does not move an instruction: evidence, a note, or a fact about a batch."""

    fact: EvidenceRecord | Note | BatchFact
    at: str
    instruction: int | None = None
    attempt: int | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """The gateway's messages that a person must check, about one or all batches."""

    contradictions: Sequence[Contradiction]
    """The facts that changed nothing and await a person's decision."""
    waiting: Sequence[WaitingEvidence]
    """The evidence that holds its row or has not been checked."""


@dataclass(frozen=True, slots=True)
class PaymentSearch:
    """The criteria of a search for payments: words of the payee, or the order id.

    Each item of `words` lists alternatives. A payment matches if its payee's data contains at least one word of every
    item. A word that ends with `*` matches as a prefix.
    """

    words: tuple[tuple[str, ...], ...]
    order_id: str


@dataclass(frozen=True, slots=True)
class FoundPayment:
    """A payment or collection with its state and latest attempt. `batch` is the first batch that contained it.

    `fields` contains the form's fields, and `payee` the account or phone number.
    """

    batch: str
    sheet_name: str
    operation: str
    opened_at: str
    row: int
    client_orderid: str
    country: str
    currency: str
    amount: str
    form: str
    fields: Mapping[str, str] = field(repr=False)
    payee: str = field(repr=False)
    state: State
    attempts: int
    sent_orderid: str | None
    gateway_status: str | None
    gateway_reference: str | None
    error_code: str | None
    message: str | None
    possible_duplicate_of: int | None
    first_sent_at: str | None
    updated_at: str | None

    def to_dict(self) -> dict[str, object]:
        """Return the values by name, for JSON, including the payee."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The newest version of a plan: the whole signed document as text. Each approval adds a version."""

    number: int
    version: int
    code: str
    content: str


class Occasion(StrEnum):
    """The events for which people are sent a notice."""

    RUN_ENDED = "run_ended"
    SHEET_REFUSED = "sheet_refused"
    PLAN_WAITS = "plan_waits"
    IN_DOUBT = "in_doubt"
    CONTRADICTED = "contradicted"
    WORKER_DIED = "worker_died"
    RUNS_OUT = "runs_out"


@dataclass(frozen=True, slots=True)
class NewNotice:
    """A notice that is not stored yet. Each recipient gets one notice per `subject`.

    If `content` is None, the text is composed when the notice is first sent. `content` never identifies a payee.
    """

    occasion: Occasion
    subject: str
    batch: str
    recipients: Sequence[str]
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredNotice:
    """A stored notice to one recipient. `id` is the same for every try.

    `next_at` is the time of the next try, or None if there will be none. `problem` is a code for the last failure.
    """

    number: int
    id: str
    occasion: Occasion
    subject: str
    batch: str
    recipient: str
    written_at: str
    content: Mapping[str, Any] | None
    tries: int
    tried_at: str | None
    next_at: str | None
    sent_at: str | None
    problem: str

    @property
    def is_given_up(self) -> bool:
        """Whether the notice was not sent and will not be retried automatically."""
        return self.sent_at is None and self.next_at is None


class Link(NamedTuple):
    """The last line of a chain, before the next one is added. `at` is the newest time in the chain."""

    seq: int
    hash: bytes
    at: str = ""

    @property
    def log_fields(self) -> tuple[int, str, str]:
        """The number, hash (hex) and time of the last fact, for a line of the sent log."""
        return self.seq, self.hash.hex(), self.at


@dataclass(slots=True)
class AcceptedRows:
    """The rows affected by an accepted loss. The lists contain order ids to look up at the gateway."""

    in_doubt: int = 0
    held_order_ids: list[str] = field(default_factory=list)
    """The lost order ids of each held row, separated by commas."""
    not_sent: int = 0
    unknown_order_ids: list[str] = field(default_factory=list)
    """Order ids that were sent from batches that the journal lost. Rows that use them are held."""
    contradictions: list[str] = field(default_factory=list)
    """Order ids that this host sent for rows that the journal shows as paid or returned by another attempt."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A journal's identity. `endpoint` names its first endpoint, and `home` is where a run last opened it."""

    journal_id: str
    endpoint: str
    created_at: str
    home: str
    consumer_key_sha256: str = ""
    """The digest of the consumer key when the journal was created. Empty if there was none."""

    @property
    def endpoint_identity(self) -> EndpointIdentity:
        """The endpoint for which the journal was created."""
        return replace(EndpointIdentity.from_name(self.endpoint), consumer_key_sha256=self.consumer_key_sha256)

    @property
    def start(self) -> Link:
        """The link that precedes the first line and binds the chain to this journal and endpoint."""
        key_digests = [self.consumer_key_sha256] if self.consumer_key_sha256 else []
        text = canonical(["paygw journal", self.journal_id, self.endpoint, self.created_at, *key_digests])
        return Link(0, hashlib.sha256(text.encode()).digest())
