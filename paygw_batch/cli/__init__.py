"""The command line: the program, its shared options, and runs on a terminal. The commands are in `commands/`."""
