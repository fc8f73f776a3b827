"""The process campaign: the real program as separate processes, killed, stopped, starved and disconnected.

`python -m tests.promise.campaign --release` runs it at the size of a release. Pytest runs a small one on every commit.
"""
