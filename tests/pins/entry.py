"""The few entry points of the program that the pins use. If a module moves, only this file changes."""

import os
import time

from paygw_batch.cli.main import cli
from paygw_batch.errors import PaygwError
from paygw_batch.journal.sqlite.sqlite_tables import QUERIES
from paygw_batch.opening.given_sheet import Reading, SheetSource, rules_for
from paygw_batch.settings.configuration import load_settings

__all__ = ["QUERIES", "PaygwError", "Reading", "SheetSource", "cli", "load_settings", "rules_for"]

os.environ["TZ"] = "UTC"  # a recorded journal's times are shown in this machine's time zone
time.tzset()
