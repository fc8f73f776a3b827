"""Enquiries in a simulated world: `refresh` asks, soon after a run, and the gateway says what it knows by then."""

import asyncio
import json
from typing import TYPE_CHECKING

from paygw_batch.countries.load import load_enquiry
from paygw_batch.engine.quarantine import DateWatch
from paygw_batch.gateway.enquiry import EnquiryAnswer, read_answer
from paygw_batch.gateway.message import Expected, RawReply
from paygw_batch.settle.refresh import Clock, Politeness, Refresh
from tests.promise.simulation.gateway import OPERATIONS, Said
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.process import Process, hold
from tests.promise.simulation.sheets import MINOR_UNITS
from tests.promise.simulation.words import MEANS, WORDS

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld

NOT_FOUND = "no-such-order"
_ENQUIRY = load_enquiry("paynet-v4", OPERATIONS["payout"])
_SAID = {Said.NO: "declined", Said.PENDING: "processing", Said.YES: "approved"}


async def refresh_rows(process: Process) -> int:
    """Ask after rows that are accepted or in doubt. The gateway does not know yet what it will execute later."""
    world = process.world
    journal = await hold(process)
    dates = DateWatch(world.now)

    async def ask(expected: Expected, _endpoint_id: str | None) -> EnquiryAnswer:
        await asyncio.sleep(world.rng.random())
        word = _word_about(world, expected.order_id)
        said = {"status": word, _ENQUIRY.reply.order_id[0]: expected.order_id}
        came_back = world.dated(RawReply(200, (), json.dumps(said).encode()))
        dates.see(came_back)
        if word in MEANS:
            world.judge.tell(row_of(expected.order_id), MEANS[word])
        return read_answer(came_back, expected, WORDS, _ENQUIRY, not_found=(NOT_FOUND,), now=world.now())

    for record in journal.batches():
        await Refresh(
            journal,
            record,
            ask,
            words=WORDS,
            minor_units=MINOR_UNITS,
            politeness=Politeness(concurrency=2, rate_per_s=0, limit_s=20),
            clock=Clock(lambda: world.clock.now_s, asyncio.sleep, world.now),
            take_in=lambda: world.inbox.take_in(journal),
        ).run()
    dates.note_in(journal)
    if dates.seen is not None:
        world.clock_is_unknown = False
    return 0


def _word_about(world: "SimWorld", order_id: str) -> str:
    """Return the gateway's word about an order: of whichever attempt under this id it knows the most of."""
    if world.judge.executed_orders[order_id]:
        return "approved"
    requests = world.judge.rows[row_of(order_id)].requests
    said = [one.said for one in requests if one.left and one.order_id == order_id and one.said in _SAID]
    return _SAID[said[-1]] if said else NOT_FOUND
