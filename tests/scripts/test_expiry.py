"""Delays and expiry: a job starts not before its time, and not after it."""

from __future__ import annotations

import pytest
from queue_driver import Queue

HOUR_MS = 3_600_000


def expire(queue: Queue, number: int) -> None:
    """As if its time were over."""
    queue.broker.redis.zadd(queue.broker.keys.expiry, {str(number): 1}, xx=True)
    queue.broker.redis.hset(queue.broker.keys.job(number), "expires_at", 1)


def is_over(queue: Queue, number: int) -> bool:
    job = queue.job(number)
    assert queue.broker.redis.zscore(queue.broker.keys.expiry, number) is None
    return (job["state"], job["reason"]) == ("cancelled", "expired")


@pytest.mark.parametrize("more", ["", f"delay_ms={HOUR_MS}\n", "held=ann\n", "after=1::any\n"])
def test_a_job_that_waits_too_long_is_cancelled(queue: Queue, more: str) -> None:
    queue.enqueue(shape="g2")
    number = queue.enqueue(more=f"{more}expires_ms={2 * HOUR_MS}\n")
    assert queue.sweep()[3] == 0 and queue.state(number) != "cancelled"
    expire(queue, number)
    assert queue.sweep()[3] == 1
    assert is_over(queue, number)


def test_a_claim_does_not_start_what_no_sweep_has_found(queue: Queue) -> None:
    numbers = [queue.enqueue(more="expires_ms=1000\n") for _ in range(3)]
    child = queue.enqueue(more=f"after={numbers[0]}::ended\n")
    good = queue.enqueue()
    for number in numbers:
        expire(queue, number)
    assert queue.worker("w1").claim().number == good
    assert all(is_over(queue, number) for number in numbers)
    assert queue.worker("w2", "GPU-2").claim().number == child


def test_a_job_that_has_started_does_not_expire(queue: Queue) -> None:
    number = queue.enqueue(retries=1, more="expires_ms=1000\n")
    run = queue.worker().claim()
    assert "expires_at" not in queue.job(number)
    assert not queue.broker.redis.exists(queue.broker.keys.expiry)
    queue.release(run)
    assert queue.sweep()[3] == 0 and queue.state(number) == "pending"


def test_the_default_of_the_namespace_counts_from_the_start_time(queue: Queue) -> None:
    queue.broker.change_settings({"expires_ms": str(HOUR_MS)}, "me")
    plain, later, own = (
        queue.enqueue(),
        queue.enqueue(more=f"delay_ms={HOUR_MS}\n"),
        queue.enqueue(more=f"expires_ms={5 * HOUR_MS}\n"),
    )
    now = queue.broker.server_time_ms()
    left = [int(queue.job(number)["expires_at"]) - now for number in (plain, later, own)]
    assert [round(ms / HOUR_MS) for ms in left] == [1, 2, 5]
    queue.broker.change_settings({"expires_ms": ""}, "me")
    assert "expires_at" not in queue.job(queue.enqueue())


def test_a_requeued_job_has_all_the_time(queue: Queue) -> None:
    number = queue.enqueue(more="expires_ms=1000\n")
    expire(queue, number)
    queue.sweep()
    assert queue.broker.requeue(number, "", "me").word == "ok"
    assert queue.sweep()[3] == 0 and queue.state(number) == "pending"


def test_a_delayed_job_is_held_by_nobody_and_takes_the_place_of_its_time(queue: Queue) -> None:
    later = queue.enqueue(more=f"delay_ms={HOUR_MS}\n")
    at = queue.broker.server_time_ms() + HOUR_MS // 2
    sooner = queue.enqueue(more=f"at_ms={at}\n")
    past = queue.enqueue(more="at_ms=1000\n")
    job = queue.job(sooner)
    assert (job["state"], job["due_at"], job["tick"]) == ("scheduled", str(at), str(at * 1000))
    assert queue.state(past) == "pending" and "due_at" not in queue.job(past)
    assert queue.worker("w1", "GPU-1").claim().number == past
    left_ms = int(queue.worker("w2", "GPU-2").ask().rest[0])
    assert 0 < left_ms <= HOUR_MS // 2, "an idle worker knows when to ask again"
    queue.broker.redis.zadd(queue.broker.keys.scheduled, {str(later): 1, str(sooner): 2})
    assert queue.sweep()[0] == 2
    assert [queue.worker(f"w{n}", f"GPU-{n}").claim().number for n in (3, 4)] == [sooner, later]
