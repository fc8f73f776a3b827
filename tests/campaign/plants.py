"""Planted bugs in the program as a process: each patches a fresh start, in the fork and nowhere else."""

from paygw_batch.journal import connection


def synchronous_normal() -> None:
    connection._SYNCHRONOUS_FULL = 1


def synchronous_off() -> None:
    connection._SYNCHRONOUS_FULL = 0
