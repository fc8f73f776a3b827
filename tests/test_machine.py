"""The description of the machine: a Python built without profiles is recognised, and no other is reported."""

import sys
import sysconfig

import pytest

from paygw_batch.processes import PythonBuild, processor_name, python_build


@pytest.mark.parametrize(
    ("told", "prefix", "build"),
    [
        ("'--prefix=/opt' '--enable-shared'", "/opt", PythonBuild(has_profiles=False, has_lto=False)),
        ("'--enable-optimizations' '--with-lto'", "/opt", PythonBuild(has_profiles=True, has_lto=True)),
        ("'--enable-optimizations'", "/usr", PythonBuild(has_profiles=True, has_lto=None)),
        ("'--enable-shared'", "/usr", PythonBuild(has_profiles=None, has_lto=None)),
        (None, "C:\\Python", PythonBuild(has_profiles=None, has_lto=None)),
    ],
)
def test_python_build_is_read_from_configure_options(
    told: str | None, prefix: str, build: PythonBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": told}.get)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    assert python_build() == build


def test_processor_name_is_found() -> None:
    assert processor_name()
