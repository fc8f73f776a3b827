"""Random histories: journal and model go through them side by side, and at every step only what may be sent is due."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.two_stores import IDS, Pair, go_through, moves
from tests.support.journal_rows import AT, all_due, intent, open_at
from tests.support.long_part import share_of


@contextmanager
def pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as name:
        both = Pair(partial(open_at, Path(name)))
        try:
            yield both
        finally:
            both.disk.close()


@settings(max_examples=share_of(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_journal_agrees_with_model_in_any_history(data: st.DataObject) -> None:
    with pair() as both:
        go_through(both, data, steps=25)


@settings(max_examples=share_of(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_interleaved_intents_take_each_row_once(data: st.DataObject) -> None:
    """Two readings of what is due, claimed in any order and grouping, send each row once."""
    with pair() as both:
        both.open_batch([(order_id, "1.00") for order_id in IDS], AT)
        claims = [intent(due) for due in all_due(both.disk, 1) for _ in range(2)]
        claims = data.draw(st.permutations(claims))
        won = []
        while claims:
            size = data.draw(st.integers(1, len(claims)))
            group, claims = claims[:size], claims[size:]
            moved = moves(both.disk.append(group))
            assert moved == both.model.append(group)
            won += [entry.instruction for entry, did_move in zip(group, moved, strict=True) if did_move]
        assert sorted(won) == list(range(1, len(IDS) + 1))
        assert both.disk.messages().contradictions == []
