"""Simulation: whole runs of the real engine in seeded scenarios, judged by the gateway's own record.

`python -m tests.promise.simulation --seeds 10000` plays ten thousand scenarios. A failure prints the seed that
reproduces it.
"""

import os
import sys

if "polars" not in sys.modules:
    os.environ["POLARS_MAX_THREADS"] = "1"  # with sheets of ten rows, more threads only wait for each other
