"""Runs the sandbox in the foreground, and prints its base URL.

`python -m tests.sandbox.sandbox_serving PUBLIC_KEY RECORD`
"""

import sys
from pathlib import Path

from paygw_batch.countries.load import load_operation
from paygw_batch.sandbox.reply import shipped_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation, serve
from tests.sandbox.sandbox_merchant import CONSUMER_KEY, ENDPOINT_ID, payout_rules


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    config = SandboxConfig(
        endpoint_id=ENDPOINT_ID,
        consumer_key=CONSUMER_KEY,
        public_key_pem=Path(sys.argv[1]).read_bytes(),
        profile="json-params",
        served=(ServedOperation(load_operation("payout"), payout_rules(), Path(sys.argv[2])),),
        behaviour=shipped_behaviour(),
    )
    serve(config, 0, ready=say)
    say("left")
