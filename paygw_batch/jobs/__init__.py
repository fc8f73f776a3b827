"""Hands work to workers of all hosts, by procrastinate: shares of runs, and the timetable."""
