"""Writes the golden requests again: `python -m tests.gateway.write_golden`.

Run it after a change of the wire that is meant, and read the difference.
"""

import tempfile
from pathlib import Path

from paygw_batch.gateway.sign import SignatureProfile
from tests.gateway import collection_cases
from tests.support.gateway_cases import GOLDEN, RULES, golden_file, prepared, request_bytes, throw_away_key

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        key = throw_away_key(Path(directory))
    for old in GOLDEN.glob("*.http"):
        old.unlink()
    for profile in SignatureProfile:
        for country in RULES:
            golden_file(profile, country).write_bytes(request_bytes(prepared(key, profile, country)))
    for old in (GOLDEN / "payin").glob("*.http"):
        old.unlink()
    for one in collection_cases.EVERY_REQUEST:
        collection_cases.golden_file(*one).write_bytes(request_bytes(collection_cases.prepared(key, *one)))
