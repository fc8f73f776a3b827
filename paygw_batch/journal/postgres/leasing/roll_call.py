"""Answers the roll-call: shows the witness of this host wherever the database is another one than before.

A standby that took over, or a copy that was restored, can lack what a host has sent on. The host itself finds that. A
host that has sent nothing cannot: so no host gets a lease before all have looked.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import Connection

from paygw_batch.errors import JournalError, JournalWentBack, RollCallOpen
from paygw_batch.journal.postgres.leasing.host_witness import check_witnesses, host_id_in
from paygw_batch.journal.postgres.session import Row, Server, fetch
from paygw_batch.language import say

_RETIRED = "PW007"


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host that has not shown its witness: its id, its name, and when the database saw it last."""

    host_id: str
    name: str
    seen_at: str


class RollCall:
    """The part of this host in the roll-call of one journal; `directory` has its witness."""

    def __init__(self, server: Server, directory: Path, journal_id: str) -> None:
        self._server, self._directory, self._journal_id = server, directory, journal_id
        self.host_id = host_id_in(directory, journal_id)

    def answer(self, connection: Connection[Row]) -> None:
        """Show the witness of this host. Raises `JournalWentBack`, and `RollCallOpen` while other hosts are missing."""
        missing = self.missing(connection)
        if missing:
            names = ", ".join(f"{one.name} (last seen {one.seen_at})" for one in missing)
            raise RollCallOpen(
                say(
                    "The database {place} is another one than before: it was restored, or a standby took over. Nothing "
                    "is sent until every host has looked whether it has all that the host sent. Missing: {names}.",
                    place=self._server.place,
                    names=names,
                ),
            )

    def missing(self, connection: Connection[Row]) -> Sequence[MissingHost]:
        """Show the witness of this host, and return the hosts that have not. Raises `JournalWentBack`."""
        try:
            check_witnesses(connection, self._server, self._directory, self._journal_id)
        except JournalWentBack:
            fetch(connection, "SELECT call_roll(%s, %s)", (self.host_id, socket.gethostname()))
            raise
        is_synchronous = self._server.replication == "synchronous"
        try:
            found = fetch(
                connection,
                "SELECT host_id, name, seen_at FROM show_witness(%s, %s, %s)",
                (self.host_id, socket.gethostname(), is_synchronous),
            )
        except psycopg.Error as error:
            if error.sqlstate != _RETIRED:
                raise
            raise JournalError(
                f"This host was retired from the journal in {self._server.place}: its rows that were not done are "
                "in doubt.",
                hint=f"Nothing was sent. To use it again, remove its witness: the files {self._journal_id}* in "
                f"{self._directory}.",
            ) from None
        return [MissingHost(*line) for line in found]


def missing_hosts(connection: Connection[Row]) -> Sequence[MissingHost]:
    """Return the hosts that have not shown their witness, as a person is to see them."""
    query = """SELECT host_id, name, to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"') FROM missing_host
        ORDER BY 2, 1"""
    return [MissingHost(*line) for line in fetch(connection, query)]
