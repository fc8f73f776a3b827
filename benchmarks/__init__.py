"""Measurements: `python -m benchmarks` makes them all, side by side."""
