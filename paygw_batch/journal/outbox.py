"""The outbox, for all stores: stores notices and selects those that are due.

A notice is durable before it is sent, and `claim` records each try durably in advance, so a crash loses no notice. A
notice is sent twice, with the same id, only if a process ends between sending it and `record_sent`. Each store has its
own `outbox.sql`, which defines the same statements.
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
"""The pause between the first two tries. Each later pause is twice as long."""
LONGEST_PAUSE = timedelta(hours=6)
GIVEN_UP_AFTER = timedelta(days=5)

OUTBOX_PARTS: Mapping[str, str] = {
    "notice": "number, id, occasion, subject, batch, recipient, written_at, content, tries, tried_at, next_at, sent_at,"
    " problem"
}


def next_try_at(tries: int, written_at: str, now: datetime) -> str | None:
    """Return the time of the next try after `tries` tries, or None to give up."""
    next_at = now + min(FIRST_PAUSE * 2 ** min(tries - 1, 16), LONGEST_PAUSE)
    return timestamp(next_at) if next_at < datetime.fromisoformat(written_at) + GIVEN_UP_AFTER else None


class Outbox(ABC):
    """One journal's outbox, opened and closed by `JournalLocation.outbox`. Not thread-safe."""

    def add(self, notices: Iterable[NewNotice], at: str) -> None:
        """Store notices durably, at most one per subject and recipient."""
        if pending := list(notices):  # built first, because a run may wait for the transaction to end
            with self._write_transaction():
                self._add(pending, at)

    def due(self, now: datetime, *, limit: int) -> list[StoredNotice]:
        """Return up to `limit` notices that may be sent now, oldest first."""
        return self._due(now, limit=limit)

    def claim(self, notice: StoredNotice, content: Mapping[str, Any], now: datetime) -> bool:
        """Record durably that this process is sending a notice with this content. Must be called before each try.

        Returns False if another process claimed it first. Other processes do not send it until the next try is due.
        """
        with self._write_transaction():
            claimed = self._query(
                "claim",
                number=notice.number,
                tries=notice.tries,
                content=json.dumps(content),
                now=timestamp(now),
                next_at=next_try_at(notice.tries + 1, notice.written_at, now),
            )
        return bool(claimed)

    def record_sent(self, notice: StoredNotice, at: str) -> None:
        """Record durably that a notice was sent. It is never sent again."""
        with self._write_transaction():
            self._query("record_sent", number=notice.number, at=at)

    def record_problem(self, notice: StoredNotice, problem: str) -> None:
        with self._write_transaction():
            self._query("record_problem", number=notice.number, problem=problem)

    def make_due(self, now: datetime) -> None:
        """Make unsent notices due now if their last try failed, or began at least `FIRST_PAUSE` ago."""
        with self._write_transaction():
            self._query("make_due", now=timestamp(now), before=timestamp(now - FIRST_PAUSE))

    def list_notices(self, *, limit: int) -> Sequence[StoredNotice]:
        """Return up to `limit` notices: unsent ones first, then the others, newest first."""
        return [_parse_notice(line) for line in self._query("all_notices", limit=limit)]

    def last_subject(self, occasion: Occasion, batch: str) -> str:
        """Return the alphabetically last subject of a batch's notices for an occasion, or empty if it has none."""
        ((subject,),) = self._query("last_subject", occasion=occasion.value, batch=batch)
        return subject or ""

    @property
    def may_send(self) -> bool:
        """Whether this process may send notices."""
        return True

    @abstractmethod
    def _query(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement from `outbox.sql` and return all its rows."""

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[object]:
        """Run the block in one durable transaction."""

    def _due(self, now: datetime, **limits: int) -> list[StoredNotice]:
        return [_parse_notice(line) for line in self._query("due", now=timestamp(now), **limits)]

    def _add(self, notices: Iterable[NewNotice], at: str, process: int | None = None) -> None:
        """Add notices in the open transaction. They are due after `process` ends, or immediately if it is None."""
        for notice in notices:
            for recipient in notice.recipients:
                self._query(
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
