"""The parts of a run, and what a person or a program can ask for."""
