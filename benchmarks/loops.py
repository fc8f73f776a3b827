"""Chooses the event loop that the program would use."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is installed, otherwise None for the standard library's."""
    try:
        import uvloop  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return uvloop.new_event_loop
