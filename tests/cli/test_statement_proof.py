"""A statement file is a person's word until the configuration says what proves it: a signature, or a transfer's folder.

The judge is the sandbox's own record of what it took.
"""

import base64
import json
import os
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.signed_document import signed, write_document
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.statement import StatementProof, TransferFolder
from tests.support.approving import policy
from tests.support.clocks import SetClock
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

TAKES_IT_AND_LOSES_THE_REPLY = '[default]\nfault = "drop_after"\n'
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
    """Make a key of the gateway's, and return the file of its private half; the public one is beside it."""
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


def in_doubt(program: Program, evidence: str = "", more: str = "") -> str:
    """Have the one row of a sheet paid and its reply lost; return the batch."""
    configure(program, evidence, more)
    (program.home / "gateway.toml").write_text(TAKES_IT_AND_LOSES_THE_REPLY)
    batch = str(program.json("submit", program.sheet(kenyan_rows(1)))["batch"])
    (program.home / "gateway.toml").write_text(PAYS)
    return batch


def statement(program: Program, batch: str, word: str = "declined", folder: Path | None = None) -> Path:
    """Write a statement with the time of the attempt, which is no older than it."""
    questions = program.home / "questions.csv"
    program.json("status", batch, "--in-doubt", "--out", questions)
    file = (folder or program.home) / "statement.csv"
    file.write_text(
        f"order_id,amount,currency,status,time\nPAY-1,1500.50,KES,{word},{read_csv(questions)[0]['sent_at']}\n"
    )
    return file


def carried_out(program: Program, batch: str, file: Path) -> str:
    """Carry a statement out, which settles the row; return on whose word, as the preview told."""
    told = program.json("resolve", "statement", batch, file)
    assert [one["row"] for one in told["would_resolve"]] == [2]
    assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
    return "gateway" if told["on_the_gateways_word"] == [2] else "person"


def times_committed(program: Program) -> int:
    return sum(line["committed"] == "yes" for line in program.record())


def message_of(program: Program, batch: str) -> str:
    out = program.home / "again.csv"
    program.json("reconcile", batch, "--out", out)
    return read_csv(out)[0]["message"]


def is_a_persons_word(program: Program, batch: str, file: Path) -> None:
    assert carried_out(program, batch, file) == "person"
    assert program.json("retry", batch)["released"] == 0
    assert times_committed(program) == 1
    assert MARK in message_of(program, batch)


def is_the_gateways_word(program: Program, batch: str, file: Path) -> None:
    assert carried_out(program, batch, file) == "gateway"
    assert MARK in message_of(program, batch)
    assert program.json("retry", batch)["released"] == 1
    assert MARK in message_of(program, batch)
    assert program.json("verify")["exit_code"] == 0


# A person's word


def test_typed_statement_waits_for_quarantine(program: Program, set_clock: SetClock) -> None:
    batch = in_doubt(program)
    is_a_persons_word(program, batch, statement(program, batch))
    program.config.write_text(program.config.read_text().replace("[submission]", "[submission]\nquarantine_h = 0.05"))
    assert program.json("retry", batch)["released"] == 0
    set_clock(timedelta(minutes=4))
    assert program.json("retry", batch)["released"] == 1
    assert MARK in message_of(program, batch)


def test_typed_paid_statement_settles_at_once(program: Program) -> None:
    batch = in_doubt(program)
    assert carried_out(program, batch, statement(program, batch, "approved")) == "person"
    assert program.json("status", batch)["states"] == {"paid": 1}


# A signature beside the file


@pytest.mark.parametrize("spelling", ["raw", "base64"])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_signed_statement_counts_as_gateway_evidence(program: Program, kind: str, spelling: str) -> None:
    private = make_key(program, kind)
    batch = in_doubt(program, SIGNED)
    file = statement(program, batch)
    signature = sign(private, file, kind)
    if spelling == "base64":
        signature.write_bytes(base64.encodebytes(signature.read_bytes()))
    is_the_gateways_word(program, batch, file)


def test_unsigned_statement_counts_as_person_evidence(program: Program) -> None:
    make_key(program)
    batch = in_doubt(program, SIGNED)
    is_a_persons_word(program, batch, statement(program, batch))


def test_signature_without_configured_key_proves_nothing(program: Program) -> None:
    private = make_key(program)
    batch = in_doubt(program)
    file = statement(program, batch)
    sign(private, file)
    is_a_persons_word(program, batch, file)


def append_a_line(program: Program, file: Path) -> None:
    del program
    file.write_text(file.read_text() + "PAY-2,1500.50,KES,declined,2026-11-20T10:00:00Z\n")


def sign_with_another_key(program: Program, file: Path) -> None:
    sign(make_key(program, name="other"), file)


def truncate_the_signature(program: Program, file: Path) -> None:
    del program
    signature = file.with_name("statement.csv.sig")
    signature.write_bytes(signature.read_bytes()[:-1])


def empty_the_signature(program: Program, file: Path) -> None:
    del program
    file.with_name("statement.csv.sig").write_bytes(b"")


@pytest.mark.parametrize(
    "tampered", [append_a_line, sign_with_another_key, truncate_the_signature, empty_the_signature]
)
def test_statement_with_wrong_signature_is_refused(program: Program, tampered: Callable[[Program, Path], None]) -> None:
    private = make_key(program)
    batch = in_doubt(program, SIGNED)
    file = statement(program, batch, "approved")
    sign(private, file)
    tampered(program, file)
    for option in ((), ("--yes",), ("--yes", "--matching-only")):
        assert program.json("resolve", "statement", batch, file, *option)["exit_code"] == 3
    assert program.json("status", batch)["states"] == {"in_doubt": 1}


@pytest.mark.parametrize("wrong", ["missing", "not a key", "others may write it", "private", "an approver's"])
def test_unfit_statement_key_is_refused_and_reported(program: Program, wrong: str) -> None:
    private = make_key(program)
    public = program.home / "gateway.public.pem"
    more = policy(program.home).replace('KES = "1000"', 'KES = "100000"') if wrong == "an approver's" else ""
    match wrong:
        case "missing":
            public.unlink()
        case "not a key":
            public.write_text("key")
        case "others may write it":
            public.chmod(0o666)
        case "private":
            public.write_bytes(private.read_bytes())
        case _:
            private = program.home / "cleo.pem"
            openssl("pkey", "-in", private, "-pubout", "-out", public)
    batch = in_doubt(program, SIGNED, more)
    file = statement(program, batch)
    sign(private, file)
    assert program.json("resolve", "statement", batch, file, "--yes")["exit_code"] == 2
    assert program.json("status", batch)["states"] == {"in_doubt": 1}
    assert doctor(program) == "wrong"


def doctor(program: Program) -> str:
    (told,) = [check for check in program.json("doctor")["checks"] if check["check"] == "statements"]
    return str(told["state"])


def test_doctor_rates_proof_of_statements(program: Program) -> None:
    configure(program)
    assert doctor(program) == "ok"
    make_key(program)
    configure(program, SIGNED)
    assert doctor(program) == "ok"
    folder = program.home / "inbox"
    configure(program, 'statements = "folder:inbox"')
    assert doctor(program) == "wrong"
    folder.mkdir(mode=0o700)
    assert doctor(program) == "look"  # whoever may use this account can put a file there
    folder.chmod(0o777)
    assert doctor(program) == "wrong"


@pytest.mark.parametrize(
    "evidence",
    [
        'statements = "typed"',
        'statements = "folder:"',
        'statements = "signed"',
        'statement_key = "gateway.public.pem"',
        'statements = "folder:inbox"\nstatement_key = "gateway.public.pem"',
    ],
)
def test_unknown_evidence_setting_is_refused(program: Program, evidence: str) -> None:
    configure(program, evidence)
    assert program.run("status").exit_code == 2


# A folder that only the gateway's transfer writes


@pytest.fixture
def inbox(program: Program) -> Path:
    folder = program.home / "transfer" / "inbox"
    folder.mkdir(mode=0o755, parents=True)
    return folder


FOLDER = 'statements = "folder:transfer/inbox"'


def test_statement_in_gateway_folder_counts_as_gateway_evidence(program: Program, inbox: Path) -> None:
    batch = in_doubt(program, FOLDER)
    is_the_gateways_word(program, batch, statement(program, batch, folder=inbox))


def test_copy_of_folder_statement_counts_as_gateway_evidence(program: Program, inbox: Path) -> None:
    batch = in_doubt(program, FOLDER)
    file = statement(program, batch, folder=inbox)
    copy = program.home / file.name
    copy.write_bytes(file.read_bytes())
    is_the_gateways_word(program, batch, copy)


def beside_it(file: Path) -> Path:
    """A typed file beside the folder, that is named through it."""
    other = file.parent.parent / "typed.csv"
    other.write_bytes(file.read_bytes())
    file.unlink()
    return file.parent / ".." / "typed.csv"


def changed_copy(file: Path) -> Path:
    """A file of the same name elsewhere, with other bytes."""
    other = file.parent.parent / file.name
    other.write_bytes(file.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"declined", b"approved"))
    return other


def symbolic_link(file: Path) -> Path:
    other = file.parent.parent / "typed.csv"
    file.rename(other)
    file.symlink_to(other)
    return file


def hard_link(file: Path) -> Path:
    other = file.parent.parent / "typed.csv"
    file.rename(other)
    file.hardlink_to(other)
    return file


def below_it(file: Path) -> Path:
    (file.parent / "sub").mkdir()
    return file.rename(file.parent / "sub" / file.name)


def file_others_write(file: Path) -> Path:
    file.chmod(0o664)
    return file


def folder_others_write(file: Path) -> Path:
    file.parent.chmod(0o775)
    return file


def folder_above_others_write(file: Path) -> Path:
    file.parent.parent.chmod(0o777)
    return file


def folder_is_a_link(file: Path) -> Path:
    real = file.parent.rename(file.parent.with_name("real"))
    file.parent.symlink_to(real)
    return file


def a_pipe(file: Path) -> Path:
    """The folder has a pipe of that name, which nobody writes."""
    other = file.rename(file.parent.parent / file.name)
    os.mkfifo(file)
    return other


@pytest.mark.parametrize(
    "trick",
    [
        *(beside_it, changed_copy, symbolic_link, hard_link, below_it, file_others_write, folder_others_write),
        *(folder_above_others_write, folder_is_a_link, a_pipe),
    ],
)
def test_untrusted_folder_file_counts_as_person_evidence(
    program: Program, inbox: Path, trick: Callable[[Path], Path]
) -> None:
    batch = in_doubt(program, FOLDER)
    is_a_persons_word(program, batch, trick(statement(program, batch, folder=inbox)))


def test_statement_owned_by_other_user_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account cannot give its files away, so that this one takes `fstat` for the file's owner."""
    folder, file = tmp_path / "inbox", tmp_path / "inbox" / "statement.csv"
    folder.mkdir(mode=0o755)
    file.write_bytes(b"x")
    file.chmod(0o644)
    rule, real = TransferFolder(folder), os.fstat
    assert rule.proof_of(file, b"x") is StatementProof.FOLDER

    def by_another(handle: int) -> os.stat_result:
        about = real(handle)
        is_file = about.st_ino == file.stat().st_ino
        return os.stat_result((*about[:4], about.st_uid + is_file, *about[5:]))

    monkeypatch.setattr(os, "fstat", by_another)
    assert rule.proof_of(file, b"x") is StatementProof.OTHER_FILE


def test_doctor_rejects_short_statement_key(program: Program) -> None:
    openssl("genpkey", *ALGORITHMS["rsa"][:2], "-pkeyopt", "rsa_keygen_bits:1024", "-out", program.home / "short.pem")
    openssl("pkey", "-in", program.home / "short.pem", "-pubout", "-out", program.home / "gateway.public.pem")
    configure(program, SIGNED)
    assert doctor(program) == "wrong"


# Orders


@pytest.fixture
def two_people(program: Program) -> Program:
    """Ada prepares, Cleo approves; no sheet is large enough to need a plan."""
    make_key(program)
    return program


def people(program: Program) -> str:
    return policy(program.home).replace('KES = "1000"', 'KES = "1000000"')


def order_of(program: Program) -> Path:
    return program.home / "order.json"


def ordered(program: Program, *words: str | Path) -> Path:
    """Write Ada's order to settle rows."""
    key = program.home / "ada.pem"
    made = program.json("order", "settle", *words, "--out", order_of(program), "--key", key)
    assert made["exit_code"] == 0, made
    return order_of(program)


def forge(program: Program, **changes: object) -> None:
    """Change Ada's order by hand, its rows and its content, and sign it again with her key."""
    found = json.loads(order_of(program).read_text())
    rows = found["content"]["rows"]
    for name, value in changes.items():
        if name in rows[0]:
            rows[0][name] = value
        else:
            assert name in found["content"] or name in found, name
            (found["content"] if name in found["content"] else found)[name] = value
    forged = RowOrder.model_validate_json(json.dumps(found))
    write_document(signed(forged, load_approval_key(program.home / "ada.pem", None)), order_of(program))


def approve(program: Program) -> str:
    """Have Cleo approve the order, and return what she saw."""
    result = program.run("approve", order_of(program), "--key", program.home / "cleo.pem")
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def settled_by_order(program: Program) -> int:
    """Carry the order out, and return the exit code."""
    return int(program.json("carry-out", order_of(program))["exit_code"])


def is_not_paid_again(program: Program, batch: str) -> None:
    program.run("retry", batch)
    program.run("resume", batch)
    assert times_committed(program) == 1


def test_order_forged_as_gateway_evidence_is_refused(two_people: Program) -> None:
    batch = in_doubt(two_people, SIGNED, people(two_people))
    ordered(two_people, batch, "2", "--as", "rejected", "--evidence", "Ticket 1")
    before = approve(two_people)
    forge(two_people, basis="gateway")
    assert approve(two_people) != before
    assert settled_by_order(two_people) == 8
    assert two_people.json("status", batch)["states"] == {"in_doubt": 1}
    is_not_paid_again(two_people, batch)


def test_order_by_person_keeps_quarantine_and_duplicate_warning(two_people: Program) -> None:
    batch = in_doubt(two_people, SIGNED, people(two_people))
    ordered(two_people, batch, "2", "--as", "rejected", "--evidence", "Ticket 1")
    shown = approve(two_people)
    assert "not before 20" in shown
    assert "at once" not in shown
    assert settled_by_order(two_people) in {0, 4}
    assert MARK in message_of(two_people, batch)
    is_not_paid_again(two_people, batch)


def signed_order(program: Program, *words: str) -> tuple[str, Path]:
    """Write an order by a signed statement, and return the batch and the statement."""
    batch = in_doubt(program, SIGNED, people(program))
    file = statement(program, batch)
    sign(program.home / "gateway.pem", file)
    ordered(program, batch, "--statement", file, *words)
    return batch, file


@pytest.mark.parametrize("words", [(), ("--evidence", "Ticket 2")])
def test_order_by_signed_statement_skips_quarantine(two_people: Program, words: tuple[str, ...]) -> None:
    batch, _ = signed_order(two_people, *words)
    assert "can be paid again at once" in approve(two_people)
    assert settled_by_order(two_people) in {0, 4}
    assert MARK in message_of(two_people, batch)
    assert two_people.json("retry", batch)["released"] == 1
    assert two_people.json("verify")["exit_code"] == 0


def test_order_by_folder_statement_skips_quarantine(program: Program, inbox: Path) -> None:
    batch = in_doubt(program, FOLDER, people(program))
    ordered(program, batch, "--statement", statement(program, batch, folder=inbox))
    approve(program)
    assert settled_by_order(program) in {0, 4}
    assert program.json("retry", batch)["released"] == 1


def the_signature_is_gone(program: Program, file: Path) -> None:
    del program
    file.with_name("statement.csv.sig").unlink()


def the_file_is_gone(program: Program, file: Path) -> None:
    del program
    file.unlink()


def the_file_says_otherwise(program: Program, file: Path) -> None:
    file.write_text(file.read_text().replace("declined", "processing"))
    sign(program.home / "gateway.pem", file)


def nothing_proves_it_any_more(program: Program, file: Path) -> None:
    del file
    program.config.write_text(program.config.read_text().replace(SIGNED, ""))


@pytest.mark.parametrize(
    "meanwhile", [the_signature_is_gone, the_file_is_gone, the_file_says_otherwise, nothing_proves_it_any_more]
)
def test_order_with_unproven_statement_is_refused(
    two_people: Program, meanwhile: Callable[[Program, Path], None]
) -> None:
    batch, file = signed_order(two_people)
    approve(two_people)
    meanwhile(two_people, file)
    assert settled_by_order(two_people) == 8
    assert two_people.json("status", batch)["states"] == {"in_doubt": 1}
    is_not_paid_again(two_people, batch)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "change",
    [
        {"act": "not-received"},
        {"evidence": "The gateway says so"},
        {"statement": "other.csv"},
        {"statement": ""},
        {"statement_sha256": "0" * 64},
        {"statement_sha256": ""},
        {"attempt": 2},
        {"sent_at": "2026-11-01T00:00:00.000Z"},
        {"sent_at": ""},
        {"state": "accepted"},
        {"hold": 1},
        {"order_id": "PAY-2"},
        {"client_orderid": "PAY-2"},
        {"amount": "1.00"},
        {"currency": "TZS"},
        {"row": 3},
        {"sheet": "other.csv"},
        {"operation": "payin"},
        {"batch": "0" * 16},
        {"endpoint": "sandbox/1"},
        {"journal": "0" * 32},
    ],
)
def test_order_with_forged_field_settles_nothing(two_people: Program, change: dict[str, object]) -> None:
    """Each field is changed and signed again by its maker, and the approver looks at nothing."""
    batch, _ = signed_order(two_people)
    forge(two_people, **change)
    two_people.run("approve", order_of(two_people), "--key", two_people.home / "cleo.pem")
    assert settled_by_order(two_people) in {2, 8}
    assert two_people.json("status", batch)["states"] == {"in_doubt": 1}


def test_order_may_downgrade_signed_statement_to_person(two_people: Program) -> None:
    """A maker who gives up the gateway's word has what a person has: the quarantine, and the mark."""
    batch, _ = signed_order(two_people)
    forge(two_people, basis="person")
    assert "not before 20" in approve(two_people)
    assert settled_by_order(two_people) in {0, 4}
    is_not_paid_again(two_people, batch)
