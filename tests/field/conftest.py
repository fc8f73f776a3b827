"""The rules for the sheets of the corpus."""

from tests.sheet.conftest import rules

__all__ = ["rules"]
