"""Random histories in PostgreSQL, with the same steps and model as for a journal in a file."""

import tempfile
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.two_stores import Pair, play_history
from tests.support.long_part import example_count
from tests.support.postgres_rows import open_postgres, postgres_place
from tests.support.postgres_server import PostgresServer


@settings(max_examples=example_count(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_postgres_journal_agrees_with_model_in_any_history(
    postgres_server: PostgresServer, postgres_template: str, data: st.DataObject
) -> None:
    name = postgres_server.new_database(postgres_template)
    with tempfile.TemporaryDirectory() as directory:
        place = postgres_place(postgres_server.url(name), Path(directory))
        pair = Pair(partial(open_postgres, place), is_shared=True)
        try:
            play_history(pair, data, steps=12)
        finally:
            pair.disk.close()
            postgres_server.drop_database(name)
