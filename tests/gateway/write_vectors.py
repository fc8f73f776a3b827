"""Writes the published signature vectors again. Run it after a meant change of the wire; read the difference."""

import tempfile
from pathlib import Path

from tests.gateway.vector_cases import VECTORS, as_text, vectors
from tests.support.gateway_cases import throw_away_key

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        VECTORS.write_text(as_text(vectors(throw_away_key(Path(directory)))), encoding="utf-8")
