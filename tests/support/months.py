"""Payrolls of several months, and the frauds in the next one."""

from collections.abc import Callable
from pathlib import Path

from tests.support.program import Program

NAMES = [f"Payee{letter} Otieno" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"] + [
    f"Payee{letter} Wanjiku" for letter in "ABCDEFGHIJ"
]


def row(order: str, n: int, name: str, amount: str, *, account: str = "") -> str:
    return f"KE,{order}-{n},{amount},KES,{name},{account or f'0712345{n:03}'},0712345{n:03}"


PAYROLL = [row("SEP", n, name, "20000") for n, name in enumerate(NAMES[:30], 1)]


def pay_month(month: Program, sheet: Path) -> None:
    assert month.json("submit", sheet)["exit_code"] == 0


def prepare_next_month(month: Program, pay: Callable[[Program, Path], None] = pay_month) -> list[str]:
    """Pay a payroll, a bonus, another department and a tiny batch; return the next payroll.

    The tiny batch pays KES 10 to the account that one of the people is to be paid to next.
    """
    bonus = [row("BON", n, name, "500") for n, name in enumerate(NAMES[:30], 1)]
    others = [row("DEP", n, f"Other Worker{n}", "30000", account=f"0733000{n:03}") for n in range(1, 20)]
    tiny = [row("TINY", 4, NAMES[3], "10", account="0712999004")]
    for name, rows in (("sep.csv", PAYROLL), ("bonus.csv", bonus), ("other.csv", others), ("tiny.csv", tiny)):
        pay(month, month.sheet(rows, name))
    now = [row("NOV", n, name, "20500") for n, name in enumerate(NAMES[:30], 1)]
    now[3] = row("NOV", 4, NAMES[3], "20000", account="0712999004")
    now[4] = row("NOV", 5, NAMES[4], "80000")
    now[5] = row("NOV", 6, "Ghost Kamau", "15000", account="0799000777")
    return now
