"""The examples for container engines match the engine's own schema and the program's needs."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from paygw_batch.cli.main import COMMANDS
from paygw_batch.settings.sections import GatewaySection

DOCS = Path(__file__).parents[1] / "docs"
COMPOSE_SCHEMA = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
KUBERNETES = "1.30"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DOCS / "kubernetes.yaml").read_text()))


def pods() -> list[dict[str, Any]]:
    workers, refresh = manifests()
    return [workers["spec"]["template"]["spec"], refresh["spec"]["jobTemplate"]["spec"]["template"]["spec"]]


def test_compose_file_matches_schema() -> None:
    compose = yaml.safe_load((DOCS / "compose.yaml").read_text())
    jsonschema.validate(compose, json.loads(COMPOSE_SCHEMA.read_text()))
    assert {"worker-1", "worker-2"} <= set(compose["services"])


def test_manifests_match_kubernetes_schema() -> None:
    for manifest in manifests():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_pods_outlast_longest_request_and_run_known_commands() -> None:
    for pod in pods():
        assert pod["terminationGracePeriodSeconds"] > GatewaySection().total_timeout_s
        (container,) = pod["containers"]
        assert "command" not in container  # the image's own entrypoint
        _, _, command = container["args"]
        assert command in COMMANDS
        named = {volume["name"] for volume in pod["volumes"]} | {"state"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= named


def test_manifests_prevent_overlapping_job_runs() -> None:
    assert manifests()[1]["spec"]["concurrencyPolicy"] == "Forbid"
