"""Several hosts with one journal in PostgreSQL and one gateway. Each host has its own state directory."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from paygw_batch.cli.main import COMMANDS
from paygw_batch.opening.gateway_access import key_location, load_signing_key
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.sandbox.configured import RECORD_NAME, sandbox_config
from paygw_batch.sandbox.server import running_sandbox
from paygw_batch.settings.configuration import load_settings
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, read_csv, sandbox_toml

assert "work" in COMMANDS


@dataclass
class Host(Program):
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, **self.more}


@dataclass
class Hosts:
    """All hosts, their database and their gateway. Commands are run on the host `office`."""

    folder: Path
    database: str
    gateway: dict[str, str]
    record_path: Path

    def host(self, name: str) -> Host:
        home = self.folder / name
        config = home / "paygw.toml"
        if not home.exists():
            home.mkdir(mode=0o700)
            config.write_text(_configuration(self.database))
        return Host(home, config, self.gateway)

    @property
    def office(self) -> Host:
        return self.host("office")

    def record(self) -> Counter[str]:
        result = read_csv(self.record_path) if self.record_path.exists() else []
        return Counter(line["client_orderid"] for line in result if line["committed"] == "yes")

    def wait_for_record(self, rows: int, process: "subprocess.Popen[str]") -> None:
        wait_until(lambda: self.record().total() >= rows or is_finished(process))
        assert not is_finished(process), process.communicate()

    def wait_for_workers(self, *processes: "subprocess.Popen[str]", count: int = 0) -> None:
        alive = "SELECT number FROM paygw.process WHERE kind = 'worker' AND ended_at IS NULL"
        wait_until(lambda: len(self.ask(alive)) >= (count or len(processes)) or any(map(is_finished, processes)))
        for process in filter(is_finished, processes):
            raise AssertionError(process.communicate())

    @contextmanager
    def blocked_commits(self) -> Iterator[None]:
        """Block all commits of facts inside the block, so that workers wait."""
        with psycopg.connect(self.database) as connection:
            connection.execute("LOCK TABLE paygw.fact IN EXCLUSIVE MODE")
            yield

    def wait_until_blocked(self) -> None:
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: bool(self.ask(waiting)))

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def is_finished(process: "subprocess.Popen[str]") -> bool:
    return process.poll() is not None


def _configuration(database: str) -> str:
    text = re.sub(r"\[journal\].*?\n\[", "[", sandbox_toml(concurrency="4"), flags=re.DOTALL)
    return f'{text}\n[journal]\nurl = "{database}"\nreplication = "none"\nintent_lives_s = 5\n'


@contextmanager
def hosts_on(folder: Path, database: str, *, behaviour: str = "[default]\ndelay_s = 0.02\n") -> Iterator[Hosts]:
    """Yield hosts with a journal, created by the office, and a gateway that follows `behaviour`."""
    sandbox = folder / "gateway"
    sandbox.mkdir(mode=0o700)
    (sandbox / "behaviour.toml").write_text(behaviour)
    config = sandbox / "paygw.toml"
    config.write_text(f'{sandbox_toml()}\n[sandbox]\nbehaviour = "behaviour.toml"\n')
    environ = {"HOME": str(sandbox), "XDG_STATE_HOME": str(sandbox / "state")}
    settings = load_settings(config, environ=environ, flags={})
    key = load_signing_key(settings, environ)
    with running_sandbox(sandbox_config(settings, [rules_for(settings, "payout")], key, environ)) as base_url:
        gateway = {"PAYGW_BASE_URL": base_url, "PAYGW_PRIVATE_KEY": str(key_location(settings))}
        hosts = Hosts(folder, database, gateway, sandbox / RECORD_NAME)
        created = hosts.office.run("journal", "new")
        assert created.exit_code == 0, created.output
        yield hosts


@contextmanager
def new_hosts(
    folder: Path, server: PostgresServer, *, behaviour: str = "[default]\ndelay_s = 0.02\n"
) -> Iterator[Hosts]:
    """Yield hosts in a folder, with a new database for the duration of the block."""
    folder.chmod(0o700)
    name = server.new_database()
    with hosts_on(folder, server.url(name), behaviour=behaviour) as hosts:
        yield hosts
    server.drop_database(name)


@dataclass
class ClusterProgram(Program):
    """A user's machine with its journal in PostgreSQL."""

    def write_url(self, url: str, more: str = 'replication = "none"\n') -> None:
        shipped = self.config.read_text().partition("[journal]")
        tables = shipped[2].partition("\n[")
        head = shipped[0] if shipped[1] else self.config.read_text()
        rest = f"\n[{tables[2]}" if tables[1] else ""
        self.config.write_text(f'{head}[journal]\nurl = "{url}"\nintent_lives_s = 5\n{more}{rest}')

    def record(self) -> list[dict[str, str]]:
        return [line for path in sorted((self.home / "state").rglob("sandbox-record.csv")) for line in read_csv(path)]


def slow_down_sandbox(user: ClusterProgram, delay_s: float = 0.02) -> None:
    """Slow the sandbox down, so that a run can be interrupted."""
    (user.home / "slow.toml").write_text(f"[default]\ndelay_s = {delay_s}\n")
    user.config.write_text(f'{user.config.read_text()}\n[sandbox]\nbehaviour = "slow.toml"\n')


def journal_url(user: ClusterProgram) -> str:
    return user.config.read_text().partition('url = "postgres')[2].partition('"')[0].join(("postgres", ""))


def require_exit_code(process: "subprocess.Popen[str]", code: int) -> str:
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, stdout + stderr
    return stdout + stderr
