"""The inbox of the simulated machine: the one that ships, on real files, and what the gateway puts into it."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.journal.kept_notification import Notification, encode_notification
from paygw_batch.journal.sqlite.inbox import Inbox, InboxReader, inbox_path
from paygw_batch.journal.sqlite.writer import SqliteJournal
from paygw_batch.journal.values import InboxEnd
from tests.simulation.judge import row_of
from tests.simulation.words import MEANS, WORDS

if TYPE_CHECKING:
    from tests.simulation.world import SimWorld


@dataclass(frozen=True, slots=True)
class Notified:
    """A notification that was answered with 200, by its number in the inbox."""

    order_id: str
    word: str
    is_about_ready: bool
    """Whether it says that the gateway has a row that is ready."""


class SimulatedInbox:
    """Notifications: received by a listener, kept in the inbox, taken in by whoever holds the journal."""

    def __init__(self, world: "SimWorld") -> None:
        self._world = world
        self._journal_path: Path | None = None
        self._inbox: Inbox | None = None
        self._reader: InboxReader | None = None
        self.heard: list[Notified] = []
        self.untrue: set[int] = set()
        """The rows of which something was said that is not true."""

    def hear(self, order_id: str, amount: str, word: str, *, is_about_ready: bool = False) -> None:
        """Receive a notification, put it on stable storage, answer it with 200."""
        if self._inbox is None:
            self._journal_path = path = self._world.directory() / "journal.sqlite3"
            self._inbox = self._world.undo.enter_context(
                closing(Inbox(inbox_path(path), taken=InboxEnd(), now=self._world.at()))
            )
            self._reader = InboxReader(inbox_path(path))
            self._world.undo.callback(self._reader.close)
        claim = Claim(order_id, amount, "KES", word, None, Proof.PROVEN)
        notice = Notification(self._world.at(), "POST", "application/json", "", b"{}", 2, "", claim)
        self._inbox.append([encode_notification(notice)])
        self.heard.append(Notified(order_id, word, is_about_ready))

    def surprise(self, journal: SqliteJournal) -> None:
        """Hear that the gateway has a row which is ready: it was released, or never sent."""
        found = [
            (order_id, amount)
            for batch in journal.batches()
            for due in journal.due(batch.number, after_row=0, limit=100)
            for order_id, amount in ((due.order_id, due.instruction.amount),)
            if due.standing.state is State.READY
        ]
        if found:
            order_id, amount = self._world.rng.choice(found)
            self.untrue.add(row_of(order_id))
            self.hear(order_id, amount, "approved", is_about_ready=True)

    def contradict(self, journal: SqliteJournal) -> None:
        """Hear another end of a row than the one that is known."""
        found = [
            (one.sent_orderid, from_minor(one.minor, minor_units=2), word)
            for batch in journal.batches()
            for one in journal.rows(batch.number)
            for word in WORDS
            if one.state in {State.PAID, State.REJECTED} and one.sent_orderid and MEANS[word] != one.state.value
        ]
        if found:
            order_id, amount, word = self._world.rng.choice(found)
            self.untrue.add(row_of(order_id))
            self.hear(order_id, amount, word)

    def take_in(self, journal: SqliteJournal) -> None:
        """Take in what waits, as a run does when it opens the journal and every two seconds."""
        if self._reader is None:
            return
        journal._inbox = self._reader
        judge = self._world.judge
        before = journal.head().inbox[0]
        for one in self.heard[before:]:  # what is in the inbox may be shown, whenever it gets into the journal
            judge.tell(row_of(one.order_id), MEANS[one.word])
        journal.drain_inbox(WORDS, at=self._world.at())
        for one in self.heard[before : journal.head().inbox[0]]:
            if one.is_about_ready and one is self.heard[-1]:
                judge.held.add(row_of(one.order_id))
