"""Real processes, killed, stopped, starved and cut off: `python -m tests.promise.campaign --release`."""
