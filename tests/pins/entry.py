"""The few ways into the program that the pins take. When a module moves, its new name is written here alone."""

import os
import time

from paygw_batch.cli.main import cli
from paygw_batch.errors import PaygwError
from paygw_batch.journal.sqlite.sqlite_tables import QUERIES
from paygw_batch.opening.given_sheet import GivenSheet, Reading, rules_of
from paygw_batch.settings.configuration import load_settings

__all__ = ["QUERIES", "GivenSheet", "PaygwError", "Reading", "cli", "load_settings", "rules_of"]

os.environ["TZ"] = "UTC"  # a recorded journal's times are shown where this machine is
time.tzset()
