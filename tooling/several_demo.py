"""Pay the sample sheet with two workers on a temporary PostgreSQL server, against the sandbox.

An urgent sheet overtakes it, and the timetable picks up a third sheet from a folder.

python tooling/several_demo.py

Everything is in a directory that is removed at the end. No money moves, and nothing leaves this machine.
"""

import csv
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.postgres_server import new_server  # noqa: E402 (the checks' own server)

SHEET = ROOT / "samples/payroll-mixed.csv"
HOSTS = ("host-1", "host-2")
WAIT_S = 150


def main() -> int:
    """Set everything up, pay the sheet, and report the result; return the exit code of the payout."""
    with tempfile.TemporaryDirectory(prefix="paygw-several-") as place, new_server() as server, ExitStack() as stack:
        home = Path(place)
        print(f"PostgreSQL answers at {server.url()}.", flush=True)
        gateway = stack.enter_context(running_sandbox(home))
        config = write_configuration(home, server.url())
        run_command(home, "office", config, gateway, ["journal", "new"])
        for host in HOSTS:
            stack.enter_context(running_process(home, host, config, gateway, ["work"]))
        wait_for_workers(home, config, gateway)
        out = home / "payroll.reconciliation.csv"
        run_command(home, "office", config, gateway, ["limits", "--rate", "8"])  # slow enough to be overtaken
        run_command(home, "office", config, gateway, ["submit", str(SHEET), "--detach"])
        run_command(home, "office", config, gateway, ["submit", str(write_small_sheet(home, "urgent")), "--urgent"])
        run_command(home, "office", config, gateway, ["status", str(SHEET)])
        code = run_command(home, "office", config, gateway, ["submit", str(SHEET), "--out", str(out)])
        dropped = write_small_sheet(home / "drop", "dropped")
        os.utime(dropped, (1, 1))  # old enough to count as complete
        print(f"{dropped.name} is in the folder of the timetable, which is looked at every minute.", flush=True)
        wait_until(lambda: any((home / "drop/done").glob("*.summary.json")), "The folder was not picked up.")
        run_command(home, "office", config, gateway, ["workers"])
        run_command(home, "office", config, gateway, ["verify"])
        with (home / "gateway/sandbox-record.csv").open(newline="", encoding="utf-8") as record:
            paid = Counter(line["client_orderid"] for line in csv.DictReader(record) if line["committed"] == "yes")
        print(
            f"The gateway's own record: {len(paid)} orders, none paid more than {max(paid.values())} time.", flush=True
        )
    return code


def write_small_sheet(folder: Path, name: str) -> Path:
    """Write a sheet of five rows."""
    path = folder / f"{name}.csv"
    rows = (
        f"KE,{name.upper()}-{n},{100 * len(name) + n}.00,KES,Jane Wanjiku,25471234500{n},+25471234500{n}"
        for n in range(5)
    )
    heading = "country,client_orderid,amount,currency,account_name,account_number,phone"
    path.write_text("\n".join([heading, *rows]) + "\n", encoding="utf-8")
    return path


def write_configuration(home: Path, url: str) -> Path:
    """Write the configuration of all hosts: the sandbox's, with its journal in the database, and a timetable."""
    (home / "drop").mkdir(mode=0o700)
    timetable = f'[timetable]\ntime_zone = "UTC"\n[[timetable.pick_up]]\nfolder = "{home / "drop"}"\nat = "* * * * *"\n'
    text = (ROOT / "config/sandbox.toml").read_text(encoding="utf-8")
    journal = f'[journal]\nurl = "{url}"\nreplication = "none"\n\n'
    path = home / "paygw.toml"
    text = re.sub(r"\[journal\]\n.*?\n(?=\[)", lambda _: journal, text, flags=re.DOTALL)
    path.write_text(f"{text}\n{timetable}", encoding="utf-8")
    return path


@contextmanager
def running_sandbox(home: Path) -> Iterator[Mapping[str, str]]:
    """Run the sandbox as a server, and yield the environment variables that hosts need to reach it."""
    place = home / "gateway"
    place.mkdir(mode=0o700)
    config = place / "sandbox.toml"
    text = (ROOT / "config/sandbox.toml").read_text(encoding="utf-8").replace("../sandbox-state/", "")
    config.write_text(text, encoding="utf-8")
    with running_process(home, "gateway", config, {}, ["sandbox"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None  # noqa: S101 (it was asked for)
        while "PAYGW_BASE_URL=" not in (line := server.stdout.readline()):
            if not line:
                raise SystemExit("The sandbox did not start.")
        result = dict(re.findall(r"(PAYGW_\w+)=(\S+)", line))
        yield result


@contextmanager
def running_process(
    home: Path, host: str, config: Path, gateway: Mapping[str, str], words: Sequence[str], stdout: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command of a host in the background; terminate it at the end, and wait for it."""
    started = subprocess.Popen(  # noqa: S603 (our own program)
        command_line(config, words), env=host_environment(home, host, gateway), stdout=stdout, text=True, cwd=home
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def run_command(home: Path, host: str, config: Path, gateway: Mapping[str, str], words: Sequence[str]) -> int:
    """Run a command of a host, and return its exit code."""
    print(f"$ paygw-batch {' '.join(words)}", flush=True)
    environment = host_environment(home, host, gateway)
    completed = subprocess.run(command_line(config, words), env=environment, cwd=home, check=False)  # noqa: S603
    return completed.returncode


def wait_for_workers(home: Path, config: Path, gateway: Mapping[str, str]) -> None:
    """Wait until all workers are alive."""
    asked, variables = command_line(config, ["--json", "workers"]), host_environment(home, "office", gateway)

    def are_workers_alive() -> bool:
        completed = subprocess.run(asked, env=variables, capture_output=True, text=True, check=False)  # noqa: S603
        return completed.stdout.count('"is_alive": true') == len(HOSTS)

    wait_until(are_workers_alive, "The workers did not start.")


def wait_until(holds: Callable[[], bool], why: str) -> None:
    """Wait until `holds` returns true."""
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > give_up_s:
            raise SystemExit(why)
        time.sleep(0.2)


def command_line(config: Path, words: Sequence[str]) -> list[str]:
    """Return the command line of the program."""
    return [sys.executable, "-m", "paygw_batch", "--config", str(config), *words]


def host_environment(home: Path, host: str, gateway: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a host, with its own home and state directory."""
    place = home / host
    place.mkdir(mode=0o700, exist_ok=True)
    return {
        **os.environ,
        **gateway,
        "HOME": str(place),
        "XDG_STATE_HOME": str(place / "state"),
        "PYTHONPATH": str(ROOT),
    }


if __name__ == "__main__":
    sys.exit(main())
