"""The pure core: money, instructions, outcomes and the state machine, without clock, randomness, I/O or async code."""
