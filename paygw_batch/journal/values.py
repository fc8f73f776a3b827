"""The values that are passed to the journal and returned by it."""

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
"""Writes canonical JSON: sorted keys, no spaces, ASCII only."""


@dataclass(frozen=True, slots=True)
class ClockComparison:
    """A comparison of our clock with the `Date` of a reply. `ahead_s` is negative if our clock was behind.

    `was_behind_s`, `behind_from` and `behind_until` summarise earlier comparisons.
    """

    our_time: str
    gateway_date: str
    ahead_s: int
    was_behind_s: int = 0
    behind_from: str = ""
    behind_until: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """A journal's identity and newest state. `seq` is its last fact's number (0: none), and `hash` the hash (hex)."""

    journal_id: str
    """32 hex digits, assigned when the journal was created."""
    seq: int
    hash: str
    newest_time: str
    """The newest time in the journal: no fact and no evidence is later."""
    last_judged_arrival: int
    """The number of the fact by which the last judged notification arrived; 0 if none was judged."""
    clock: ClockComparison | None
    """The last recorded difference between our clock and the gateway's; None: no reply had a `Date`."""


class NewInstruction(NamedTuple):
    """A row about to become an instruction. A tuple for speed, because a batch can have a million.

    `content` is the canonical text of everything that a person decided (payee, amount, currency, country), by which
    repeated orders are recognised. `minor` is the amount in minor units, and `payee` the account or phone number to
    pay.
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
    """A row that replaces a rejected or never sent payment, whose number is `instruction`.

    A payment rejected only on a person's word is replaced only if it was sent no later than `cutoff`.
    """

    row: int
    instruction: int
    cutoff: str = ""


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch about to be opened. `sheet_sha256` is the digest of the file's bytes, by which the batch is found."""

    batch: str
    operation: str
    sheet_name: str
    sheet_sha256: str
    rows: int
    defects: int
    sheet_path: str = ""
    """The path of the sheet when its batch was opened; the reconciliation goes beside it."""
    by: str = ""
    """The person who opened the batch."""
    approvals: tuple[str, ...] = ()
    """A text for each person who prepared or approved the batch, if that was required (see `core/shown_states.py`)."""
    plan_sha256: str = ""
    """The digest of the approved plan."""


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
    """The reference that its order ids were derived from. Empty if they were in the sheet."""

    def to_dict(self) -> dict[str, object]:
        """Return the values by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A row that the journal already has as `instruction`, with the same order id and content.

    `batch` and `opened_at` are those of the instruction's batch.
    """

    row: int
    instruction: int
    state: State
    batch: str = field(default="", compare=False)
    opened_at: str = field(default="", compare=False)


def is_in_quarantine(since: str | None, cutoff: str) -> bool:
    """Return whether a row sent at `since` is still in quarantine: `since` is after `cutoff`. Both are UTC."""
    return since is not None and since > cutoff


@dataclass(frozen=True, slots=True)
class Clash:
    """A row whose order id was used for other content. It `is_amendable` if rejected or never sent, unless replaced.

    `quarantined_since` is the time of the attempt if the row is rejected only on a person's word, or None.
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
        """Return whether an amended row may replace the payment now: amendable and not in quarantine at `cutoff`."""
        return self.is_amendable and not is_in_quarantine(self.quarantined_since, cutoff)


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A row with the amount and payee of another instruction, under another order id.

    If `is_rewritten`, one id looks like the other after conversion by a program or retyping.
    """

    row: int
    client_orderid: str
    """The order id of the other instruction; `batch` and `opened_at` are those of its batch."""
    batch: str
    opened_at: str
    is_rewritten: bool = False


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
    """A raw reply from the gateway: the status line and relevant headers, one per line, and the body."""

    head: str = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """The digest of the reply (hex), which the resulting fact names."""
        return reply_sha256(self.head, self.body)


@dataclass(frozen=True, slots=True)
class AttemptReply:
    """The raw reply to attempt `attempt`, whose outcome was recorded at `at` (UTC)."""

    attempt: int
    at: str
    reply: StoredReply


@dataclass(frozen=True, slots=True)
class Entry:
    """A fact to append about attempt `attempt` of instruction number `instruction`, at `at` (UTC)."""

    instruction: int
    attempt: int
    fact: Fact
    at: str
    reply: StoredReply | None = None
    """The raw reply that led to the fact, if it is kept."""
    heard: EvidenceRecord | None = None
    """The evidence that led to the fact."""


class MoveResult(Enum):
    """The effect of one appended fact."""

    MOVED = "moved"
    NOT_MOVED = "not_moved"
    """The instruction is in another state; the fact is kept as a contradiction."""
    HELD = "held"
    """The fact was an intent for a row that evidence holds; nothing of it is kept."""


@dataclass(frozen=True, slots=True)
class RowState:
    """A row of a batch with its state and latest attempt, for people. Values that do not apply are None.

    `instruction` and `attempt` are the numbers used by facts about the row. `attempt` also counts the attempts of rows
    that it replaced; `attempts` counts only its own.
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
    """The gateway's message or a sentence of ours, as recorded by `core/shown_states.py`."""
    possible_duplicate_of: int | None
    first_sent_at: str | None
    updated_at: str | None
    intended_at: str | None = None
    """The time of the latest intent."""
    quarantined_since: str | None = None
    """The time at which the latest attempt was sent, if a person's word alone rejects the row; as in `Clash`."""
    endpoint_id: str | None = None
    """The id of the endpoint that the latest attempt was sent to. None without an attempt or a known id."""


LINE_COLUMNS = (
    *("row", "state", "attempts", "sent_orderid", "purpose", "gateway_status", "gateway_reference", "http_status"),
    *("error_code", "message", "first_sent_at", "updated_at", "minor"),
)
"""The fields of `RowState` in each line of `JournalReader.batch_lines`, in order; a state is a word there."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A person's action on a batch or one of its rows: opened, approved, resolved, released, returned.

    `row` and `attempt` are None for an entry about the whole batch. `by` is empty if nobody was recorded.
    """

    seq: int
    at: str
    kind: str
    row: int | None
    attempt: int | None
    by: str
    said: str
    order: str = ""
    """The digest of the signed order that asked for the action. Empty if no order did."""


@dataclass(frozen=True, slots=True)
class ForgettablePayments:
    """The payments whose payees may be forgotten now, as instruction numbers by batch number.

    A batch without any such payment loses only its sheet. `waiting` are unfinished batches, in which nobody is
    forgotten. `before` is the date before which people are forgotten, or empty if one person is forgotten.
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
        """The digest of exactly these payments and batches, in hex."""
        lines = (f"{batch}:{','.join(map(str, numbers))}\n" for batch, numbers in sorted(self.batches.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class RemainingData(Enum):
    """Where forgotten people's data may remain in the journal's files."""

    NOWHERE = "nowhere"
    IN_LOG = "in_log"
    """Another program is reading the file, so its log cannot be emptied. Forget again once that program has stopped."""
    IN_DATABASE = "in_database"
    """The server keeps old lines until its tables are rewritten, which only their owner can do."""


@dataclass(frozen=True, slots=True)
class StateTally:
    """The count and sum of a batch's instructions in `state`, for one country and currency."""

    country: str
    currency: str
    state: State
    count: int
    minor: int


class TallyKind(Enum):
    """The rows of a batch that are counted."""

    ALL = "all"
    KNOWN = "known"
    """The rows that an earlier batch already had."""
    DUE = "due"
    """The rows that may be sent: ready, and not held."""


@dataclass(frozen=True, slots=True)
class UsedSpelling:
    """A row whose order id was used before, but only in another spelling.

    `order_id` is the used id as it was spelled. `batch` and `opened_at` are those of its batch.
    """

    row: int
    order_id: str
    batch: str
    opened_at: str


@dataclass(frozen=True, slots=True)
class RepeatedBatch:
    """A batch whose payments some rows repeat under other order ids, and the number of these rows."""

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
    """Evidence that a person must check, about a row that has not moved since it was recorded at `taken_at`.

    `said` is the meaning of the evidence's status word, or None if the word is not listed.
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
    """The reason why no run sends a ready row: evidence `number`, recorded at `taken_at`, contradicts it.

    `said` is the meaning of the evidence's status word: paid or accepted.
    """

    number: int
    source: EvidenceSource
    said: str | None
    taken_at: str
    last_sent_at: str = ""
    """When a lost attempt of the row was found, one that the journal did not know; empty if none was found."""


@dataclass(frozen=True, slots=True)
class StatementNote:
    """A statement for a batch: its file's name and SHA-256, the person, and when it was carried out (empty: not yet).

    `attempts` has each named instruction's number of attempts. The statement covers no later attempt.
    """

    batch: str
    name: str
    sha256: str
    by: str
    at: str = ""
    attempts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FirstReading:
    """The first reading of a statement's file: its time, and each named instruction's number of attempts."""

    at: str = ""
    attempts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A signed plan or order that is no longer valid: its digest, who withdrew it, and the signed withdrawal."""

    sha256: str
    by: str
    document: str
    at: str


@dataclass(frozen=True, slots=True)
class AdoptionNote:
    """A person's confirmation that this copy of the journal, at this path, is the newest."""

    by: str
    path: str


@dataclass(frozen=True, slots=True)
class EndpointNote:
    """Another endpoint of the merchant, or another name for one. `by` is empty if a run recorded it."""

    endpoint: EndpointIdentity
    by: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A notification to judge, encoded by `encode_notification`."""

    content: str = field(repr=False)
    at: str


@dataclass(frozen=True, slots=True)
class JudgedArrivals:
    """All notifications that had arrived up to this fact were judged."""

    number: int


ConcurrentNote = Withdrawal | Arrival
"""A note that may be recorded while a run holds the journal."""
Note = StatementNote | ClockComparison | SignedOrder | ConcurrentNote | JudgedArrivals | AdoptionNote | EndpointNote
"""A fact about the whole journal."""


@dataclass(frozen=True, slots=True)
class BatchOpened:
    """The fact that opens a batch, with digests that reveal any later change to its rows.

    `totals` maps a currency to the count and the sum (in minor units) of the new rows. Digests are SHA-256 in hex, over
    the canonical bytes of the rows in order (see `new_batch.py`).
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
    """The digest of the approved plan; empty, and not written, if none was needed."""


@dataclass(frozen=True, slots=True)
class BatchForgotten:
    """The fact that forgets people of a batch: who decided, and the number of payments.

    `before` is the date before which payments were forgotten, or empty if one person was forgotten.
    """

    by: str
    before: str
    instructions: int
    order: str = ""
    """The digest of the signed order that asked for the forgetting. Empty if one person was enough."""
    orders: tuple[int, ...] = ()
    """The facts of the signed orders that were forgotten too, because they name a row of these people."""


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
    """The gateway's messages about one or all batches that a person must check."""

    contradictions: Sequence[Contradiction]
    """The facts that changed nothing, except those that a person has since answered."""
    waiting: Sequence[WaitingEvidence]
    """The evidence that waits for a person."""


@dataclass(frozen=True, slots=True)
class PaymentSearch:
    """The criteria of a search for payments: words of the payee, or the order id.

    A payment matches if its payee has one alternative of each of `words`. An alternative that ends with `*` is a
    prefix.
    """

    words: tuple[tuple[str, ...], ...]
    order_id: str


@dataclass(frozen=True, slots=True)
class FoundPayment:
    """A payment (or collection) with its state and latest attempt, listed once, under its original batch.

    `fields` are the form's fields. `payee` is the account or phone number.
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
    """The events about which people get a notice."""

    RUN_ENDED = "run_ended"
    SHEET_REFUSED = "sheet_refused"
    PLAN_WAITS = "plan_waits"
    IN_DOUBT = "in_doubt"
    CONTRADICTED = "contradicted"
    WORKER_DIED = "worker_died"
    RUNS_OUT = "runs_out"


@dataclass(frozen=True, slots=True)
class NewNotice:
    """A notice before it is stored. Each recipient gets one notice for each `subject`.

    Without `content`, the text is composed when the notice is first sent. `content` contains no payee's data.
    """

    occasion: Occasion
    subject: str
    batch: str
    recipients: Sequence[str]
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredNotice:
    """A notice to one recipient as the outbox stores it. `id` is the same for every try.

    `next_at` is the time of the next try (None: never again). `problem` is a code for the failure of the last try.
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
        """Whether the notice was not sent, and will not be retried automatically."""
        return self.sent_at is None and self.next_at is None


class Link(NamedTuple):
    """The end of a chain, to which the next line links. `at` is the newest time in the chain."""

    seq: int
    hash: bytes
    at: str = ""

    @property
    def log_fields(self) -> tuple[int, str, str]:
        """The number, hash (hex) and time of the end, for a line of the sent log."""
        return self.seq, self.hash.hex(), self.at


@dataclass(slots=True)
class AcceptedRows:
    """The rows of an accepted loss. Both lists have order ids to look up at the gateway."""

    in_doubt: int = 0
    held: int = 0
    not_sent: int = 0
    unknown_orders: list[str] = field(default_factory=list)
    """Order ids that were sent, but whose batch the journal lost. It keeps these ids, and holds rows that use them."""
    contradictions: list[str] = field(default_factory=list)
    """Order ids of rows that were sent from this host, but that another attempt completed in the journal."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A journal's identity. `endpoint` is its first one, and `home` the location at which a run last opened it."""

    journal_id: str
    endpoint: str
    created_at: str
    home: str
    consumer_key_sha256: str = ""
    """The digest of the consumer key that the journal was made with. Empty if it was made without one."""

    @property
    def name(self) -> EndpointIdentity:
        """The endpoint that the journal was made for."""
        return replace(EndpointIdentity.from_name(self.endpoint), consumer_key_sha256=self.consumer_key_sha256)

    @property
    def start(self) -> Link:
        """The link before the first line, which ties the chain to one journal and endpoint."""
        key_digests = [self.consumer_key_sha256] if self.consumer_key_sha256 else []
        text = canonical(["paygw journal", self.journal_id, self.endpoint, self.created_at, *key_digests])
        return Link(0, hashlib.sha256(text.encode()).digest())
