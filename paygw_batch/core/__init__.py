"""The pure core: money, instructions, outcomes and the one state machine. No clock, randomness, I/O or async."""
