"""The notifications of the simulated machine: stored during any run, and judged by the holder of the journal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.journal.evidence import Notification, encode_notification
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Arrival
from tests.promise.simulation.gateway import MEANS, WORDS
from tests.promise.simulation.judge import row_of

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class AcceptedNotification:
    """A notification that was answered with 200, with its fact."""

    number: int
    order_id: str
    word: str
    is_about_ready: bool  # whether it says that the gateway has a ready row


class SimulatedInbox:
    """Notifications, stored by a listener and judged by the holder of the journal."""

    def __init__(self, scenario: "Scenario") -> None:
        self._scenario = scenario
        self.heard: list[AcceptedNotification] = []  # the notifications in the journal on the disk, in order of arrival
        self._ever: dict[bytes, AcceptedNotification] = {}
        self.untrue: set[int] = set()  # the rows with an untrue notification

    def hear(self, order_id: str, amount: str, word: str, *, is_about_ready: bool = False) -> None:
        scenario = self._scenario
        if scenario.disk.sent_log is None:
            return  # this journal is not adopted, so the answer is not 200
        claim = Claim(order_id, amount, "KES", word, None, Proof.PROVEN)
        message = encode_notification(Notification(scenario.at(), "POST", "application/json", "", b"{}", 2, "", claim))
        end = scenario.disk.record_in_side_file(Arrival(message, scenario.at()), scenario.at())
        if end is None:
            scenario.later(0.01, lambda: self.hear(order_id, amount, word, is_about_ready=is_about_ready))
            return
        self._ever[end.hash] = AcceptedNotification(end.seq, order_id, word, is_about_ready)
        self.heard.append(self._ever[end.hash])

    def look_again(self) -> None:
        """Reload the notifications after the journal was replaced by a copy."""
        self.heard = [self._ever[digest] for digest in self._scenario.disk.arrived()]

    def surprise(self, journal: SqliteJournal) -> None:
        """Receive a notification about a ready row, which was released or never sent."""
        candidates = [
            (order_id, amount)
            for batch in journal.batches()
            for due in journal.due(batch.number, after_row=0, limit=100)
            for order_id, amount in ((due.order_id, due.instruction.amount),)
            if due.standing.state is State.READY
        ]
        if candidates:
            order_id, amount = self._scenario.rng.choice(candidates)
            self.untrue.add(row_of(order_id))
            self.hear(order_id, amount, "approved", is_about_ready=True)

    def contradict(self, journal: SqliteJournal) -> None:
        """Receive a notification that contradicts the known outcome of a row."""
        candidates = [
            (row.sent_orderid, from_minor(row.minor, minor_units=2), word)
            for batch in journal.batches()
            for row in journal.rows(batch.number)
            for word in WORDS
            if row.state in {State.PAID, State.REJECTED} and row.sent_orderid and MEANS[word] != row.state.value
        ]
        if candidates:
            order_id, amount, word = self._scenario.rng.choice(candidates)
            self.untrue.add(row_of(order_id))
            self.hear(order_id, amount, word)

    def record_arrivals(self, journal: SqliteJournal) -> None:
        """Record waiting notifications, as a run does at its start and every two seconds."""
        judge = self._scenario.judge
        before = journal.head().last_processed_arrival
        for notification in self.heard:  # an arrival may be shown before it is judged
            if notification.number > before:
                judge.tell(row_of(notification.order_id), MEANS[notification.word])
        journal.process_arrivals(WORDS, at=self._scenario.at())
        after = journal.head().last_processed_arrival
        if self.heard and self.heard[-1].is_about_ready and before < self.heard[-1].number <= after:
            judge.held.add(row_of(self.heard[-1].order_id))
