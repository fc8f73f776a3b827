"""A gateway of its own on loopback, as a process that keeps its own record, and a program set up to pay through it."""

import csv
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cli.listening import started
from tests.cli.stopped import stopped
from tests.support.patience import until
from tests.support.ports import free_port, wait_until_there
from tests.support.program import Program, sandbox_toml


@dataclass(frozen=True)
class LoopbackGateway:
    """The gateway: its port, its key, and what it says was ordered."""

    directory: Path
    port: int
    process: "subprocess.Popen[str]"

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
    port = free_port()
    with started(program, "sandbox", "--port", str(port), config=directory / "paygw.toml") as process:
        wait_until_there(port, process)
        gateway = LoopbackGateway(directory, port, process)
        program.config.write_text(gateway.configuration())
        yield gateway


@contextmanager
def unanswered(program: Program, gateway: LoopbackGateway, *command: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a run whose first order waits for its answer, however slow the machine is, until the block is left."""
    patient = "[gateway]\nread_timeout_s = 600\ntotal_timeout_s = 600\n"
    program.config.write_text(program.config.read_text().replace("[gateway]\n", patient))
    program.make_journal()
    with stopped(gateway.process):
        run = program.start(*command)
        until(lambda: is_in_flight(program) or run.poll() is not None, "the first order was not sent")
        yield run
    run.communicate()


def is_in_flight(program: Program) -> bool:
    """Whether the journal has a row in flight."""
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{program.journal}?mode=ro", uri=True)) as connection,
    ):
        return connection.execute("SELECT 1 FROM state WHERE state = 'in_flight'").fetchone() is not None
    return False
