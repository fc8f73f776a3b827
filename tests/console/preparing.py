"""Prepares payouts for tests: uploads, checks and signs sheets."""

import io
import re
from html import unescape

import openpyxl

from paygw_batch.console.payout_folder import PayoutFolder
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.people import MAKER, House, Person, parse_forms
from tests.support.program import Program

NO_APPROVAL = '[approval.from_amount]\nKES = "100000000"\n'
HEADING = "Country,Client Order ID,Amount,Currency,Account name,account_number,phone,Team"
HEADER = "Country,Amount,Currency,Account name,account_number,phone"
ROW = "KE,100.00,KES,A\xefcha Traor\xe9,254712345678,254712345678"


def waive_approval(program: Program) -> str:
    """Let sums as small as a test's be paid without approval, and return the previous configuration."""
    plain = program.config.read_text()
    program.config.write_text(plain.replace("[approval.makers]", f"{NO_APPROVAL}[approval.makers]"))
    return plain


def row(n: int, **wrong: str) -> str:
    cells = {"country": "KE", "id": f"P-{n}", "amount": f"{100 + n}.00", "currency": "KES", "name": f"Jane {n}"}
    return ",".join([*({**cells, "account": f"254712345{n:03}"} | wrong).values(), f"+254712345{n:03}", f"T{n % 3}"])


EIGHT_DEFECTS = {3: {"amount": '"1,250.00"'}, 4: {"amount": "12-Jan"}, 5: {"country": "Kenya"}, 6: {"name": ""}}
EIGHT_DEFECTS |= {7: {"currency": "USD"}, 8: {"amount": "=SUM(A1)"}, 10: {"id": "P-9"}}


def sheet(count: int = 12, wrong: "dict[int, dict[str, str]] | None" = None) -> bytes:
    return "\n".join([HEADING, *(row(n, **(wrong or {}).get(n, {})) for n in range(1, count + 1))]).encode()


def upload_sheet(person: Person, content: bytes, name: str = "payroll-november.csv") -> str:
    answer = person.upload("/new", name, content)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def sign_sheet(person: Person, draft: str) -> str:
    """Sign a ready sheet and return the code of its plan."""
    page = person.get(f"{draft}/plan").text
    code = str(re.findall(r'<span class="code">([\w ]+)</span>', page)[0])
    assert person.post(f"{draft}/sign").status_code == 303
    return code


def digest(person: Person, draft: str) -> str:
    return str(re.findall(r'name="digest" value="(\w+)"', person.get(f"{draft}/plan").text)[0])


def payable_count(page: str) -> str:
    return str(re.findall(r'<tfoot><tr><th scope="row" class="lead">All</th><td class="number">([\d,]+)</td>', page)[0])


def wait_until_finished(person: Person, draft: str) -> str:
    """Wait until the payout's run has ended, and return its page."""
    wait_until(lambda: person.get(f"{draft}/plan").status_code == 303, "the payout does not start")
    payout = person.get(f"{draft}/plan").headers["location"]
    wait_until(lambda: re.search("Finished|Paused", person.get(payout).text), "the payout does not end")
    return person.get(payout).text


PAYROLL = """Staff list of October,,,,,,
Country Code,Payment ID,Net Pay,Gross,Beneficiary,Wallet,Mobile No
KE,P-1,100.00,180.00,Jane Wanjiku,254712345001,+254712345001
KE,P-2,200.00,280.00,Halima Abdi,254712345002,+254712345002
"""


def open_payout_folder(house: House, draft: str) -> PayoutFolder:
    return PayoutFolder(house.console.directory / draft.rpartition("/")[2])


def submit_sheet(program: Program, folder: PayoutFolder) -> tuple[int, str]:
    """Submit the sheet of a payout from the command line, and return the exit code and output."""
    given = ("--mended", folder.corrections_file, "--plan", folder.plan_file)
    run = program.run("submit", folder.sheet, *given, "--skip-invalid")
    return run.exit_code, " ".join(run.output.split())


LONG = "Uchukuzi-na-Mawasiliano-Halmashauri-ya-Wilaya-ya-Kisumu-Magharibi-" * 2


def pay_amounts(program: Program, name: str, amounts: list[str]) -> str:
    """Pay rows without approval in another process, as cron does, and return the batch. The first is row 2."""
    waive_approval(program)
    lines = [row(n, amount=amount, id=f"{name}-{n}", name=LONG) for n, amount in enumerate(amounts, 1)]
    run = program.start("--json", "submit", program.sheet(lines, f"{name}.csv", HEADING))
    stdout, stderr = run.communicate(timeout=PATIENCE_S)
    batch_ids = re.findall(r'"batch": "(\w+)"', stdout)
    assert batch_ids, stderr
    return str(batch_ids[0])


def upload_with_questions(house: House, name: str, content: bytes, **form: str) -> tuple[Person, str, str]:
    ada = house.person(MAKER)
    path = ada.upload("/new", name, content, **form).headers["location"]
    return ada, path, ada.get(path).text


def shown_version(page: str) -> str:
    return str(re.findall(r'name="version" value="([0-9a-f]+)"', page)[0])


def answer_question(ada: Person, path: str, page: str, **answer: str) -> str:
    """Send the form of a question and return the next page."""
    answer_given = ada.post(f"{path}/reading", **{"version": shown_version(page)} | answer)
    assert answer_given.status_code == 303, answer_given.text
    return ada.get(path).text


def payroll(month: str) -> bytes:
    """Return an export with its own headings, amount format and country names, but no order ids."""
    lines = ["Pays;Salaire net;Devise;Nom;Compte;T\xe9l\xe9phone"]
    lines += [f"S\xe9n\xe9gal;17{n}.000,00;FCFA;{month} {n};22177123450{n};22177123450{n}" for n in range(3)]
    lines += [f"Kenya;1.2{n}0,50;KSh;{month} {n};25471234500{n};25471234500{n}" for n in range(3)]
    return "\n".join([*lines, f"Total;525.631,50;;{month};;"]).encode("cp1252")


def upload_and_answer(house: House, name: str) -> tuple[Person, str]:
    """Upload a payroll and answer each question with the suggestion."""
    ada, path, page = upload_with_questions(house, f"{name}.csv", payroll(name))
    asked = []
    while "We need one more answer" in page or "What does each column" in page:
        asked.append(unescape(re.findall(r"<h2[^>]*>(.*?)</h2>", page)[0]))
        answer = next(fields for action, fields in parse_forms(page) if action.endswith("/reading")) | column_form(page)
        if suggested := re.findall(r'id="run-name" name="reference"[^>]*value="([^"]*)"', page):
            answer["reference"] = suggested[0]
        page = answer_question(ada, path, page, **answer)
    assert asked == [
        "Are these names spelled correctly?",
        "What does each column of your sheet contain?",
        "Your sheet has no order ids. What is this payment run called?",
        "Does S\xe9n\xe9gal mean SN?",
        "Does 170.000,00 mean 170000?",
    ]
    return ada, path


def column_form(page: str) -> dict[str, str]:
    """Return the column form as a browser would send it: each heading with its chosen column."""
    form = {name: unescape(text) for name, text in re.findall(r'name="(heading-\d+)" value="([^"]*)"', page)}
    for name, options in re.findall(r'<select name="(column-\d+)"[^>]*>(.*?)</select>', page):
        chosen = re.findall(r'value="(\w*)" selected', options)
        form[name] = chosen[0] if chosen else ""
    return form


def build_workbook(*titles: str) -> bytes:
    book = openpyxl.Workbook()
    book.worksheets[0].title = "Cover"
    for number, title in enumerate(titles, 1):
        sheet = book.create_sheet(title)
        line = f"{title},{ROW}".replace("100.00", f"{number}00.00").replace("5678", f"567{number}")
        sheet.append(f"client_orderid,{HEADER}".split(","))
        sheet.append(line.split(","))
    kept = io.BytesIO()
    book.save(kept)
    return kept.getvalue()
