"""Builds frames only when they are asked for."""

from collections.abc import Callable
from functools import cached_property

import polars as pl


class Deferred:
    """Builds a frame on first use. `validate` never builds most of them."""

    def __init__(self, make: Callable[[], pl.DataFrame]) -> None:
        self._make = make

    @classmethod
    def of(cls, frame: pl.DataFrame) -> "Deferred":
        """Return a frame that is there already."""
        return cls(lambda: frame)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The frame itself."""
        return self._make()
