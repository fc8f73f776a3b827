"""The pinned outputs: each function yields complete outputs as text, by name."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import polars as pl

from tests.pins.entry import QUERIES, PaygwError, Reading, SheetSource, load_settings, rules_for
from tests.pins.machine import Machine, machine, query_rows, workbook_parts
from tests.support.checkout import versioned_files
from tests.support.program import SAMPLES

Output = tuple[str, str]
LONG_ROWS = 100_000

COMMANDS = (
    *("approve", "backup", "collect", "doctor", "listen", "plan", "reconcile", "refresh", "resolve", "resume", "retry"),
    *("carry-out", "run-folder", "sandbox", "sign", "status", "submit", "template", "validate", "verify"),
)
INSTRUCTIONS = (
    "SELECT batch, row, client_orderid, country, currency, minor, amount, form, fields, payee, content "
    "FROM instruction ORDER BY number"
)
BATCHES = "SELECT number, batch, operation, sheet_name, sheet_sha256, rows, defects FROM batch ORDER BY number"
_STANDINGS = """SELECT i.number, s.state, s.attempt, s.generation, s.possible_duplicate_of, s.inherited_attempts,
        {next_order_id}, n.order_id, n.purpose, {gateway_status}, {http_status}, {error_code}, {message}
    FROM instruction i {with_state}
    WHERE i.replaces IS NOT NULL OR EXISTS (SELECT 1 FROM fact a WHERE a.instruction = i.number) ORDER BY 1"""
STANDINGS = _STANDINGS.format_map(QUERIES)
"""The tables of rows with facts, with the columns that people read."""
FACTS = """SELECT f.number, f.kind, coalesce(f.batch, i.batch), f.instruction, f.attempt, c.state FROM fact f
    LEFT JOIN instruction i ON i.number = f.instruction LEFT JOIN contradiction c ON c.fact = f.number ORDER BY 1"""


def samples() -> Iterator[Output]:
    """Yield the findings in every sample, as text and as data, and its file for correction."""
    sheets = [path for path in versioned_files("samples") if path.suffix in {".csv", ".parquet", ".xlsx"}]
    for path in sheets:
        name = str(path.relative_to(SAMPLES))
        if path.name == "outcomes.csv":
            continue
        collect = ["--collect"] if "collections" in name else []
        with machine() as own:
            yield f"validate/{name}", own.run("--json", "validate", path, *collect)
            yield f"validate/{name}/words", own.run("validate", path, *collect, "--strict")
    with machine() as own:
        for path in (SAMPLES / "every-defect.csv", SAMPLES / "to-mend.xlsx"):
            own.run("validate", path, "--rejects", own.home / "rejects.csv")
            yield f"rejects/{path.name}/csv", (own.home / "rejects.csv").read_text(encoding="utf-8")
            own.run("validate", path, "--rejects", own.home / "rejects.xlsx")
            yield f"rejects/{path.name}/xlsx", own.masked(workbook_parts(own.home / "rejects.xlsx"))


def submitted() -> Iterator[Output]:
    """Yield the results of paying and collecting the samples at the sandbox."""
    for name, command, *words in (
        ("payroll-mixed.csv", "submit"),
        ("payroll-mixed.parquet", "submit"),
        ("to-mend.xlsx", "submit", "--skip-invalid"),
        ("every-defect.csv", "submit", "--skip-invalid", "--reference", "pins"),
        ("collections-mixed.csv", "collect"),
    ):
        with machine() as own:
            out = own.home / "out.csv"
            result = own.run("--json", "-q", command, SAMPLES / name, "--out", out, *words)
            yield f"submit/{name}", result
            yield f"submit/{name}/again", own.run("--json", "-q", command, SAMPLES / name, "--out", out, *words)
            if out.exists():
                yield f"submit/{name}/reconciliation", own.table(out)
                for table, query in (("batch", BATCHES), ("instruction", INSTRUCTIONS), ("standing", STANDINGS)):
                    yield f"submit/{name}/{table}", "\n".join(query_rows(own.home / "journal.sqlite3", query))
                yield f"submit/{name}/verify", own.run("--json", "verify")
                yield f"submit/{name}/status", own.run("--json", "status")


def requests() -> Iterator[Output]:
    """Yield the bytes of a request for each country, operation and profile, with fixed nonce, time and key."""
    with machine(consumer_key='"sandbox-merchant"\nprivate_key = "key.pem"') as own:
        for folder, collect in (("countries", ()), ("collections", ("--collect",))):
            for path in versioned_files(f"samples/{folder}", "*.csv"):
                for profile in ("json-params", "raw-body"):
                    words = ("--explain", "--profile", profile, "--nonce", "ab" * 16, "--timestamp", "1700000000")
                    yield f"sign/{folder}/{path.stem}/{profile}", own.run("--json", "sign", path, *words, *collect)


def generated(rows: int = 20_000) -> Iterator[Output]:
    """Yield every row, instruction, defect and warning of a large sheet."""
    with machine() as own:
        path = own.home / "generated.csv"
        script = str(SAMPLES / "make_sheet.py")
        arguments = ["--rows", str(rows), "--seed", "5", "--bad-share", "0.02", "--out", str(path)]
        subprocess.run([sys.executable, script, *arguments], check=True)
        yield from _validated(f"generated/{rows}", own, path)


def hostile() -> Iterator[Output]:
    """Yield the messages and rows of sheets that were made to be misread."""
    from tests.sheet.hostile import hostile_sheet  # noqa: PLC0415 (it reads every sample when it is imported)

    with machine() as own:
        told = []
        for seed in range(250):
            sheet = hostile_sheet(seed)
            if sheet.ending == ".parquet":
                continue  # how far a damaged one is decoded varies; tests/sheet/hostile.py covers these
            path = own.home / f"hostile-{seed}{sheet.ending}"
            path.write_bytes(sheet.content)
            told.append(f"# {seed}{sheet.ending}\n" + "".join(text for _, text in _validated("", own, path)))
            path.unlink()
        yield "hostile", "\n".join(told)


_REFERENCE = "pins"


def _validated(name: str, own: Machine, path: Path) -> Iterator[Output]:
    settings = load_settings(own.home / "paygw.toml", environ={}, flags={})
    try:
        found = SheetSource(settings, rules_for(settings, "payout"), path, Reading(reference=_REFERENCE)).validated()
        _ = found.rows  # read when first asked for
    except PaygwError as error:
        yield f"{name}/refused", own.masked(f"{type(error).__name__}: {error.message} {error.hint}\n")
        return
    totals = {currency: str(total) for currency, total in sorted((found.totals.sums or {}).items())}
    # The note on a sheet with its own ids, because every sheet gets a reference here.
    of_sheet = [note for note in found.sheet.notes if not note.endswith(f"the reference {_REFERENCE} is not used.")]
    notes = [found.batch, str(found.totals.rows), json.dumps(totals), *of_sheet]
    yield f"{name}/batch", own.masked("\n".join(notes) + "\n")
    for part in ("rows", "instructions", "defects", "warnings"):
        frame: pl.DataFrame = getattr(found, part)
        yield f"{name}/{part}", f"{frame.columns}\n{frame.write_ndjson()}"


def recorded() -> Iterator[Output]:
    """Yield journals of every version of the tables, before and after an upgrade, and the output about them."""
    for path in versioned_files("tests/pins/journals", "*.tar.gz"):
        name = path.name.removesuffix(".tar.gz")
        with machine() as own:
            batches = own.unpack(name)
            for command in ("status", "verify"):
                yield f"journal/{name}/untouched/{command}", own.run("--json", command)
            yield f"journal/{name}/brought-up", own.run("-q", "resume", batches[1], "--out", own.home / "resumed.csv")
            yield from _journal(f"journal/{name}", own, batches)


def _journal(name: str, own: Machine, batches: Sequence[str]) -> Iterator[Output]:
    yield f"{name}/verify", own.run("--json", "verify")
    yield f"{name}/status", own.run("--json", "status")
    for table, query in (("batch", BATCHES), ("instruction", INSTRUCTIONS), ("standing", STANDINGS), ("fact", FACTS)):
        yield f"{name}/{table}", "\n".join(query_rows(own.home / "journal.sqlite3", query))
    for number, batch in enumerate(batches, 1):
        yield f"{name}/{number}/status", own.run("--json", "status", batch, "--history")
        yield f"{name}/{number}/status/words", own.run("status", batch, "--history")
        out = own.home / "out.csv"
        report = own.home / "report.html"
        yield f"{name}/{number}/reconcile", own.run("--json", "reconcile", batch, "--out", out, "--report", report)
        yield f"{name}/{number}/reconciliation", own.masked(out.read_text(encoding="utf-8"))
        own.run("reconcile", batch, "--out", own.home / "out.xlsx")
        if number < len(batches):  # the charts and dates of the last one, which was killed, extend to today
            yield f"{name}/{number}/report", own.masked(report.read_text(encoding="utf-8"))
            yield f"{name}/{number}/workbook", own.masked(workbook_parts(own.home / "out.xlsx"))
        questions = own.home / "questions.csv"
        own.run("status", batch, "--in-doubt", "--out", questions)
        if questions.exists():
            yield f"{name}/{number}/questions", own.masked(questions.read_text(encoding="utf-8"))
            questions.unlink()


REFUSED = """
submit {home}/none.csv
submit {home}/pay.csv
submit {sample} --expect-rows 3
submit {sample} --expect-total KES=1
submit {sample} --dry-run
submit {samples}/every-defect.csv
submit {samples}/collections-mixed.csv
collect {sample}
status
status feed
resume
retry feed
reconcile feed --out {home}/x.csv
resolve row feed 2 --as paid --evidence 'a mail'
plan {sample} --out {home}/plan.json --key {home}/key.pem
backup {home}/copy.sqlite3
refresh feed
listen
run-folder {home}/none
template XX --out {home}/new.csv
frobnicate
submit --frobnicate
"""


def refusals() -> Iterator[Output]:
    """Yield the output and exit code of commands that are refused."""
    with machine() as own:
        sheet = own.home / "pay.csv"
        sheet.write_text("country,client_orderid,amount\nKE,A,1\n")
        for number, line in enumerate(REFUSED.strip().splitlines()):
            places = {"home": own.home, "sample": SAMPLES / "payroll-mixed.csv", "samples": SAMPLES}
            words = [word.format_map(places) for word in shlex.split(line)]
            yield f"refused/{number:02}-{words[0]}", own.run("--json", *words)
        (own.home / "paygw.toml").write_text("[gateway]\nbase_url = 3\nfoo = 1\n")
        yield "refused/configuration", own.run("status")


def words() -> Iterator[Output]:
    with machine() as own:
        yield "help", own.run("--help", config=False)
        for command in COMMANDS:
            yield f"help/{command}", own.run(command, "--help")
        for countries in (("KE", "TZ"), ("NG",)):
            for ending in ("csv", "xlsx"):
                out = own.home / f"{'-'.join(countries)}.{ending}"
                yield f"template/{out.name}", own.run("--json", "template", *countries, "--out", out)
                text = workbook_parts(out) if ending == "xlsx" else out.read_text(encoding="utf-8")
                yield f"template/{out.name}/file", own.masked(text)


GROUPS: dict[str, Callable[[], Iterator[Output]]] = {
    group.__name__: group for group in (samples, submitted, requests, generated, hostile, recorded, refusals, words)
}
