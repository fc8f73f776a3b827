"""Benchmarks: `python -m benchmarks` runs them all, side by side."""
