"""Ended jobs go, by age and by count, with everything that was kept of them."""

from __future__ import annotations

import pytest
from queue_driver import Queue

from foxqueue.codec import pack

DAY_MS = 86400 * 1000
TOLD_MS = 10_000  # that who waits for a job has to hear of its end


def end(queue: Queue, how: str) -> int:
    """One job, ended."""
    number = queue.enqueue()
    run = queue.worker(f"w{number}").claim()
    broker = queue.broker
    queue.send(broker.log_call(run.number, run.fence, 0, 0, b"some output"))
    if how == "succeeded":
        queue.send(broker.complete_call(run.number, run.fence, pack({}), b"value"))
    elif how == "failed":
        queue.fail(run, delay_ms=None)
    else:
        broker.cancel(run.number, "", "me")
        queue.complete(run)
    assert queue.job(run.number)["state"] == how
    aged(queue, run.number, TOLD_MS)
    return run.number


def aged(queue: Queue, number: int, ms: int) -> None:
    for key in (queue.broker.keys.finished, queue.broker.keys.failed):
        if queue.broker.redis.zscore(key, number) is not None:
            queue.broker.redis.zincrby(key, -ms, number)


def lasting(queue: Queue) -> set[bytes]:
    """Keys without a time to live."""
    redis = queue.broker.redis
    return {key for key in redis.keys("*") if redis.pttl(key) == -1}


def purged(queue: Queue, limit: int = 100) -> int:
    return int(queue.reap(limit).rest[2])


@pytest.mark.parametrize(("how", "days"), [("succeeded", 30), ("cancelled", 30), ("failed", 90)])
def test_by_age(queue: Queue, how: str, days: int) -> None:
    old, young = end(queue, how), end(queue, how)
    aged(queue, young, days * DAY_MS - 60_000)
    assert purged(queue) == 0
    aged(queue, old, days * DAY_MS + 1)
    assert purged(queue) == 1
    assert not queue.job(old) and queue.job(young)["state"] == how


@pytest.mark.parametrize("how", ["succeeded", "cancelled", "failed"])
def test_nothing_of_a_purged_job_is_left(queue: Queue, how: str) -> None:
    end(queue, how)
    queue.broker.change_settings({"retain_finished_count": "0", "retain_failed_count": "0"}, "me")
    assert purged(queue) == 1
    baseline = lasting(queue)
    for _ in range(5):
        end(queue, how)
    assert len(lasting(queue)) > len(baseline) + 5
    assert purged(queue) == 5
    assert lasting(queue) == baseline


def test_by_count_the_oldest_first(queue: Queue) -> None:
    numbers = [end(queue, how) for how in ("succeeded", "cancelled", "succeeded", "failed", "succeeded")]
    queue.broker.change_settings({"retain_finished_count": "2"}, "me")
    assert purged(queue) == 2
    assert [bool(queue.job(number)) for number in numbers] == [False, False, True, True, True]


def test_in_bounded_batches_without_waiting_for_the_next_second(queue: Queue) -> None:
    for _ in range(7):
        end(queue, "succeeded")
    queue.broker.change_settings({"retain_finished_count": "1"}, "me")
    assert purged(queue, 3) == 3
    assert queue.broker.send(queue.broker.sweep_call(4))[0].rest[2] == b"3"
    assert queue.broker.send(queue.broker.sweep_call(4))[0].word == "no"


@pytest.mark.parametrize("how", ["succeeded", "failed"])
def test_however_few_are_kept_who_waits_hears_of_the_end(queue: Queue, how: str) -> None:
    queue.broker.change_settings({"retain_finished_count": "0", "retain_failed_count": "0"}, "me")
    number = end(queue, how)
    aged(queue, number, 2000 - TOLD_MS)
    assert purged(queue) == 0 and queue.job(number)["state"] == how
    aged(queue, number, TOLD_MS)
    assert purged(queue) == 1


def test_off_keeps_for_ever(queue: Queue) -> None:
    number = end(queue, "failed")
    aged(queue, number, 1000 * DAY_MS)
    queue.broker.change_settings({"retain_failed_ms": str(10**15), "retain_failed_count": str(10**15)}, "me")
    assert purged(queue) == 0 and queue.job(number)


def test_jobs_that_wait_or_run_stay(queue: Queue) -> None:
    queue.broker.change_settings(
        dict.fromkeys(("retain_finished_count", "retain_failed_count", "retain_finished_ms", "retain_failed_ms"), "0"),
        "me",
    )
    run = queue.worker_with_job()
    waiting = queue.enqueue()
    retried = queue.enqueue(priority=9, retries=1)
    assert queue.fail(queue.worker("w2", "GPU-2").claim(), delay_ms=3600_000) == "failed"
    assert purged(queue) == 0
    states = [queue.job(number)["state"] for number in (run.number, waiting, retried)]
    assert states == ["running", "pending", "scheduled"]


def test_late_calls_about_a_purged_job_leave_nothing(queue: Queue) -> None:
    run = queue.worker_with_job()
    broker = queue.broker
    late = [
        broker.complete_call(run.number, run.fence, pack({}), b"v"),
        broker.fail_call(run.number, run.fence, "exit_code", "", 1, pack({}), None),
        broker.log_call(run.number, run.fence, 100, 0, b"x"),
        broker.heartbeat_call(run.number, run.fence),
        broker.release_call(run.number, run.fence, "shutdown", ""),
        broker.lose_call(run.number, run.fence),
    ]
    queue.complete(run)
    aged(queue, run.number, TOLD_MS)
    broker.change_settings({"retain_finished_count": "0"}, "me")
    purged(queue)
    before = queue.snapshot()
    assert {broker.send(call)[0].word for call in late} == {"missing"}
    assert broker.cancel(run.number, run.born, "me") == broker.requeue(run.number, run.born, "me").word == "missing"
    after = queue.snapshot()
    assert all(b"requests:" in key for key in after if before.get(key) != after[key])
