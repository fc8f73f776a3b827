"""The Dockerfile and the examples for container engines, without an engine: schemas, rights, and copied files."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZipFile

import jsonschema
import kubernetes_validate
import pytest
import yaml

from paygw_batch.cli.main import COMMANDS
from paygw_batch.settings.sections import GatewaySection
from tests.support.checkout import ROOT, versioned_files
from tests.support.wheels import build_wheel

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
BASE = re.compile(r"[a-z]+:\d+(?:\.\d+)?-[\w.-]+")


DOCS = ROOT / "docs"
COMPOSE_SCHEMA = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
KUBERNETES = "1.30"


MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DOCS / "kubernetes.yaml").read_text()))


def dockerfile_instructions(name: str) -> list[str]:
    """Return the arguments of each instruction of a name, with line breaks joined."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", " "), flags=re.MULTILINE)


def build_context() -> Iterator[PurePosixPath]:
    """Yield the versioned files that .dockerignore lets through. The last matching pattern decides."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for path in versioned_files():
        name = PurePosixPath(path.relative_to(ROOT))
        names = [str(name), *map(str, name.parents)]
        fits = [item for item in patterns if any(fnmatch(element, item.removeprefix("!")) for element in names)]
        if fits and fits[-1].startswith("!"):
            yield name


def copied_paths() -> Iterator[tuple[str, str]]:
    """Yield each source that is copied from the checkout, and its destination."""
    for words in map(str.split, dockerfile_instructions("COPY")):
        if not words[0].startswith("--from="):
            yield from ((source, words[-1]) for source in words[:-1])


def test_container_runs_program_from_pinned_parts() -> None:
    images = [line.split()[0] for line in dockerfile_instructions("FROM")]
    assert len(images) == 2
    assert [image for image in images if not BASE.fullmatch(image)] == []
    commands = [shlex.split(command) for line in dockerfile_instructions("RUN") for command in line.split("&&")]
    installs = [words for words in commands if words[0] == "pip"]
    assert len(installs) == 3
    for words in installs:
        assert "--require-hashes" in words or {"--no-index", "--no-deps"} <= set(words)
    assert [json.loads(line) for line in dockerfile_instructions("ENTRYPOINT")] == [["paygw-batch"]]


def test_image_and_pods_do_not_run_as_root() -> None:
    (user,) = dockerfile_instructions("USER")
    uid, gid = map(int, user.split(":"))
    assert uid > 0 < gid
    assert f"--uid {uid} " in DOCKERFILE
    for manifest in MANIFESTS:
        (ids,) = re.findall(r"'runAsUser': (\d+), 'runAsGroup': (\d+)", str(manifest))
        assert ids == (str(uid), str(gid))


def test_image_build_gets_only_needed_checkout_files(tmp_path: Path) -> None:
    sent = set(build_context())
    for source, target in copied_paths():
        files = [path for path in sent if path.is_relative_to(source)]
        assert files, f"{source} is not there, or .dockerignore names it"
        for file in files:
            folder = tmp_path / target / (file.name if target.endswith("/") else file.relative_to(source))
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder)
        sent.difference_update(files)
    assert sent == set()
    (build,) = (line for line in dockerfile_instructions("RUN") if "pip wheel" in line)
    wheel, _, sbom = (shlex.split(command) for command in build.split("&&"))
    subprocess.run([sys.executable, "-m", *wheel], cwd=tmp_path, capture_output=True, check=True)
    (created,) = (tmp_path / "wheels").glob("*.whl")
    assert ZipFile(created).namelist() == ZipFile(build_wheel(tmp_path / "checkout")).namelist()
    displayed = subprocess.run([sys.executable, sbom[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(displayed.stdout)["bomFormat"] == "CycloneDX"
    assert f'sbom="{sbom[-1]}"' in DOCKERFILE


def test_dockerfile_passes_hadolint() -> None:
    if (program := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is not here: https://github.com/hadolint/hadolint")
    completed = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout


def test_compose_file_and_manifests_match_schemas() -> None:
    compose = yaml.safe_load((DOCS / "compose.yaml").read_text())
    jsonschema.validate(compose, json.loads(COMPOSE_SCHEMA.read_text()))
    assert {"worker-1", "worker-2"} <= set(compose["services"])
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_pods_end_after_requests_and_never_overlap() -> None:
    workers, refresh = (manifest["spec"] for manifest in MANIFESTS)
    for pod in (workers["template"]["spec"], refresh["jobTemplate"]["spec"]["template"]["spec"]):
        assert pod["terminationGracePeriodSeconds"] > GatewaySection().total_timeout_s
        (container,) = pod["containers"]
        assert "command" not in container  # the image's own entrypoint
        _, _, command = container["args"]
        assert command in COMMANDS
        named = {volume["name"] for volume in pod["volumes"]} | {"state"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= named
    assert refresh["concurrencyPolicy"] == "Forbid"
