"""Shows the result of comparing a statement with the journal: for `resolve`."""

from paygw_batch.cli.screen.screen import Screen
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.run.match_statement import Matched

SHOWN_LINES = 20
"""How many lines of a kind are listed on a screen."""


def show_held(screen: Screen, held: int, who: str) -> None:
    """Say how many orders were held on the word of a statement."""
    screen.say(
        say_count(
            held,
            "Held by {who}: {count:,} order that could be sent from here, and that the gateway has by the statement. "
            "No run sends a held row: `paygw-batch status` says what to do about each.",
            "Held by {who}: {count:,} orders that could be sent from here, and that the gateway has by the statement. "
            "No run sends a held row: `paygw-batch status` says what to do about each.",
            who=who,
        )
    )


def show_matched(screen: Screen, matched: Matched) -> None:
    """Show the rows that a statement settles, the lines that do not fit the journal, and counts of all others."""
    if matched.settlements:
        screen.table(
            say("What the statement settles"),
            mark_all("row", "becomes", "evidence"),
            [(one.row, one.resolution.value, one.evidence) for one in matched.settlements[:SHOWN_LINES]],
        )
        _more(screen, len(matched.settlements))
    if matched.differences:
        screen.table(
            say("What does not fit the journal"),
            mark_all("line", "order id", "why"),
            [(one.line, one.order_id, one.sentence) for one in matched.differences[:SHOWN_LINES]],
        )
        _more(screen, len(matched.differences))
    screen.say(
        say(
            "{agreeing:,} lines agree with the journal; {elsewhere:,} speak of other batches; {waiting:,} rows are not "
            "decided yet; {silent:,} rows in doubt stay in doubt.",
            agreeing=matched.agreeing,
            elsewhere=matched.elsewhere,
            waiting=matched.waiting,
            silent=len(matched.silent),
        )
    )


def _more(screen: Screen, count: int) -> None:
    if count > SHOWN_LINES:
        screen.say(say("... and {count:,} more: --json lists all of them.", count=count - SHOWN_LINES))


def differences_counted(matched: Matched) -> str:
    """Return how many lines of a statement do not fit the journal."""
    count = len(matched.differences)
    return say_count(count, "{count:,} line does not fit the journal", "{count:,} lines do not fit the journal")
