"""Writes notices about events to the outbox, for the configured recipients.

The end of a run is not a fact in the journal, because a killed run writes nothing. Its notice is therefore written
before the first row is sent, and becomes due when the run has ended, however it ends. Its figures are read when it is
first sent. No error in this module delays a payout or changes an exit code.
"""

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from paygw_batch.approval.plan_document import PlanDocument, needs_approval
from paygw_batch.approval.policy import approval_policy
from paygw_batch.approval.signed_document import verify_signatures
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.errors import PaygwError
from paygw_batch.gateway.signing.key import EXPIRY_WARNING_DAYS, SigningKey
from paygw_batch.journal import BatchRecord, Journal, NewNotice, Occasion
from paygw_batch.language import say
from paygw_batch.opening.open_journal import Echo, journal_location
from paygw_batch.settings.configuration import Settings

WEBHOOK = "webhook"
"""The name of the webhook among the recipients. No e-mail address looks like this."""


def notice_recipients(settings: Settings, occasion: Occasion) -> list[str]:
    """Return the recipients of notices about an occasion: addresses, and the webhook."""
    section = settings.notices
    has_webhook = section.has_webhook and occasion.value in section.webhook_for
    return [*dict.fromkeys(section.mailboxes(occasion.value)), *([WEBHOOK] if has_webhook else [])]


def has_notices(settings: Settings) -> bool:
    """Return whether any occasion has a recipient."""
    return settings.notices.has_webhook or bool(settings.notices.recipients())


def add_run_end_notice(settings: Settings, journal: Journal, batch: BatchRecord, echo: Echo) -> None:
    """Write the notice about the end of a run, before the run sends its first row."""
    recipients = notice_recipients(settings, Occasion.RUN_ENDED)
    if recipients:
        with _reporting_failures(echo):
            journal.schedule_end_notices(
                [NewNotice(Occasion.RUN_ENDED, token_hex(8), batch.batch, recipients)], timestamp(utc_now())
            )


def add_refused_sheet_notice(
    settings: Settings, sheet: str, defects: int, answer: Path | None, echo: Echo, *, subject: str = ""
) -> None:
    """Write the notice that a sheet was refused, once for each `subject`. `answer` is the file with the reason."""
    path = "" if answer is None else replace_invalid_characters(str(answer))
    content = {"sheet": replace_invalid_characters(sheet), "defects": defects, "answer": path}
    _add_notice(settings, Occasion.SHEET_REFUSED, replace_invalid_characters(subject) or token_hex(8), content, echo)


def plan_notices(settings: Settings, document: PlanDocument, path: str = "") -> list[NewNotice]:
    """Return the notice that a new plan waits for approval, if anyone receives it. `path` is its console page."""
    recipients, policy = notice_recipients(settings, Occasion.PLAN_WAITS), approval_policy(settings)
    if not recipients or policy is None or document.approvals or not needs_approval(document.content, policy):
        return []
    content = document.content
    data = {
        "sheet": replace_invalid_characters(content.sheet),
        "batch": content.batch,
        "rows": content.rows,
        "totals": content.totals,
        "maker": verify_signatures(document, policy, utc_now()).maker.name,
        "needed": policy.needed,
        "code": document.code,
        "link": page_url(settings, path),
    }
    return [NewNotice(Occasion.PLAN_WAITS, document.digest(), content.batch, recipients, data)]


def ignore_sentence(sentence: str) -> None:
    """Ignore a sentence, for callers without a reader."""


def add_notices(settings: Settings, notices: Sequence[NewNotice], echo: Echo = ignore_sentence) -> None:
    """Write notices to the outbox in a separate transaction."""
    if any(notice.recipients for notice in notices):
        with _reporting_failures(echo), journal_location(settings).outbox(write=True) as outbox:
            outbox.add(notices, timestamp(utc_now()))


def add_key_expiry_notice(settings: Settings, key: SigningKey, echo: Echo) -> None:
    """Write a notice that the private key expires soon or has expired, each once."""
    days = key.custody.days_left(utc_now().date())
    if key.custody.expires is None or days is None or days >= EXPIRY_WARNING_DAYS:
        return
    until, location = key.custody.expires.isoformat(), key.custody.location
    data = {"what": "key", "place": replace_invalid_characters(location), "until": until, "has_ended": days < 0}
    _add_notice(settings, Occasion.RUNS_OUT, f"key {key.public.fingerprint()} {until} {days < 0}", data, echo)


def add_disk_notice(settings: Settings, free_bytes: int, echo: Echo) -> None:
    """Write the notice that the journal's disk lacks room for a run, once a day."""
    host, today = platform.node(), utc_now().date().isoformat()
    data = {"what": "disk", "host": replace_invalid_characters(host), "free_bytes": free_bytes}
    _add_notice(settings, Occasion.RUNS_OUT, f"disk {today} {data['host']}", data, echo)


def _add_notice(settings: Settings, occasion: Occasion, subject: str, data: Mapping[str, object], echo: Echo) -> None:
    add_notices(settings, [NewNotice(occasion, subject, "", notice_recipients(settings, occasion), data)], echo)


def page_url(settings: Settings, path: str) -> str:
    """Return the URL of a console page, or an empty string if no console is configured."""
    return "" if settings.console.origin is None else f"{settings.console.origin}{path}"


def replace_invalid_characters(text: str) -> str:
    """Return a string that UTF-8 can encode, because a file name may contain other bytes."""
    return text.encode(errors="replace").decode()


@contextmanager
def _reporting_failures(echo: Echo) -> Iterator[None]:
    """Pass a sentence to `echo` if a notice cannot be written and continue."""
    try:
        yield
    except PaygwError as error:
        echo(say("A notice could not be written, so it was not sent: {reason}", reason=error.message))
