"""The protocol of the journal holds in any order of events, and each planted bug breaks it."""

import re
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.values import MoveResult
from tests.promise.campaign.judge import Broken
from tests.promise.cluster.conftest import NO_SPIN, has_spin
from tests.promise.cluster.protocol import BUGS, NO_CLAIM, NO_INDEX, PlayTally, ProtocolBug, plant_sql, play
from tests.support.journal_rows import due_rows, intent, open_sheet, send
from tests.support.long_part import long, share
from tests.support.postgres_rows import execute_as_owner, open_postgres, postgres_location
from tests.support.postgres_server import PostgresServer

HUNTED = 40  # the number of runs within which each planted bug must be found


@pytest.mark.parametrize("lives", [6, long(12)])
def test_no_event_order_repeats_or_loses_row(postgres_server: PostgresServer, open_batch: str, lives: int) -> None:
    played = PlayTally()
    for seed in range(lives):
        played.update(play(postgres_server, open_batch, seed))
    assert min(played["deaths"], played["lost_connections"], played["freezes"], played["late"]) > 0
    assert min(played["interrupted"], played["releases"]) > 0


@pytest.mark.parametrize("name", [*map(long, [*BUGS][:3]), *share([*BUGS][3:], every=len(BUGS))])
def test_protocol_test_detects_planted_bug(postgres_server: PostgresServer, open_batch: str, name: str) -> None:
    for seed in range(HUNTED):
        try:
            play(postgres_server, open_batch, seed, BUGS[name])
        except Broken:
            return
    pytest.fail(f"not found in {HUNTED} lives")


# Without all other guards, the unique index alone keeps a row from having two intents.
def send_by_both(url: str, home: Path) -> Sequence[MoveResult]:
    """Freeze a run before its intent, let another one send the row, then continue the first one."""
    home.chmod(0o700)
    at = postgres_location(url, home, intent_lives_s=600.0)
    with closing(open_postgres(at)) as frozen:
        open_sheet(frozen, new=1)
        (due,) = due_rows(frozen, 1)
        execute_as_owner(at, "UPDATE process SET seen_at = seen_at - interval '1 hour'")
        with closing(open_postgres(at)) as taker:
            assert len(send(taker, 1, OutcomeKind.PAID)) == 1
        return frozen.append([intent(due)])


@pytest.fixture
def unguarded(postgres_server: PostgresServer, postgres_template: str) -> str:
    url = postgres_server.url(postgres_server.new_database(postgres_template))
    plant_sql(url, NO_CLAIM)
    return url


def test_unique_index_refuses_second_intent(unguarded: str, tmp_path: Path) -> None:
    with pytest.raises(JournalUnwritable, match="fact_one_intent"):
        send_by_both(unguarded, tmp_path)


def test_row_is_sent_twice_without_index(unguarded: str, tmp_path: Path) -> None:
    plant_sql(unguarded, ProtocolBug(statements=(NO_INDEX,)))
    assert send_by_both(unguarded, tmp_path) == [MoveResult.MOVED]


# The model of the protocol.
MODEL = Path(__file__).with_name("protocol.pml")
GUARDS = dict.fromkeys(("NO_KEY", "NO_CHAIN", "NO_MAY_LEAVE", "NO_AGE", "NO_LEFT", "NO_ROLL", "NO_LIFE"), 1)
GUARDS["NO_FLUSH"] = 2
"""The guards of the model, with the number of troubles after which a row is paid twice without each."""

needs_spin = pytest.mark.skipif(not has_spin(), reason=NO_SPIN)


def check_model(folder: Path, *defined: str) -> str:
    macros = [f"-D{macro}" for macro in defined]
    subprocess.run(["spin", "-a", *macros, MODEL], cwd=folder, check=True, capture_output=True)
    # Without optimization, because the compiler would take longer than the search.
    subprocess.run(["gcc", "-w", "-O0", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True)
    done = subprocess.run([folder / "pan", "-n", "-m2000000"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@needs_spin
@pytest.mark.parametrize("troubles", [1, long(2)])
def test_model_neither_repeats_nor_loses_payments(tmp_path: Path, troubles: int) -> None:
    report = check_model(tmp_path, f"TROUBLES={troubles}")
    assert "errors: 0" in report, report
    assert "not completed" not in report, report
    assert "error: max search depth too small" not in report, report


@needs_spin
@pytest.mark.share(8)
@pytest.mark.parametrize(("guard", "troubles"), GUARDS.items())
def test_model_without_guard_pays_twice(tmp_path: Path, guard: str, troubles: int) -> None:
    assert "assertion violated  !(left[r])" in check_model(tmp_path, f"TROUBLES={troubles}", guard)


def test_every_removable_model_guard_is_tested() -> None:
    assert set(re.findall(r"#ifdef (\w+)", MODEL.read_text(encoding="utf-8"))) == GUARDS.keys()


def test_functions_named_in_model_exist() -> None:
    named = {name.rpartition(".")[2].removesuffix("()") for name in MODEL.read_text(encoding="utf-8").split("`")[1::2]}
    program = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("journal", "core", "gateway/http", "cli/commands", "cluster")
        for path in (MODEL.parents[3] / "paygw_batch" / folder).rglob("*")
        if path.suffix in {".py", ".sql"}
    )
    assert {name for name in named if name.split()[-1].removeprefix("--") not in program} == set()
