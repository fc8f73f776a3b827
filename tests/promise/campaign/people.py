"""People's actions with a journal, an account, a backup and a sheet, judged by the gateway's record.

Each story runs the real program.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping

from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import GatewayProcess, Machine

ROWS = 3


def another_account(machine: Machine) -> None:
    """Cron runs the sheet under another account, with another state directory and journal."""
    machine.run(
        "--journal", machine.home / "cron" / "journal.sqlite3", "submit", "payroll.csv", environ=_fresh(machine)
    )


def fridays_backup(machine: Machine) -> None:
    """A new machine gets Friday's copy of the lost journal."""
    friday = machine.home / "friday.sqlite3"
    machine.run("submit", machine.sheet(ROWS, name="second.csv", first=ROWS))
    for path in machine.home.glob("journal.sqlite3*"):
        path.unlink()
    shutil.rmtree(machine.home / "known.journal.sqlite3", ignore_errors=True)
    friday.rename(machine.journal)
    machine.run("submit", "second.csv", environ=_fresh(machine))


def same_machine_older_copy(machine: Machine) -> None:
    """Friday's copy replaces the journal on the machine that knows the newer one."""
    machine.run("submit", machine.sheet(ROWS, name="second.csv", first=ROWS))
    for path in machine.home.glob("journal.sqlite3*"):
        path.unlink()
    (machine.home / "friday.sqlite3").rename(machine.journal)
    machine.run("submit", "second.csv")


def corrected_spelling(machine: Machine) -> None:
    """Someone writes the ids in lower case, and submits the sheet again."""
    _submit_again(machine, machine.prefix.lower())


def last_months_sheet(machine: Machine) -> None:
    """Last month's sheet comes under this month's ids, and nobody is asked."""
    _submit_again(machine, f"{machine.prefix}-DEC")


def the_same_sheet(machine: Machine) -> None:
    """The same sheet is submitted again, and under another name."""
    machine.run("submit", "payroll.csv")
    shutil.copy(machine.home / "payroll.csv", machine.home / "payroll (1).csv")
    machine.run("submit", "payroll (1).csv")


def _submit_again(machine: Machine, prefix: str) -> None:
    text = (machine.home / "payroll.csv").read_text()
    (machine.home / "again.csv").write_text(text.replace(f"{machine.prefix}-", f"{prefix}-"))
    machine.run("submit", "again.csv")


def _fresh(machine: Machine) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(machine.home / "other-state"), "HOME": str(machine.home / "other-home")}


def play_people_story(machine: Machine, at: GatewayProcess, story: Callable[[Machine], None]) -> None:
    """Pay a sheet, make a backup, let people act, and check that the gateway paid nobody twice."""
    machine.run("submit", machine.sheet(ROWS))
    if code := machine.run("backup", machine.home / "friday.sqlite3"):
        raise AssertionError(f"exit code {code}: {machine.said()}")
    story(machine)
    ours = [
        line
        for line in at.record(machine.since)
        if line.client_orderid.casefold().startswith(f"{machine.prefix}-".casefold()) and line.committed == "yes"
    ]
    if len({line.amount for line in ours}) < ROWS - 1:  # each row has a different amount
        raise AssertionError(f"the sheet was not paid: {machine.said()}")
    if twice := [amount for amount, count in Counter(line.amount for line in ours).items() if count > 1]:
        raise Broken(f"paid twice: the rows of {twice}")


PEOPLE: Mapping[str, Callable[[Machine], None]] = {
    "the same sheet": the_same_sheet,
    "an older copy on the same machine": same_machine_older_copy,
    "another account": another_account,
    "Friday's backup on a new machine": fridays_backup,
    "corrected spelling": corrected_spelling,
    "last month's sheet under new ids": last_months_sheet,
}
