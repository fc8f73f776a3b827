"""Rewrite the published signature vectors after an intended change of the requests. Review the difference."""

import tempfile
from pathlib import Path

from tests.gateway.vector_cases import VECTORS, as_text, vectors
from tests.support.gateway_cases import private_test_key

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        VECTORS.write_text(as_text(vectors(private_test_key(Path(directory)))), encoding="utf-8")
