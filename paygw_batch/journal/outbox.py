"""Keeps the notices that people are to get, and says which of them may be sent now: once for every store.

A notice is durable before it is sent, and each try is durable before it is made: `claim` books the next one. So a crash
loses nothing, and while no process dies, no notice is sent twice. After a crash between the sending and `note_sent` it
is sent again, with the same id.

The SQL is each store's own: `outbox.sql` in its folder has the same names in both.
"""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from paygw_batch.clock import timestamp
from paygw_batch.journal.values import KeptNotice, NewNotice, Occasion

FIRST_PAUSE = timedelta(minutes=10)
"""Between the first try and the second; each further pause is twice as long. No try takes nearly as long."""
LONGEST_PAUSE = timedelta(hours=6)
GIVEN_UP_AFTER = timedelta(days=5)

OUTBOX_PARTS: Mapping[str, str] = {
    "notice": "number, id, occasion, subject, batch, recipient, written_at, content, tries, tried_at, next_at, sent_at,"
    " problem"
}
"""The columns of a `KeptNotice`, in its order."""


def next_try(tries: int, written_at: str, now: datetime) -> str | None:
    """Return when to try a notice again after this number of tries; None: never."""
    later = now + min(FIRST_PAUSE * 2 ** min(tries - 1, 16), LONGEST_PAUSE)
    return timestamp(later) if later < datetime.fromisoformat(written_at) + GIVEN_UP_AFTER else None


class Outbox(ABC):
    """The outbox of one journal, open until its place closes it. Called from one thread."""

    def add(self, notices: Iterable[NewNotice], at: str) -> None:
        """Make notices durable, each subject once for each recipient."""
        with self._writing():
            self._add(notices, at)

    def take_over(self, notices: Iterable[KeptNotice]) -> None:
        """Make notices of another outbox durable that it did not send, with their ids: they are due now. Once each."""
        with self._writing():
            for one in notices:
                content = None if one.content is None else json.dumps(one.content)
                about = {"id": one.id, "occasion": one.occasion.value, "subject": one.subject, "batch": one.batch}
                self._run("add_notice", **about, recipient=one.recipient, at=one.written_at, content=content, run=None)

    def due(self, now: datetime, *, limit: int) -> Sequence[KeptNotice]:
        """Return up to `limit` notices that may be sent now, the oldest first."""
        return [_kept(line) for line in self._run("due", now=timestamp(now), limit=limit)]

    def claim(self, notice: KeptNotice, content: Mapping[str, Any], now: datetime) -> bool:
        """Make durable that a notice is being sent, with its text; return False if another process was faster.

        To be called before each try: until the next one is due, nobody else sends it.
        """
        with self._writing():
            claimed = self._run(
                "claim",
                number=notice.number,
                tries=notice.tries,
                content=json.dumps(content),
                now=timestamp(now),
                next_at=next_try(notice.tries + 1, notice.written_at, now),
            )
        return bool(claimed)

    def note_sent(self, notice: KeptNotice, at: str) -> None:
        """Make durable that a notice was sent: it never is again."""
        with self._writing():
            self._run("note_sent", number=notice.number, at=at)

    def note_problem(self, notice: KeptNotice, problem: str) -> None:
        """Keep why a notice could not be sent."""
        with self._writing():
            self._run("note_problem", number=notice.number, problem=problem)

    def hurry(self, now: datetime) -> None:
        """Make notices due that wait for their next try or were given up; one that is being sent is left alone."""
        with self._writing():
            self._run("hurry", now=timestamp(now), before=timestamp(now - FIRST_PAUSE))

    def listed(self, *, limit: int) -> Sequence[KeptNotice]:
        """Return up to `limit` notices: those that were not sent first, and of each kind the newest first."""
        return [_kept(line) for line in self._run("listed", limit=limit)]

    def newest_subject(self, occasion: Occasion, batch: str) -> str:
        """Return the greatest subject of the notices of an occasion about a batch; empty: there is none."""
        ((found,),) = self._run("newest_subject", occasion=occasion.value, batch=batch)
        return found or ""

    @property
    def may_send(self) -> bool:
        """Whether this process may send its notices."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    @abstractmethod
    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of `outbox.sql`, and return all it finds."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[object]:
        """One transaction that is durable when the block is left."""

    def _add(self, notices: Iterable[NewNotice], at: str, run: int | None = None) -> None:
        """Add notices inside the open transaction; with `run`, they are due when that run is over."""
        for one in notices:
            for recipient in one.recipients:
                self._run(
                    "add_notice",
                    id=f"notice_{secrets.token_hex(16)}",
                    occasion=one.occasion.value,
                    subject=one.subject,
                    batch=one.batch,
                    recipient=recipient,
                    at=at,
                    content=None if one.content is None else json.dumps(one.content),
                    run=run,
                )


def _kept(line: Sequence[Any]) -> KeptNotice:
    number, notice_id, occasion, subject, batch, recipient, written_at, content, *tried = line
    told = None if content is None else json.loads(content)
    return KeptNotice(number, notice_id, Occasion(occasion), subject, batch, recipient, written_at, told, *tried)
