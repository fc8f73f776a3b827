"""Planted bugs in the program as a process: each patches a fresh start, in the fork and nowhere else."""

import os
import sys
import tempfile
import time
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import apsw
import polars as pl
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from paygw_batch import forget_people
from paygw_batch.approval import signed_document
from paygw_batch.cli import send_batch
from paygw_batch.cli.commands import approve
from paygw_batch.core.batch import Instruction
from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.countries.rules import CountryRule
from paygw_batch.gateway import encode, sign
from paygw_batch.gateway.encode import EncodedBody
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import Attempt, MayLeave, PreparedRequest, RawReply, TransportFault
from paygw_batch.gateway.sign import Draft, Signer
from paygw_batch.gateway.signing import key, signers
from paygw_batch.journal import Forgettable, OldPages, file_place, left, outbox
from paygw_batch.journal.sqlite import connect, sqlite_journal
from paygw_batch.notices import delivery, webhook
from paygw_batch.opening.open_journal import place_of
from paygw_batch.settle.kept_documents import is_kept
from paygw_batch.sheet.write import table
from paygw_batch.submit import send


def _put(owner: object, name: str, value: object) -> None:
    """Replace a part of the program; a part that has another name by now is an error, and no bug that nobody plants."""
    getattr(owner, name)
    setattr(owner, name, value)


def synchronous_normal() -> None:
    connect._SYNCHRONOUS_FULL = 1


def synchronous_off() -> None:
    connect._SYNCHRONOUS_FULL = 0


class _WithoutSync:
    """The module `os`, whose `fsync` does nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        """Say that it is done."""


def notifications_not_synced() -> None:
    """Answer notifications that are written, and not on stable storage."""

    def careless(path: Path, *, write: bool) -> apsw.Connection:
        connection = connect.connect(path, write=write)
        if write:
            connection.pragma("synchronous", 0)
        return connection

    _put(file_place, "connect", careless)


def left_not_synced() -> None:
    """Note what left, and leave it to the system when that gets to the disk."""
    _put(left, "_sync_data", lambda _fd: None)


def plan_in_place() -> None:
    """Write a plan over the old one, byte by byte."""
    _put(signed_document, "write_whole", lambda path, data: path.write_bytes(data))


def backup_not_synced() -> None:
    """Say that a backup is made when it is written."""
    _put(sqlite_journal, "os", _WithoutSync())
    _put(sqlite_journal, "sync_directory", lambda _directory: None)
    _put(file_place, "write_whole", lambda path, data: path.write_bytes(data))  # the note of the copy, beside it


def body_in_a_log_line() -> None:
    _say_of_each_request(lambda request: request.body.decode())


def header_in_a_log_line() -> None:
    _say_of_each_request(lambda request: f"Authorization: {request.authorization}")


def _say_of_each_request(what: Callable[[PreparedRequest], str]) -> None:
    deliver = PayoutTransport.deliver

    async def talkative(
        transport: PayoutTransport, request: PreparedRequest, may_leave: MayLeave
    ) -> RawReply | TransportFault:
        sys.stderr.write(f"sending {what(request)}\n")
        return await deliver(transport, request, may_leave)

    _put(PayoutTransport, "deliver", talkative)


def key_known_to_be_sound() -> None:
    """No bug: the campaign's own key is not looked through for weak primes again, a third of what a start costs."""
    _put(key, "load_pem_private_key", partial(load_pem_private_key, unsafe_skip_rsa_key_validation=True))


def posts_name_their_process() -> None:
    """No bug: each process posts its notices to a path of its own."""
    key_known_to_be_sound()
    post = webhook.Webhook.post

    def named(hook: webhook.Webhook, notice: str, body: bytes, at_s: int) -> Any:
        return post(replace(hook, url=f"{hook.url}/{os.getpid()}"), notice, body, at_s)

    _put(webhook.Webhook, "post", named)


def posts_name_their_process_and_wait_for_nothing() -> None:
    """No bug: besides, a notice is tried again at once, where no other process can be sending it."""
    posts_name_their_process()
    _put(outbox, "FIRST_PAUSE", timedelta(0))


def notices_noted_at_the_end() -> None:
    """Note what was sent when all of it was: a kill hides more answers than one."""
    posts_name_their_process()
    late: list[tuple[Any, str]] = []
    run, note_sent = delivery._Delivery.run, outbox.Outbox.note_sent

    def run_and_note(round_: Any, *, again: bool) -> None:
        run(round_, again=again)
        with place_of(round_.settings).outbox(write=True) as opened:
            for notice, at in late:
                note_sent(opened, notice, at)

    _put(outbox.Outbox, "note_sent", lambda _outbox, notice, at: late.append((notice, at)))
    _put(delivery._Delivery, "run", run_and_note)


def end_written_at_the_end() -> None:
    """Write the notice of a run when it has ended: of one that is killed nobody is told."""
    posts_name_their_process()
    expect_end = send.expect_end  # type: ignore[attr-defined]
    real_send, late = send_batch.send, list[Callable[[], None]]()  # type: ignore[attr-defined]

    def sent(*arguments: Any, **named: Any) -> Any:
        end = real_send(*arguments, **named)
        for write in late:
            write()
        return end

    _put(send, "expect_end", lambda *what: late.append(partial(expect_end, *what)))
    _put(send_batch, "send", sent)


def forgotten_up_to_a_time() -> None:
    """No bug: people are forgotten from before a time, and not a day, which no campaign lasts."""
    _put(forget_people, "cut_off", lambda _settings, typed: typed)


def order_carried_out_does_nothing() -> None:
    """Call an order done that was carried out, and leave what a kill left in the log of the journal."""

    def careless(settings: Any, journal: Any, order: Any, by: str) -> Any:
        if is_kept(journal, order):
            return forget_people.Forgotten(Forgettable(order.content.before, {}, ()), OldPages.NOWHERE)
        return forget_by_order(settings, journal, order, by)

    forget_by_order = forget_people.forget_by_order
    _put(approve, "forget_by_order", careless)


def signed_in_processes() -> None:
    """No bug: a run of any size signs as large ones do, in processes of its own."""
    key_known_to_be_sound()
    _put(signers, "LONG_RUN_PAYOUTS", 1)


def signed_in_threads() -> None:
    """No bug: a run of any size signs as small ones do: no processes are started with it, which costs half a second."""
    key_known_to_be_sound()
    _put(signers, "LONG_RUN_PAYOUTS", sys.maxsize)


def rows_in_flight_are_put_back() -> None:
    """Call what a dead worker left in flight "not sent": so it is sent again; without the database's own guard."""
    from paygw_batch.journal.postgres import fact_writer  # noqa: PLC0415 (the extra, this plant's alone)

    conclude = fact_writer.FactWriter.conclude

    def put_back(writer: Any, at: str) -> int:
        writer.ask(_answer_for_others)
        return conclude(writer, at)

    _put(fact_writer.FactWriter, "conclude", put_back)
    signed_in_threads()
    _put(fact_writer, "Interrupted", lambda: Concluded(Outcome(OutcomeKind.NOT_SENT, "planted")))


def _answer_for_others(connection: Any) -> None:
    """Let the database take an answer of a row that another process sent."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        ((text,),) = connection.execute("SELECT pg_get_functiondef('commit_facts'::regproc)").fetchall()
        guard = "IF FOUND THEN\n            RAISE EXCEPTION 'an answer is of"
        if guard in text:
            connection.execute(text.replace(guard, guard.replace("FOUND", "false")))


def parts_by_a_known_name() -> None:
    """No bug: files that are not whole yet have one name, by which strace can tell writes to them from all others."""

    def mkstemp(*, dir: Path, prefix: str, suffix: str) -> tuple[int, str]:  # noqa: A002 (the library's own name)
        name = str(Path(dir) / f"{prefix}known{suffix}")
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), name

    _put(tempfile, "mkstemp", mkstemp)


def wake_ups_by_write() -> None:
    """No bug: event loops wake themselves by `write`, so that every `sendto` is the network's."""

    def write_to_self(loop: Any) -> None:
        if loop._csock is not None:
            os.write(loop._csock.fileno(), b"\0")

    _put(BaseSelectorEventLoop, "_write_to_self", write_to_self)


def an_error_of_our_own() -> None:
    """Not a bug to be found, but one to be survived: an error whose text holds the payee, in the middle of a run."""

    def fail(signer: Signer, rule: CountryRule, attempt: Attempt) -> Draft:
        raise ValueError(f"{signer} {rule} {dict(attempt.instruction.fields)}")

    _put(Signer, "draft", fail)


def reconciliation_in_place() -> None:
    @contextmanager
    def appearing(path: Path) -> Iterator[IO[bytes]]:
        with path.open("wb", buffering=0) as file:
            yield file

    _put(table, "appearing", appearing)


def reconciliation_with_the_time() -> None:
    """Show when the file was written: then it is no longer a function of sheet and journal alone."""
    from paygw_batch.submit import results  # noqa: PLC0415 (heavy, and only this plant's)

    reconciled = results.reconciled  # type: ignore[attr-defined]

    def dated(*arguments: Any) -> Any:
        for piece in reconciled(*arguments):
            yield piece.with_columns(updated_at=pl.lit(str(time.time_ns())))

    _put(results, "reconciled", dated)


def amounts_as_floats() -> None:
    """Read amounts as floats, and write them as floats are written."""
    encode_body = encode.encode_body

    def careless(rule: CountryRule, instruction: Instruction, **terms: Any) -> EncodedBody:
        instruction = replace(instruction, amount=str(float(instruction.amount)))
        return encode_body(rule, instruction, **terms)

    _put(sign, "encode_body", careless)
