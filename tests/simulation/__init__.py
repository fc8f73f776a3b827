"""Simulation: whole runs of the real engine in a world that a seed scripts, judged by the gateway's own record.

`python -m tests.simulation --seeds 10000` plays ten thousand worlds; a failure prints the seed that plays it again.
"""
