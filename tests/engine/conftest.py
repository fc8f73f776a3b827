"""Tests of the engine may be coroutines, as the gateway's."""

from tests.gateway.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
