"""Back-off: doubled each time, never beyond its cap, never negative; and which ends it answers."""

from __future__ import annotations

import json

import pytest

from foxqueue.retry import JITTER, LATER_S, MAX_DELAY_S, Retries, backoff, jittered
from foxqueue.states import END_REASONS, RETRIED


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
    assert [backoff(attempt, 60.0, 30.0) for attempt in (1, 2, 50)] == [60.0] * 3


def test_delays_never_fall() -> None:
    delays = [backoff(attempt, 3.0) for attempt in range(1, 100)]
    assert delays == sorted(delays) and delays[-1] == MAX_DELAY_S


def test_the_cap_is_the_jobs_own() -> None:
    assert [backoff(attempt, 10.0, 35.0) for attempt in (1, 2, 3, 4, 90)] == [10.0, 20.0, 35.0, 35.0, 35.0]


def test_chance_adds_up_to_a_quarter() -> None:
    """Given a thousand runs that failed at once, then no two come back in the same ms of a minute."""
    drawn = [jittered(60.0) for _ in range(1000)]
    assert all(60.0 <= seconds <= 60.0 * (1 + JITTER) for seconds in drawn)
    assert max(drawn) - min(drawn) > 10.0
    assert jittered(0.0) == 0.0


def test_the_delay_grows_with_the_attempt_within_its_cap() -> None:
    for attempt, expected in ((1, 2.0), (2, 4.0), (3, 5.0), (9, 5.0)):
        delay = Retries(attempt, base_s=2.0, cap_s=5.0).delay_s()
        assert expected <= delay <= expected * (1 + JITTER)


def test_later_does_not_grow_and_is_a_second_at_least() -> None:
    for attempt in (1, 5, 500):
        assert 10.0 <= Retries(attempt, base_s=10.0).later_s() <= 12.5
        assert LATER_S <= Retries(attempt).later_s() <= LATER_S * (1 + JITTER)


@pytest.mark.parametrize("reason", sorted(END_REASONS))
def test_without_a_list_all_the_jobs_own_failures_are_answered(reason: str) -> None:
    assert Retries().answer(reason, 1) == (reason in RETRIED)


@pytest.mark.parametrize(
    ("on", "reason", "exit_code", "answered"),
    [
        (("exit_code",), "exit_code", 1, True),
        (("exit_code",), "signal", None, False),
        (("signal", "timeout"), "timeout", None, True),
        (("3", "4"), "exit_code", 3, True),
        (("3", "4"), "exit_code", 33, False),
        (("3",), "exception", 3, False),
        (("1",), "timeout", 1, False),
        (("exception", "3"), "exception", 1, True),
        ((), "exit_code", 1, False),
        (("launch_error", "poison", "cancelled_by_user"), "launch_error", None, False),
        (("cancelled_by_user",), "cancelled_by_user", 1, False),
    ],
)
def test_a_list_says_which(on: tuple[str, ...], reason: str, exit_code: int | None, answered: bool) -> None:
    assert Retries(on=on).answer(reason, exit_code) == answered


@pytest.mark.parametrize("given", [Retries(), Retries(3, 0.5, 7.0, ("exit_code", "3")), Retries(on=())])
def test_it_lasts_in_a_record(given: Retries) -> None:
    assert Retries.from_dict(json.loads(json.dumps(given.to_dict()))) == given
    assert Retries.from_dict({}) == Retries()


@pytest.mark.parametrize("data", [{"attempt": "x"}, {"attempt": None}, {"on": 5}, {"cap_s": []}, []])
def test_a_malformed_record_is_told(data: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Retries.from_dict(data)
