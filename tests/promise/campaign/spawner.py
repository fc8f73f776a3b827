"""Starts the program in new processes quickly: everything is imported once, and every start is a fork.

Run as a script, with modules to import as arguments. It reads and writes one JSON object a line. `{"start": {...}}`
forks a process that becomes the program, with the given arguments, environment, directory and files. `{"reap": PID}`
waits for one and reports its end. When standard input ends, all unreaped processes are killed, stopped ones too. This
process never calls into the program and starts no thread.
"""

import faulthandler
import gc
import importlib
import json
import os
import resource
import signal
import sys
from typing import Any

MODULES = (
    *(f"paygw_batch.cli.commands.{name}" for name in ("pay", "journal", "status")),
    "paygw_batch.cli.send_batch",
    # Modules that a run would import later.
    "pandera.backends.polars.builtin_checks",
    "pandera.backends.polars.register",
    "rich._emoji_codes",
    "uvloop",
)

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130


def serve() -> None:
    for name in (*MODULES, *sys.argv[1:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the children's collectors ignore the imports, so their pages stay shared
    _answer({"ready": True})
    living: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if (start := order.get("start")) is not None:
            living.add(pid := _start(start))
            _answer({"pid": pid})
        else:
            _, status = os.waitpid(order["reap"], 0)
            living.remove(order["reap"])
            _answer({"status": os.waitstatus_to_exitcode(status)})
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _start(start: dict[str, Any]) -> int:
    # This runs before the answer, after which the caller may close a pipe of the new process.
    files = [os.open(os.devnull, os.O_RDONLY)]
    files += [os.open(start[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666) for name in ("out", "err")]
    signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED_TO_END)
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED_TO_END)
        return pid
    code = 1
    try:
        _become(start, files)
        from paygw_batch.cli.start import main  # noqa: PLC0415 (only the child calls into the program)

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (a fork must never go back into the caller's loop)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(start: dict[str, Any], files: list[int]) -> None:
    """Turn this fork into a new start of the program. If asked to end before it begins, it ends in order."""
    for each in _ASKED_TO_END:
        signal.signal(each, lambda *_: os._exit(_INTERRUPTED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED_TO_END)
    os.setsid()
    os.environ.clear()
    os.environ.update(start["environ"])
    os.chdir(start["directory"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    faulthandler.register(signal.SIGUSR1, file=2)  # a hanging program writes its stack
    if (limit := start.get("file_bytes")) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if (user := start.get("user")) is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    for name in start.get("hidden", ()):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails, as if it were not installed
    if (planted := start.get("planted")) is not None:
        module, _, function = planted.partition(":")
        sys.path.insert(0, start["planted_from"])
        getattr(importlib.import_module(module), function)()
    sys.argv = ["paygw-batch", *start["arguments"]]
    if start.get("stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
