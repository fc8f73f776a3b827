"""The few ways into the program that the pins take. When a module moves, its new name is written here alone."""

from paygw_batch.cli.main import cli
from paygw_batch.core.sheet_answers import SheetAnswers
from paygw_batch.errors import PaygwError
from paygw_batch.journal.sqlite.sqlite_tables import QUERIES
from paygw_batch.settings.configuration import load_settings
from paygw_batch.wiring.sheet import rules_of, validated_sheet

__all__ = ["QUERIES", "PaygwError", "SheetAnswers", "cli", "load_settings", "rules_of", "validated_sheet"]
