"""Verifies the whole journal by replaying every fact, or only its last facts when it is opened.

For a long journal, a second process simultaneously checks everything that needs no facts (docs/decisions/0015).
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from paygw_batch.core.lifecycle import STATE_AFTER
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts import EVIDENCE_RECORDED, verify_links
from paygw_batch.journal.port import VerifyProgress, ignore_progress
from paygw_batch.journal.replay import RowReplay, check_batches, check_personal_data, check_state_machine, check_trail
from paygw_batch.journal.sqlite.connect import (
    chain_end,
    check_tables,
    connect,
    fact_hash,
    fetch,
    load_identity,
    migrations,
)
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, check_payee_index, check_spellings
from paygw_batch.journal.values import Link
from paygw_batch.language import say
from paygw_batch.processes import child_environment, forbid_core_dumps, python_command

_TAIL_FACTS = 256
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_STATES_AFTER: Mapping[str, str] = {kind.value: state.value for kind, state in STATE_AFTER.items()}
_PARALLEL_FROM_FACTS = 100_000


def verify(
    connection: apsw.Connection, path: Path, *, in_parallel: bool = False, progress: VerifyProgress = ignore_progress
) -> Mapping[str, int]:
    """Replay the whole journal and return counts of facts, batches, pages, order ids and states.

    With `in_parallel`, a second process checks a long journal's file while this one replays the facts. It sees only
    committed data, so `connection` must not have uncommitted changes. Raises `JournalCorrupt` at the first wrong fact
    or line, and `apsw.Error` if SQLite cannot read the file.
    """
    ((facts,),) = fetch(connection, "SELECT count(*) FROM fact")
    command = python_command("from paygw_batch.journal.sqlite import verify; verify.report_soundness()")
    if in_parallel and facts >= _PARALLEL_FROM_FACTS and command is not None:
        # If either process finds damage, this one checks everything again, so that it reports the first damage.
        with suppress(Exception), _check_in_subprocess(command, path, chain_end(connection)) as is_sound:
            counts = _check_facts(connection, progress)
            if is_sound():
                return counts
    _check_database(connection, path)
    counts = _check_facts(connection, progress)
    _check_indexes(connection)
    return counts


def _check_facts(connection: apsw.Connection, progress: VerifyProgress) -> Mapping[str, int]:
    tables = SqliteTables(connection)
    check_state_machine(tables)
    for number, _, digest, _, salt, *values in verify_links(tables.identity.start, tables.stream("all_facts")):
        if salt is not None:
            check_personal_data(number, digest, salt, *values)
    batch_counts = check_batches(tables)
    row_counts = RowReplay(tables, progress).run()
    ((facts,),), ((evidence_count,),) = fetch(connection, "SELECT count(*) FROM fact"), tables.run("count_evidence")
    entry_count = check_trail(tables)
    return {**row_counts, **batch_counts, "facts": facts, "evidence": evidence_count, "audit_entries": entry_count}


def _check_indexes(connection: apsw.Connection) -> None:
    check_spellings(SqliteTables(connection))
    check_payee_index(connection)


@contextmanager
def _check_in_subprocess(command: Sequence[str], path: Path, end: Link) -> Iterator[Callable[[], bool]]:
    """Check a journal in a subprocess. Yields a function that waits, and returns whether it is sound."""
    with subprocess.Popen(  # noqa: S603 (our own program, in the same interpreter)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(os.environ),
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise InternalError("a process was started without its pipes")
        with suppress(BrokenPipeError):  # the process has ended, so its output is empty
            stdin.write(json.dumps([str(path), end.seq]).encode())
            stdin.close()
        try:
            yield lambda: stdout.read() == end.hash.hex().encode()
        finally:
            process.kill()


def report_soundness() -> None:
    """Check the journal whose path is on standard input. If it is sound, print the hash of the requested fact."""
    forbid_core_dumps(permanent=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles the interrupt and ends this process
    path, seq = json.loads(sys.stdin.read())
    with closing(connect(Path(path), write=False)) as connection:
        connection.execute("BEGIN")
        _check_database(connection, Path(path))
        _check_indexes(connection)
        sys.stdout.write(fact_hash(connection, seq).hex())


def check_tail(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless the last facts are chained and match their instructions' states."""
    tables = SqliteTables(connection)
    lines = tables.run("last_facts", limit=_TAIL_FACTS)[::-1]
    if not lines:
        return
    previous = Link(lines[0][0] - 1, fact_hash(connection, lines[0][0] - 1))
    for _ in verify_links(previous, lines):
        pass  # raises at a line that does not follow the one before it
    contradictions = {fact for (fact,) in tables.run("contradicted", before=previous.seq)}
    ends = {
        instruction: [_STATES_AFTER.get(kind), attempt, fact]
        for fact, *_, instruction, kind, attempt in lines
        if instruction is not None and kind != EVIDENCE_RECORDED and fact not in contradictions
    }
    actual = {number: state for number, *state in tables.run("ends", numbers=list(ends))} if ends else {}
    for number, expected in ends.items():
        if actual.get(number) != expected:
            values = {"number": number, "fact": expected[-1]}
            raise JournalCorrupt(say("Instruction {number} is not in the state that fact {fact} leads to.", **values))


def _check_database(connection: apsw.Connection, path: Path) -> None:
    ((result,), *_) = fetch(connection, "PRAGMA integrity_check(1)")
    if result != "ok":
        raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=path, error=result))
    check_tables(connection, path)
    created_at = load_identity(connection).created_at
    upgrades = fetch(connection, "SELECT version, applied_at FROM migration ORDER BY version")
    if not upgrades or upgrades[0] != (1, created_at):
        raise JournalCorrupt(say("The journal {path} does not have a valid creation time.", path=path))
    versions = [version for version, _ in upgrades]
    if not all(_TIME.fullmatch(time) for _, time in upgrades) or versions != list(range(1, len(migrations()) + 1)):
        raise JournalCorrupt(say("The journal {path} does not have valid upgrade times.", path=path))
    if violations := fetch(connection, "PRAGMA foreign_key_check"):
        raise JournalCorrupt(say("A line of table {table} refers to missing data.", table=violations[0][0]))
