"""Planted bugs in the program as a process: each patches one new start, in its fork only."""

import os
import sys
import tempfile
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import apsw
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from paygw_batch import forget_people
from paygw_batch.approval import signed_document
from paygw_batch.cli import send_batch
from paygw_batch.cli.commands import approve
from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.countries.rules import CountryRule
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import Attempt, PreparedRequest, RawReply, SendGuard, TransportFault
from paygw_batch.gateway.sign import Draft, Signer
from paygw_batch.gateway.signing import key, signers
from paygw_batch.journal import PaymentsToForget, RemainingData, file_location, outbox, sent_log
from paygw_batch.journal.sqlite import connect, sqlite_journal
from paygw_batch.notices import delivery, webhook
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.settle.kept_documents import is_recorded
from paygw_batch.sheet.write import table
from paygw_batch.submit import send


def _replace_part(owner: object, name: str, value: object) -> None:
    """Replace a part of the program. A part that no longer exists is an error."""
    getattr(owner, name)
    setattr(owner, name, value)


def synchronous_normal() -> None:
    connect._SYNCHRONOUS_FULL = 1


def synchronous_off() -> None:
    connect._SYNCHRONOUS_FULL = 0


def notifications_not_synced() -> None:
    """Answer notifications that are written, but not on stable storage."""

    def careless(path: Path, *, write: bool) -> apsw.Connection:
        connection = connect.connect(path, write=write)
        if write:
            connection.pragma("synchronous", 0)
        return connection

    _replace_part(file_location, "connect", careless)


def sent_log_not_synced() -> None:
    _replace_part(sent_log, "_sync_data", lambda _fd: None)


def plan_in_place() -> None:
    """Write a plan over the old one, byte by byte."""
    _replace_part(signed_document, "write_atomically", lambda path, data: path.write_bytes(data))


def backup_not_synced() -> None:
    _replace_part(sqlite_journal, "os", SimpleNamespace(**{**vars(os), "fsync": lambda _fd: None}))
    _replace_part(sqlite_journal, "sync_directory", lambda _directory: None)
    # The note about the copy, next to it.
    _replace_part(file_location, "write_atomically", lambda path, data: path.write_bytes(data))


def body_in_a_log_line() -> None:
    _say_of_each_request(lambda request: request.body.decode())


def header_in_a_log_line() -> None:
    _say_of_each_request(lambda request: f"Authorization: {request.authorization}")


def _say_of_each_request(what: Callable[[PreparedRequest], str]) -> None:
    deliver = PayoutTransport.deliver

    async def talkative(
        transport: PayoutTransport, request: PreparedRequest, may_send: SendGuard
    ) -> RawReply | TransportFault:
        sys.stderr.write(f"sending {what(request)}\n")
        return await deliver(transport, request, may_send)

    _replace_part(PayoutTransport, "deliver", talkative)


def key_known_to_be_sound() -> None:
    """No bug: skip the search for weak primes in the campaign's own key, a third of the cost of a start."""
    _replace_part(key, "load_pem_private_key", partial(load_pem_private_key, unsafe_skip_rsa_key_validation=True))


def posts_name_their_process() -> None:
    """No bug: each process posts its notices to its own path."""
    key_known_to_be_sound()
    post = webhook.Webhook.post

    def named(hook: webhook.Webhook, notice: str, body: bytes, at_s: int) -> Any:
        return post(replace(hook, url=f"{hook.url}/{os.getpid()}"), notice, body, at_s)

    _replace_part(webhook.Webhook, "post", named)


def posts_name_their_process_and_wait_for_nothing() -> None:
    """No bug: also, a notice is retried at once if no other process can be sending it."""
    posts_name_their_process()
    _replace_part(outbox, "FIRST_PAUSE", timedelta(0))


def notices_noted_at_the_end() -> None:
    """Record notices as sent only after all of them: a kill then hides several answers."""
    posts_name_their_process()
    late: list[tuple[Any, str]] = []
    run, record_sent = delivery._Delivery.run, outbox.Outbox.record_sent

    def run_and_note(round_: Any, *, again: bool) -> None:
        run(round_, again=again)
        with journal_location(round_.settings).outbox(write=True) as opened:
            for notice, at in late:
                record_sent(opened, notice, at)

    _replace_part(outbox.Outbox, "record_sent", lambda _outbox, notice, at: late.append((notice, at)))
    _replace_part(delivery._Delivery, "run", run_and_note)


def end_written_at_the_end() -> None:
    """Write the notice of a run only at its end, so that a killed run has none."""
    posts_name_their_process()
    add_run_end_notice = send.add_run_end_notice  # type: ignore[attr-defined]
    real_send, late = send_batch.send, list[Callable[[], None]]()  # type: ignore[attr-defined]

    def sent(*arguments: Any, **named: Any) -> Any:
        end = real_send(*arguments, **named)
        for write in late:
            write()
        return end

    _replace_part(send, "add_run_end_notice", lambda *what: late.append(partial(add_run_end_notice, *what)))
    _replace_part(send_batch, "send", sent)


def forgotten_up_to_a_time() -> None:
    """No bug: forget people before a time instead of a date, because a campaign lasts less than a day."""
    _replace_part(forget_people, "forget_cutoff", lambda _settings, typed: typed)


def order_carried_out_does_nothing() -> None:
    """Report an order as already carried out, and leave the remains of a kill in the journal's log."""

    def careless(settings: Any, journal: Any, order: Any, by: str) -> Any:
        if is_recorded(journal, order):
            return forget_people.ForgetResult(PaymentsToForget(order.content.before, {}, ()), RemainingData.NOWHERE)
        return forget_by_order(settings, journal, order, by)

    forget_by_order = forget_people.forget_by_order
    _replace_part(approve, "forget_by_order", careless)


def signed_in_processes() -> None:
    """No bug: a run of any size signs in separate processes, as large ones do."""
    key_known_to_be_sound()
    _replace_part(signers, "LONG_RUN_PAYOUTS", 1)


def signed_in_threads() -> None:
    """No bug: a run of any size signs in threads, as small ones do, which saves half a second."""
    key_known_to_be_sound()
    _replace_part(signers, "LONG_RUN_PAYOUTS", sys.maxsize)


def rows_in_flight_are_put_back() -> None:
    """Treat a dead worker's rows in flight as unsent, without the database's own guard."""
    from paygw_batch.journal.postgres import fact_writer  # noqa: PLC0415 (the extra, this plant's alone)

    mark_interrupted = fact_writer.FactWriter.mark_interrupted

    def put_back(writer: Any, at: str) -> int:
        writer.retry(_answer_for_others)
        return mark_interrupted(writer, at)

    _replace_part(fact_writer.FactWriter, "mark_interrupted", put_back)
    signed_in_threads()
    _replace_part(fact_writer, "Interrupted", lambda: Concluded(Outcome(OutcomeKind.NOT_SENT, "planted")))


def _answer_for_others(connection: Any) -> None:
    """Let the database accept the outcome of another process's row."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        ((text,),) = connection.execute("SELECT pg_get_functiondef('commit_facts'::regproc)").fetchall()
        guard = "IF FOUND THEN\n            RAISE EXCEPTION 'an answer is of"
        if guard in text:
            connection.execute(text.replace(guard, guard.replace("FOUND", "false")))


def parts_by_a_known_name() -> None:
    """No bug: incomplete files have a fixed name, so that strace can recognise writes to them."""

    def mkstemp(*, dir: Path, prefix: str, suffix: str) -> tuple[int, str]:  # noqa: A002 (the library's own name)
        name = str(Path(dir) / f"{prefix}known{suffix}")
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), name

    _replace_part(tempfile, "mkstemp", mkstemp)


def wake_ups_by_write() -> None:
    """No bug: event loops wake themselves by `write`, so that every `sendto` is the network's."""

    def write_to_self(loop: Any) -> None:
        if loop._csock is not None:
            os.write(loop._csock.fileno(), b"\0")

    _replace_part(BaseSelectorEventLoop, "_write_to_self", write_to_self)


def an_error_of_our_own() -> None:
    """No bug, but an error to survive: its text has the payee, in the middle of a run."""

    def fail(signer: Signer, rule: CountryRule, attempt: Attempt) -> Draft:
        raise ValueError(f"{signer} {rule} {dict(attempt.instruction.fields)}")

    _replace_part(Signer, "draft", fail)


def reconciliation_in_place() -> None:
    @contextmanager
    def appearing(path: Path) -> Iterator[IO[bytes]]:
        with path.open("wb", buffering=0) as file:
            yield file

    _replace_part(table, "atomic_file", appearing)
