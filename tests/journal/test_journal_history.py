"""Random histories: the journal agrees with its model after every step."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.two_stores import IDS, Pair, moved_flags, play_history
from tests.support.journal_rows import AT, due_rows, intent, open_journal_at
from tests.support.long_part import example_count
from tests.support.postgres_rows import open_postgres, postgres_place
from tests.support.postgres_server import PostgresServer


@contextmanager
def open_pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as name:
        pair = Pair(partial(open_journal_at, Path(name)))
        try:
            yield pair
        finally:
            pair.disk.close()


@settings(max_examples=example_count(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_journal_agrees_with_model_in_any_history(data: st.DataObject) -> None:
    with open_pair() as pair:
        play_history(pair, data, steps=25)


@settings(max_examples=example_count(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_interleaved_intents_send_each_row_once(data: st.DataObject) -> None:
    """Due rows that were read twice and claimed in any order and grouping are each sent once."""
    with open_pair() as pair:
        pair.open_batch([(order_id, "1.00") for order_id in IDS], AT)
        claims = [intent(due) for due in due_rows(pair.disk, 1) for _ in range(2)]
        claims = data.draw(st.permutations(claims))
        won = []
        while claims:
            size = data.draw(st.integers(1, len(claims)))
            group, claims = claims[:size], claims[size:]
            moved = moved_flags(pair.disk.append(group))
            assert moved == pair.model.append(group)
            won += [entry.instruction for entry, did_move in zip(group, moved, strict=True) if did_move]
        assert sorted(won) == list(range(1, len(IDS) + 1))
        assert pair.disk.messages().contradictions == []


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
