"""Enquiries in a scenario: `refresh` asks soon after a run, and the gateway answers with its current state."""

import asyncio
import json
from typing import TYPE_CHECKING

from paygw_batch.countries.load import load_enquiry
from paygw_batch.engine.quarantine import DateWatch
from paygw_batch.gateway.enquiry import EnquiryAnswer, parse_answer
from paygw_batch.gateway.message import ExpectedReply, RawReply
from paygw_batch.settle.refresh import Clock, EnquiryLimits, Refresh
from tests.promise.simulation.gateway import OPERATIONS, AnswerMeaning
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.process import Process, open_for_run
from tests.promise.simulation.sheets import MINOR_UNITS
from tests.promise.simulation.words import MEANS, WORDS

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario

NOT_FOUND = "no-such-order"
_ENQUIRY = load_enquiry("paynet-v4", OPERATIONS["payout"])
_SAID = {AnswerMeaning.NO: "declined", AnswerMeaning.PENDING: "processing", AnswerMeaning.YES: "approved"}


async def refresh_rows(process: Process) -> int:
    """Ask about rows that are accepted or in doubt. The gateway does not know its later executions yet."""
    scenario = process.scenario
    journal = await open_for_run(process)
    dates = DateWatch(scenario.now)

    async def ask(expected: ExpectedReply, _endpoint_id: str | None) -> EnquiryAnswer:
        await asyncio.sleep(scenario.rng.random())
        word = _word_about(scenario, expected.order_id)
        answer = {"status": word, _ENQUIRY.reply.order_id[0]: expected.order_id}
        came_back = scenario.add_date(RawReply(200, (), json.dumps(answer).encode()))
        dates.observe_reply(came_back)
        if word in MEANS:
            scenario.judge.tell(row_of(expected.order_id), MEANS[word])
        return parse_answer(came_back, expected, WORDS, _ENQUIRY, not_found=(NOT_FOUND,), now=scenario.now())

    for record in journal.batches():
        await Refresh(
            journal,
            record,
            ask,
            words=WORDS,
            minor_units=MINOR_UNITS,
            limits=EnquiryLimits(concurrency=2, rate_per_s=0, limit_s=20),
            clock=Clock(lambda: scenario.clock.now_s, asyncio.sleep, scenario.now),
            record_arrivals=lambda: scenario.inbox.record_arrivals(journal),
        ).run()
    dates.record_in(journal)
    if dates.seen is not None:
        scenario.clock_is_unknown = False
    return 0


def _word_about(scenario: "Scenario", order_id: str) -> str:
    """Return the gateway's status of an order, of its best-known attempt under this id."""
    if scenario.judge.executed_orders[order_id]:
        return "approved"
    requests = scenario.judge.rows[row_of(order_id)].requests
    answer = [
        request.meaning
        for request in requests
        if request.left and request.order_id == order_id and request.meaning in _SAID
    ]
    return _SAID[answer[-1]] if answer else NOT_FOUND
