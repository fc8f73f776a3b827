"""The locks pin every package of an installation by hash, in the version that the tests ran with."""

import re
import runpy
import tomllib
from importlib.metadata import version
from itertools import chain
from typing import Any

from tests.support.checkout import ROOT, versioned_files

PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read_lock(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pinned_versions(name: str) -> set[tuple[str, str]]:
    return set(PINNED.findall(read_lock(name)))


def test_locks_agree_and_hash_every_package() -> None:
    assert pinned_versions("requirements.lock") <= pinned_versions("requirements-dev.lock")
    for name in ("requirements.lock", "requirements-dev.lock"):
        packages = re.split(r"^(?=\S)", read_lock(name), flags=re.MULTILINE)[1:]
        assert [package for package in packages if "--hash=sha256:" not in package] == []
        assert len(packages) == len(pinned_versions(name))


REQUIRED = [*chain(*PROJECT["project"]["optional-dependencies"].values()), *PROJECT["project"]["dependencies"]]


def test_lock_covers_extras_and_build_backend() -> None:
    needed = [*REQUIRED, *PROJECT["build-system"]["requires"]]
    expected = {re.split(r"[^\w.-]", item)[0] for item in needed}
    assert expected <= {name for name, _ in pinned_versions("requirements.lock")}


def test_bill_of_materials_matches_lock() -> None:
    bill = runpy.run_path(str(ROOT / "tooling/sbom.py"))["build_bill"]()
    assert bill["metadata"]["component"]["version"] == PROJECT["project"]["version"]
    assert {(item["name"], item["version"]) for item in bill["components"]} == pinned_versions("requirements.lock")
    hashes = [item["content"] for part in bill["components"] for item in part["externalReferences"][0]["hashes"]]
    assert sorted(hashes) == sorted(re.findall(r"sha256:(\w+)", read_lock("requirements.lock")))


UNBOUNDED = {"certifi", "cryptography"}
"""Security updates of these must never be blocked by an upper bound."""
PRIVATE = re.compile(
    r"^(?:from|import) ((?!paygw_batch|__future__)\w+)(?:\.\w+)*?(?:\._\w+| import _\w+)", re.MULTILINE
)


def test_libraries_have_upper_version_bound_unless_listed() -> None:
    assert {re.split(r"[^\w.-]", item)[0] for item in REQUIRED if "<" not in item} == UNBOUNDED


def test_private_library_import_is_single_and_version_checked() -> None:
    result = {
        (path.name, library)
        for path in versioned_files("paygw_batch", "*.py")
        for library in PRIVATE.findall(path.read_text(encoding="utf-8"))
    }
    assert result == {("workbook_copy.py", "openpyxl")}
    assert "openpyxl>=3.1.5,<3.2" in PROJECT["project"]["optional-dependencies"]["excel"]
    assert version("openpyxl") == "3.1.5"
