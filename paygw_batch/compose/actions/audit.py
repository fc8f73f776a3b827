"""Reads, checks and continues the audit trail of the console: the acts of people on it, and the refusals."""

from collections.abc import Sequence

from paygw_batch.compose.journal import journal_to_read, open_to_write
from paygw_batch.journal import AuditEnd, AuditEntry, AuditTrail, JournalReader, audit_entries, verify_audit_trail
from paygw_batch.settings.configuration import Settings


def open_trail(settings: Settings) -> AuditTrail:
    """Open the audit trail of the configured journal, and begin it where there is none.

    The sandbox makes its journal first. Any other must be there, and need not be known to this user: nothing is sent.
    """
    if settings.uses_sandbox and not settings.journal_path().exists():
        open_to_write(settings, "console").close()
    with journal_to_read(settings) as journal:
        journal_id = journal.head().journal_id
    return AuditTrail(settings.journal_path(), journal_id)


def newest_entries(settings: Settings, *, before: int | None = None, limit: int) -> Sequence[AuditEntry]:
    """Return up to `limit` entries before entry `before` (None: the newest), newest first."""
    return audit_entries(settings.journal_path(), before=before, limit=limit)


def verify_trail(settings: Settings, journal: JournalReader) -> AuditEnd | None:
    """Check the whole trail; return its end, or None where there is none. Raises `AuditDamaged`."""
    return verify_audit_trail(settings.journal_path(), journal.head().journal_id)
