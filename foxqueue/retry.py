"""How long to wait before the next attempt."""

from __future__ import annotations

MAX_DELAY_S = 3600.0


def backoff(attempt: int, base_s: float) -> float:
    """Seconds to wait after a failed attempt: the base, doubled with each further attempt, at most an hour.

    Args:
        attempt: the attempt that failed, counted from 1.
        base_s: seconds to wait after the first.
    """
    if base_s <= 0:
        return 0.0
    doublings = min(max(attempt, 1) - 1, 32)
    return float(min(base_s * 2**doublings, max(MAX_DELAY_S, base_s)))
