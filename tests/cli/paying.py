"""A separate gateway process on loopback that keeps its own record, and a program configured to pay through it."""

import csv
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cli.listening import start_process
from tests.cli.stopped import stop_process
from tests.support.patience import wait_until
from tests.support.ports import free_port, wait_for_server
from tests.support.program import Program, sandbox_toml


@dataclass(frozen=True)
class LoopbackGateway:
    """A gateway with its port, its key, and its record of orders."""

    directory: Path
    port: int
    process: "subprocess.Popen[str]"

    def orders(self) -> list[str]:
        """Return the order ids of all payouts that arrived, in order of arrival."""
        record = self.directory / "sandbox-record.csv"
        if not record.exists():
            return []
        with record.open(newline="") as stream:
            return [line["client_orderid"] for line in csv.DictReader(stream)]

    def configuration(self, *, host: str = "127.0.0.1", journal: str = "journal.sqlite3", **changes: str) -> str:
        """Return a configuration that pays through this gateway, with its host spelled `host`."""
        text = sandbox_toml(journal, base_url=f'"http://{host}:{self.port}"', **changes)
        return text.replace("[gateway]\n", f'[gateway]\nprivate_key = "{self.directory}/sandbox-merchant.pem"\n')


@contextmanager
def run_gateway(program: Program) -> Iterator[LoopbackGateway]:
    """Run a gateway, and configure the program to pay through it, without creating a journal."""
    directory = program.home / "gateway"
    directory.mkdir(mode=0o700)
    (directory / "paygw.toml").write_text(sandbox_toml())
    port = free_port()
    with start_process(program, "sandbox", "--port", str(port), config=directory / "paygw.toml") as process:
        wait_for_server(port, process)
        gateway = LoopbackGateway(directory, port, process)
        program.config.write_text(gateway.configuration())
        yield gateway


@contextmanager
def block_first_reply(
    program: Program, gateway: LoopbackGateway, *command: str | Path
) -> Iterator["subprocess.Popen[str]"]:
    """Start a run whose first order is not answered until the end of the block."""
    patient = "[gateway]\nread_timeout_s = 600\ntotal_timeout_s = 600\n"
    program.config.write_text(program.config.read_text().replace("[gateway]\n", patient))
    program.make_journal()
    with stop_process(gateway.process):
        run = program.start(*command)
        wait_until(lambda: is_in_flight(program) or run.poll() is not None, "the first order was not sent")
        yield run
    run.communicate()


def is_in_flight(program: Program) -> bool:
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{program.journal}?mode=ro", uri=True)) as connection,
    ):
        return connection.execute("SELECT 1 FROM state WHERE state = 'in_flight'").fetchone() is not None
    return False
