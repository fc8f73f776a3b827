"""Opens journals, and names the values and operations that other parts of the program use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paygw_batch.journal.batch_part import BatchPart, InstructionRows
from paygw_batch.journal.facts.audit_chain import AuditEnd, AuditEntry, AuditNote, AuditResult
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.facts.codec import canonical
from paygw_batch.journal.gate_port import (
    CountedKind,
    CountedOutcomes,
    Gate,
    GateGrant,
    GateReport,
    GateState,
    GateStop,
    GateStopKind,
    LimitChange,
    WorkerPlaces,
)
from paygw_batch.journal.kept_notification import Notification, decode_notification, encode_notification
from paygw_batch.journal.kept_plan import KeptPlan
from paygw_batch.journal.payment_port import FoundPayment, PaymentSearch
from paygw_batch.journal.port import EngineJournal, Journal, JournalReader
from paygw_batch.journal.shared_run import RunOfWorkers, SharedRun, WorkerLife
from paygw_batch.journal.values import (
    LINE_COLUMNS,
    Amendment,
    AttemptReply,
    BatchRecord,
    CarriedOut,
    Clash,
    ClockSeen,
    Contradiction,
    Due,
    Entry,
    HistoryEntry,
    Hold,
    InboxEnd,
    KeptReply,
    Known,
    LookAlike,
    Messages,
    MoveResult,
    NewBatch,
    NewInstruction,
    RepeatedBatch,
    RowStanding,
    StateTally,
    TallyKind,
    UsedSpelling,
    WaitingEvidence,
)

if TYPE_CHECKING:
    from paygw_batch.journal.audit.audit_trail import AuditTrail, audit_entries, verify_audit_trail
    from paygw_batch.journal.guards.location import make_directory
    from paygw_batch.journal.guards.lock import LockHolder, journal_holder
    from paygw_batch.journal.opening.adopt import Adoption
    from paygw_batch.journal.opening.create import new_journal
    from paygw_batch.journal.opening.in_memory import in_memory_journal
    from paygw_batch.journal.opening.move import Move, move_journal
    from paygw_batch.journal.opening.open import SqliteJournal, SqliteReader, open_journal, read_journal
    from paygw_batch.journal.opening.open_postgres import (
        MissingHost,
        PostgresJournal,
        PostgresPlace,
        PostgresReader,
        WorkerJournal,
        change_postgres_limits,
        give_postgres_rights,
        keep_postgres_plan,
        new_postgres_journal,
        newest_postgres_plan,
        open_postgres_journal,
        open_worker_journal,
        place_of_database,
        postgres_holder,
        postgres_limits,
        postgres_role,
        read_postgres_journal,
        retire_host,
        roll_call_of,
        upgrade_postgres_journal,
    )
    from paygw_batch.journal.sqlite.connect import SideDatabase
    from paygw_batch.journal.sqlite.inbox import Inbox, InboxReader, inbox_path

__all__ = [
    "LINE_COLUMNS",
    "Adoption",
    "Amendment",
    "AttemptReply",
    "AuditEnd",
    "AuditEntry",
    "AuditNote",
    "AuditResult",
    "AuditTrail",
    "BatchPart",
    "BatchRecord",
    "CarriedOut",
    "Clash",
    "ClockSeen",
    "Contradiction",
    "CountedKind",
    "CountedOutcomes",
    "Due",
    "EngineJournal",
    "Entry",
    "FoundPayment",
    "Gate",
    "GateGrant",
    "GateReport",
    "GateState",
    "GateStop",
    "GateStopKind",
    "HistoryEntry",
    "Hold",
    "Identity",
    "Inbox",
    "InboxEnd",
    "InboxReader",
    "InstructionRows",
    "Journal",
    "JournalReader",
    "KeptPlan",
    "KeptReply",
    "Known",
    "LimitChange",
    "LockHolder",
    "LookAlike",
    "Messages",
    "MissingHost",
    "Move",
    "MoveResult",
    "NewBatch",
    "NewInstruction",
    "Notification",
    "PaymentSearch",
    "PostgresJournal",
    "PostgresPlace",
    "PostgresReader",
    "RepeatedBatch",
    "RowStanding",
    "RunOfWorkers",
    "SharedRun",
    "SideDatabase",
    "SqliteJournal",
    "SqliteReader",
    "StateTally",
    "TallyKind",
    "UsedSpelling",
    "WaitingEvidence",
    "WorkerJournal",
    "WorkerLife",
    "WorkerPlaces",
    "audit_entries",
    "canonical",
    "change_postgres_limits",
    "decode_notification",
    "encode_notification",
    "give_postgres_rights",
    "in_memory_journal",
    "inbox_path",
    "journal_holder",
    "keep_postgres_plan",
    "make_directory",
    "move_journal",
    "new_journal",
    "new_postgres_journal",
    "newest_postgres_plan",
    "open_journal",
    "open_postgres_journal",
    "open_worker_journal",
    "place_of_database",
    "postgres_holder",
    "postgres_limits",
    "postgres_role",
    "read_journal",
    "read_postgres_journal",
    "retire_host",
    "roll_call_of",
    "upgrade_postgres_journal",
    "verify_audit_trail",
]

_ON_DEMAND = {
    "LockHolder": "paygw_batch.journal.guards.lock",
    "journal_holder": "paygw_batch.journal.guards.lock",
    "AuditTrail": "paygw_batch.journal.audit.audit_trail",
    "audit_entries": "paygw_batch.journal.audit.audit_trail",
    "verify_audit_trail": "paygw_batch.journal.audit.audit_trail",
    "make_directory": "paygw_batch.journal.guards.location",
    "Adoption": "paygw_batch.journal.opening.adopt",
    "new_journal": "paygw_batch.journal.opening.create",
    "Move": "paygw_batch.journal.opening.move",
    "move_journal": "paygw_batch.journal.opening.move",
    "SqliteJournal": "paygw_batch.journal.opening.open",
    "SqliteReader": "paygw_batch.journal.opening.open",
    "open_journal": "paygw_batch.journal.opening.open",
    "read_journal": "paygw_batch.journal.opening.open",
    "in_memory_journal": "paygw_batch.journal.opening.in_memory",
    "MissingHost": "paygw_batch.journal.opening.open_postgres",
    "PostgresJournal": "paygw_batch.journal.opening.open_postgres",
    "PostgresPlace": "paygw_batch.journal.opening.open_postgres",
    "PostgresReader": "paygw_batch.journal.opening.open_postgres",
    "WorkerJournal": "paygw_batch.journal.opening.open_postgres",
    "new_postgres_journal": "paygw_batch.journal.opening.open_postgres",
    "open_postgres_journal": "paygw_batch.journal.opening.open_postgres",
    "open_worker_journal": "paygw_batch.journal.opening.open_postgres",
    "place_of_database": "paygw_batch.journal.opening.open_postgres",
    "change_postgres_limits": "paygw_batch.journal.opening.open_postgres",
    "give_postgres_rights": "paygw_batch.journal.opening.open_postgres",
    "keep_postgres_plan": "paygw_batch.journal.opening.open_postgres",
    "newest_postgres_plan": "paygw_batch.journal.opening.open_postgres",
    "postgres_role": "paygw_batch.journal.opening.open_postgres",
    "postgres_holder": "paygw_batch.journal.opening.open_postgres",
    "postgres_limits": "paygw_batch.journal.opening.open_postgres",
    "read_postgres_journal": "paygw_batch.journal.opening.open_postgres",
    "retire_host": "paygw_batch.journal.opening.open_postgres",
    "roll_call_of": "paygw_batch.journal.opening.open_postgres",
    "upgrade_postgres_journal": "paygw_batch.journal.opening.open_postgres",
    "SideDatabase": "paygw_batch.journal.sqlite.connect",
    "Inbox": "paygw_batch.journal.sqlite.inbox",
    "InboxReader": "paygw_batch.journal.sqlite.inbox",
    "inbox_path": "paygw_batch.journal.sqlite.inbox",
}
"""The names imported on first use, each with its module: most commands open no journal and need no SQLite."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name of `_ON_DEMAND` when it is first asked for."""
        if name in _ON_DEMAND:
            return getattr(import_module(_ON_DEMAND[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
