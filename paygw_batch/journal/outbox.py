"""The outbox of notices, for all stores: keeps notices and selects those due.

A notice is durable before it is sent, and `claim` durably records each try in advance. So a crash loses no notice. A
notice is sent twice, with the same id, only if a process dies between sending and `record_sent`.

Each store has its own `outbox.sql` with statements of the same names.
"""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from paygw_batch.clock import timestamp
from paygw_batch.journal.values import NewNotice, Occasion, StoredNotice

FIRST_PAUSE = timedelta(minutes=10)
"""The pause between the first two tries. Each later pause is twice as long. A try itself takes much less."""
LONGEST_PAUSE = timedelta(hours=6)
GIVEN_UP_AFTER = timedelta(days=5)

OUTBOX_PARTS: Mapping[str, str] = {
    "notice": "number, id, occasion, subject, batch, recipient, written_at, content, tries, tried_at, next_at, sent_at,"
    " problem"
}
"""The columns of a `StoredNotice`, in the order of its fields."""


def next_try_at(tries: int, written_at: str, now: datetime) -> str | None:
    """Return the time of the next try after `tries` tries, or None to give up."""
    later = now + min(FIRST_PAUSE * 2 ** min(tries - 1, 16), LONGEST_PAUSE)
    return timestamp(later) if later < datetime.fromisoformat(written_at) + GIVEN_UP_AFTER else None


class Outbox(ABC):
    """The outbox of one journal, open until the journal's place closes it. Not thread-safe."""

    def add(self, notices: Iterable[NewNotice], at: str) -> None:
        """Store notices durably, at most one for each subject and recipient."""
        if pending := list(notices):  # built before the transaction begins, because a run may wait for its end
            with self._write_transaction():
                self._add(pending, at)

    def due(self, now: datetime, *, limit: int) -> list[StoredNotice]:
        """Return up to `limit` notices that may be sent now, oldest first."""
        return self._due(now, limit=limit)

    def claim(self, notice: StoredNotice, content: Mapping[str, Any], now: datetime) -> bool:
        """Record durably that a notice is being sent, with its text. Returns False if another process claimed it first.

        Call it before each try. No other process sends the notice until the next try is due.
        """
        with self._write_transaction():
            notices = self._run(
                "claim",
                number=notice.number,
                tries=notice.tries,
                content=json.dumps(content),
                now=timestamp(now),
                next_at=next_try_at(notice.tries + 1, notice.written_at, now),
            )
        return bool(notices)

    def record_sent(self, notice: StoredNotice, at: str) -> None:
        """Record durably that a notice was sent. It is never sent again."""
        with self._write_transaction():
            self._run("note_sent", number=notice.number, at=at)

    def record_problem(self, notice: StoredNotice, problem: str) -> None:
        """Record why a notice could not be sent."""
        with self._write_transaction():
            self._run("note_problem", number=notice.number, problem=problem)

    def make_due(self, now: datetime) -> None:
        """Make notices due at once if they wait for their next try or were given up."""
        with self._write_transaction():
            self._run("hurry", now=timestamp(now), before=timestamp(now - FIRST_PAUSE))

    def list_notices(self, *, limit: int) -> Sequence[StoredNotice]:
        """Return up to `limit` notices: first the unsent ones, then the sent ones, each newest first."""
        return [_parse_notice(line) for line in self._run("listed", limit=limit)]

    def newest_subject(self, occasion: Occasion, batch: str) -> str:
        """Return the greatest subject among an occasion's notices about a batch, or empty if there are none."""
        ((subject,),) = self._run("newest_subject", occasion=occasion.value, batch=batch)
        return subject or ""

    @property
    def may_send(self) -> bool:
        """Return whether this process may send its notices."""
        return True

    @abstractmethod
    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of `outbox.sql` and return all its rows."""

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[object]:
        """Run the block in one transaction, durable when the block ends."""

    def _due(self, now: datetime, **limits: int) -> list[StoredNotice]:
        return [_parse_notice(line) for line in self._run("due", now=timestamp(now), **limits)]

    def _add(self, notices: Iterable[NewNotice], at: str, process: int | None = None) -> None:
        """Add notices inside the open transaction. With `process`, they are due once that process is over."""
        for notice in notices:
            for recipient in notice.recipients:
                self._run(
                    "add_notice",
                    id=f"notice_{secrets.token_hex(16)}",
                    occasion=notice.occasion.value,
                    subject=notice.subject,
                    batch=notice.batch,
                    recipient=recipient,
                    at=at,
                    content=None if notice.content is None else json.dumps(notice.content),
                    process=process,
                )


def _parse_notice(line: Sequence[Any]) -> StoredNotice:
    number, notice_id, occasion, subject, batch, recipient, written_at, content, *rest = line
    values = None if content is None else json.loads(content)
    return StoredNotice(number, notice_id, Occasion(occasion), subject, batch, recipient, written_at, values, *rest)
