"""Statements count as a person's word unless a signature or the gateway's folder proves them."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.signed_document import sign_document, write_document
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.statement import StatementProof, TransferFolder
from tests.support.approving import policy
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

PAYS = '[default]\nstatus = "approved"\n'
MARK = "possible duplicate of attempt 1"
ALGORITHMS = {
    "rsa": ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"),
    "p-256": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "ed25519": ("-algorithm", "ed25519"),
}


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_key(program: Program, kind: str = "ed25519", name: str = "gateway") -> Path:
    """Create a key for the gateway, and return its private file. The public file is next to it."""
    private = program.home / f"{name}.pem"
    openssl("genpkey", *ALGORITHMS[kind], "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", program.home / f"{name}.public.pem")
    return private


def sign(private: Path, file: Path, kind: str = "ed25519") -> Path:
    signature = file.with_name(f"{file.name}.sig")
    if kind == "ed25519":
        openssl("pkeyutl", "-sign", "-rawin", "-inkey", private, "-in", file, "-out", signature)
    else:
        openssl("dgst", "-sha256", "-sign", private, "-out", signature, file)
    return signature


def configure(program: Program, evidence: str = "", more: str = "") -> None:
    text = sandbox_toml() + '\n[sandbox]\nbehaviour = "gateway.toml"\n'
    (program.home / "gateway.toml").write_text(PAYS)
    program.config.write_text(f"{text}{f'[evidence]{chr(10)}{evidence}{chr(10)}' if evidence else ''}{more}")


SIGNED = 'statements = "signed"\nstatement_key = "gateway.public.pem"'


def lose_reply(program: Program, evidence: str = "", more: str = "") -> str:
    """Pay the only row of a sheet and lose the reply. Return the batch."""
    configure(program, evidence, more)
    (program.home / "gateway.toml").write_text('[default]\nfault = "drop_after"\n')
    batch = str(program.json("submit", program.sheet(kenyan_rows(1)))["batch"])
    (program.home / "gateway.toml").write_text(PAYS)
    return batch


def write_statement(program: Program, batch: str, word: str = "declined", folder: Path | None = None) -> Path:
    questions = program.home / "questions.csv"
    program.json("status", batch, "--in-doubt", "--out", questions)
    file = (folder or program.home) / "statement.csv"
    sent_at = read_csv(questions)[0]["sent_at"]
    file.write_text(f"order_id,amount,currency,status,time\nPAY-1,1500.50,KES,{word},{sent_at}\n")
    return file


def apply_statement(program: Program, batch: str, file: Path) -> str:
    """Apply a statement that settles the row. Return whose word it counts as, according to the preview."""
    summary = program.json("resolve", "statement", batch, file)
    assert [entry["row"] for entry in summary["would_resolve"]] == [2]
    assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
    return "gateway" if summary["on_the_gateways_word"] == [2] else "person"


def commit_count(program: Program) -> int:
    return sum(line["committed"] == "yes" for line in program.record())


def reconciliation_message(program: Program, batch: str) -> str:
    out = program.home / "again.csv"
    program.json("reconcile", batch, "--out", out)
    return read_csv(out)[0]["message"]


def assert_person_evidence(program: Program, batch: str, file: Path) -> None:
    assert apply_statement(program, batch, file) == "person"
    assert program.json("retry", batch)["released"] == 0
    assert commit_count(program) == 1
    assert MARK in reconciliation_message(program, batch)


def assert_gateway_evidence(program: Program, batch: str, file: Path) -> None:
    assert apply_statement(program, batch, file) == "gateway"
    assert MARK in reconciliation_message(program, batch)
    assert program.json("retry", batch)["released"] == 1
    assert MARK in reconciliation_message(program, batch)
    assert program.json("verify")["exit_code"] == 0


def test_unproven_statement_settles_paid_rows_at_once(program: Program) -> None:
    batch = lose_reply(program)
    assert apply_statement(program, batch, write_statement(program, batch, "approved")) == "person"
    assert program.json("status", batch)["states"] == {"paid": 1}


@pytest.mark.share(3)
@pytest.mark.parametrize("spelling", ["raw", "base64"])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_signed_statement_is_gateway_evidence(program: Program, kind: str, spelling: str) -> None:
    private = make_key(program, kind)
    batch = lose_reply(program, SIGNED)
    file = write_statement(program, batch)
    signature = sign(private, file, kind)
    if spelling == "base64":
        signature.write_bytes(base64.encodebytes(signature.read_bytes()))
    assert_gateway_evidence(program, batch, file)


@pytest.mark.parametrize(("evidence", "is_signed"), [(SIGNED, False), ("", True)])
def test_statement_without_signature_or_key_proves_nothing(program: Program, evidence: str, is_signed: bool) -> None:
    private = make_key(program)
    batch = lose_reply(program, evidence)
    file = write_statement(program, batch)
    if is_signed:
        sign(private, file)
    assert_person_evidence(program, batch, file)


@pytest.mark.share(2)
@pytest.mark.parametrize("how", ["another line", "another key", "short signature", "empty signature"])
def test_statement_with_wrong_signature_is_refused(program: Program, how: str) -> None:
    private = make_key(program)
    batch = lose_reply(program, SIGNED)
    file = write_statement(program, batch, "approved")
    signature = sign(private, file)
    match how:
        case "another line":
            file.write_text(file.read_text() + "PAY-2,1500.50,KES,declined,2026-11-20T10:00:00Z\n")
        case "another key":
            sign(make_key(program, name="other"), file)
        case _:
            signature.write_bytes(signature.read_bytes()[:-1] if how == "short signature" else b"")
    for option in ((), ("--yes",), ("--yes", "--matching-only")):
        assert program.json("resolve", "statement", batch, file, *option)["exit_code"] == 3
    assert program.json("status", batch)["states"] == {"in_doubt": 1}


@pytest.mark.share(3)
@pytest.mark.parametrize("wrong", ["missing", "not a key", "short", "others may write it", "private", "an approver's"])
def test_invalid_statement_key_is_refused_and_reported(program: Program, wrong: str) -> None:
    private = make_key(program)
    public = program.home / "gateway.public.pem"
    more = policy(program.home).replace('KES = "1000"', 'KES = "100000"') if wrong == "an approver's" else ""
    match wrong:
        case "missing":
            public.unlink()
        case "not a key":
            public.write_text("key")
        case "short":
            words = (*ALGORITHMS["rsa"][:2], "-pkeyopt", "rsa_keygen_bits:1024")
            openssl("genpkey", *words, "-out", private)
            openssl("pkey", "-in", private, "-pubout", "-out", public)
        case "others may write it":
            public.chmod(0o666)
        case "private":
            public.write_bytes(private.read_bytes())
        case _:
            private = program.home / "cleo.pem"
            openssl("pkey", "-in", private, "-pubout", "-out", public)
    batch = lose_reply(program, SIGNED, more)
    file = write_statement(program, batch)
    sign(private, file)
    assert program.json("resolve", "statement", batch, file, "--yes")["exit_code"] == 2
    assert program.json("status", batch)["states"] == {"in_doubt": 1}
    assert doctor_check(program) == "wrong"


def doctor_check(program: Program) -> str:
    (statement_check,) = [check for check in program.json("doctor")["checks"] if check["check"] == "statements"]
    return str(statement_check["state"])


def test_doctor_reports_how_statements_are_proven(program: Program) -> None:
    make_key(program)
    for evidence in ("", SIGNED):
        configure(program, evidence)
        assert doctor_check(program) == "ok"
    folder = program.home / "inbox"
    configure(program, 'statements = "folder:inbox"')
    assert doctor_check(program) == "wrong"
    folder.mkdir(mode=0o700)
    assert doctor_check(program) == "warning"  # anyone who can use this account can put a file there
    folder.chmod(0o777)
    assert doctor_check(program) == "wrong"


def test_unknown_evidence_setting_is_refused(program: Program) -> None:
    key = 'statement_key = "gateway.public.pem"'
    settings = [f'statements = "{word}"' for word in ("typed", "folder:", "signed")]
    for evidence in (*settings, key, f'statements = "folder:inbox"\n{key}'):
        configure(program, evidence)
        assert program.run("status").exit_code == 2, evidence


@pytest.fixture
def transfer_folder(program: Program) -> Path:
    folder = program.home / "transfer" / "inbox"
    folder.mkdir(mode=0o755, parents=True)
    return folder


FOLDER = 'statements = "folder:transfer/inbox"'


@pytest.mark.parametrize("is_copied", [False, True])
def test_statement_in_transfer_folder_is_gateway_evidence(
    program: Program, transfer_folder: Path, is_copied: bool
) -> None:
    batch = lose_reply(program, FOLDER)
    file = write_statement(program, batch, folder=transfer_folder)
    if is_copied:
        file = Path(shutil.copyfile(file, program.home / file.name))
    assert_gateway_evidence(program, batch, file)


def play_trick(file: Path, trick: str) -> Path:
    """Make a statement in the folder one that others could have written, and return its path."""
    folder, typed = file.parent, file.parent.parent / "typed.csv"
    match trick:
        case "beside the folder":
            file.rename(typed)
            return folder / ".." / "typed.csv"
        case "changed copy":
            other = Path(shutil.copyfile(file, folder.parent / file.name))
            file.write_bytes(file.read_bytes().replace(b"declined", b"approved"))
            return other
        case "symbolic link" | "hard link":
            file.rename(typed)
            (file.symlink_to if trick == "symbolic link" else file.hardlink_to)(typed)
        case "below the folder":
            (folder / "sub").mkdir()
            return file.rename(folder / "sub" / file.name)
        case "writable file":
            file.chmod(0o664)
        case "writable folder" | "writable parent":
            (folder if trick == "writable folder" else folder.parent).chmod(0o777)
        case "linked folder":
            folder.symlink_to(folder.rename(folder.with_name("real")))
        case "pipe without a writer":
            other = file.rename(folder.parent / file.name)
            os.mkfifo(file)
            return other
        case _:
            pytest.fail(f"unknown trick {trick}")
    return file


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "trick",
    [
        *("beside the folder", "changed copy", "symbolic link", "hard link", "below the folder", "writable file"),
        *("writable folder", "writable parent", "linked folder", "pipe without a writer"),
    ],
)
def test_statement_in_untrusted_folder_is_personal_evidence(
    program: Program, transfer_folder: Path, trick: str
) -> None:
    batch = lose_reply(program, FOLDER)
    file = write_statement(program, batch, folder=transfer_folder)
    assert_person_evidence(program, batch, play_trick(file, trick))


def test_statement_owned_by_other_user_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account cannot give its files away, so `fstat` is patched to report another owner."""
    folder, file = tmp_path / "inbox", tmp_path / "inbox" / "statement.csv"
    folder.mkdir(mode=0o755)
    file.write_bytes(b"x")
    file.chmod(0o644)
    rule, real = TransferFolder(folder), os.fstat
    assert rule.find_proof(file, b"x") is StatementProof.FOLDER

    def by_another(handle: int) -> os.stat_result:
        about = real(handle)
        is_file = about.st_ino == file.stat().st_ino
        return os.stat_result((*about[:4], about.st_uid + is_file, *about[5:]))

    monkeypatch.setattr(os, "fstat", by_another)
    assert rule.find_proof(file, b"x") is StatementProof.UNSAFE_FILE


def lose_reply_of_company(program: Program, evidence: str = SIGNED) -> str:
    """Pay a row, lose its reply, and require two people for orders; no sheet is large enough to need a plan."""
    make_key(program)
    return lose_reply(program, evidence, policy(program.home).replace('KES = "1000"', 'KES = "1000000"'))


def order_path(program: Program) -> Path:
    return program.home / "order.json"


def write_order(program: Program, *words: str | Path) -> Path:
    key = program.home / "ada.pem"
    summary = program.json("order", "settle", *words, "--out", order_path(program), "--key", key)
    assert summary["exit_code"] == 0, summary
    return order_path(program)


def forge(program: Program, **changes: object) -> None:
    """Change the rows and content of Ada's order by hand, and sign it again with her key."""
    document = json.loads(order_path(program).read_text())
    rows = document["content"]["rows"]
    for name, value in changes.items():
        if name in rows[0]:
            rows[0][name] = value
        else:
            assert name in document["content"] or name in document, name
            (document["content"] if name in document["content"] else document)[name] = value
    forged = RowOrder.model_validate_json(json.dumps(document))
    write_document(sign_document(forged, load_approval_key(program.home / "ada.pem", None)), order_path(program))


def approve(program: Program) -> str:
    result = program.run("approve", order_path(program), "--key", program.home / "cleo.pem")
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def carry_out(program: Program) -> int:
    return int(program.json("carry-out", order_path(program))["exit_code"])


def assert_not_paid_again(program: Program, batch: str) -> None:
    program.run("retry", batch)
    program.run("resume", batch)
    assert commit_count(program) == 1


def test_order_forged_as_gateway_evidence_is_refused(program: Program) -> None:
    batch = lose_reply_of_company(program)
    write_order(program, batch, "2", "--as", "rejected", "--evidence", "Ticket 1")
    before = approve(program)
    forge(program, basis="gateway")
    assert approve(program) != before
    assert carry_out(program) == 8
    assert program.json("status", batch)["states"] == {"in_doubt": 1}
    assert_not_paid_again(program, batch)


def write_signed_order(program: Program, *words: str) -> tuple[str, Path]:
    """Write an order from a signed statement. Return the batch and the statement."""
    batch = lose_reply_of_company(program)
    file = write_statement(program, batch)
    sign(program.home / "gateway.pem", file)
    write_order(program, batch, "--statement", file, *words)
    return batch, file


@pytest.mark.parametrize("evidence", [SIGNED, FOLDER])
def test_settlement_by_proven_statement_skips_quarantine(
    program: Program, transfer_folder: Path, evidence: str
) -> None:
    if evidence == SIGNED:
        batch, _ = write_signed_order(program, "--evidence", "Ticket 2")
    else:
        batch = lose_reply_of_company(program, FOLDER)
        write_order(program, batch, "--statement", write_statement(program, batch, folder=transfer_folder))
    assert "can be paid again immediately" in approve(program)
    assert carry_out(program) in {0, 4}
    assert MARK in reconciliation_message(program, batch)
    assert program.json("retry", batch)["released"] == 1
    assert program.json("verify")["exit_code"] == 0


@pytest.mark.share(2)
@pytest.mark.parametrize("lost", ["signature", "file", "content", "setting"])
def test_order_with_unproven_statement_is_refused(program: Program, lost: str) -> None:
    batch, file = write_signed_order(program)
    approve(program)
    match lost:
        case "signature":
            file.with_name("statement.csv.sig").unlink()
        case "file":
            file.unlink()
        case "content":
            file.write_text(file.read_text().replace("declined", "processing"))
            sign(program.home / "gateway.pem", file)
        case _:
            program.config.write_text(program.config.read_text().replace(SIGNED, ""))
    assert carry_out(program) == 8
    assert program.json("status", batch)["states"] == {"in_doubt": 1}
    assert_not_paid_again(program, batch)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "change",
    [
        *({"act": "not-received"}, {"evidence": "The gateway says so"}, {"statement": "other.csv"}),
        *({"statement": ""}, {"statement_sha256": "0" * 64}, {"statement_sha256": ""}, {"attempt": 2}),
        *({"sent_at": "2026-11-01T00:00:00.000Z"}, {"sent_at": ""}, {"state": "accepted"}, {"hold": 1}),
        *({"order_id": "PAY-2"}, {"client_orderid": "PAY-2"}, {"amount": "1.00"}, {"currency": "TZS"}, {"row": 3}),
        *({"sheet": "other.csv"}, {"operation": "payin"}, {"batch": "0" * 16}, {"endpoint": "sandbox/1"}),
        {"journal": "0" * 32},
    ],
)
def test_order_with_forged_field_settles_nothing(program: Program, change: dict[str, object]) -> None:
    """Each field is changed and signed again by its maker, and the approver checks nothing."""
    batch, _ = write_signed_order(program)
    forge(program, **change)
    program.run("approve", order_path(program), "--key", program.home / "cleo.pem")
    assert carry_out(program) in {2, 8}
    assert program.json("status", batch)["states"] == {"in_doubt": 1}


def test_order_can_treat_signed_statement_as_unproven(program: Program) -> None:
    """A maker who waives the gateway's proof keeps the quarantine and the duplicate mark."""
    batch, _ = write_signed_order(program)
    forge(program, basis="person")
    assert "paid again from 20" in approve(program)
    assert carry_out(program) in {0, 4}
    assert_not_paid_again(program, batch)
