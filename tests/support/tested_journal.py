"""A journal as tests use it, of any store: each has what an engine does to it as plain calls, one at a time."""

from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal

Journal = SqliteJournal | PostgresJournal
