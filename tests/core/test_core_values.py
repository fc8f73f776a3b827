"""Instructions and batches as values."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.batch import ControlTotals, Instruction, attempt_order_id, find_differences, first_order_id


def test_instruction_cannot_change_through_source_fields() -> None:
    fields = {"account_name": "Wanjiku Kamau"}
    instruction = Instruction("A", "KE", "KES", "1", "account", fields)
    fields["account_name"] = "someone else"
    assert instruction.fields["account_name"] == "Wanjiku Kamau"
    with pytest.raises(TypeError):
        instruction.fields["account_name"] = "someone else"  # type: ignore[index]  # that is the point


def test_later_attempts_add_suffix_to_order_id() -> None:
    assert [attempt_order_id("ORD-1", generation) for generation in (1, 2, 3)] == ["ORD-1", "ORD-1-r2", "ORD-1-r3"]


@given(st.text(min_size=1), st.integers(2, 1000))
def test_first_id_is_extracted_from_later_id(order_id: str, generation: int) -> None:
    assert first_order_id(attempt_order_id(order_id, generation)) == order_id


@pytest.mark.parametrize("order_id", ["ORD-1", "ORD-1-r1", "ORD-1-r", "ORD-1-r0", "ORD-1-r02", "-r2", "ORD-1-R2", ""])
def test_order_id_without_attempt_suffix_has_no_original(order_id: str) -> None:
    assert first_order_id(order_id) is None


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (ControlTotals(), []),
        (ControlTotals(2, {"KES": Decimal("10.00")}), []),
        (ControlTotals(3), ["You expected 3 rows; the sheet has 2."]),
        (ControlTotals(1), ["You expected 1 row; the sheet has 2."]),
        (ControlTotals(0), ["You expected 0 rows; the sheet has 2."]),
        (
            ControlTotals(sums={"KES": Decimal("10.01"), "UGX": Decimal(5)}),
            ["You expected KES 10.01; the sheet's total is KES 10.", "UGX 5 was stated; the sheet has no UGX row."],
        ),
    ],
)
def test_each_wrong_stated_total_is_reported(stated: ControlTotals, found: list[str]) -> None:
    assert find_differences(stated, ControlTotals(2, {"KES": Decimal(10)})) == found
