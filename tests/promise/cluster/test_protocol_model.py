"""The protocol as a model: spin tries every order of events, and finds a double payment without a guard."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.promise.cluster.conftest import NO_SPIN, has_spin
from tests.support.long_part import long

MODEL = Path(__file__).with_name("protocol.pml")
GUARDS = {
    **dict.fromkeys(("NO_KEY", "NO_CHAIN", "NO_MAY_LEAVE", "NO_AGE", "NO_LEFT", "NO_ROLL", "NO_LIFE"), 1),
    "NO_FLUSH": 2,
}
"""The guards of the model, with the number of troubles after which a row is paid twice without each."""
PAID_TWICE = "assertion violated  !(left[r])"

pytestmark = pytest.mark.skipif(not has_spin(), reason=NO_SPIN)


def check_model(place: Path, *defined: str) -> str:
    """Check every order of events, and return spin's report."""
    macros = [f"-D{macro}" for macro in defined]
    subprocess.run(["spin", "-a", *macros, MODEL], cwd=place, check=True, capture_output=True)
    # Without optimization, because the compiler would take longer than the search.
    subprocess.run(["gcc", "-w", "-O0", "-DSAFETY", "-o", "pan", "pan.c"], cwd=place, check=True)
    done = subprocess.run([place / "pan", "-n", "-m2000000"], cwd=place, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.parametrize("troubles", [1, long(2)])
def test_model_repeats_no_payment_and_loses_no_row(tmp_path: Path, troubles: int) -> None:
    report = check_model(tmp_path, f"TROUBLES={troubles}")
    assert "errors: 0" in report, report
    assert "not completed" not in report, report
    assert "error: max search depth too small" not in report, report


@pytest.mark.share(8)
@pytest.mark.parametrize(("guard", "troubles"), GUARDS.items())
def test_model_without_guard_pays_twice(tmp_path: Path, guard: str, troubles: int) -> None:
    assert PAID_TWICE in check_model(tmp_path, f"TROUBLES={troubles}", guard)


def test_every_removable_model_guard_is_tested() -> None:
    assert set(re.findall(r"#ifdef (\w+)", MODEL.read_text(encoding="utf-8"))) == GUARDS.keys()


def test_functions_named_in_model_exist() -> None:
    """Every name in the model must exist in the program."""
    text = MODEL.read_text(encoding="utf-8")
    named = {name.rpartition(".")[2].removesuffix("()") for name in text.split("`")[1::2]}
    program = "".join(
        path.read_text(encoding="utf-8")
        for folder in (
            "paygw_batch/journal",
            "paygw_batch/core",
            "paygw_batch/gateway/http",
            "paygw_batch/cli/commands",
            "paygw_batch/cluster",
        )
        for path in (MODEL.parents[3] / folder).rglob("*")
        if path.suffix in {".py", ".sql"}
    )
    assert {name for name in named if name.split()[-1].removeprefix("--") not in program} == set()
