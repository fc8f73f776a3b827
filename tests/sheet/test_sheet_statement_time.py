"""Times of a statement are read strictly: an ambiguous time is not read."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.settle.statement import TimeSpan, parse_time_span


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-11-20T14:05Z", "2026-11-20T14:05:00", "2026-11-20T14:06:00"),
        ("2026-11-20T14:05:07Z", "2026-11-20T14:05:07", "2026-11-20T14:05:08"),
        ("2026-11-20 14:05:07Z", "2026-11-20T14:05:07", "2026-11-20T14:05:08"),
        ("2026-11-20T14:05:07+03:00", "2026-11-20T11:05:07", "2026-11-20T11:05:08"),
        ("2026-11-20T14:05:07.5Z", "2026-11-20T14:05:07.500", "2026-11-20T14:05:07.600"),
        ("2026-11-20T14:05:07.123Z", "2026-11-20T14:05:07.123", "2026-11-20T14:05:07.124"),
        ("2026-11-20T14:05:07.123999Z", "2026-11-20T14:05:07.123", "2026-11-20T14:05:07.124"),
        ("2026-11-20", "2026-11-19T10:00:00", "2026-11-21T12:00:00"),
    ],
)
def test_stated_time_spans_its_smallest_unit(text: str, start: str, end: str) -> None:
    assert parse_time_span(text) == TimeSpan(utc(start), utc(end))


@pytest.mark.parametrize(
    "text",
    [
        *("", "2026-11-20T14:05:07", "20/11/2026", "11/20/2026 14:05", "2026-11-20T14Z", "2026-11-20T14:05:07z"),
        *("2026-11-20T14:05:07 +03:00", "2026-11-20T14:05:07+0300", "2026-13-20", "2026-02-30T00:00:00Z"),
        *("2026-11-20T25:00:00Z", "2026-11-20T14:05:07+99:00", "0001-01-01", "9999-12-31", "\u0662026-11-20"),
        *("20261120", "1795000000", "2026-W47-5"),
    ],
)
def test_ambiguous_time_is_not_read(text: str) -> None:
    assert parse_time_span(text) is None


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)))  # noqa: DTZ001 - UTC is added
def test_journal_time_is_read_exactly(moment: datetime) -> None:
    in_utc = moment.replace(tzinfo=UTC)
    written = in_utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    start = in_utc.replace(microsecond=in_utc.microsecond // 1000 * 1000)
    assert parse_time_span(written) == TimeSpan(start, start + timedelta(milliseconds=1))


@given(st.text(max_size=40))
def test_time_reader_never_raises(text: str) -> None:
    parse_time_span(text)
