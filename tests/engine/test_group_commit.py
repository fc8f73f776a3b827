"""Group commit: the next commit has all waiting facts, and a failure reaches all of them."""

import asyncio

import pytest

from paygw_batch.engine.engine import GroupCommit
from paygw_batch.errors import JournalUnwritable
from tests.support.inline_journal import RESULTS, SlowJournal, entry


def test_entries_during_commit_share_next_commit() -> None:
    async def story() -> None:
        journal = SlowJournal()
        committer = GroupCommit(journal.append, on_failure=lambda _: None)
        first = committer.submit(entry(1))
        await asyncio.sleep(0)
        later = [committer.submit(entry(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *later))
        journal.gate.set()
        assert await asyncio.gather(first, *later) == [RESULTS[1], RESULTS[0], RESULTS[1], RESULTS[0]]
        assert journal.commits == [[1], [2, 3, 4]]

    asyncio.run(story())


@pytest.mark.parametrize("facts", [1, 3])
def test_failed_commit_confirms_and_writes_nothing_more(facts: int) -> None:
    async def story() -> None:
        journal = SlowJournal()
        journal.fails = True
        told: list[Exception] = []
        committer = GroupCommit(journal.append, on_failure=told.append)
        waiting = [committer.submit(entry(number)) for number in range(1, facts + 1)]
        await asyncio.sleep(0)
        journal.gate.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, JournalUnwritable) for result in results)
        journal.fails = False
        with pytest.raises(JournalUnwritable):
            await committer.submit(entry(4))
        assert 4 not in {number for commit in journal.commits for number in commit}
        assert len(told) == 1

    asyncio.run(story())


def test_under_pressure_commits_are_small_and_in_order() -> None:
    async def story() -> None:
        journal = SlowJournal()
        journal.gate.set()
        committer = GroupCommit(
            journal.append, lambda _: None, is_pressed=lambda: True, max_facts_under_pressure=lambda: 3
        )
        await asyncio.gather(*(committer.submit(entry(number)) for number in range(1, 9)))
        assert journal.commits == [[1, 2, 3], [4, 5, 6], [7, 8]]

    asyncio.run(story())


def test_unhurried_commit_waits_for_more_entries() -> None:
    async def story() -> None:
        journal = SlowJournal()
        committer = GroupCommit(journal.append, lambda _: None)
        first = committer.submit(entry(1))
        asyncio.get_running_loop().call_later(0.05, journal.gate.set)
        await first
        second = committer.submit(entry(2))
        await asyncio.sleep(0)
        third = committer.submit(entry(3))
        await asyncio.gather(second, third)
        assert journal.commits == [[1], [2, 3]]

    asyncio.run(story())
