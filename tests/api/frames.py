"""Frames of people to pay, and the end of a run of the API."""

import polars as pl

from paygw_batch.api import Finished, Refused
from tests.support.program import HEADING, kenyan_rows

NAME = "payroll-2026-11"


def people(count: int, *, amount: str = "1500.50") -> pl.DataFrame:
    lines = [line.split(",") for line in kenyan_rows(count, amount=amount)]
    return pl.DataFrame(lines, schema=HEADING.split(","), orient="row")


def finished(result: Refused | Finished) -> Finished:
    assert isinstance(result, Finished)
    return result
