"""Finds the outcomes of rows that workers send, for a program that follows their run row by row."""

from collections.abc import Iterator, Mapping, Sequence

from paygw_batch.actions.background_run import RowOutcome, RunHandle
from paygw_batch.actions.send import OUTCOME_OF_STATE
from paygw_batch.core.batch import Instruction
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader, RowState

_AT_ONCE = 500


class FollowedRows:
    """The rows of a batch that wait for workers, in the order of the sheet, for the holder of a run."""

    def __init__(self, journal: JournalReader, batch: BatchRecord, holder: RunHandle) -> None:
        self._journal, self._batch, self._holder = journal, batch, holder
        self._waiting: list[int] = []

    def begin(self) -> None:
        """Note the rows that wait, before workers have them."""
        self._waiting = [one.row for one in self._journal.rows(self._batch.number, states={State.READY})]

    def counted(self, counts: Mapping[OutcomeKind, int]) -> None:
        """Take the counts of the run, and hand on the outcomes that are new, as far as the holder has room for them."""
        self._holder.counted(counts)
        self._hand_on(is_end=False)

    def end(self) -> None:
        """Hand on all that is known at the end of the run, as the holder takes it."""
        self._hand_on(is_end=True)

    def _hand_on(self, *, is_end: bool) -> None:
        left: list[int] = []
        for start in range(0, len(self._waiting), _AT_ONCE):
            page = self._waiting[start : start + _AT_ONCE]
            if is_end:
                self._holder.wait_until_room()
            elif not self._holder.has_room():
                left += self._waiting[start:]
                break
            known = set[int]()
            for one in self._outcomes(page):
                self._holder.heard(one)
                known.add(one.row)
            left += [row for row in page if row not in known]
        self._waiting = left

    def _outcomes(self, rows: Sequence[int]) -> Iterator[RowOutcome]:
        found = self._journal.rows(self._batch.number, numbers=set(rows))
        answered = [one for one in found if one.state in OUTCOME_OF_STATE]
        payments = self._journal.payments(self._batch.number, [one.row for one in answered])
        for one in answered:
            yield _outcome(one, payments[one.row])


def _outcome(row: RowState, payment: FoundPayment) -> RowOutcome:
    kind = OUTCOME_OF_STATE[row.state]
    instruction = Instruction(
        row.client_orderid, row.country, row.currency, payment.amount, payment.form, payment.fields
    )
    order_id = row.sent_orderid or row.client_orderid
    outcome = Outcome(
        kind,
        gateway_status=row.gateway_status,
        gateway_reference=row.gateway_reference,
        http_status=row.http_status,
        error_code=row.error_code,
        message=row.message,
    )
    return RowOutcome(row.row, row.client_orderid, order_id, kind, outcome, instruction)
