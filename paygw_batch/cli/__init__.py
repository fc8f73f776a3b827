"""The command line: one thin command a file, and the one place where everything is put together."""
