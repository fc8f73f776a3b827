"""Temporal: an activity that sends a share of a batch, five minutes at a time (docs/several-hosts.md)."""

import asyncio

from temporalio import activity
from temporalio.exceptions import ApplicationError

HEARTBEAT_S = 10
STILL_TO_SEND = {6, 130}


@activity.defn
async def share(batch: str) -> None:
    """Send a share. Temporal tries again if rows are left, and never if a person is needed."""
    process = await asyncio.create_subprocess_exec("paygw-batch", "work", "--once", batch, "--for", "300")
    try:
        while process.returncode is None:
            activity.heartbeat()
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=HEARTBEAT_S)
    except asyncio.CancelledError:
        process.terminate()  # rows in flight are waited for
        await process.wait()
        raise
    if process.returncode in STILL_TO_SEND:
        raise ApplicationError("Rows are still to be sent.")
    if process.returncode:
        raise ApplicationError(f"paygw-batch ended with {process.returncode}.", non_retryable=True)
