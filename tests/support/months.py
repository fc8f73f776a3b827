"""Payrolls of several months."""

NAMES = [f"Payee{letter} Otieno" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"] + [
    f"Payee{letter} Wanjiku" for letter in "ABCDEFGHIJ"
]


def row(order: str, n: int, name: str, amount: str, *, account: str = "") -> str:
    return f"KE,{order}-{n},{amount},KES,{name},{account or f'0712345{n:03}'},0712345{n:03}"
