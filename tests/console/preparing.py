"""A payout in preparation: a sheet, uploaded, checked and signed."""

import re
import time
from pathlib import Path

from paygw_batch.console.payout_folder import PayoutFolder
from tests.support.browsers import Desk, Keyboard
from tests.support.patience import PATIENCE_S
from tests.support.people import House, Person
from tests.support.program import Program

NO_APPROVAL = '[approval.from_amount]\nKES = "100000000"\n'


HEADING = "Country,Client Order ID,Amount,Currency,Account name,account_number,phone,Team"


def row(n: int, **wrong: str) -> str:
    cells = {
        "country": "KE",
        "id": f"P-{n}",
        "amount": f"{100 + n}.00",
        "currency": "KES",
        "name": f"Jane {n}",
        "account": f"254712345{n:03}",
    } | wrong
    return (
        f"{cells['country']},{cells['id']},{cells['amount']},{cells['currency']},{cells['name']},{cells['account']},"
        f"+254712345{n:03},T{n % 3}"
    )


EIGHT_DEFECTS = {
    3: {"amount": '"1,250.00"'},
    4: {"amount": "12-Jan"},
    5: {"country": "Kenya"},
    6: {"name": ""},
    7: {"currency": "USD"},
    8: {"amount": "=SUM(A1)"},
    10: {"id": "P-9"},
}


def sheet(count: int = 12, wrong: "dict[int, dict[str, str]] | None" = None) -> bytes:
    lines = [HEADING, *(row(n, **(wrong or {}).get(n, {})) for n in range(1, count + 1))]
    return "\n".join(lines).encode()


def uploaded(person: Person, content: bytes, name: str = "payroll-november.csv") -> str:
    answer = person.upload("/new", name, content)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def signed(person: Person, place: str) -> str:
    """Sign a sheet that is ready, and return the code of its plan."""
    page = person.get(f"{place}/plan").text
    code = str(re.findall(r'<span class="code">([\w ]+)</span>', page)[0])
    assert person.post(f"{place}/sign").status_code == 303
    return code


def digest(person: Person, place: str) -> str:
    return str(re.findall(r'name="digest" value="(\w+)"', person.get(f"{place}/plan").text)[0])


def to_pay(page: str) -> str:
    return str(re.findall(r'<tfoot><tr><th scope="row" class="lead">All</th><td class="number">([\d,]+)</td>', page)[0])


def finished(person: Person, place: str) -> str:
    """Return the page of the payout when its run has ended."""
    for _ in range(1200):
        answer = person.get(f"{place}/plan")
        if answer.status_code == 303:
            page = person.get(answer.headers["location"]).text
            if "Finished" in page or "Paused" in page:
                return page
        time.sleep(0.1)
    raise AssertionError(answer.text)


PAYROLL = """Staff list of October,,,,,,
Country Code,Payment ID,Net Pay,Gross,Beneficiary,Wallet,Mobile No
KE,P-1,100.00,180.00,Jane Wanjiku,254712345001,+254712345001
KE,P-2,200.00,280.00,Halima Abdi,254712345002,+254712345002
"""


def folder_of(house: House, place: str) -> PayoutFolder:
    return PayoutFolder(house.console.directory / place.rpartition("/")[2])


def folder_in(house: House, place: str) -> PayoutFolder:
    return PayoutFolder(house.console.directory / place.rpartition("/")[2])


def submitted(program: Program, found: PayoutFolder) -> tuple[int, str]:
    """Submit the sheet of the pages by the command line; return the exit code and what it says."""
    run = program.run(
        "submit", found.sheet, "--mended", found.mending_file, "--plan", found.plan_file, "--skip-invalid"
    )
    return run.exit_code, " ".join(run.output.split())


def upload(desk: Desk, path: Path) -> Keyboard:
    """Upload a sheet, from the first page on."""
    keyboard, page = Keyboard(desk.page), desk.page
    keyboard.press(page.get_by_role("link", name="Start a new payout"))
    keyboard.reach(page.get_by_label("Your sheet")).set_input_files(path)
    keyboard.press(page.get_by_role("button", name="Upload and check"))
    page.wait_for_url("**/sheets/*")
    return keyboard


def paid_payout(program: Program) -> str:
    small = '[approval.from_amount]\nKES = "100000000"\n'
    program.config.write_text(program.config.read_text().replace("[approval.makers]", f"{small}[approval.makers]"))
    heading = "country,client_orderid,amount,currency,account_name,account_number,phone,note"
    rows = [
        "KE,F-1,100.00,KES,Jane Wanjiku,254712345001,+254712345001,=1+1",
        "KE,F-2,200.00,KES,Halima Abdi,254712345002,+254712345002,@SUM(A1)",
    ]
    return str(program.json("submit", program.sheet(rows, "payroll.csv", heading))["batch"])


LONG = "Uchukuzi-na-Mawasiliano-Halmashauri-ya-Wilaya-ya-Kisumu-Magharibi-" * 2


def paid_through(program: Program, name: str, amounts: list[str]) -> str:
    program.config.write_text(
        program.config.read_text().replace("[approval.makers]", f"{NO_APPROVAL}[approval.makers]")
    )
    lines = [row(n, amount=amount, id=f"{name}-{n}", name=LONG) for n, amount in enumerate(amounts, 1)]
    heading = "Country,Client Order ID,Amount,Currency,Account name,account_number,phone,Team"
    run = program.start("--json", "submit", program.sheet(lines, f"{name}.csv", heading))
    said, problem = run.communicate(timeout=PATIENCE_S)
    found = re.findall(r'"batch": "(\w+)"', said)
    assert found, problem
    return str(found[0])
