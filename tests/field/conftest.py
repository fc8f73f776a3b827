"""The rules that sheets of the corpus are checked by."""

from tests.sheet.conftest import rules

__all__ = ["rules"]
