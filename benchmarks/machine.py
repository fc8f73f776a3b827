"""Describes the machine on which the benchmarks ran."""

import os
import platform
import statistics
import tempfile
import time
from importlib import metadata
from pathlib import Path

from benchmarks.signatures import signatures_per_s
from paygw_batch.processes import processor_name, python_build

SYNCS = 200
SIGNATURES = 200
PACKAGES = ("apsw", "cryptography", "httptools", "httpx", "polars", "uvloop", "aiohttp")


def describe_machine(directory: Path, server: str, key: Path) -> str:
    """Return a Markdown list: cores, memory, disk, Python, packages, a signature, and the gateway."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    median_ms, slow_ms = sync_ms(directory)
    memory = f"{memory_gib:.0f} GiB of memory, {platform.system()} {platform.release()}"
    packages = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    return "\n".join(
        [
            f"- {len(os.sched_getaffinity(0))} cores ({processor_name()}), {memory}",
            f"- disk: a flush of 4 KiB takes {median_ms:.2f} ms (one in ten over {slow_ms:.2f} ms)",
            f"- {_python()}, {packages}",
            f"- a bare RSA-2048 signature takes {signatures_per_s(key, SIGNATURES).cpu_us:.0f} us of a processor",
            f"- gateway: {server}, on the same cores",
            f"- load before the first measurement: {os.getloadavg()[0]:.2f}",
            "",
        ]
    )


def sync_ms(directory: Path) -> tuple[float, float]:
    """Return the median and 90th percentile of the time, in ms, of a small flush to the disk of `directory`."""
    took_ms = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
        for _ in range(SYNCS):
            os.pwrite(file.fileno(), os.urandom(4096), 0)
            started_s = time.perf_counter()
            os.fsync(file.fileno())
            took_ms.append(1000 * (time.perf_counter() - started_s))
    return statistics.median(took_ms), statistics.quantiles(took_ms, n=10)[-1]


def _python() -> str:
    build = python_build()
    output = {True: "", False: "no ", None: "perhaps "}
    return f"Python {platform.python_version()} ({output[build.is_profile_guided]}profiles, {output[build.has_lto]}LTO)"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
