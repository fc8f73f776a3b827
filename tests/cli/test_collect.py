"""Collections from end to end: runs against the sandbox, which verifies path, fields, control and signature."""

import hashlib
from decimal import Decimal

import pytest

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.load import load_rules
from paygw_batch.gateway import encode
from paygw_batch.sandbox.compare import compare, read_reconciliation
from paygw_batch.sandbox.record import read_record
from paygw_batch.sheet.columns import RECONCILIATION_COLUMNS
from tests.cli.sheets import BOTH_WAYS, COLLECTED, READ_BOTH_WAYS, customers
from tests.support.program import SAMPLES, Program, kenyan_rows, kill, read_csv

COUNTRIES = sorted(load_rules("payin", {}))
MIXED = SAMPLES / "collections-mixed.csv"
SECRET_LAST = '["client_orderid", "amount", "currency", "secret"]'


def recorded_collections(program: Program) -> list[dict[str, str]]:
    return read_csv(program.home / "sandbox-record-payin.csv")


def remove_keys(program: Program, *keys: str) -> None:
    lines = program.config.read_text().splitlines()
    program.config.write_text("\n".join(line for line in lines if line.partition("=")[0].strip() not in keys) + "\n")


def set_payin_keys(program: Program, **values: str) -> None:
    remove_keys(program, *values)
    further = "".join(f"{key} = {value}\n" for key, value in values.items())
    program.config.write_text(program.config.read_text().replace("[payin]", "[payin]\n" + further + "#", 1))


@pytest.mark.share(4)
@pytest.mark.parametrize("country", COUNTRIES)
def test_collection_in_each_country_returns_customer_page(program: Program, country: str) -> None:
    out = program.home / "out.csv"
    assert program.json("collect", SAMPLES / "collections" / f"{country}.csv", "--out", out)["states"] == {"paid": 5}
    rows = read_csv(out)
    assert list(rows[0])[: len(RECONCILIATION_COLUMNS) + 1] == [*RECONCILIATION_COLUMNS, "customer_url"]
    for row in rows:
        assert row["customer_url"] == f"https://sandbox.example/pay/{row['gateway_reference']}"
        assert bool(row["account_number"]) == (country != "KE")
        assert row["account_name"]
        assert row["phone"].lstrip("'").startswith("+")


@pytest.mark.share(3)
@pytest.mark.parametrize("amount", ["number", "two-decimals"])
@pytest.mark.parametrize("control_amount", ["as-sent", "two-decimals", "minor-units"])
def test_sandbox_accepts_control_hash_in_every_amount_format(
    program: Program, amount: str, control_amount: str
) -> None:
    set_payin_keys(program, amount=f'"{amount}"', control_amount=f'"{control_amount}"', control_separator='""')
    out = program.home / "out.csv"
    assert program.json("collect", MIXED, "--out", out)["states"] == {"paid": 100}
    assert {row["country"] for row in read_csv(out)} == set(COUNTRIES)
    assert compare(read_record(program.home / "sandbox-record-payin.csv"), read_reconciliation(out)) == []
    assert (program.record(), program.json("verify")["exit_code"]) == ([], 0)


@pytest.mark.parametrize(
    "keys",
    [{"control_order": '["secret", "currency", "client_orderid", "amount"]'}, {"control_algorithm": '"hmac-sha256"'}],
)
def test_control_hash_uses_configured_secret(program: Program, keys: dict[str, str]) -> None:
    set_payin_keys(program, **keys, control_secret_env='"PAYGW_CONTROL_SECRET"')
    sheet = program.sheet(customers(2), "c.csv", COLLECTED)
    refused = program.run("collect", sheet)
    assert (refused.exit_code, "PAYGW_CONTROL_SECRET" in refused.stderr) == (2, True)
    assert program.json("collect", sheet, PAYGW_CONTROL_SECRET="between us")["states"] == {"paid": 2}
    assert b"between us" not in b"".join(path.read_bytes() for path in program.home.rglob("*") if path.is_file())


def test_secret_is_named_and_used_once(program: Program) -> None:
    set_payin_keys(program, control_algorithm='"hmac-sha256"')
    sheet = program.sheet(customers(2), "c.csv", COLLECTED)
    unnamed = program.run("collect", sheet)
    assert (unnamed.exit_code, "payin.control_secret_env" in unnamed.stderr) == (2, True)
    set_payin_keys(program, control_order=SECRET_LAST, control_secret_env='"X_SECRET"')
    wrong = program.run("collect", sheet, X_SECRET="between us")
    assert (wrong.exit_code, "the secret is the key of the hash" in wrong.stderr) == (2, True)


def test_secret_file_must_be_private(program: Program) -> None:
    secret = program.home / "control.secret"
    secret.write_text("between us\n")
    set_payin_keys(program, control_order=SECRET_LAST, control_secret_file='"control.secret"')
    sheet = program.sheet(customers(1), "c.csv", COLLECTED)
    for mode in (0o640, 0o604, 0o620, 0o666):
        secret.chmod(mode)
        refused = program.run("collect", sheet)
        refusal = (refused.exit_code, f"chmod 600 {secret}" in refused.stderr, "between us" in refused.output)
        assert refusal == (2, True, False), f"{mode:o}"
    secret.chmod(0o600)
    assert program.json("collect", sheet)["states"] == {"paid": 1}


def test_sandbox_rejects_wrong_control_hash(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    right = encode.ControlProfile.control

    def wrong(profile: encode.ControlProfile, paid: Instruction, *, order_id: str, **rest: object) -> str:
        return right(profile, paid, order_id=f"{order_id}x", **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(encode.ControlProfile, "control", wrong)
    summary = program.json("collect", program.sheet(customers(1), "c.csv", COLLECTED))
    assert summary["states"] == {"rejected": 1}
    (row,) = read_csv(summary["reconciliation"])
    assert (row["error_code"], row["http_status"]) == ("control", "422")
    assert recorded_collections(program) == []


REQUIRED = ("site_url", "redirect_url", "amount", "control_order", "control_separator", "control_amount")


@pytest.mark.share(3)
@pytest.mark.parametrize("key", REQUIRED)
def test_collect_and_doctor_report_missing_payin_setting(program: Program, key: str) -> None:
    remove_keys(program, key)
    sheet = program.sheet(customers(1), "c.csv", COLLECTED)
    result = program.run("collect", sheet)
    assert (result.exit_code, f"payin.{key}" in result.stderr) == (2, True)
    assert f"payin.{key}" in program.run("doctor").stdout
    assert not program.journal.exists()
    assert program.json("submit", program.sheet(kenyan_rows(1)))["states"] == {"paid": 1}


def test_sheet_for_another_operation_is_refused(program: Program) -> None:
    out, sheets = program.home / "out.csv", {"submit": MIXED, "collect": SAMPLES / "payroll-mixed.csv"}
    for (command, sheet), other in zip(sheets.items(), reversed(sheets), strict=True):
        for further in ([], ["--skip-invalid"], ["--dry-run"]):
            result = program.run(command, sheet, *further, "--out", out)
            assert (result.exit_code, f"looks like a sheet for `{other}`" in result.stderr) == (3, True)
            assert "Traceback" not in result.stderr
    assert (program.record(), out.exists()) == ([], False)


def test_path_of_paid_and_collected_sheet_is_ambiguous(program: Program) -> None:
    """A sheet with the columns of both operations becomes one batch of each."""
    sheet = program.sheet([READ_BOTH_WAYS], "both.csv", BOTH_WAYS)
    batches = [program.json(command, sheet)["batch"] for command in ("submit", "collect")]
    result = program.run("resume", sheet)
    assert (result.exit_code, all(batch in result.stderr for batch in batches)) == (2, True)
    assert [len(program.record()), len(recorded_collections(program))] == [1, 1]
    assert [program.json("resume", batch)["sent_this_run"] for batch in batches] == [0, 0]
    assert [len(program.record()), len(recorded_collections(program))] == [1, 1]


def test_line_matching_two_operations_settles_nothing(program: Program) -> None:
    payout = program.json("submit", program.sheet(kenyan_rows(1, amount="9002", prefix="ID")))
    collection = program.json("collect", program.sheet(customers(1, amount="9002", prefix="ID"), "c.csv", COLLECTED))
    file = program.home / "statement.csv"
    file.write_text("order_id,amount,currency,status\nID-1,9002,KES,declined\n")
    for batch in (payout["batch"], collection["batch"]):
        summary = program.json("resolve", "statement", batch, file, "--yes")
        assert (summary["exit_code"], summary["resolved"], summary["states"]) == (3, 0, {"accepted": 1})
        assert "Settle the right row" in str(summary["differences"])
    told = program.json("resolve", "row", payout["batch"], "2", "--as", "paid", "--evidence", "Ticket 4711")
    assert told["states"] == {"paid": 1}
    assert program.json("status", collection["batch"])["states"] == {"accepted": 1}


def test_killed_collection_leaves_unanswered_row_in_doubt(program: Program) -> None:
    """It is killed during its first request, next to a finished batch of payouts."""
    behaviour = program.home / "slow.toml"
    behaviour.write_text('[default]\nstatus = "approved"\ndelay_s = 30\n')
    program.json("submit", program.sheet(kenyan_rows(2)))
    fast = program.config.read_text()
    program.config.write_text(fast + f'\n[sandbox]\nbehaviour = "{behaviour}"\n')
    process = program.start("collect", program.sheet(customers(4), "c.csv", COLLECTED))
    try:
        while not (program.home / "sandbox-record-payin.csv").exists() or not recorded_collections(program):
            assert process.poll() is None
    finally:
        kill(process)
    program.config.write_text(fast)
    (batch,) = [entry["batch"] for entry in program.json("status")["batches"] if entry["sheet"] == "c.csv"]
    summary = program.json("resume", batch)
    assert summary["states"] == {"in_doubt": 1, "paid": 3}
    assert len(program.record()) == 2
    assert sorted(line["client_orderid"] for line in recorded_collections(program)) == [f"COL-{n}" for n in range(1, 5)]
    (doubtful,) = [row for row in read_csv(summary["reconciliation"]) if row["state"] == "in_doubt"]
    evidence = ("--as", "paid", "--evidence", "the gateway's support, ticket 7")
    assert program.json("resolve", "row", batch, doubtful["row"], *evidence)["states"] == {"paid": 4}
    assert program.json("reconcile", batch, "--out", program.home / "again.csv")["states"] == {"paid": 4}
    assert program.json("verify")["exit_code"] == 0


def test_rejected_collection_is_retried_as_collection(program: Program) -> None:
    sheet = program.sheet([*customers(1), *customers(1, amount="9001", prefix="NO")], "c.csv", COLLECTED)
    summary = program.json("collect", sheet)
    assert summary["states"] == {"paid": 1, "rejected": 1}
    again = program.json("retry", summary["batch"])
    assert (again["released"], again["states"]) == (1, {"paid": 1, "rejected": 1})
    assert [line["client_orderid"] for line in recorded_collections(program)] == ["COL-1", "NO-1", "NO-1-r2"]
    assert program.record() == []


def test_status_and_messages_name_collections(program: Program) -> None:
    sheet = program.sheet([*customers(1, amount="9010"), *customers(1, amount="x", prefix="BAD")], "c.csv", COLLECTED)
    refused = program.json("collect", sheet)["message"]
    assert "--collect --rejects " in refused
    assert "run the command again with --skip-invalid to collect the others" in refused
    program.json("collect", sheet, "--skip-invalid")
    program.json("submit", program.sheet(kenyan_rows(1)))
    assert [batch["operation"] for batch in program.json("status")["batches"]] == ["payin", "payout"]
    assert {"payin", "payout"} <= set(program.run("status").stdout.split())
    status = program.json("status", sheet)
    (row,) = status["in_doubt"]
    assert (status["operation"], row["next"].startswith("Do not collect this row in any other way.")) == ("payin", True)
    assert "c.csv, payin, 2 rows," in program.run("status", sheet).stdout


def test_dry_run_and_validation_of_collection_send_nothing(program: Program) -> None:
    assert program.json("collect", MIXED, "--dry-run")["states"] == {"ready": 100}
    assert program.json("validate", MIXED, "--collect")["states"] == {"ready": 100}
    assert program.run("validate", MIXED).exit_code == 3
    assert not (program.home / "sandbox-record-payin.csv").exists()


def test_run_folder_collects_with_collect_option(program: Program) -> None:
    folder = program.home / "drop"
    folder.mkdir()
    for name, sheet in (("c.csv", MIXED), ("p.csv", SAMPLES / "payroll-mixed.csv")):
        (folder / name).write_bytes(sheet.read_bytes())
    summary = program.json("run-folder", folder, "--collect", "--settle-s", "0")
    assert {one["sheet"]: one["exit_code"] for one in summary["sheets"]} == {"c.csv": 0, "p.csv": 3}
    assert program.record() == []


def test_sign_explains_control_hash_of_collection(program: Program) -> None:
    sheet = program.sheet(customers(1, amount="1500.5"), "c.csv", COLLECTED)
    signed = program.json("sign", sheet, "--collect")["signed"]
    values = {parameter["name"]: parameter["value"] for parameter in signed["parameters"]}
    assert signed["operation"] == "payin"
    assert values["control"] == hashlib.sha256(b"COL-1|1500.50|KES").hexdigest()
    assert Decimal(values["amount"]) == Decimal("1500.5")
    assert program.record() == []
