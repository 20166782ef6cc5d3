"""Faults put to real servers with 200 live sessions: `make chaos`, or `python -m tests.chaos --help`."""
