"""Rewrite the golden requests: `python -m tests.gateway.write_golden`.

Run it after an intended change of the requests, and review the difference.
"""

import tempfile
from pathlib import Path

from paygw_batch.gateway.sign import SignatureProfile
from tests.gateway import collection_cases
from tests.support.gateway_cases import (
    GOLDEN,
    RULES,
    golden_path,
    prepare_golden_request,
    private_test_key,
    request_bytes,
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        key = private_test_key(Path(directory))
    for old in GOLDEN.rglob("*.http"):
        old.unlink()
    for profile in SignatureProfile:
        for country in RULES:
            golden_path(profile, country).write_bytes(request_bytes(prepare_golden_request(key, profile, country)))
    for path, item in collection_cases.EVERY_REQUEST.items():
        path.write_bytes(request_bytes(collection_cases.prepare_golden_request(key, *item)))
