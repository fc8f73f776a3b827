"""Without all other guards, the unique index alone keeps a row from having two intents."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.values import MoveResult
from tests.promise.cluster.planted import NO_CLAIM, NO_INDEX
from tests.promise.cluster.protocol import plant_sql
from tests.support.journal_rows import due_rows, intent, open_sheet, send
from tests.support.postgres_rows import open_postgres, postgres_place
from tests.support.postgres_server import PostgresServer


def send_by_both(url: str, home: Path) -> Sequence[MoveResult]:
    """Freeze a run before its intent, let another one send the row, then continue the first one."""
    home.chmod(0o700)
    at = postgres_place(url, home, intent_lives_s=600.0)
    with closing(open_postgres(at)) as frozen:
        open_sheet(frozen, new=1)
        (due,) = due_rows(frozen, 1)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE paygw.process SET seen_at = seen_at - interval '1 hour'")
        with closing(open_postgres(at)) as taker:
            assert len(send(taker, 1, OutcomeKind.PAID)) == 1
        return frozen.append([intent(due)])


@pytest.fixture
def unguarded(postgres_server: PostgresServer, postgres_template: str) -> str:
    """A database whose commits refuse no intent, in any state of its row."""
    url = postgres_server.url(postgres_server.new_database(postgres_template))
    plant_sql(url, NO_CLAIM)
    return url


def test_index_refuses_second_intent(unguarded: str, tmp_path: Path) -> None:
    with pytest.raises(JournalUnwritable, match="fact_one_intent"):
        send_by_both(unguarded, tmp_path)


def test_row_is_sent_twice_without_index(unguarded: str, tmp_path: Path) -> None:
    with psycopg.connect(unguarded, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute(NO_INDEX)
    assert send_by_both(unguarded, tmp_path) == [MoveResult.MOVED]
