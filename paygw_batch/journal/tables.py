"""Declares how the parts of the journal that every store shares ask its tables: by the names of statements."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from paygw_batch.journal.facts.chain import Identity


class Tables(Protocol):
    """The tables of one journal: its named SQL, and the further duties of a store."""

    @property
    def identity(self) -> Identity:
        """Which journal it is."""
        ...

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return all it finds. A list is never empty."""
        ...

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement, and yield its rows without holding all of them."""
        ...

    def each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Run a statement for each of many rows, whose values `columns` name, and yield the results in order."""
        ...

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Write an order id that no instruction of the operation has."""
        ...

    def storable(self, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return values as the store keeps them."""
        ...

    def lock_rows(self, numbers: Sequence[int]) -> bool:
        """Let nobody move these instructions until the open transaction ends; return whether somebody may have."""
        ...

    def write_evidence_in_turn(self) -> None:
        """Let no other transaction write evidence until the open one ends."""
        ...
