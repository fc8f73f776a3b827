"""Rewrite the golden requests: `python -m tests.gateway.write_golden`.

Run it after an intended change of the requests, and review the difference.
"""

import tempfile
from pathlib import Path

from paygw_batch.gateway.sign import SignatureProfile
from tests.gateway import collection_cases
from tests.support import gateway_cases as cases

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        key = cases.private_test_key(Path(directory))
    for old in cases.GOLDEN.rglob("*.http"):
        old.unlink()
    for profile in SignatureProfile:
        for country in cases.RULES:
            request = cases.prepare_golden_request(key, profile, country)
            cases.golden_path(profile, country).write_bytes(cases.request_bytes(request))
    for path, item in collection_cases.EVERY_REQUEST.items():
        path.write_bytes(cases.request_bytes(collection_cases.prepare_golden_request(key, *item)))
