"""Print the bill of materials: every package of requirements.lock with its hashes, as CycloneDX 1.6.

Usage: python tooling/sbom.py > paygw-batch.cdx.json
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = re.compile(r"^([\w.-]+)==(\S+).*\\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)


def build_component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """Return a package of the lock, with the hash of each file that may be installed."""
    reference = f"pkg:pypi/{name}@{version}"
    result = [{"alg": "SHA-256", "content": digest} for digest in hashes]
    files = {"type": "distribution", "url": f"https://pypi.org/simple/{name}/", "hashes": result}
    named = {"type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference}
    return {**named, "externalReferences": [files]}


def build_bill() -> dict[str, Any]:
    """Return the bill of materials, which is the same for every run on a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = [
        build_component(name, version, re.findall(r"sha256:(\w+)", hashes))
        for name, version, hashes in PACKAGE.findall(lock)
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": packages,
    }


if __name__ == "__main__":
    print(json.dumps(build_bill(), indent=1))
