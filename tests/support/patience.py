"""A time limit for waits in tests. It is so long that no test fails because the machine is busy."""

import time
from collections.abc import Callable

PATIENCE_S = 300.0


def wait_until(
    holds: Callable[[], object], why: str | Callable[[], str] = "nothing came", *, look_every_s: float = 0.02
) -> None:
    """Wait until `holds` returns true. Fails with `why` if it never does."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at_s, why if isinstance(why, str) else why()
        time.sleep(look_every_s)
