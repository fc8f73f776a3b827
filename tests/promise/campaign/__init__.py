"""The process campaign: the real program as processes of its own, killed, stopped, starved and cut off.

`python -m tests.promise.campaign --release` runs it at the size of a release; pytest runs a small one on every commit.
"""
