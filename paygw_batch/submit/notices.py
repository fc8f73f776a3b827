"""Writes notices about events to the outbox, for the configured recipients.

A killed run cannot record its own end. The notice about the end is therefore written before the first row is sent. It
becomes due when the run ends for any reason, and its figures are read when it is first sent. No error in this
module delays a payout or changes an exit code.
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
"""The recipient name of the webhook. It cannot be an email address."""


def notice_recipients(settings: Settings, occasion: Occasion) -> list[str]:
    """Return who receives notices on an occasion: email addresses, and the webhook if configured."""
    section = settings.notices
    has_webhook = section.has_webhook and occasion.value in section.webhook_for
    return [*dict.fromkeys(section.mailboxes(occasion.value)), *([WEBHOOK] if has_webhook else [])]


def has_notice_recipients(settings: Settings) -> bool:
    return settings.notices.has_webhook or bool(settings.notices.recipients())


def add_run_end_notice(settings: Settings, journal: Journal, batch: BatchRecord, echo: Echo) -> None:
    """Schedule the notice about the end of a run, before the run sends its first row."""
    if recipients := notice_recipients(settings, Occasion.RUN_ENDED):
        notice = NewNotice(Occasion.RUN_ENDED, token_hex(8), batch.batch, recipients)
        with _reporting_failures(echo):
            journal.schedule_end_notices([notice], timestamp(utc_now()))


def add_refused_sheet_notice(
    settings: Settings, sheet: str, defects: int, answer: Path | None, echo: Echo, *, subject: str = ""
) -> None:
    """Write a notice that a sheet was refused, once for each `subject`. `answer` is the file with the reason."""
    path = "" if answer is None else replace_invalid_characters(str(answer))
    data = {"sheet": replace_invalid_characters(sheet), "defects": defects, "answer": path}
    _add_notice(settings, Occasion.SHEET_REFUSED, replace_invalid_characters(subject) or token_hex(8), data, echo)


def plan_notices(settings: Settings, document: PlanDocument, path: str = "") -> list[NewNotice]:
    """Return a notice that a new plan awaits approval, if it needs any. `path` is the plan's page in the console."""
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


def discard_message(message: str) -> None:
    """Discard a message; for callers that have nobody to show it to."""


def add_notices(settings: Settings, notices: Sequence[NewNotice], echo: Echo = discard_message) -> None:
    """Write notices to the outbox in a separate transaction."""
    if any(notice.recipients for notice in notices):
        with _reporting_failures(echo), journal_location(settings).outbox(write=True) as outbox:
            outbox.add(notices, timestamp(utc_now()))


def add_key_expiry_notice(settings: Settings, key: SigningKey, echo: Echo) -> None:
    """Write a notice when the private key expires soon, and another when it has expired."""
    days = key.custody.days_left(utc_now().date())
    if key.custody.expires is None or days is None or days >= EXPIRY_WARNING_DAYS:
        return
    expires, location = key.custody.expires.isoformat(), key.custody.location
    data = {"what": "key", "place": replace_invalid_characters(location), "until": expires, "has_ended": days < 0}
    _add_notice(settings, Occasion.RUNS_OUT, f"key {key.public.fingerprint()} {expires} {days < 0}", data, echo)


def add_disk_notice(settings: Settings, free_bytes: int, echo: Echo) -> None:
    """Write a notice that the journal's disk lacks space for a run, at most once a day."""
    host, today = platform.node(), utc_now().date().isoformat()
    data = {"what": "disk", "host": replace_invalid_characters(host), "free_bytes": free_bytes}
    _add_notice(settings, Occasion.RUNS_OUT, f"disk {today} {data['host']}", data, echo)


def _add_notice(settings: Settings, occasion: Occasion, subject: str, data: Mapping[str, object], echo: Echo) -> None:
    add_notices(settings, [NewNotice(occasion, subject, "", notice_recipients(settings, occasion), data)], echo)


def page_url(settings: Settings, path: str) -> str:
    """Return the URL of a console page, or an empty string if no console is configured."""
    return "" if settings.console.origin is None else f"{settings.console.origin}{path}"


def replace_invalid_characters(text: str) -> str:
    """Replace characters that UTF-8 cannot encode. File names may contain them."""
    return text.encode(errors="replace").decode()


@contextmanager
def _reporting_failures(echo: Echo) -> Iterator[None]:
    """Report errors to `echo` instead of raising them."""
    try:
        yield
    except PaygwError as error:
        echo(say("A notice could not be written, so it was not sent: {reason}", reason=error.message))
