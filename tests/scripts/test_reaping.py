"""The reaper takes nothing from anybody who lives, whatever the clock and the server did meanwhile."""

from __future__ import annotations

import time

import pytest
from queue_driver import Queue
from servers import RealServer
from wait import until

from foxqueue.broker import Claimed

LEASE_MS = 30_000  # ttl and margin of the default settings


def sweep(queue: Queue) -> tuple[int, int]:
    """Sweep now; return how many jobs were promoted and reaped."""
    queue.broker.redis.delete(queue.broker.keys.swept)
    reply = queue.broker.sweep()
    assert reply.word == "ok"
    return int(reply.rest[0]), int(reply.rest[1])


def overdue_run(queue: Queue, device: str = "GPU-1") -> Claimed:
    number = queue.enqueue()
    run = queue.worker(f"w-{device}", device).claim()
    assert run.number == number
    queue.overdue(number)
    return run


def grace_left_ms(queue: Queue) -> int:
    grace = queue.broker.redis.get(queue.broker.keys.grace_until)
    return int(grace or 0) - queue.broker.server_time_ms()


@pytest.mark.parametrize("last_look", ["never", "half a lease ago", "a day ago", "in a minute", "just ahead"])
def test_after_everybody_was_away_nothing_is_taken(queue: Queue, last_look: str) -> None:
    run = overdue_run(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    now = queue.broker.server_time_ms()
    offsets = {"half a lease ago": -7_501, "a day ago": -86_400_000, "in a minute": 60_000, "just ahead": 10_000}
    redis.delete(keys.looked, keys.grace_until)
    if last_look != "never":
        redis.set(keys.looked, now + offsets[last_look])
    assert sweep(queue) == (0, 0)
    assert LEASE_MS - 10_000 < grace_left_ms(queue) <= LEASE_MS
    for _ in range(3):  # looked at again and again: the grace stays
        assert sweep(queue) == (0, 0)
    assert queue.beat(run) == "ok"
    redis.set(keys.grace_until, queue.broker.server_time_ms() - 1)
    assert sweep(queue) == (0, 0)
    assert queue.job(run.number)["state"] == "running"


def test_after_the_grace_a_silent_run_is_taken(queue: Queue) -> None:
    run = overdue_run(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    assert sweep(queue) == (0, 0)
    redis.set(keys.grace_until, queue.broker.server_time_ms() + 10_000)
    assert sweep(queue) == (0, 0)
    redis.set(keys.grace_until, queue.broker.server_time_ms())
    assert sweep(queue) == (0, 1)
    job = queue.job(run.number)
    assert (job["state"], job["reason"], job["attempts"], job["losses"]) == ("pending", "worker_lost", "0", "1")
    assert queue.beat(run) == "lost"


def test_a_look_within_half_a_lease_gives_no_grace(queue: Queue) -> None:
    run = overdue_run(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.set(keys.looked, queue.broker.server_time_ms() - 7_000)
    assert sweep(queue) == (0, 1)
    assert queue.job(run.number)["state"] == "pending"


def test_a_grace_far_ahead_is_cut_when_the_clock_was_set_back(queue: Queue) -> None:
    overdue_run(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    now = queue.broker.server_time_ms()
    redis.mset({keys.looked: now, keys.grace_until: now + 86_400_000})
    assert sweep(queue) == (0, 0)
    assert LEASE_MS - 10_000 < grace_left_ms(queue) <= LEASE_MS


def test_deadlines_far_ahead_are_cut_and_others_left(queue: Queue) -> None:
    runs = [queue.enqueue() for _ in range(3)]
    for index in range(3):
        queue.worker(f"w{index}", f"GPU-{index}").claim()
    redis, keys = queue.broker.redis, queue.broker.keys
    now = queue.broker.server_time_ms()
    redis.zadd(keys.running, {str(runs[0]): now + 86_400_000, str(runs[1]): now + 2 * LEASE_MS - 1_000})
    before = redis.zscore(keys.running, runs[2])
    queue.reap()
    assert now + LEASE_MS <= redis.zscore(keys.running, runs[0]) < now + LEASE_MS + 10_000
    assert redis.zscore(keys.running, runs[1]) == now + 2 * LEASE_MS - 1_000
    assert redis.zscore(keys.running, runs[2]) == before


def test_two_sweeps_within_a_second_work_once_but_both_look(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    assert queue.broker.sweep().word == "ok"
    redis.set(keys.looked, 1)
    assert queue.broker.sweep().word == "no"
    assert int(redis.get(keys.looked)) > 1
    redis.set(keys.swept, queue.broker.server_time_ms() + 86_400_000)  # the clock was set back
    assert queue.broker.sweep().word == "ok"


def test_one_sweep_takes_no_more_than_its_limit(queue: Queue) -> None:
    runs = [overdue_run(queue, f"GPU-{index}") for index in range(5)]
    left = []
    for _ in range(4):
        left.append((int(queue.reap(limit=2).rest[1]), queue.broker.redis.zcard(queue.broker.keys.running)))
    assert left == [(2, 3), (2, 1), (1, 0), (0, 0)]
    assert {queue.job(run.number)["state"] for run in runs} == {"pending"}


def test_a_cancelled_run_that_is_lost_ends_cancelled(queue: Queue) -> None:
    run = overdue_run(queue)
    assert queue.broker.cancel(run.number, run.born, "me") == "ok"
    queue.reap()
    job = queue.job(run.number)
    assert (job["state"], job["reason"], job["losses"]) == ("cancelled", "cancelled_by_user", "1")
    redis, keys = queue.broker.redis, queue.broker.keys
    assert redis.zscore(keys.finished, run.number) and not redis.exists(keys.pending("g1"))


def test_the_third_loss_by_the_reaper_is_poison(queue: Queue) -> None:
    number = queue.enqueue()
    for attempt in range(3):
        assert queue.worker(f"w{attempt}").claim().number == number
        queue.overdue(number)
        queue.reap()
    job = queue.job(number)
    assert (job["state"], job["reason"], job["losses"]) == ("failed", "poison", "3")


def test_a_reaped_job_keeps_its_place(queue: Queue) -> None:
    run = overdue_run(queue)
    later = queue.enqueue()
    rank = queue.job(run.number)["rank"]
    queue.reap()
    assert queue.job(run.number)["rank"] == rank
    worker = queue.worker("w2")
    first = worker.claim()
    queue.complete(first)
    assert [first.number, worker.claim().number] == [run.number, later]


def test_who_is_refused_by_an_overdue_grant_sweeps_and_gets_the_job(queue: Queue) -> None:
    run = overdue_run(queue)
    successor = queue.worker("w2", run_device(queue, run))
    assert successor.ask().word == "taken"
    queue.reap()
    assert successor.claim().number == run.number


def test_a_member_of_running_that_does_not_run_is_dropped(queue: Queue) -> None:
    number = queue.enqueue()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.zadd(keys.running, {str(number): 1, "99": 1})
    queue.reap()
    assert redis.zcard(keys.running) == 0
    assert queue.job(number)["state"] == "pending"


@pytest.mark.parametrize("field", ["shape", "rank", "attempts", "losses", "retries"])
@pytest.mark.parametrize("how", ["reap", "lose", "release", "fail"])
def test_a_run_whose_record_is_damaged_is_still_in_one_set(queue: Queue, how: str, field: str) -> None:
    """Scripts do not roll back: what cannot be read is found before the first write."""
    number = queue.enqueue(retries=1)
    run = queue.worker().claim()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.hset(keys.job(number), field, "junk")
    if field == "shape":
        redis.hdel(keys.job(number), field)
    if how == "reap":
        queue.overdue(number)
        queue.reap()
    else:
        getattr(queue, how)(run)
    state = queue.job(number)["state"]
    sets = {
        "running": redis.zscore(keys.running, number),
        "pending": redis.zscore(keys.pending("g1"), number),
        "scheduled": redis.zscore(keys.scheduled, number),
        "failed": redis.zscore(keys.failed, number),
    }
    assert [name for name, score in sets.items() if score is not None] == [state]


# --- with real time: a lease of 0.3 s, so that L + M is 0.6 s -------------------------------------------


def run_device(queue: Queue, run: Claimed) -> str:
    return queue.job(run.number)["gpus"]


def until_time(moment: float) -> None:
    until(lambda: time.monotonic() > moment, seconds=60, what="the time")


def short_lease(queue: Queue) -> None:
    settings = queue.broker.configure(300)
    assert (settings.ttl_ms, settings.margin_ms, settings.beat_ms) == (300, 300, 100)


def test_a_dead_workers_job_is_pending_again_after_its_lease(queue: Queue) -> None:
    short_lease(queue)
    number = queue.enqueue()
    worker = queue.worker()
    queue.broker.sweep()
    until(lambda: grace_left_ms(queue) <= 0, what="the end of the first grace", every=0.05)
    queue.broker.sweep()
    start = time.monotonic()
    worker.claim()
    until(lambda: queue.broker.sweep() and queue.job(number)["state"] == "pending", what="the reaper", every=0.05)
    took = time.monotonic() - start
    assert 0.6 <= took < 8, took
    assert not queue.broker.redis.exists(queue.broker.keys.lease("GPU-1"))


def test_a_worker_that_beats_is_never_taken(queue: Queue) -> None:
    short_lease(queue)
    run = queue.worker_with_job()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert queue.beat(run) == "ok"
        queue.broker.sweep()
        until_time(time.monotonic() + 0.05)
    assert queue.job(run.number)["losses"] == "0"


@pytest.mark.parametrize("frozen_s", [0.4, 1.0])
def test_a_freeze_of_the_server_takes_nothing(server: RealServer, queue: Queue, frozen_s: float) -> None:
    """Whoever sweeps first after it, before or after the lease was over: who beats within L + M keeps the job."""
    short_lease(queue)
    run = queue.worker_with_job()
    dead = queue.enqueue()
    queue.worker("dead", "GPU-2").claim()
    queue.broker.sweep()
    until(lambda: grace_left_ms(queue) <= 0, what="the end of the first grace", every=0.05)
    assert queue.beat(run) == "ok"
    if queue.job(dead)["state"] == "running":
        queue.broker.redis.zadd(queue.broker.keys.running, {str(dead): queue.broker.server_time_ms() + 600})
    queue.broker.sweep()
    server.freeze()
    try:
        until_time(time.monotonic() + frozen_s)
    finally:
        server.thaw()
    queue.broker.sweep()
    thawed = time.monotonic()
    until(lambda: queue.broker.sweep() and time.monotonic() > thawed + 0.3, what="some sweeps", every=0.05)
    assert queue.job(run.number)["state"] == queue.job(dead)["state"] == "running"
    assert queue.beat(run) == "ok"
    until(
        lambda: queue.broker.sweep() and queue.beat(run) == "ok" and queue.job(dead)["state"] == "pending",
        what="the dead worker's job to be taken",
        every=0.05,
    )
    assert queue.job(run.number)["losses"] == "0"


def test_a_restart_of_the_server_takes_nothing(queue: Queue) -> None:
    """Nothing of the reaper's own time has to survive: without it, the grace starts anew."""
    run = overdue_run(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.delete(keys.looked, keys.swept, keys.grace_until)
    assert sweep(queue) == (0, 0)
    assert queue.beat(run) == "ok"
    assert queue.complete(run) == "succeeded"
