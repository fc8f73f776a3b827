"""A journal for tests of any store, with the engine's operations as plain calls."""

from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal

Journal = SqliteJournal | PostgresJournal
