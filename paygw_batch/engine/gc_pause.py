"""Lets the garbage collector run less often during a run.

A payout leaves no reference cycle behind, so that the collector never finds anything; but at Python's own setting it
looks through all that is in flight and signed ahead after every few payouts, which was a fifth of their cost.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""More new objects than a run holds at a time: it looks when something else makes as many, and then as ever."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Have the collector look only after `YOUNG_OBJECTS` new objects, for as long as the block lasts."""
    before = gc.get_threshold()
    gc.set_threshold(max(YOUNG_OBJECTS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
