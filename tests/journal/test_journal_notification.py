"""A notification is read back as it was kept, whatever its claim states."""

import pytest

from paygw_batch.core.evidence import Claim, Proof, Span, StatedTimes, meant_attempt
from paygw_batch.journal.evidence import Notification, decode_notification, encode_notification

_AT = "2026-11-20T10:00:00.000Z"
_SPAN = Span(_AT, "2026-11-20T10:00:01.000Z")


def _notice(times: StatedTimes) -> Notification:
    claim = Claim("PAY-2", "10.00", "KES", "approved", "r", Proof.PROVEN, times=times)
    return Notification(_AT, "POST", "application/json", "", b"{}", 2, "", claim)


@pytest.mark.parametrize("times", [StatedTimes(), StatedTimes((_SPAN,), _SPAN)])
def test_notification_is_decoded_as_encoded(times: StatedTimes) -> None:
    notice = _notice(times)
    kept = decode_notification(encode_notification(notice))
    assert kept == notice
    assert meant_attempt(kept.claim.times, _AT) is meant_attempt(times, _AT)
