"""The job that does nothing, importable by the queues that are measured beside foxqueue."""

from __future__ import annotations


def nothing(*_: object) -> None:
    """Do nothing."""
