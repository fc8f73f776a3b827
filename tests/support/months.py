"""Payrolls of several months."""

NAMES = [f"Payee{one} Otieno" for one in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"] + [f"Payee{one} Wanjiku" for one in "ABCDEFGHIJ"]


def row(order: str, n: int, name: str, amount: str, *, account: str = "") -> str:
    return f"KE,{order}-{n},{amount},KES,{name},{account or f'0712345{n:03}'},0712345{n:03}"
