"""Workflows have few rights, forms match their schemas, and locks pin every package of an installation by hash."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trove_classifiers
import yaml

from paygw_batch.cli.main import COMMANDS
from tests.support.checkout import ROOT, versioned_files

WORKFLOWS = versioned_files(".github/workflows")
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
LOCKED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]


def workflow(name: str) -> dict[str, Any]:
    result: dict[str, Any] = yaml.load((ROOT / ".github/workflows" / name).read_text(), yaml.BaseLoader)  # noqa: S506
    return result


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in workflow(path.name)["jobs"].items():
            yield f"{path.name}: {name}", job


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tooling/build"), str(folder), *words]
    git = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": str(ROOT)}
    environ = {**os.environ, **git, "PYTHON": sys.executable}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


FORGE_FILES = {
    "github-workflows": versioned_files(".github/workflows", "*.yml"),
    "github-issue-forms": versioned_files(".github/ISSUE_TEMPLATE", "[!c]*.yml"),
    "github-issue-config": versioned_files(".github/ISSUE_TEMPLATE", "config.yml"),
}


@pytest.mark.parametrize("schema", FORGE_FILES)
def test_forge_files_match_schemas(schema: str) -> None:
    files = [str(path) for path in FORGE_FILES[schema]]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout


def test_issue_forms_name_commands_and_no_person() -> None:
    defects = (ROOT / "docs/defects.md").read_text()
    for path in FORGE_FILES["github-issue-forms"]:
        text = path.read_text()
        assert {*re.findall(r"`paygw-batch ([a-z]+)", text)} <= set(COMMANDS)
        assert [code for code in re.findall(r"`(\w+\.\w+)`", text) if f"| `{code}` |" not in defects] == []
        (boxes,) = (item for item in yaml.safe_load(text)["body"] if item["type"] == "checkboxes")
        (option,) = boxes["attributes"]["options"]
        assert option == {"label": "There is no real person's data and no key in it.", "required": True}


def test_commit_hooks_are_part_of_check() -> None:
    check = (ROOT / "tooling/check").read_text()
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in local["hooks"] if hook["entry"] not in check] == []


def test_workflows_pin_actions_and_test_every_python() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not PINNED.search(line)] == []
    named = {item.rpartition(" ")[2] for item in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", item)}
    assert named <= set(workflow("check.yml")["jobs"]["check"]["strategy"]["matrix"]["python"])


def test_workflow_job_running_code_has_no_write_rights() -> None:
    for name, job in jobs():
        runs_code = any("run" in step for step in job["steps"])
        rights = job.get("permissions", {"contents": "read"})
        assert (rights == {"contents": "read"}) if runs_code else ("id-token" in rights), name
    for path in WORKFLOWS:
        assert workflow(path.name)["permissions"] in ({"contents": "read"}, {})


def test_files_named_in_workflows_exist() -> None:
    named = [word for _, job in jobs() for step in job["steps"] for word in step.get("run", "").split()]
    files = {word for word in named if re.fullmatch(r"tooling/[\w-]+|[\w-]+\.lock", word)}
    assert {"tooling/demo", "tooling/check", "tooling/build", "tooling/first-payout", "requirements.lock"} <= files
    for name in files:
        assert (ROOT / name).exists(), name
        assert name.endswith(".lock") or os.access(ROOT / name, os.X_OK), name


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is made of a commit")
def test_build_writes_packages_and_bill_of_materials(tmp_path: Path) -> None:
    completed = build(tmp_path)
    assert completed.returncode == 0, completed.stderr
    package = f"paygw_batch-{PROJECT['version']}"
    made = {path.name for path in tmp_path.rglob("*.*")}
    assert made == {f"{package}-py3-none-any.whl", f"{package}.tar.gz", "paygw-batch.cdx.json"}


def test_tag_must_match_version_to_build(tmp_path: Path) -> None:
    completed = build(tmp_path / "dist", "v99.0.0")
    assert (completed.returncode, (tmp_path / "dist").exists()) == (2, False)
    assert f"The tag is v99.0.0, and pyproject.toml says {PROJECT['version']}." in completed.stderr


def test_package_metadata_is_complete_and_current() -> None:
    assert PROJECT["authors"]
    assert PROJECT["keywords"]
    assert "Development Status :: 4 - Beta" in PROJECT["classifiers"]
    assert set(PROJECT["classifiers"]) <= trove_classifiers.classifiers
    assert {"Source", "Issues", "Changelog"} <= set(PROJECT["urls"])
    texts = [path for path in versioned_files() if path.suffix in {".md", ".toml", ".yml", ".yaml"}]
    assert {path.name for path in texts if "forge.example" in path.read_text()} <= {"pyproject.toml"}
    first = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert re.fullmatch(rf"{re.escape(PROJECT['version'])} - (unreleased|\d{{4}}-\d\d-\d\d)", first)


def read_lock(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pinned_versions(name: str) -> set[tuple[str, str]]:
    return set(LOCKED.findall(read_lock(name)))


def test_locks_agree_and_hash_every_package() -> None:
    assert pinned_versions("requirements.lock") <= pinned_versions("requirements-dev.lock")
    for name in ("requirements.lock", "requirements-dev.lock"):
        packages = re.split(r"^(?=\S)", read_lock(name), flags=re.MULTILINE)[1:]
        assert [package for package in packages if "--hash=sha256:" not in package] == []
        assert len(packages) == len(pinned_versions(name))


REQUIRED = [*chain(*PROJECT["optional-dependencies"].values()), *PROJECT["dependencies"]]


def test_lock_covers_extras_with_upper_bounds() -> None:
    locked = {name for name, _ in pinned_versions("requirements.lock")}
    assert {re.split(r"[^\w.-]", item)[0] for item in (*REQUIRED, *PYPROJECT["build-system"]["requires"])} <= locked
    # Security updates of these must never be blocked by an upper bound.
    unbounded = {re.split(r"[^\w.-]", item)[0] for item in REQUIRED if "<" not in item}
    assert unbounded == {"certifi", "cryptography"}


def test_bill_of_materials_matches_lock() -> None:
    bill = runpy.run_path(str(ROOT / "tooling/sbom.py"))["build_bill"]()
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    assert {(item["name"], item["version"]) for item in bill["components"]} == pinned_versions("requirements.lock")
    hashes = [item["content"] for part in bill["components"] for item in part["externalReferences"][0]["hashes"]]
    assert sorted(hashes) == sorted(re.findall(r"sha256:(\w+)", read_lock("requirements.lock")))


PRIVATE = re.compile(
    r"^(?:from|import) ((?!paygw_batch|__future__)\w+)(?:\.\w+)*?(?:\._\w+| import _\w+)", re.MULTILINE
)


def test_private_import_of_library_checks_its_version() -> None:
    result = {
        (path.name, library)
        for path in versioned_files("paygw_batch", "*.py")
        for library in PRIVATE.findall(path.read_text(encoding="utf-8"))
    }
    assert result == {("workbook_copy.py", "openpyxl")}
    assert "openpyxl>=3.1.5,<3.2" in PROJECT["optional-dependencies"]["excel"]
    assert version("openpyxl") == "3.1.5"
