"""The notifications of the simulated machine: kept beside whatever run is on, judged by whoever holds the journal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.journal.evidence import Notification, encode_notification
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Arrived
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.words import MEANS, WORDS

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld


@dataclass(frozen=True, slots=True)
class Notified:
    """A notification that was answered with 200, by its fact."""

    number: int
    order_id: str
    word: str
    is_about_ready: bool
    """Whether it says that the gateway has a row that is ready."""


class SimulatedInbox:
    """Notifications: kept by a listener, and taken in by whoever holds the journal."""

    def __init__(self, world: "SimWorld") -> None:
        self._world = world
        self.heard: list[Notified] = []
        """Those in the journal on the disk, as they arrived."""
        self._ever: dict[bytes, Notified] = {}
        self.untrue: set[int] = set()
        """The rows of which something was said that is not true."""

    def hear(self, order_id: str, amount: str, word: str, *, is_about_ready: bool = False) -> None:
        """Receive a notification, put it on stable storage, answer it with 200."""
        world = self._world
        if world.disk.left is None:
            return  # nobody has adopted this journal: it is not answered with 200
        claim = Claim(order_id, amount, "KES", word, None, Proof.PROVEN)
        said = encode_notification(Notification(world.at(), "POST", "application/json", "", b"{}", 2, "", claim))
        end = world.disk.keep_beside(Arrived(said, world.at()), world.at())
        if end is None:
            world.later(0.01, lambda: self.hear(order_id, amount, word, is_about_ready=is_about_ready))
            return
        self._ever[end.hash] = Notified(end.seq, order_id, word, is_about_ready)
        self.heard.append(self._ever[end.hash])

    def look_again(self) -> None:
        """Know what is in a copy that was put in the place of the journal: what came since is lost with it."""
        self.heard = [self._ever[digest] for digest in self._world.disk.arrived()]

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
        judge = self._world.judge
        before = journal.head().taken_in
        for one in self.heard:  # what has arrived may be shown, whenever it is judged
            if one.number > before:
                judge.tell(row_of(one.order_id), MEANS[one.word])
        journal.judge_arrivals(WORDS, at=self._world.at())
        after = journal.head().taken_in
        if self.heard and self.heard[-1].is_about_ready and before < self.heard[-1].number <= after:
            judge.held.add(row_of(self.heard[-1].order_id))
