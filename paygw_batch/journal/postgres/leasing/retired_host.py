"""Retires a host that will not show its witness any more: every row that it could have sent is put in doubt.

The database may lack what the host did last. It could have taken any chunk meanwhile: so that means each row that is
ready or in flight. Each gets an intent and an interruption, as if it had been sent: a person settles it.
"""

from psycopg import Connection

from paygw_batch.core.lifecycle import Intended, Interrupted
from paygw_batch.errors import JournalHeld
from paygw_batch.journal.facts.chain import Link
from paygw_batch.journal.postgres.leasing.lease_writer import LeaseWriter
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.postgres.standing_lines import CHUNK_OF_ROW, LOADED, loaded_from
from paygw_batch.journal.values import Entry

_AT_ONCE = 1_000
_UNDONE = """SELECT c.number, count(*) FROM chunk c JOIN instruction i ON i.number BETWEEN c.first AND c.last
        LEFT JOIN standing s ON s.instruction = i.number
    WHERE coalesce(s.state, 'ready') IN ('ready', 'in_flight')
        AND (s.state = 'in_flight' OR NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = i.number))
    GROUP BY 1 ORDER BY 1"""
_READY = f"""SELECT {LOADED} FROM progress p {CHUNK_OF_ROW} WHERE c.number = %s AND p.state = 'ready'
        AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = p.number)
    ORDER BY p.number LIMIT {_AT_ONCE}"""  # noqa: S608 - constants of ours
"""A row that evidence holds is left out: nothing sends it before a person has settled it."""


class NoWitness:
    """Takes the place of a witness: a command that retires a host sends nothing, and leaves the witness alone."""

    def note(self, segment: int, end: Link) -> None:
        """Note nothing."""

    def close(self) -> None:
        """Do nothing."""


def put_undone_in_doubt(connection: Connection[Row], writer: LeaseWriter, at: str) -> int:
    """Put every row in doubt that is ready or in flight, and return how many. It can be run again after a crash.

    Raises `JournalHeld` while another process has rows leased.
    """
    fetch(connection, "SET paygw.retires = 'on'")
    rows = 0
    for chunk, undone in fetch(connection, _UNDONE):
        if chunk not in writer.lease_chunks([chunk]):  # puts in doubt what is in flight there
            raise JournalHeld("Another process still sends rows of this journal.")
        while found := fetch(connection, _READY, (chunk,)):
            entries = []
            for one in map(loaded_from, found):
                attempt = one.progress.standing.attempt + 1
                fact = Intended(one.progress.order_id, "a retired host", 0, "0" * 64, None)
                entries += [Entry(one.number, attempt, fact, at), Entry(one.number, attempt, Interrupted(), at)]
            writer.append(entries)
        rows += undone
    return rows


def write_retired(connection: Connection[Row], host_id: str, by: str) -> None:
    """Write down who retired a host: the roll-call does not ask for it any more."""
    fetch(connection, "SELECT retire_host(%s, %s)", (host_id, by))
