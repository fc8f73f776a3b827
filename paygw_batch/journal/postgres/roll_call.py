"""Answers the roll-call: says how much left from this host if the database is not the one it saw before.

A promoted standby, or a restored copy, can lack commits that a host has sent on. Only that host can detect it: so no
host sends before all hosts have looked.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import Connection

from paygw_batch.errors import JournalError, JournalWentBack, RollCallOpen
from paygw_batch.journal.postgres.host_files import HostLife, check_left, counts_in, host_id_in, public_id
from paygw_batch.journal.postgres.session import Row, Server, fetch
from paygw_batch.language import say

_RETIRED, _OLDER = "PW007", "PW012"


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host that has not answered: its id, its name, and when it was last seen."""

    host_id: str
    name: str
    seen_at: str
    lives: bool = False
    """Whether it was seen since the roll-call began: then it must accept its loss itself."""


class RollCall:
    """The part of this host in the roll-call of one journal; its `folder` says what left."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._secret = host_id_in(folder)
        self.host_id = public_id(self._secret)
        self.life = HostLife(folder)

    def answer(self, connection: Connection[Row]) -> None:
        """Answer for this host. Raises `JournalWentBack`, and `RollCallOpen` while other hosts are missing."""
        missing = self.missing(connection)
        if missing:
            names = ", ".join(f"{one.name} (last seen {one.seen_at})" for one in missing)
            raise RollCallOpen(
                say(
                    "The database {place} was restored, or a standby took over. Nothing is sent until every host has "
                    "checked that its rows are there. Missing: {names}.",
                    place=self._server.place,
                    names=names,
                ),
            )

    def missing(self, connection: Connection[Row]) -> Sequence[MissingHost]:
        """Answer for this host, and return the hosts that have not. Raises `JournalWentBack`."""
        ((life,),) = fetch(connection, "SELECT database_life()")
        try:
            self.life.enter(life)
            check_left(connection, self._server, self._folder)
            return [MissingHost(*line) for line in self._shown(connection)]
        except JournalWentBack:
            fetch(connection, "SELECT call_roll(%s, %s)", (self._secret, socket.gethostname()))
            raise

    def _shown(self, connection: Connection[Row]) -> list[Row]:
        is_synchronous = self._server.replication == "synchronous"
        try:
            return fetch(
                connection,
                "SELECT host_id, name, seen_at FROM answer_roll(%s, %s, %s, %s)",
                (self._secret, socket.gethostname(), is_synchronous, counts_in(self._folder)),
            )
        except psycopg.Error as error:
            if error.sqlstate == _RETIRED:
                raise self.retired() from None
            if error.sqlstate != _OLDER:
                raise
            raise JournalWentBack(
                say(
                    "This machine's record of what left ({folder}) has less than when it last answered: it is an "
                    "older copy, or a part of it is gone.",
                    folder=self._folder,
                ),
                hint=say(
                    "Nothing was sent. Put its newest files back. Only if they are lost, run `paygw-batch journal "
                    "roll-call --accept-loss` on this host: every row that it could have sent is then in doubt."
                ),
            ) from None

    def retired(self) -> JournalError:
        """Return the error for a host that a person retired."""
        return JournalError(
            say(
                "This host was retired from the journal in {place}: the rows that it had not finished are in doubt.",
                place=self._server.place,
            ),
            hint=say(
                "Nothing was sent. To use it again, remove its record of what left: the folder {folder}.",
                folder=self._folder,
            ),
        )

    def is_older(self, connection: Connection[Row]) -> bool:
        """Whether this host has noted fewer commits than when it last answered."""
        counts = counts_in(self._folder)
        return fetch(connection, "SELECT left_is_older(%s, %s)", (self.host_id, counts)) == [(True,)]

    def is_retired(self, connection: Connection[Row]) -> bool:
        """Whether a person retired this host."""
        query = "SELECT FROM roll_answer WHERE host_id = %s AND retired_by <> ''"
        return bool(fetch(connection, query, (self.host_id,)))


def missing_hosts(connection: Connection[Row]) -> Sequence[MissingHost]:
    """Return the hosts that have not answered, described for a person."""
    query = """SELECT host_id, name, to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'), lives(host_id)
        FROM missing_host ORDER BY 2, 1"""
    return [MissingHost(*line) for line in fetch(connection, query)]
