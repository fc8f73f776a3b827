"""Builds rows with secret data, and journals that forget them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource
from paygw_batch.core.lifecycle import Resolution, Resolved
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.values import Entry, NewInstruction, RemainingData, StoredReply
from tests.support.journal_rows import at, due_rows, intent, new_instruction, open_sheet, outcome_of, send
from tests.support.tested_journal import Journal

BEFORE, LATER, WHEN = "2027-01-01", "2027-02-01T08:00:00.000Z", "2027-03-01T08:00:00.000Z"
SECRETS = ("Zephyrine", "Quillfeather", "254799887766", "ticket-of-zephyrine", "raw-words-about-her", "sheet-of-hers")
FORGERIES_OF_BOTH = [
    "UPDATE instruction SET minor = 1 WHERE number = 1",
    "UPDATE instruction SET client_orderid = 'A-9' WHERE number = 1",
    "UPDATE instruction SET payee = 'x' WHERE number = 1",
    "UPDATE instruction SET content = 'x' WHERE number = 1",
    "UPDATE instruction SET fields = NULL, payee = NULL, content = NULL, salt = NULL WHERE number = 5",
    "UPDATE instruction SET amount = '1' WHERE number = 5",
    "UPDATE fact SET at = '2026-11-21T08:59:00.000Z' WHERE instruction = 1",
    "UPDATE fact SET details = replace(details, 'amina', 'nobody') WHERE kind = 'batch_forgotten'",
    "UPDATE fact SET means = 'paid' WHERE kind = 'heard'",
    "DELETE FROM page WHERE batch = 3",
]
"""Changes after people were forgotten, which `verify` finds in both stores."""


def secrets_in(files: Iterable[Path]) -> list[str]:
    content = b"".join(path.read_bytes() for path in sorted(files) if path.is_file())
    return [secret for secret in SECRETS if secret.encode() in content or secret.lower().encode() in content]


def secret_row(row: int, order_id: str) -> NewInstruction:
    payee = "254799887766"
    fields = {"account_name": "Zephyrine Quillfeather", "account_number": payee, "phone": f"+{payee}"}
    content = f"KE KES 15050 account {json.dumps(fields, sort_keys=True)}"
    return new_instruction(row, order_id)._replace(
        fields=json.dumps(fields, sort_keys=True), payee=payee, content=content
    )


def send_rejected_rows(journal: Journal, batch: int) -> None:
    """Send the due rows of a batch. All are rejected with messages and raw replies that name the payee."""
    reply = StoredReply("HTTP/1.1 200 OK", b'{"message": "raw-words-about-her"}')
    for due in due_rows(journal, batch):
        journal.append([intent(due, at(1))])
        words = {"message": "Zephyrine has no account", "reply_sha256": reply.sha256}
        journal.append([replace(outcome_of(due.number, 1, OutcomeKind.REJECTED, at(2), **words), reply=reply)])


def record_unknown_evidence(journal: Journal, order_id: str) -> None:
    claim = Claim(order_id, "1", "KES", "approved")
    journal.record_evidence([Evidence(EvidenceSource.NOTIFICATION, claim, '{"name": "Quillfeather"}')], {}, at=at(3))


def fill_journal(journal: Journal) -> None:
    """Fill a journal with two finished old batches, which pay a secret payee among others, and a new batch."""
    open_sheet(journal, "old", [secret_row(2, "A-1"), new_instruction(3, "A-2")], pages=(b"sheet-of-hers" * 500,))
    send_rejected_rows(journal, 1)
    open_sheet(journal, "paid", [secret_row(2, "B-1"), new_instruction(3, "B-2")], pages=(b"sheet-of-hers",))
    send(journal, 2, OutcomeKind.UNKNOWN, at(4))
    decision = Resolved(Resolution.PAID, "ticket-of-zephyrine", "amina")
    journal.settle([Entry(number, 1, decision, at(5)) for number in (3, 4)])
    record_unknown_evidence(journal, "nobody-knows-this")
    open_sheet(journal, "new", [new_instruction(2, "C-1")], opened_at=LATER)


def forget_old_batches(journal: Journal, *, before: str = BEFORE) -> None:
    chosen = journal.payments_to_forget(before=before, cutoff=WHEN)
    assert journal.forget(chosen, by="amina", at=WHEN) is not RemainingData.IN_LOG
