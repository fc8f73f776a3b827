"""The environment of child processes and the absence of core dumps, on real processes, and how Python was built."""

import asyncio
import os
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from paygw_batch import processes
from paygw_batch.gateway.signing import signers
from paygw_batch.gateway.signing.signers import LONG_RUN_PAYOUTS, SigningProcesses, SigningThreads, start_signers
from paygw_batch.processes import INHERITED_VARIABLES, PythonBuild, child_environment, python_build, python_command
from paygw_batch.sheet.read import parquet_trial
from tests.support.gateway_cases import private_test_key
from tests.support.long_part import share
from tests.support.program import ROOT, Program, kenyan_rows, sandbox_toml

SECRETS = {
    "KEY_WORD": "a passphrase",
    "CALLBACK": "a token",
    "LC_SECRET": "a secret",
    "XDG_SECRET": "a secret",
    "AWS_SECRET_ACCESS_KEY": "a secret",
    "PAYGW_APPROVAL_PASSPHRASE": "a secret",
}
USUAL = {"HOME": "/home/finance", "LANG": "sw_KE.UTF-8", "TZ": "Africa/Nairobi", "LC_TIME": "en_GB.UTF-8"}


def process_environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def test_child_environment_has_only_listed_variables() -> None:
    assert child_environment({**SECRETS, **USUAL}) == USUAL
    assert child_environment({**SECRETS, **USUAL}, secret=["TZ"]) == {k: v for k, v in USUAL.items() if k != "TZ"}
    assert not INHERITED_VARIABLES & SECRETS.keys()


def test_hook_gets_no_secret_variables(tmp_path: Path) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text('#!/bin/sh\nenv > "$1"\n')
    hook.chmod(0o700)
    config = tmp_path / "paygw.toml"
    text = sandbox_toml().replace("[gateway]", '[gateway]\nprivate_key_passphrase_env = "KEY_WORD"', 1)
    config.write_text(text + f'\n[reporting]\nhook = ["{hook}", "{tmp_path / "env"}"]\n')
    program = Program(tmp_path, config)
    assert program.json("submit", program.sheet(kenyan_rows(1)), **SECRETS, TZ="Africa/Nairobi")["exit_code"] == 0
    environment = (tmp_path / "env").read_text()
    assert "TZ=Africa/Nairobi" in environment
    assert not [name for name, value in SECRETS.items() if name in environment or value in environment]


def test_signing_processes_get_no_secrets_and_dump_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **USUAL}.items():
        monkeypatch.setenv(name, value)

    async def describe() -> list[tuple[dict[str, str], tuple[int, int]]]:
        async with SigningProcesses(private_test_key(tmp_path)) as at_work:
            pids = [process.pid for process in at_work.processes]
            return [(process_environment(pid), resource.prlimit(pid, resource.RLIMIT_CORE)) for pid in pids]

    result = asyncio.run(describe())
    assert len(result) == signers.signer_count(signers.usable_cores())
    for environ, core_limit in result:
        assert USUAL.items() <= environ.items()
        assert not SECRETS.keys() & environ.keys()
        assert environ.keys() <= INHERITED_VARIABLES
        assert core_limit == (0, 0)


def test_parquet_trial_gets_no_secret_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = subprocess.run, list[dict[str, str]]()

    def noted(*arguments: Any, env: dict[str, str], **options: Any) -> object:
        given.append(env)
        return run(*arguments, env=env, **options)  # type: ignore[call-overload]

    for name, value in {**SECRETS, **USUAL}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(subprocess, "run", noted)
    assert parquet_trial.try_parquet(b"no parquet", max_rows=1, max_bytes=1) is parquet_trial.TrialResult.DAMAGED
    assert len(given) == 1
    assert not SECRETS.keys() & given[0].keys()


# No image of memory.

ABOUT_DUMPS = """
import ctypes, resource, sys
is_dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) if sys.platform == "linux" else 0
print(resource.getrlimit(resource.RLIMIT_CORE)[0], is_dumpable)
"""


def run_python(home: Path, *words: str, by: str = sys.executable, said: str = "") -> str:
    """Run Python isolated in its own environment, because earlier tests of this process may have changed ours."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    options: dict[str, Any] = {"env": environ, "cwd": home, "capture_output": True, "text": True}
    completed = subprocess.run([by, "-I", *words], input=said, check=False, **options)
    assert completed.returncode == 0, completed.stderr
    return str(completed.stdout).strip()


def core_limit_after(code: str, tmp_path: Path) -> str:
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    start = f"import resource, sys; sys.path.insert(0, {str(ROOT)!r}); config = {str(config)!r}\n"
    resource_set = "resource.setrlimit(resource.RLIMIT_CORE, (4096, resource.getrlimit(resource.RLIMIT_CORE)[1]))\n"
    return run_python(tmp_path, "-c", start + resource_set + code + ABOUT_DUMPS)


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_CORE)[1] == 0, reason="dumps are forbidden here already")
def test_api_disables_core_dumps_unless_allowed(tmp_path: Path) -> None:
    use = "from paygw_batch.api import Payouts\nPayouts(config)\n"
    assert core_limit_after(use, tmp_path) == "0 0"
    allowed = use.replace("(config)", "(config, allow_core_dumps=True)")
    assert core_limit_after(allowed, tmp_path) == ("4096 1" if sys.platform == "linux" else "4096 0")


# Where no process can be started that signs.

OWN_PATH = """
import sys
sys.path.insert(0, {root!r})
sys.path += {installed!r}
from paygw_batch.api import Payouts
from paygw_batch.gateway.signing import signers
{before}
with Payouts({config!r}).submit({sheet!r}) as run:
    result = run.wait()
print(result.conclusion.value, result.sent, *result.notes, sep="|")
"""


def run_embedding_program(tmp_path: Path, before: str, *, by: str = "-c") -> list[str]:
    (config := tmp_path / "paygw.toml").write_text(sandbox_toml())
    phones = range(254_712_000_000, 254_712_000_000 + LONG_RUN_PAYOUTS)
    rows = [f"KE,PAY-{phone},1500.50,KES,Jane Wanjiku,{phone},+{phone}" for phone in phones]
    sheet = str(Program(tmp_path, config).sheet(rows))
    # In a virtual environment, the base interpreter has no packages. It finds them only through its path.
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    text = OWN_PATH.format(root=str(ROOT), installed=installed, before=before, config=str(config), sheet=sheet)
    (program := tmp_path / "pays.py").write_text(text)
    started = {"-c": ["-c", text], "-": ["-"], "file": [str(program)]}[by]
    return run_python(tmp_path, *started, by=getattr(sys, "_base_executable", sys.executable), said=text).split("|")


@pytest.mark.long
@pytest.mark.share(2)
@pytest.mark.parametrize("by", share(["-c", "-", "file"], every=3))
def test_program_on_python_path_pays_long_run(tmp_path: Path, by: str) -> None:
    assert run_embedding_program(tmp_path, "", by=by) == ["done", str(LONG_RUN_PAYOUTS)]


@pytest.mark.long
def test_fallback_to_signing_threads_is_reported_once(tmp_path: Path) -> None:
    before = "signers.python_command = lambda program: [sys.executable, '-I', '-c', 'import no_such_module']"
    conclusion, sent, *notes = run_embedding_program(tmp_path, before)
    assert (conclusion, sent) == ("done", str(LONG_RUN_PAYOUTS))
    assert len([note for note in notes if "signs in threads" in note]) == 1


@pytest.mark.parametrize("executable", ["", "/opt/app/payroll", "/usr/bin/uwsgi"])
def test_unknown_executable_signs_in_threads(executable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as frozen:
        frozen.setattr(sys, "frozen", True, raising=False)
        assert python_command("pass") is None
    monkeypatch.setattr(sys, "executable", executable)
    assert python_command("pass") is None
    notes: list[str] = []

    async def kind() -> type:
        async with start_signers(private_test_key(tmp_path), LONG_RUN_PAYOUTS, notes.append) as at_work:
            return type(at_work)

    assert asyncio.run(kind()) is SigningThreads
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("told", "prefix", "build"),
    [
        ("'--prefix=/opt' '--enable-shared'", "/opt", PythonBuild(is_profile_guided=False, has_lto=False)),
        ("'--enable-optimizations' '--with-lto'", "/opt", PythonBuild(is_profile_guided=True, has_lto=True)),
        ("'--enable-optimizations'", "/usr", PythonBuild(is_profile_guided=True, has_lto=None)),
        ("'--enable-shared'", "/usr", PythonBuild(is_profile_guided=None, has_lto=None)),
        (None, "C:\\Python", PythonBuild(is_profile_guided=None, has_lto=None)),
    ],
)
def test_python_build_is_read_from_configure_options(
    told: str | None, prefix: str, build: PythonBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": told}.get)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    assert python_build() == build
    assert processes.processor_name()
