"""Two ways to do the same task: by commands with a key file for each person, and on the pages without a browser.

Both return values: states, totals, codes of defects, and the code of a refusal, which is an exit code or a status.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from paygw_batch.console.start_run import last_run
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.settings.configuration import load_settings
from tests.console.preparing import open_payout_folder, submit_sheet, wait_until_finished, waive_approval
from tests.support.patience import wait_until
from tests.support.people import APPROVER, MAKER, ORIGIN, House, Person
from tests.support.program import Program, kenyan_rows, read_csv

TICKET = "Ticket 4711 <b>"
STATEMENT = "Order ID,Amount,Currency,Answer"


class Company:
    """What both drivers share: the journal, and the gateway's record as the judge."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._files = 0

    def _new_file(self, name: str) -> Path:
        self._files += 1
        return self.program.home / f"{self._files}-{name}"

    def pay(self, *amounts: str, name: str = "P") -> str:
        """Pay rows without approval, and return the batch. The first is row 2."""
        plain = waive_approval(self.program)
        rows = [kenyan_rows(n, amount=amount, prefix=name)[-1] for n, amount in enumerate(amounts, 1)]
        batch = self.program.json("submit", self.program.sheet(rows, f"{name}.csv"))["batch"]
        self.program.config.write_text(plain)
        return str(batch)

    def reconciliation(self, batch: str) -> list[dict[str, str]]:
        out = self._new_file("reconciliation.csv")
        self.program.json("reconcile", batch, "--out", out)
        return read_csv(out)

    def states(self, batch: str) -> list[str]:
        """Return the state of each row, in the order of the sheet."""
        return [line["state"] for line in self.reconciliation(batch)]

    def sent(self) -> list[str]:
        """Return the order ids that the gateway accepted: the judge."""
        return [line["client_orderid"] for line in self.program.record()]

    def history(self, batch: str) -> list[tuple[str, str]]:
        """Return the reason of each decision about a batch without its time, and the people of its order."""
        past = self.program.json("status", batch, "--history")["history"]
        texts = [(str(deed["said"]).partition(" at ")[0], str(deed["by"]).partition(", by order ")[2]) for deed in past]
        return [(said, people.partition(", ")[2]) for said, people in texts]

    def checked(self) -> dict[str, int]:
        """Verify the journal, and return the number of things checked."""
        summary = self.program.json("verify")
        assert summary["exit_code"] in {0, 5}, summary
        counts: dict[str, int] = summary["checked"]
        return counts

    @contextmanager
    def other_run(self) -> Iterator[None]:
        """Hold the journal as another run does, during the block."""
        path = lock_path(load_settings(self.program.config, environ={}).journal_path())
        with closing(RunLock(path, now="2026-11-22T00:00:00.000Z", command="submit")):
            yield


class Commands(Company):
    """People with a terminal. A document is the path of a sheet, whose plan is beside it, or of an order.

    Codes: another person has to do it (FORBIDDEN), the document is no longer valid (OUTDATED), the state of a row does
    not allow it, or not yet (WRONG), and another run is using the journal (BUSY).
    """

    DONE, WRONG, BUSY, FORBIDDEN, OUTDATED = "0", "2", "7", "8", "8"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._options: dict[str, list[str]] = {}

    def _code(self, *words: str | Path) -> str:
        code = self.program.json(*words)["exit_code"]
        return "0" if code in {4, 5, 6} else str(code)

    def _key(self, name: str) -> tuple[str, Path]:
        return "--key", self.program.home / "keys" / f"{name}.pem"

    def _ordered(self, *words: str | Path, by: str = MAKER) -> str:
        order = self._new_file("order.json")
        code = self._code("order", *words, "--evidence", TICKET, "--out", order, *self._key(by))
        return str(order) if code == "0" else code

    def _statement(self, lines: tuple[str, ...]) -> Path:
        path = self._new_file("statement.csv")
        path.write_text("\n".join([STATEMENT, *lines]))
        return path

    def prepare(self, sheet: bytes, name: str = "payroll.csv", reference: str = "") -> str:
        """Give a sheet, which has order ids or belongs to the payment run `reference`."""
        (path := self.program.home / name).write_bytes(sheet)
        self._options[str(path)] = ["--reference", reference] if reference else []
        return str(path)

    def problems(self, payout: str) -> tuple[int, str]:
        """Return the number of rows that cannot be paid, and the code of the question about the sheet."""
        written = ("--out", self._new_file("plan.json"), *self._key(MAKER))
        summary = self.program.json("plan", payout, *written, *self._options[payout])
        return summary["defects"], summary.get("code") or ""

    def correct(self, payout: str, row: int, column: str, text: str) -> None:
        heading, *lines = csv.reader(Path(payout).read_text().splitlines())
        columns = [name.lower().replace(" ", "_").replace("order_id", "orderid") for name in heading]
        lines[row - 2][columns.index(column)] = text
        with Path(payout).open("w", newline="") as stream:
            csv.writer(stream).writerows([heading, *lines])

    def leave_out(self, payout: str, row: int) -> None:
        assert self.problems(payout)[0] == 1, row
        self._options[payout].append("--skip-invalid")

    def answer(self, payout: str, *new_payees: str) -> None:
        self._options[payout] += ["--repeats-meant", *(word for name in new_payees for word in ("--new-payee", name))]

    def sign(self, payout: str) -> str:
        written = ("--force", "--out", self.plan(payout), *self._key(MAKER))
        return self._code("plan", payout, *written, *self._options[payout])

    def approve(self, payout: str, by: str = APPROVER) -> str:
        return self._code("approve", self.plan(payout), *self._key(by))

    def start(self, payout: str) -> str:
        return self.submit(payout)

    def submit(self, payout: str) -> str:
        """Submit the payout with its plan as a command, and return the exit code."""
        return self._code("submit", payout, *self._options[payout])

    def plan(self, payout: str) -> Path:
        return Path(payout).with_suffix(".plan.json")

    def batch(self, payout: str) -> str:
        return str(self.program.json("status", payout)["batch"])

    def withdraw(self, document: str, by: str) -> str:
        path = document if document.endswith(".json") else self.plan(document)
        return self._code("withdraw", path, *self._key(by))

    def settle(self, batch: str, row: int, said: str, evidence: str = TICKET, by: str = APPROVER) -> str:
        return self._code("resolve", "row", batch, str(row), "--as", said, "--evidence", evidence, "--by", by)

    def settle_by_statement(self, batch: str, *lines: str, by: str = APPROVER) -> str:
        options = ("--yes", "--matching-only", "--by", by)
        return self._code("resolve", "statement", batch, self._statement(lines), *options)

    def order(self, batch: str, *rows: int, said: str, by: str = MAKER) -> str:
        """Sign an order to settle a row, or to send rejected rows again, and return the order or a refusal."""
        numbers = [str(row) for row in rows]
        if said == "retry":
            return self._ordered("release", batch, *(word for row in numbers for word in ("--row", row)), by=by)
        return self._ordered("settle", batch, *numbers, "--as", said, by=by)

    def order_by_statement(self, batch: str, *lines: str) -> str:
        return self._ordered("settle", batch, "--statement", self._statement(lines))

    def agree(self, order: str, by: str = APPROVER) -> str:
        code = self._code("approve", order, *self._key(by))
        return self.carry_out(order) if code == self.DONE else code

    def carry_out(self, order: str) -> str:
        return self._code("carry-out", order)


class Pages(Company):
    """The same people on the pages, with the same verbs. A document is an address."""

    DONE, WRONG, BUSY, FORBIDDEN, OUTDATED = "303", "409", "409", "403", "409"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.house = House(program)
        self._open: dict[str, dict[str, str]] = {}
        self.people = {name: self.house.person(name) for name in (MAKER, APPROVER)}

    def _post(self, by: str, path: str, **form: str) -> str:
        """Send a form as it is shown now, or else as somebody has it open who saw the document when it was signed."""
        person, document = self.people[by], path.rpartition("/")[0]
        data = person.with_token((person.shown(path, **form) or self._open.get(document, {})) | form)
        return str(person.ask("POST", path, data=data, headers={"origin": ORIGIN}).status_code)

    def _sign(self, document: str, page: str, by: str) -> str:
        code = self._post(by, f"{document}/sign")
        if digests := re.findall(r'name="digest" value="(\w+)"', self.people[APPROVER].get(page).text):
            self._open[document] = {"digest": digests[0]}
        return code

    def _draft(self, path: str, by: str, **form: str) -> str:
        """Send the form that drafts an order, sign it, and return its address, or the code of a refusal."""
        answer = self.people[by].post(path, **form)
        order = str(answer.headers.get("location", ""))
        if not order.startswith("/orders/"):
            return str(answer.status_code)
        assert self._sign(order, order, by) == self.DONE
        return order

    def _preview(self, batch: str, lines: tuple[str, ...], person: Person) -> str:
        content = "\n".join([STATEMENT, *lines]).encode()
        answer = person.upload(f"/payouts/{batch}/statement", "answers.csv", content, words="By mail")
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def prepare(self, sheet: bytes, name: str = "payroll.csv", reference: str = "") -> str:
        draft = str(self.people[MAKER].upload("/new", name, sheet).headers["location"])
        if reference:
            self.people[MAKER].get(draft)
            assert self._post(MAKER, f"{draft}/reading", reference=reference) == self.DONE
        return draft

    def problems(self, payout: str) -> tuple[int, str]:
        page = self.people[MAKER].get(payout).text
        wrong = re.findall(r"(\d+) of \d+ rows? cannot be paid yet", page)
        questions = re.findall(r'name="question" value="([\w.]+)', page)
        return int(wrong[0]) if wrong else 0, questions[0] if questions else ""

    def correct(self, payout: str, row: int, column: str, text: str) -> None:
        assert self._post(MAKER, f"{payout}/mend", row=str(row), column=column, text=text) == self.DONE

    def leave_out(self, payout: str, row: int) -> None:
        assert self._post(MAKER, f"{payout}/leave-out", row=str(row)) == self.DONE

    def answer(self, payout: str, *new_payees: str) -> None:
        page = self.people[MAKER].get(payout).text
        assert all(name in page for name in new_payees)
        for question in re.findall(r'name="question" value="([^"]+)"', page):
            assert self._post(MAKER, f"{payout}/answer", question=question) == self.DONE

    def sign(self, payout: str) -> str:
        return self._sign(payout, f"{payout}/plan", MAKER)

    def approve(self, payout: str, by: str = APPROVER) -> str:
        return self._post(by, f"{payout}/approve")

    def start(self, payout: str) -> str:
        code = self._post(APPROVER, f"{payout}/start")
        if code == self.DONE:
            wait_until_finished(self.people[MAKER], payout)
        return code

    def plan(self, payout: str) -> Path:
        return open_payout_folder(self.house, payout).plan_file

    def submit(self, payout: str) -> str:
        return str(submit_sheet(self.program, open_payout_folder(self.house, payout))[0])

    def batch(self, payout: str) -> str:
        return str(self.people[MAKER].get(f"{payout}/plan").headers["location"].rpartition("/")[2])

    def withdraw(self, document: str, by: str) -> str:
        if by == APPROVER:
            act, form = "send-back", {"reason": "Row 2 was paid in cash"}
        else:
            act, form = "take-back" if document.startswith("/orders") else "withdraw", {}
        return self._post(by, f"{document}/{act}", **form)

    def reconciliation(self, batch: str) -> list[dict[str, str]]:
        out = self._new_file("reconciliation.csv")
        out.write_bytes(self.people[MAKER].get(f"/payouts/{batch}/reconciliation.csv").content)
        return read_csv(out)

    def settle(self, batch: str, row: int, said: str, evidence: str = TICKET, by: str = APPROVER) -> str:
        form = {"said": said, "evidence": evidence, "attempt": "1"}
        return self._post(by, f"/payouts/{batch}/rows/{row}/settle", **form)

    def settle_by_statement(self, batch: str, *lines: str, by: str = APPROVER) -> str:
        preview = self._preview(batch, lines, self.people[by])
        code = self.people[MAKER].shown(f"{preview}/carry-out")["code"]
        return self._post(by, f"{preview}/carry-out", code=code)

    def order(self, batch: str, *rows: int, said: str, by: str = MAKER) -> str:
        if said == "retry":
            boxes = {f"row-{row}": "on" for row in rows}
            return self._draft(f"/payouts/{batch}/retry", by, evidence=TICKET, **boxes)
        form = {"said": said, "evidence": TICKET, "attempt": "1"}
        return self._draft(f"/payouts/{batch}/rows/{rows[0]}/settle", by, **form)

    def order_by_statement(self, batch: str, *lines: str) -> str:
        return self._draft(f"{self._preview(batch, lines, self.people[MAKER])}/carry-out", MAKER)

    def agree(self, order: str, by: str = APPROVER) -> str:
        code = self._post(by, f"{order}/agree")
        if code == self.DONE and "/carry-out" in self.people[by].get(order).text:
            return self.carry_out(order)
        return code

    def carry_out(self, order: str) -> str:
        batch = re.findall(r'href="/payouts/(\w+)"', self.people[MAKER].get(order).text)
        code = self._post(MAKER, f"{order}/carry-out")
        if code == self.DONE and (run := last_run(self.house.console.runs, batch[0])) is not None:
            wait_until(lambda: not run.is_alive, "the run does not end")
        return code


Driver = Commands | Pages
