"""A notification is decoded exactly as it was encoded."""

import pytest

from paygw_batch.core.evidence import Claim, Proof, StatedTimes, TimeInterval, match_attempt
from paygw_batch.journal.evidence import Notification, decode_notification, encode_notification

_AT = "2026-11-20T10:00:00.000Z"
_SPAN = TimeInterval(_AT, "2026-11-20T10:00:01.000Z")


def _make_notification(times: StatedTimes) -> Notification:
    claim = Claim("PAY-2", "10.00", "KES", "approved", "r", Proof.PROVEN, times=times)
    return Notification(_AT, "POST", "application/json", "", b"{}", 2, "", claim)


@pytest.mark.parametrize("times", [StatedTimes(), StatedTimes((_SPAN,), _SPAN)])
def test_notification_is_decoded_as_encoded(times: StatedTimes) -> None:
    notice = _make_notification(times)
    kept = decode_notification(encode_notification(notice))
    assert kept == notice
    assert match_attempt(kept.claim.times, _AT) is match_attempt(times, _AT)
