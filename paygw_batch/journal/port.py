"""Declares the interface of a journal for the rest of the program, in three protocols.

`EngineJournal` is what a run needs to send a batch, `JournalReader` what is asked without writing, and `Journal` adds
what people and commands write.

One store implements them, `SqliteJournal`, on disk (`open_journal`) and in memory (`in_memory_journal`); one set of
conformance tests holds both to it. A journal has one writer, and is called from one thread at a time.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from paygw_batch.core.evidence import Candidate, Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.batch_part import BatchPart
from paygw_batch.journal.gate_port import Gate
from paygw_batch.journal.payment_port import PaymentReader
from paygw_batch.journal.shared_run import RunOfWorkers
from paygw_batch.journal.values import (
    Amendment,
    AttemptReply,
    BatchRecord,
    CarriedOut,
    Clash,
    ClockSeen,
    Due,
    Entry,
    Head,
    HistoryEntry,
    Known,
    LookAlike,
    Messages,
    MoveResult,
    NewBatch,
    RepeatedBatch,
    RowStanding,
    StateTally,
    TallyKind,
    UsedSpelling,
)

VerifyProgress = Callable[[int, int], None]
"""Takes how many rows are replayed so far, and how many there are."""


def unwatched(done: int, rows: int) -> None:
    """Show no progress."""


class EngineJournal(Protocol):
    """The journal as an engine uses it to send batches. No call holds up the event loop; calls are made in turn."""

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next READY instructions of a batch, `limit` at the most, in the sheet's order; none at its end.

        Each is given once. One that evidence contradicts is held, and left out, until a person settles it: a row that
        was released, and that the gateway or a statement then says is paid.
        """
        ...

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction, and move their instructions; return the effect of each.

        On return, everything is on stable storage. Raises `JournalUnwritable`, and from then on for every further call.
        """
        ...

    async def take_in_waiting(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Take in the notifications that wait, as `Journal.take_in_waiting` does."""
        ...


class JournalReader(PaymentReader, Protocol):
    """The journal of one endpoint, opened for reading: one snapshot of it."""

    def head(self) -> Head:
        """Return which journal it is, and how far it has come."""
        ...

    def batches(self, *, plan_sha256: str = "") -> Sequence[BatchRecord]:
        """Return all batches, or the one that the plan with this digest opened, oldest first."""
        ...

    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Clash]]:
        """Hold (row, client_orderid, content) of a sheet against every order id ever used."""
        ...

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find (row, client_orderid, payee, currency, minor) paid under another id in a batch opened after `since`."""
        ...

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find (row, client_orderid, the id in one spelling) whose id was used in another spelling, and never as it is.

        The third is `core.spelling.spelled_alike` of the second. The newest such id is named.
        """
        ...

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Count (client_orderid, payee, currency, minor) paid under other ids, by batch opened after `since`.

        A row is counted once for each batch that pays the same payee the same amount. Newest batch first.
        """
        ...

    def rows(
        self,
        batch: int,
        *,
        states: Collection[State] | None = None,
        numbers: Collection[int] | None = None,
        accepted_until: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[RowStanding]:
        """Yield the first `limit` rows (None: all) of a batch after row `after`, in the sheet's order.

        Of those, `states` and `numbers` (rows of the sheet) name the ones that are wanted; None: all. It costs what is
        yielded, not what the batch has. With `accepted_until`, of the accepted rows only those whose latest intent is
        not after that time. Rows that are ready are asked for alone, without another state: raises `InternalError`.
        """
        ...

    def standing_lines(self, batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
        """Yield all rows of a batch as plain lines of `LINE_COLUMNS`, many at a time: a fraction of the cost of `rows`.

        For what needs the whole batch: its reconciliation, and a statement of the gateway's.
        """
        ...

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield the sheet as it was received, piece by piece."""
        ...

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return the URLs where customers of a batch pay, by row, as the gateway named them for the latest attempt."""
        ...

    def tallies(
        self, batch: int, *, kind: TallyKind = TallyKind.ALL, accepted_until: str | None = None
    ) -> Sequence[StateTally]:
        """Return counts and sums of a batch, ordered by country, currency and state.

        With `accepted_until`, of the accepted rows only those whose latest intent is not after that time.
        """
        ...

    def messages(self, batch: int | None = None) -> Messages:
        """Return the messages of the gateway about the rows of one batch, or of all."""
        ...

    def orders(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of every operation that go, or went, by an order id.

        An id that the journal does not know may be written as that of a later attempt: then the instructions that go,
        or went, by the id of the first, each with `is_attempt_unknown`.
        """
        ...

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return the acts of people on a batch and on the rows it covers, oldest first."""
        ...

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the raw replies that are kept about instruction `number`, oldest first."""
        ...

    def verify(self, progress: VerifyProgress = unwatched) -> Mapping[str, int]:
        """Replay the whole journal, and check its inbox; return the counts by name.

        Raises `JournalCorrupt` or `InboxDamaged`, naming the first wrong place.
        """
        ...

    def close(self) -> None:
        """Let go of the journal. It can be opened again."""
        ...


class Journal(JournalReader, Protocol):
    """The journal of one endpoint, held for writing, with the operations of people and commands."""

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[Known],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Make a whole batch durable in one transaction, or nothing of it.

        `parts` are its pages and the rows that are new, in the sheet's order, `known` those that another batch already
        has (the batch then also covers them), `amendments` say which of the new ones replace an old instruction. Raises
        `InternalError` when an order id is already taken and not amended: `compare` comes first; and when the plan has
        opened a batch before.
        """
        ...

    def conclude_dead(self, at: str) -> int:
        """Put every instruction that is in flight in doubt (its run is over), and return how many there were."""
        ...

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        """Keep evidence in order and apply the facts it proves, all in one transaction; return the findings.

        Ends before the first that speaks of a row in flight: what it says can only be judged later. `words` is the
        operator's `[outcomes]`.
        """
        ...

    def take_in_waiting(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox (all, or about so many), each once; count the findings.

        Ends before the first about a row in flight. Raises `InboxDamaged`; what was taken in by then is in the journal.
        """
        ...

    def hand_over(self, batch: int, *, waits: bool = False) -> RunOfWorkers | None:
        """Let workers send the due rows of a batch, and let go of the journal for writing; None where none lives.

        With `waits`, also where none lives: the batch waits for one. A journal in a file has no workers. Raises
        `JournalHeld` while workers still end a run of the batch that was stopped.
        """
        ...

    def for_engine(self) -> AbstractContextManager[EngineJournal]:
        """Give the journal to an engine: until the block ends, only the engine uses it."""
        ...

    def gate(self) -> Gate | None:
        """Return the limits that all workers of the endpoint share; None where there is one process that sends."""
        ...

    def settle(
        self,
        entries: Sequence[Entry],
        *,
        note: CarriedOut | ClockSeen | None = None,
        order: SignedOrder | None = None,
    ) -> None:
        """Make people's words about rows durable in one transaction, or none of them; on a held row they lift its hold.

        `note` is kept in the same transaction: the statement that they come from was carried out, or how far our clock
        is from the gateway's. So is the signed `order` that asks for it.
        Raises `RowsMoved` when one would not move its row, or settles a row that is ready and not held: another process
        moved it since it was read.
        """
        ...

    def release(
        self,
        batch: int,
        rows: Sequence[int] | None,
        *,
        suffix: bool,
        by: str,
        at: str,
        left_until: str = "",
        order: SignedOrder | None = None,
    ) -> int:
        """Release the rejected rows of a batch (all, or those named) for another attempt; return how many.

        One that is rejected on a person's word alone is only released if its attempt left no later than `left_until`.
        The signed `order` that asks for it is kept in the same transaction.
        """
        ...
