"""Ended jobs that are queued again by hand, and devices that an operator takes from their run."""

from __future__ import annotations

import pytest
from queue_driver import Queue

from foxqueue.broker import Claimed
from foxqueue.codec import pack


def failed(queue: Queue) -> Claimed:
    run = queue.worker_with_job()
    queue.fail(run, delay_ms=None)
    return run


def test_a_failed_job_waits_again_as_if_it_were_new(queue: Queue) -> None:
    run = failed(queue)
    other = queue.enqueue("later")
    before = queue.job(run.number)
    assert queue.broker.requeue(run.number, run.born, "me").word == "ok"
    job = queue.job(run.number)
    assert (job["state"], job["attempts"], job["losses"], job["reason"]) == ("pending", "0", "0", "")
    assert job["born"] == before["born"] and int(job["tick"]) > int(before["tick"])
    assert not {"exit_code", "finished_at", "cancel_requested", "worker", "gpus"} & set(job)
    redis, keys = queue.broker.redis, queue.broker.keys
    assert redis.zcard(keys.failed) == 0 and redis.get(keys.result(run.number)) is None
    assert queue.worker("w2").claim().number == other, "it stands behind what was queued before it"
    assert queue.worker("w3", "GPU-2").claim().number == run.number


def test_a_cancelled_job_waits_again_and_the_wish_is_forgotten(queue: Queue) -> None:
    run = queue.worker_with_job()
    queue.broker.cancel(run.number, run.born, "me")
    queue.send(queue.broker.complete_call(run.number, run.fence, pack({}), b"v"))
    assert queue.job(run.number)["state"] == "cancelled"
    assert queue.broker.redis.get(queue.broker.keys.value(run.number)) is None, "a cancelled run has no value"
    assert queue.broker.requeue(run.number, run.born, "me").word == "ok"
    again = queue.worker("w2", "GPU-2").claim()
    assert again.number == run.number and again.attempt == 1
    assert queue.complete(again) == "succeeded"


def test_what_an_old_run_still_says_is_not_taken_for_the_new_one(queue: Queue) -> None:
    run = failed(queue)
    queue.broker.requeue(run.number, "", "me")
    assert queue.complete(run) == "failed"
    assert queue.job(run.number)["state"] == "pending"
    again = queue.worker("w2", "GPU-2").claim()
    assert queue.complete(run) == "failed" == queue.beat(run), "the word that it had"
    assert queue.complete(again) == "succeeded"


def test_only_failed_and_cancelled_jobs(queue: Queue) -> None:
    number = queue.enqueue()
    assert queue.broker.requeue(number, "", "me").word == "no"
    run = queue.worker().claim()
    assert queue.broker.requeue(number, "", "me").word == "no"
    queue.complete(run)
    assert queue.broker.requeue(number, "", "me").word == "no"
    assert queue.broker.requeue(99, "", "me").word == "missing"
    assert queue.broker.requeue(number, "1", "me").word == "stale"


def test_a_job_that_could_not_run_is_refused_at_once(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    run = failed(queue)
    before = queue.snapshot()
    digest = queue.job(run.number)["env"]
    packed = redis.getdel(keys.env(digest))
    assert queue.broker.requeue(run.number, "", "me").word == "gone"
    redis.set(keys.env(digest), packed, px=10_000_000)
    assert queue.job(run.number)["state"] == "failed"
    spec = redis.getdel(keys.spec(run.number))
    assert queue.broker.requeue(run.number, "", "me").word == "unreadable"
    redis.set(keys.spec(run.number), spec)
    changed = {name for name, value in queue.snapshot().items() if before.get(name) != value}
    assert all(b"requests:" in name for name in changed), changed


def test_requeue_twice_is_once(queue: Queue) -> None:
    run = failed(queue)
    call = queue.broker.requeue_call(run.number, run.born, "me", "aa")
    assert queue.send(call) == "ok"
    again = queue.worker("w2", "GPU-2").claim()
    queue.fail(again, delay_ms=None)
    before = queue.snapshot()
    assert queue.send(call) == "ok", "a late copy gets its answer"
    assert queue.snapshot() == before, "and queues nothing"


def test_requeue_wakes_and_is_told(queue: Queue) -> None:
    run = failed(queue)
    worker = queue.worker("w2", "GPU-2")
    assert worker.ask().word == "empty"
    queue.broker.requeue(run.number, "", "someone")
    assert worker.tokens() == ["g1"]
    entries = queue.broker.redis.xrevrange(queue.broker.keys.events, count=1)
    assert entries[0][1].items() >= {b"event": b"requeue", b"job": b"1", b"by": b"someone"}.items()


def test_losses_begin_anew(queue: Queue) -> None:
    queue.enqueue()
    for _ in range(3):
        queue.lose(queue.worker(f"w{_}", f"GPU-{_}").claim())
    assert queue.job(1)["reason"] == "poison"
    assert queue.broker.requeue(1, "", "me").word == "ok"
    queue.lose(queue.worker("w9", "GPU-9").claim())
    assert queue.job(1)["state"] == "pending"


# --- force_release ------------------------------------------------------------------------------------------


def test_a_released_device_ends_its_run_as_lease_lost(queue: Queue) -> None:
    run = queue.worker_with_job()
    redis, keys = queue.broker.redis, queue.broker.keys
    assert queue.broker.force_release("GPU-1", "me") == ("ok", run.number)
    assert redis.hget(keys.granted, "GPU-1") == f"{run.fence} released:{run.number}".encode()
    assert redis.lrange(keys.wake("w1"), 0, -1) == [f"cancel:{run.number}".encode()]
    assert queue.beat(run) == "taken"
    queue.enqueue()
    assert queue.worker("w2", "GPU-1").ask().word == "taken", "not before the run is over"
    assert queue.fail(run, "lease_lost", None) == "failed"
    assert queue.job(run.number)["reason"] == "lease_lost"
    assert redis.hget(keys.granted, "GPU-1") == f"{run.fence} -".encode() and not redis.exists(keys.lease("GPU-1"))
    assert queue.worker("w3", "GPU-1").claim().number == 2


@pytest.mark.parametrize("end", ["complete", "release", "lose", "reap"])
def test_every_end_gives_a_released_device_back(queue: Queue, end: str) -> None:
    run = queue.worker_with_job()
    queue.broker.force_release("GPU-1", "me")
    if end == "reap":
        queue.overdue(run.number)
        queue.reap()
    else:
        getattr(queue, end)(run)
    job = queue.job(run.number)
    assert (job["state"], job["reason"]) == (
        ("succeeded", "exit_code") if end == "complete" else ("failed", "lease_lost")
    ), "what an operator has ended does not run again by itself"
    queue.enqueue()
    assert queue.worker("w2", "GPU-1").ask().word == "ok"


def test_a_device_without_a_run_is_not_released(queue: Queue) -> None:
    assert queue.broker.force_release("GPU-1", "me") == ("no", None)
    run = queue.worker_with_job()
    queue.complete(run)
    before = queue.broker.redis.hget(queue.broker.keys.granted, "GPU-1")
    assert queue.broker.force_release("GPU-1", "me") == ("no", None)
    assert queue.broker.redis.hget(queue.broker.keys.granted, "GPU-1") == before


def test_a_late_release_does_not_take_the_next_run(queue: Queue) -> None:
    run = queue.worker_with_job()
    call = queue.broker.force_release_call("GPU-1", "me", "aa")
    assert queue.send(call) == "ok"
    queue.fail(run, "lease_lost", None)
    queue.enqueue()
    again = queue.worker("w2", "GPU-1").claim()
    assert queue.send(call) == "ok" and queue.beat(again) == "ok"
