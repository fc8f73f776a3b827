"""Simulation: whole runs of the real engine in a world that a seed scripts, judged by the gateway's own record.

`python -m tests.promise.simulation --seeds 10000` plays ten thousand worlds; a failure prints the seed that plays it
again.
"""

import os
import sys

if "polars" not in sys.modules:
    os.environ["POLARS_MAX_THREADS"] = "1"  # a world's sheets have ten rows: more threads only wait for each other
