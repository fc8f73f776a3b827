"""Sends due notices by e-mail and webhook, and finds the notices that only the journal knows.

Sending notices never delays a payout or changes an exit code.
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
from paygw_batch.core.shown_states import SHOWN_IN_DOUBT
from paygw_batch.errors import JournalMissing, PaygwError
from paygw_batch.journal import JournalReader, KeptNotice, NewNotice, Occasion, Outbox
from paygw_batch.language import say, speaking
from paygw_batch.notices.channels import Channels, channels_of
from paygw_batch.notices.words import Trouble, TroubleKind, mail_page, mail_text, notice_words, webhook_body
from paygw_batch.opening.open_journal import Tell, database_of, journal_to_read, place_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import name_and_address
from paygw_batch.show.batch_status import batch_summary
from paygw_batch.submit.notices import WEBHOOK, has_notices, page_address, plain, recipients_of

if TYPE_CHECKING:
    from paygw_batch.notices.mail import Attachment

AFTER_A_RUN_S = 20.0
"""How long a finished command stays to send notices. The next command sends the rest."""
BY_ITSELF_S = 300.0
"""The time limit of `notices send`, which is shorter than any pause between two tries of one notice."""
_AT_ONCE = 500
_DIED_LATELY = timedelta(days=30)
"""Workers that died earlier cause no notice, because notices may have been configured since."""
_MAX_FILE_BYTES = 10 * 2**20
_SERVER_IS_DOWN = frozenset(TroubleKind) - {TroubleKind.REFUSED}
"""The kinds of trouble that the next notice on the same channel would also have."""


@dataclass(slots=True)
class Delivered:
    """The result of sending due notices. `fault` says why no notice can be sent."""

    sent: int = 0
    failed: int = 0
    fault: str = ""
    has_ended: bool = False
    """Whether all due notices were tried in time."""


def send_due(settings: Settings, channels: Channels, *, within_s: float, again: bool = False) -> Delivered:
    """Send due notices for at most `within_s` seconds. With `again`, notices that wait for a later try are sent too.

    A mail or name server can be silent for ever, so the work is done in a thread that ends with the process. A notice
    that is cut off by this is sent again later, with the same id.
    """
    done = Delivered()
    if not has_notices(settings):
        done.has_ended = True
        return done
    until_s = time.monotonic() + within_s
    delivery = _Delivery(settings, channels, done, until_s)
    thread = Thread(target=delivery.run, kwargs={"again": again}, daemon=True)
    thread.start()
    thread.join(within_s)
    return done


def begin(settings: Settings, environ: Mapping[str, str]) -> Callable[[Tell], None]:
    """Return a function that sends the due notices at the end of a command.

    Raises `ConfigurationError` for unusable channels, before the command does anything.
    """
    channels = channels_of(settings, environ)

    def send_after(tell: Tell) -> None:
        with suppress(KeyboardInterrupt):  # a signal only ends the wait
            done = send_due(settings, channels, within_s=AFTER_A_RUN_S)
            if done.fault:
                tell(say("The notices cannot be sent: {reason}", reason=done.fault))
            elif done.failed or not done.has_ended:
                tell(say("A notice could not be sent yet; `paygw-batch notices` shows why. It will be tried again."))

    return send_after


@dataclass(slots=True)
class _Delivery:
    """One round of sending due notices, in a thread of its own."""

    settings: Settings
    channels: Channels
    done: Delivered
    until_s: float
    down: set[str] = field(default_factory=set)
    """The channels that are not tried again in this round."""

    def run(self, *, again: bool) -> None:
        """Send the due notices. An error here never ends the command."""
        try:
            with speaking(self.settings.notices.language):
                self._send(again=again)
        except JournalMissing:
            self.done.has_ended = True
        except PaygwError as error:
            self.done.fault = f"{error.message} {error.hint}".strip()
        except Exception as error:  # noqa: BLE001 (its text could contain anything, so only its kind is shown)
            self.done.fault = say("Unexpected error ({kind}).", kind=type(error).__name__)

    def _send(self, *, again: bool) -> None:
        with place_of(self.settings).outbox(write=True) as outbox:
            if not outbox.may_send:  # this is a worker's login, and the desk's hosts send
                self.done.has_ended = True
                return
            with journal_to_read(self.settings) as journal:
                outbox.add(found_in_journal(self.settings, journal, outbox, utc_now()), timestamp(utc_now()))
            if again:
                outbox.hurry(utc_now())
            due = outbox.due(utc_now(), limit=_AT_ONCE)
            with journal_to_read(self.settings) as journal:  # opened after those runs have ended
                for notice in due:
                    if time.monotonic() >= self.until_s:
                        return
                    self._try(outbox, journal, notice)
        self.done.has_ended = True

    def _try(self, outbox: Outbox, journal: JournalReader, notice: KeptNotice) -> None:
        way = WEBHOOK if notice.recipient == WEBHOOK else "mail"
        if way in self.down:
            self.done.failed += 1
            return
        content = notice.content or run_figures(self.settings, journal, notice.batch)
        if not outbox.claim(notice, content, utc_now()):
            return
        trouble = deliver(self.settings, self.channels, notice, content)
        if trouble is None:
            outbox.note_sent(notice, timestamp(utc_now()))
            self.done.sent += 1
            return
        outbox.note_problem(notice, trouble.code)
        self.done.failed += 1
        if trouble.kind in _SERVER_IS_DOWN:
            self.down.add(way)


def deliver(settings: Settings, channels: Channels, notice: KeptNotice, content: Mapping[str, Any]) -> Trouble | None:
    """Send one notice. Return why it was not accepted, or None."""
    if notice.recipient == WEBHOOK:
        if channels.webhook is None:
            return Trouble(TroubleKind.NOT_CONFIGURED)
        body = webhook_body(notice, content, settings.notices.webhook_format)
        return channels.webhook.post(notice.id, body, int(utc_now().timestamp()))
    if channels.mail is None or settings.notices.sender is None:
        return Trouble(TroubleKind.NOT_CONFIGURED)
    from paygw_batch.notices.mail import mail_of  # noqa: PLC0415 (only if there is a mail)

    attachment = _attachment(settings, notice, content)
    words = notice_words(notice, content, has_file=attachment is not None)
    mail = mail_of(
        notice.id,
        name_and_address(settings.notices.sender),
        notice.recipient,
        datetime.fromisoformat(notice.written_at),
        words.title,
        mail_text(words),
        mail_page(words),
        attachment,
    )
    return channels.mail.send(mail)


def _attachment(settings: Settings, notice: KeptNotice, content: Mapping[str, Any]) -> "Attachment | None":
    """Return the marked rows of a refused sheet if the recipient may get payees' data, otherwise None.

    With a database nothing is attached, because other hosts write notices, and must not make this host mail its files.
    """
    if notice.occasion is not Occasion.SHEET_REFUSED or notice.recipient not in settings.notices.personal_data:
        return None
    path = Path(content["answer"])
    if settings.journal.url is not None or not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        return None
    from paygw_batch.notices.mail import Attachment  # noqa: PLC0415 (only if there is a mail)

    return Attachment(path.name, path.read_bytes())


def run_figures(settings: Settings, journal: JournalReader, batch: str) -> Mapping[str, Any]:
    """Return the figures of a finished run: the rows of its batch by state, and their sums."""
    record = journal.batch(batch)
    if record is None:
        return {"sheet": batch, "batch": batch, "rows": 0, "states": {}, "totals": {}, "at": timestamp(utc_now())}
    summary = batch_summary(journal, record)
    return {
        "sheet": plain(record.sheet_name),
        "batch": batch,
        "operation": record.operation,
        "rows": record.rows,
        "states": dict(summary.states),
        "totals": {currency: dict(sums) for currency, sums in summary.totals.items()},
        "exit_code": int(summary.exit_code),
        "at": timestamp(utc_now()),
        "link": page_address(settings, f"/payouts/{batch}"),
    }


def found_in_journal(settings: Settings, journal: JournalReader, outbox: Outbox, now: datetime) -> Iterator[NewNotice]:
    """Yield the notices that only the journal knows: old doubts, contradictions, dead workers.

    A late look misses nothing, because the journal keeps the events, and the outbox the reported ones.
    """
    yield from _doubts(settings, journal, outbox, now)
    yield from _contradictions(settings, journal, outbox)
    yield from _deaths(settings, now)


def _contradictions(settings: Settings, journal: JournalReader, outbox: Outbox) -> Iterator[NewNotice]:
    """Yield a notice for each batch with messages that a person must check. Each message is reported once."""
    if not (recipients := recipients_of(settings, Occasion.CONTRADICTED)):
        return
    messages, times = journal.messages(), defaultdict[str, list[str]](list)
    for fact in messages.contradictions:
        times[fact.batch].append(fact.at)
    for message in messages.waiting:
        times[message.batch].append(message.taken_at)
    for record in journal.batches():
        newest = max(times[record.batch], default="")
        if newest > outbox.newest_subject(Occasion.CONTRADICTED, record.batch):
            content = {
                "sheet": plain(record.sheet_name),
                "batch": record.batch,
                "messages": len(times[record.batch]),
                "at": newest,
                "link": page_address(settings, f"/payouts/{record.batch}"),
            }
            yield NewNotice(Occasion.CONTRADICTED, newest, record.batch, recipients, content)


def _deaths(settings: Settings, now: datetime) -> Iterator[NewNotice]:
    """Yield a notice for each worker that died recently, even if its rows are already in doubt."""
    recipients, database = recipients_of(settings, Occasion.WORKER_DIED), database_of(settings)
    if not recipients or database is None:
        return
    for worker in database.dead_workers(timestamp(now - _DIED_LATELY)):
        content = {
            "host": worker.host,
            "pid": worker.pid,
            "since": worker.since,
            "seen_at": worker.seen_at,
            "batch": worker.batch or "",
        }
        yield NewNotice(Occasion.WORKER_DIED, f"{worker.host} {worker.pid} {worker.since}", "", recipients, content)


def _doubts(settings: Settings, journal: JournalReader, outbox: Outbox, now: datetime) -> Iterator[NewNotice]:
    """Yield a notice for each batch with rows that are in doubt for too long. Each row is reported once."""
    recipients, hours = recipients_of(settings, Occasion.IN_DOUBT), settings.notices.in_doubt_h
    if not recipients:
        return
    until = timestamp(now - timedelta(hours=hours))
    for record in journal.batches():
        rows = journal.rows(record.number, states=SHOWN_IN_DOUBT)
        sent = sorted(row.intended_at for row in rows if row.intended_at is not None and row.intended_at <= until)
        if sent and sent[-1] > outbox.newest_subject(Occasion.IN_DOUBT, record.batch):
            content = {
                "sheet": plain(record.sheet_name),
                "batch": record.batch,
                "rows_in_doubt": len(sent),
                "hours": hours,
                "oldest": sent[0],
                "link": page_address(settings, f"/payouts/{record.batch}"),
            }
            yield NewNotice(Occasion.IN_DOUBT, sent[-1], record.batch, recipients, content)


def mail_trouble(channels: Channels) -> Trouble | None:
    """Return why the mail server cannot be used, or None. It has as much time as at the end of a command."""
    if (server := channels.mail) is None:
        return None
    troubles: list[Trouble | None] = []
    thread = Thread(target=lambda: troubles.append(server.probe()), daemon=True)
    thread.start()
    thread.join(AFTER_A_RUN_S)
    return troubles[0] if troubles else Trouble(TroubleKind.NO_ANSWER)


def listed_notices(settings: Settings) -> Sequence[KeptNotice]:
    """Return the journal's newest notices, unsent ones first, without writing to it; none without a journal."""
    with suppress(JournalMissing), place_of(settings).outbox(write=False) as outbox:
        return outbox.listed(limit=1_000)
    return ()
