"""Keeps the memory of the checks for a few sheets that people are correcting."""

from collections import OrderedDict
from threading import Lock

from paygw_batch.actions.kept_sheet import CheckMemory

MAX_SHEETS = 2
"""A sheet of 200,000 rows takes about 100 MB: the pages have room for two. A third starts with an empty memory."""


class CheckMemories:
    """The memory of each payout in preparation, by its number. It may be called from several threads."""

    def __init__(self) -> None:
        self._memories: OrderedDict[str, CheckMemory] = OrderedDict()
        self._lock = Lock()

    def of(self, number: str) -> CheckMemory:
        """Return the memory of a payout; an empty one for a payout that was not corrected lately."""
        with self._lock:
            memory = self._memories.setdefault(number, CheckMemory())
            self._memories.move_to_end(number)
            while len(self._memories) > MAX_SHEETS:
                self._memories.popitem(last=False)
            return memory
