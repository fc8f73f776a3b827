"""Sends due notices by e-mail and webhook, and finds events in the journal that need new ones.

Notices never delay a payout or change the exit code of a run.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.shown_states import DISPLAYED_IN_DOUBT
from paygw_batch.errors import JournalMissing, PaygwError
from paygw_batch.journal import JournalReader, NewNotice, Occasion, Outbox, StoredNotice
from paygw_batch.language import language_context, say
from paygw_batch.notices.channels import Channels, build_channels
from paygw_batch.notices.words import DeliveryFailure, FailureKind, mail_html, mail_text, notice_text, webhook_body
from paygw_batch.opening.open_journal import Echo, database_location, journal_location, open_journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import parse_sender
from paygw_batch.show.batch_status import batch_summary
from paygw_batch.submit.notices import (
    WEBHOOK,
    has_notice_recipients,
    notice_recipients,
    page_url,
    replace_invalid_characters,
)

if TYPE_CHECKING:
    from paygw_batch.notices.mail import Attachment

MAX_WAIT_AFTER_RUN_S = 20.0
"""How long a command may send notices before it ends. The next command sends the rest."""
MAX_SEND_S = 300.0
"""The time limit for `notices send`, which is shorter than any retry delay."""
_MAX_NOTICES = 500
_MAX_DEATH_AGE = timedelta(days=30)
"""Workers that died earlier are not reported, because notices may not have been configured then."""
_MAX_FILE_BYTES = 10 * 2**20
_CHANNEL_FAILURES = frozenset(FailureKind) - {FailureKind.REFUSED}
"""The failures that would also affect the next notice on the same channel."""


@dataclass(slots=True)
class DeliveryResult:
    """The result of sending due notices. `error_message` describes the error that ended sending early, or is empty."""

    sent: int = 0
    failed: int = 0
    error_message: str = ""
    is_complete: bool = False
    """Whether all due notices were tried in time."""


def send_due(settings: Settings, channels: Channels, *, within_s: float, again: bool = False) -> DeliveryResult:
    """Send due notices for at most `within_s` seconds. With `again`, also send those waiting for a retry.

    Mail and name servers may never respond, so notices are sent in a thread that ends with the process.
    """
    if not has_notice_recipients(settings):
        return DeliveryResult(is_complete=True)
    result = DeliveryResult()
    delivery = _Delivery(settings, channels, result, time.monotonic() + within_s)
    thread = Thread(target=delivery.run, kwargs={"again": again}, daemon=True)
    thread.start()
    thread.join(within_s)
    return result


def begin(settings: Settings, environ: Mapping[str, str]) -> Callable[[Echo], None]:
    """Return a function that sends due notices when a command ends. Raises `ConfigurationError` for a bad channel."""
    channels = build_channels(settings, environ)

    def send_notices(echo: Echo) -> None:
        with suppress(KeyboardInterrupt):  # a signal only ends the wait
            result = send_due(settings, channels, within_s=MAX_WAIT_AFTER_RUN_S)
            if result.error_message:
                echo(say("The notices cannot be sent: {reason}", reason=result.error_message))
            elif result.failed or not result.is_complete:
                echo(say("A notice could not be sent yet and will be retried. To see why, run `paygw-batch notices`."))

    return send_notices


@dataclass(slots=True)
class _Delivery:
    """One round of sending due notices in a separate thread."""

    settings: Settings
    channels: Channels
    result: DeliveryResult
    deadline_s: float
    failed_channels: set[str] = field(default_factory=set)
    """The channels that failed and are not used again in this round."""

    def run(self, *, again: bool) -> None:
        """Send due notices. Errors are stored in the result, and never end the command."""
        try:
            with language_context(self.settings.notices.language):
                self._send_notices(again=again)
        except JournalMissing:
            self.result.is_complete = True
        except PaygwError as error:
            self.result.error_message = f"{error.message} {error.hint}".strip()
        except Exception as error:  # noqa: BLE001 (only the type is shown, because the message could contain anything)
            self.result.error_message = say("Unexpected error ({kind}).", kind=type(error).__name__)

    def _send_notices(self, *, again: bool) -> None:
        with journal_location(self.settings).outbox(write=True) as outbox:
            if not outbox.may_send:  # a worker's database login cannot send notices, so other hosts send them
                self.result.is_complete = True
                return
            with open_journal_to_read(self.settings) as journal:
                outbox.add(find_new_notices(self.settings, journal, outbox, utc_now()), timestamp(utc_now()))
            if again:
                outbox.make_due(utc_now())
            due = outbox.due(utc_now(), limit=_MAX_NOTICES)
            with open_journal_to_read(self.settings) as journal:  # reopened to see the runs that the notices are about
                for notice in due:
                    if time.monotonic() >= self.deadline_s:
                        return
                    self._send_notice(outbox, journal, notice)
        self.result.is_complete = True

    def _send_notice(self, outbox: Outbox, journal: JournalReader, notice: StoredNotice) -> None:
        channel = WEBHOOK if notice.recipient == WEBHOOK else "mail"
        if channel in self.failed_channels:
            self.result.failed += 1
            return
        content = notice.content or _run_end_content(self.settings, journal, notice.batch)
        if not outbox.claim(notice, content, utc_now()):
            return
        failure = deliver(self.settings, self.channels, notice, content)
        if failure is None:
            outbox.record_sent(notice, timestamp(utc_now()))
            self.result.sent += 1
            return
        outbox.record_problem(notice, failure.code)
        self.result.failed += 1
        if failure.kind in _CHANNEL_FAILURES:
            self.failed_channels.add(channel)


def deliver(
    settings: Settings, channels: Channels, notice: StoredNotice, content: Mapping[str, Any]
) -> DeliveryFailure | None:
    """Send a notice. Returns the failure, or None if it was accepted."""
    if notice.recipient == WEBHOOK:
        if channels.webhook is None:
            return DeliveryFailure(FailureKind.NOT_CONFIGURED)
        body = webhook_body(notice, content, settings.notices.webhook_format)
        return channels.webhook.post(notice.id, body, int(utc_now().timestamp()))
    if channels.mail is None or settings.notices.sender is None:
        return DeliveryFailure(FailureKind.NOT_CONFIGURED)
    from paygw_batch.notices.mail import build_mail  # noqa: PLC0415 (only for e-mail)

    attachment = _rejects_attachment(settings, notice, content)
    text = notice_text(notice, content, has_attachment=attachment is not None)
    mail = build_mail(
        notice.id,
        parse_sender(settings.notices.sender),
        notice.recipient,
        datetime.fromisoformat(notice.written_at),
        text.title,
        mail_text(text),
        mail_html(text),
        attachment,
    )
    return channels.mail.send(mail)


def _rejects_attachment(settings: Settings, notice: StoredNotice, content: Mapping[str, Any]) -> "Attachment | None":
    """Return the rejects of a refused sheet if the recipient may receive personal data.

    With a database, nothing is attached, because a notice from another host must not make this host send its files.
    """
    if notice.occasion is not Occasion.SHEET_REFUSED or notice.recipient not in settings.notices.personal_data:
        return None
    path = Path(content["answer"])
    if settings.journal.url is not None or not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        return None
    from paygw_batch.notices.mail import Attachment  # noqa: PLC0415 (only for e-mail)

    return Attachment(path.name, path.read_bytes())


def _run_end_content(settings: Settings, journal: JournalReader, batch: str) -> Mapping[str, Any]:
    """Return the content of a notice about a finished run, with row counts and sums by state."""
    record = journal.batch(batch)
    if record is None:
        return {"sheet": batch, "batch": batch, "rows": 0, "states": {}, "totals": {}, "at": timestamp(utc_now())}
    summary = batch_summary(journal, record)
    return {
        "sheet": replace_invalid_characters(record.sheet_name),
        "batch": batch,
        "operation": record.operation,
        "rows": record.rows,
        "states": dict(summary.states),
        "totals": {currency: dict(sums) for currency, sums in summary.totals.items()},
        "exit_code": int(summary.exit_code),
        "at": timestamp(utc_now()),
        "link": page_url(settings, f"/payouts/{batch}"),
    }


def find_new_notices(settings: Settings, journal: JournalReader, outbox: Outbox, now: datetime) -> Iterator[NewNotice]:
    """Yield new notices about contradictions, dead workers and rows that have long been in doubt."""
    yield from _in_doubt_notices(settings, journal, outbox, now)
    yield from _contradiction_notices(settings, journal, outbox)
    yield from _dead_worker_notices(settings, now)


def _contradiction_notices(settings: Settings, journal: JournalReader, outbox: Outbox) -> Iterator[NewNotice]:
    if not (recipients := notice_recipients(settings, Occasion.CONTRADICTED)):
        return
    messages, times = journal.messages(), defaultdict[str, list[str]](list)
    for fact in messages.contradictions:
        times[fact.batch].append(fact.at)
    for message in messages.waiting:
        times[message.batch].append(message.taken_at)
    for record in journal.batches():
        latest_at = max(times[record.batch], default="")
        if latest_at > outbox.last_subject(Occasion.CONTRADICTED, record.batch):
            content = {
                "sheet": replace_invalid_characters(record.sheet_name),
                "batch": record.batch,
                "messages": len(times[record.batch]),
                "at": latest_at,
                "link": page_url(settings, f"/payouts/{record.batch}"),
            }
            yield NewNotice(Occasion.CONTRADICTED, latest_at, record.batch, recipients, content)


def _dead_worker_notices(settings: Settings, now: datetime) -> Iterator[NewNotice]:
    """Yield a notice for each worker that died recently."""
    recipients, database = notice_recipients(settings, Occasion.WORKER_DIED), database_location(settings)
    if not recipients or database is None:
        return
    for worker in database.dead_workers(timestamp(now - _MAX_DEATH_AGE)):
        content = {
            "host": worker.host,
            "pid": worker.pid,
            "since": worker.since,
            "seen_at": worker.seen_at,
            "batch": worker.batch or "",
        }
        yield NewNotice(Occasion.WORKER_DIED, f"{worker.host} {worker.pid} {worker.since}", "", recipients, content)


def _in_doubt_notices(settings: Settings, journal: JournalReader, outbox: Outbox, now: datetime) -> Iterator[NewNotice]:
    recipients, hours = notice_recipients(settings, Occasion.IN_DOUBT), settings.notices.in_doubt_h
    if not recipients:
        return
    cutoff = timestamp(now - timedelta(hours=hours))
    for record in journal.batches():
        rows = journal.rows(record.number, states=DISPLAYED_IN_DOUBT)
        times = sorted(row.intended_at for row in rows if row.intended_at is not None and row.intended_at <= cutoff)
        if times and times[-1] > outbox.last_subject(Occasion.IN_DOUBT, record.batch):
            content = {
                "sheet": replace_invalid_characters(record.sheet_name),
                "batch": record.batch,
                "rows_in_doubt": len(times),
                "hours": hours,
                "oldest": times[0],
                "link": page_url(settings, f"/payouts/{record.batch}"),
            }
            yield NewNotice(Occasion.IN_DOUBT, times[-1], record.batch, recipients, content)


def probe_mail_server(channels: Channels) -> DeliveryFailure | None:
    """Sign in to the mail server. Returns the failure, or None on success."""
    if (server := channels.mail) is None:
        return None
    failures: list[DeliveryFailure | None] = []
    thread = Thread(target=lambda: failures.append(server.probe()), daemon=True)
    thread.start()
    thread.join(MAX_WAIT_AFTER_RUN_S)
    return failures[0] if failures else DeliveryFailure(FailureKind.NO_ANSWER)


def list_notices(settings: Settings) -> Sequence[StoredNotice]:
    """Return the newest notices in the journal, with unsent ones first."""
    with suppress(JournalMissing), journal_location(settings).outbox(write=False) as outbox:
        return outbox.list_notices(limit=1_000)
    return ()
