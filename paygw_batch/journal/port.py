"""Declares what the rest of the program asks of a journal, in three protocols.

`EngineJournal` is what a run needs to send a batch, `JournalReader` what is asked without writing, and `Journal` adds
what people and commands write.

One store keeps this promise, `writer.SqliteJournal`, on disk (`store.open_journal`) and in memory
(`in_memory.in_memory_journal`); one set of conformance tests holds both to it. A journal has one writer, and is called
from one thread at a time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from paygw_batch.core.evidence import Evidence, Finding
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.evidence_port import EvidenceReader
from paygw_batch.journal.payment_port import PaymentReader
from paygw_batch.journal.spelling_port import SpellingReader
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
    Hold,
    Known,
    LookAlike,
    NewBatch,
    NewInstruction,
    RowStanding,
    StateTally,
)


class EngineJournal(Protocol):
    """The journal as a run uses it to send a batch: rows that may leave, and facts made durable."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` READY instructions of a batch with a row above `after_row`, in the sheet's order.

        One that evidence contradicts is held, and left out, until a person settles it: a row that was released, and
        that the gateway or a statement then says is paid.
        """
        ...

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return what holds rows of a batch that are ready, by row: no run sends them."""
        ...

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        """Make facts durable in one transaction, and move their instructions.

        Returns for each whether it moved its instruction; a fact that did not is kept as a contradiction. An intent for
        a row that is held moves nothing either, and is not kept. On return, everything is on stable storage. Raises
        `JournalUnwritable`, and from then on for every further call.
        """
        ...

    def stage(self, entries: Sequence[Entry]) -> Callable[[], Sequence[bool]]:
        """Do all of `append` but what waits for the disk, and return the call that does the rest, and returns the same.

        Nothing of it holds before that call has returned; until then no other call may be made. Either may raise what
        `append` raises. The two may be made from different threads.
        """
        ...


class JournalReader(EvidenceReader, SpellingReader, PaymentReader, Protocol):
    """The journal of one endpoint, opened for reading: one snapshot of it."""

    @property
    def journal_id(self) -> str:
        """Which journal this is: the 32 hex digits it was given when it was made."""
        ...

    def head(self) -> Head:
        """Return the end of the chain."""
        ...

    def batches(self) -> Sequence[BatchRecord]:
        """Return all batches, oldest first."""
        ...

    def opened_by_plan(self, plan_sha256: str) -> BatchRecord | None:
        """Return the batch that the plan with this digest opened, if it has opened one."""
        ...

    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Clash]]:
        """Hold (row, client_orderid, content) of a sheet against every order id ever used."""
        ...

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find (row, client_orderid, payee, currency, minor) paid under another id in a batch opened after `since`."""
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
        not after that time. Rows that are ready are found by `due`, not by `states` alone: raises `InternalError`.
        """
        ...

    def standing_lines(self, batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
        """Yield all rows of a batch as plain lines of `LINE_COLUMNS`, many at a time: a fraction of what `rows` costs.

        For what needs the whole batch: its reconciliation, and a statement of the gateway's.
        """
        ...

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield the sheet as it was received, piece by piece."""
        ...

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return where customers of a batch go to pay, by row: what the gateway named for the latest attempt."""
        ...

    def tallies(self, batch: int, *, accepted_until: str | None = None) -> Sequence[StateTally]:
        """Return counts and sums of a batch, ordered by country, currency and state.

        With `accepted_until`, of the accepted rows only those whose latest intent is not after that time.
        """
        ...

    def known_tallies(self, batch: int) -> Sequence[StateTally]:
        """Return counts and sums of those rows of a batch that an earlier batch brought: `tallies` has them as well."""
        ...

    def due_counts(self, batch: int) -> Mapping[str, int]:
        """Return how many rows of each country `due` has for a batch; countries without one are left out."""
        ...

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return what people did to a batch and to the rows it covers, in the order they did it."""
        ...

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the raw replies that are kept about instruction `number`, oldest first."""
        ...

    def verify(self) -> Mapping[str, int]:
        """Replay the whole journal; return what was counted. Raises `JournalCorrupt`, naming the first wrong place."""
        ...

    def close(self) -> None:
        """Let go of the journal. It can be opened again."""
        ...


class Journal(JournalReader, EngineJournal, Protocol):
    """The journal of one endpoint, held for writing: what people and commands do to it."""

    def open_batch(
        self,
        batch: NewBatch,
        *,
        pages: Iterable[bytes],
        instructions: Iterable[NewInstruction],
        known: Iterable[Known],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Make a whole batch durable in one transaction, or nothing of it.

        `instructions` are the rows that are new, `known` those that another batch already has (the batch then also
        covers them), `amendments` say which of the new ones replace an old instruction. Raises `InternalError` when an
        order id is already taken and not amended: `compare` comes first; and when the plan has opened a batch before.
        """
        ...

    def interrupt(self, at: str) -> int:
        """Put every instruction that is in flight in doubt (its run is over), and return how many there were."""
        ...

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        """Keep evidence in order, and move what it proves, all in one transaction; return what came of each.

        Ends before the first that speaks of a row in flight: what it says can only be judged later. `words` is the
        operator's `[outcomes]`.
        """
        ...

    def settle(self, entries: Sequence[Entry], *, carried_out: CarriedOut | None = None) -> None:
        """Make people's words about rows durable in one transaction, or none of them; on a held row they lift its hold.

        `carried_out` is the statement that they come from: that it was carried out is kept in the same transaction.
        Raises `InternalError` when one would not move its row, or settles a row that is ready and not held.
        """
        ...

    def note_clock(self, seen: ClockSeen, *, at: str) -> None:
        """Keep how far our clock is from the gateway's."""
        ...

    def release(
        self, batch: int, rows: Sequence[int] | None, *, suffix: bool, by: str, at: str, left_until: str = ""
    ) -> int:
        """Release the rejected rows of a batch (all, or those named) for another attempt; return how many.

        One that is rejected on a person's word alone is only released if its attempt left no later than `left_until`.
        """
        ...
