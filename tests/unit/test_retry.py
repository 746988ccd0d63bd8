"""Back-off: doubled each time, never more than an hour, never negative."""

from __future__ import annotations

import pytest

from foxqueue.retry import MAX_DELAY_S, backoff


@pytest.mark.parametrize(
    ("attempt", "base", "expected"),
    [
        (1, 10.0, 10.0),
        (2, 10.0, 20.0),
        (3, 10.0, 40.0),
        (9, 10.0, 2560.0),
        (10, 10.0, MAX_DELAY_S),
        (10_000, 10.0, MAX_DELAY_S),
        (0, 10.0, 10.0),
        (-5, 10.0, 10.0),
        (1, 0.0, 0.0),
        (7, 0.0, 0.0),
        (1, -1.0, 0.0),
        (1, 0.5, 0.5),
        (2, 0.5, 1.0),
    ],
)
def test_delays(attempt: int, base: float, expected: float) -> None:
    assert backoff(attempt, base) == expected


def test_a_base_above_the_limit_is_kept_and_not_doubled() -> None:
    """Whoever asks for a day between attempts gets a day."""
    assert [backoff(attempt, 86_400.0) for attempt in (1, 2, 50)] == [86_400.0] * 3


def test_delays_never_fall() -> None:
    delays = [backoff(attempt, 3.0) for attempt in range(1, 100)]
    assert delays == sorted(delays) and delays[-1] == MAX_DELAY_S
