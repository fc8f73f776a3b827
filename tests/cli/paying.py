"""A gateway of its own on loopback, as a process that keeps its own record, and a program set up to pay through it."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.listening import answers, free_port, started, until
from tests.cli.program import Program, sandbox_toml


@dataclass(frozen=True)
class LoopbackGateway:
    """The gateway: its port, its key, and what it says was ordered."""

    directory: Path
    port: int

    def orders(self) -> list[str]:
        """Return the order ids of all payouts that arrived, in their order: the judge."""
        record = self.directory / "sandbox-record.csv"
        if not record.exists():
            return []
        with record.open(newline="") as stream:
            return [line["client_orderid"] for line in csv.DictReader(stream)]

    def configuration(self, *, host: str = "127.0.0.1", journal: str = "journal.sqlite3", **changes: str) -> str:
        """Return a configuration that pays through it, with its host written as `host`."""
        text = sandbox_toml(journal, base_url=f'"http://{host}:{self.port}"', **changes)
        return text.replace("[gateway]\n", f'[gateway]\nprivate_key = "{self.directory}/sandbox-merchant.pem"\n')


@contextmanager
def paying(program: Program) -> Iterator[LoopbackGateway]:
    """Run a gateway, and have the program pay through it. No journal is made."""
    directory = program.home / "gateway"
    directory.mkdir(mode=0o700)
    (directory / "paygw.toml").write_text(sandbox_toml())
    gateway = LoopbackGateway(directory, free_port())
    with started(program, "sandbox", "--port", str(gateway.port), config=directory / "paygw.toml") as process:
        until(lambda: answers(gateway.port) or process.poll() is not None, "the gateway did not start")
        program.config.write_text(gateway.configuration())
        yield gateway
