"""Each transition, on a real server: what it changes, what it answers, and who is refused."""

from __future__ import annotations

import pytest
from queue_driver import Queue

from foxqueue.broker import Environment, NewJob
from foxqueue.codec import pack


def test_a_job_goes_from_enqueue_to_success(queue: Queue) -> None:
    number = queue.enqueue("train")
    assert queue.job(number)["state"] == "pending"
    run = queue.worker().claim()
    assert (run.number, run.attempt, run.losses) == (number, 1, 0)
    job = queue.job(number)
    assert (job["state"], job["fence"], job["gpus"], job["worker"]) == ("running", run.fence, "GPU-1", "w1")
    redis, keys = queue.broker.redis, queue.broker.keys
    assert redis.get(keys.lease("GPU-1")).decode() == run.fence
    assert redis.hget(keys.granted, "GPU-1").decode() == f"{run.fence} job:{number}"
    assert queue.beat(run) == "ok"
    assert queue.complete(run) == "succeeded"
    assert queue.job(number)["state"] == "succeeded"
    assert redis.exists(keys.lease("GPU-1")) == 0
    assert redis.hget(keys.granted, "GPU-1").decode() == f"{run.fence} -"
    assert redis.zrange(keys.finished, 0, -1) == [str(number).encode()]
    assert redis.zcard(keys.running) == 0


def test_order_is_priority_then_exact_fifo(queue: Queue) -> None:
    low = [queue.enqueue(priority=2) for _ in range(3)]
    high = [queue.enqueue(priority=8) for _ in range(3)]
    medium = [queue.enqueue(priority=5) for _ in range(3)]
    worker, taken = queue.worker(), []
    for _ in range(9):
        run = worker.claim()
        taken.append(run.number)
        queue.complete(run)
    assert taken == high + medium + low
    assert worker.ask().word == "empty"


def test_an_old_low_job_overtakes_a_young_high_one(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    queue.broker.settings()
    redis.hset(keys.settings, "aging_us", 1)  # a level of priority is worth a microsecond of waiting
    low = queue.enqueue(priority=0)
    queue.enqueue(priority=9)
    assert queue.worker().claim().number == low


def test_fifo_is_exact_when_the_clock_of_the_server_steps_back(queue: Queue) -> None:
    first = queue.enqueue()
    redis, keys = queue.broker.redis, queue.broker.keys
    ahead = int(redis.get(keys.clock)) + 3600 * 10**6
    redis.set(keys.clock, ahead)  # what an hour's step back of the server's clock looks like
    later = [queue.enqueue() for _ in range(5)]
    worker, taken = queue.worker(), []
    fences = []
    for _ in range(6):
        run = worker.claim()
        taken.append(run.number)
        fences.append(int(run.fence))
        queue.complete(run)
    assert taken == [first, *later]
    assert fences == sorted(set(fences)) and fences[0] > ahead


def test_a_device_has_one_grant(queue: Queue) -> None:
    queue.enqueue()
    queue.enqueue()
    run = queue.worker("w1").claim()
    assert queue.worker("w2").ask().word == "taken"
    queue.broker.redis.delete(queue.broker.keys.lease("GPU-1"))  # a lapsed lease does not free a running job's device
    assert queue.worker("w3").ask().word == "taken"
    assert queue.beat(run) == "ok"
    assert queue.broker.redis.get(queue.broker.keys.lease("GPU-1")).decode() == run.fence
    queue.complete(run)
    assert queue.worker("w4").ask().word == "ok"


def test_a_dirty_device_is_not_granted(queue: Queue) -> None:
    queue.enqueue()
    queue.broker.redis.hset(queue.broker.keys.withheld, "GPU-1", "dirty\t1\t\tmemory\twhy")
    assert queue.worker().ask().word == "taken"


def test_a_shape_that_does_not_fit_blocks_nobody(queue: Queue) -> None:
    queue.enqueue(shape="g1.m81920", priority=9)
    small = queue.enqueue(shape="g1")
    assert queue.worker(shapes=("g1",)).claim().number == small


def test_new_shapes_are_told_before_a_claim(queue: Queue) -> None:
    worker = queue.worker()
    queue.enqueue(shape="g1.m1024")
    reply = queue.broker.send(worker.claim_call())[0]
    assert reply.word == "shapes" and b"g1.m1024" in reply.rest[1:]


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "lose"])
def test_an_end_with_an_old_fence_is_refused(queue: Queue, verb: str) -> None:
    number = queue.enqueue()
    old = queue.worker("w1").claim()
    queue.overdue(number)
    queue.reap()
    new = queue.worker("w2").claim()
    assert new.number == number and int(new.fence) > int(old.fence)
    before = queue.snapshot()
    word = getattr(queue, verb)(old)
    assert word == "lost"  # that fence's own end, once and for all
    assert queue.beat(old) == "lost"
    assert queue.send(queue.broker.log_call(number, old.fence, 0, 0, b"late")) == "lost"
    assert queue.snapshot() == before
    assert queue.complete(new) == "succeeded"


def test_a_made_up_fence_is_stale_and_a_made_up_job_missing(queue: Queue) -> None:
    run = queue.worker_with_job()
    assert queue.send(queue.broker.complete_call(run.number, "1", pack({}))) == "stale"
    assert queue.send(queue.broker.heartbeat_call(999, "1")) == "missing"


def test_fail_without_retries_is_a_dead_letter(queue: Queue) -> None:
    run = queue.worker_with_job()
    assert queue.fail(run) == "failed"
    job = queue.job(run.number)
    assert (job["state"], job["reason"], job["exit_code"], job["attempts"]) == ("failed", "exit_code", "1", "1")
    redis, keys = queue.broker.redis, queue.broker.keys
    assert redis.zscore(keys.failed, run.number) and redis.zscore(keys.finished, run.number) is None


def test_fail_with_retries_is_scheduled_and_promoted_in_its_old_place(queue: Queue) -> None:
    number = queue.enqueue(retries=1)
    worker = queue.worker()
    run = worker.claim()
    rank = queue.job(number)["rank"]
    assert queue.fail(run, delay_ms=0) == "failed"
    assert queue.job(number)["state"] == "scheduled"
    second = queue.enqueue()
    again = worker.claim()  # claim itself promotes what is due
    assert (again.number, again.attempt) == (number, 2)
    assert queue.job(number)["rank"] == rank
    assert queue.fail(again) == "failed"
    assert queue.job(number)["state"] == "failed"
    assert worker.claim().number == second


def test_a_delayed_retry_waits_in_scheduled_held_by_nobody(queue: Queue) -> None:
    number = queue.enqueue(retries=3)
    worker = queue.worker()
    queue.fail(worker.claim(), delay_ms=3600_000)
    assert worker.ask().word == "empty"
    assert queue.job(number)["state"] == "scheduled"
    queue.broker.redis.zadd(queue.broker.keys.scheduled, {str(number): 1})
    assert queue.broker.sweep().word in ("ok", "no")
    queue.reap()
    assert queue.job(number)["state"] == "pending"


def test_release_keeps_the_rank_and_gives_the_attempt_back(queue: Queue) -> None:
    number = queue.enqueue()
    queue.enqueue()
    worker = queue.worker()
    run = worker.claim()
    assert queue.release(run) == "released"
    job = queue.job(number)
    assert (job["state"], job["attempts"], job["losses"]) == ("pending", "0", "0")
    assert worker.claim().number == number


def test_lose_counts_a_loss_and_the_third_is_poison(queue: Queue) -> None:
    number = queue.enqueue()
    for losses in (1, 2):
        run = queue.worker(f"w{losses}").claim()
        assert queue.lose(run) == "lost"
        job = queue.job(number)
        assert (job["state"], job["attempts"], job["losses"]) == ("pending", "0", str(losses))
    run = queue.worker("w3").claim()
    assert (run.attempt, run.losses) == (1, 2)
    assert queue.lose(run) == "lost"
    job = queue.job(number)
    assert (job["state"], job["reason"], job["losses"]) == ("failed", "poison", "3")


def test_a_malformed_head_is_put_aside_and_the_next_served(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    no_fields = queue.enqueue(priority=9)
    redis.hdel(keys.job(no_fields), "born", "shape")
    no_spec = queue.enqueue(priority=9)
    redis.delete(keys.spec(no_spec))
    gone = queue.enqueue(priority=9)
    redis.delete(keys.job(gone))
    other_type = queue.enqueue(priority=9)
    redis.delete(keys.job(other_type))
    redis.set(keys.job(other_type), "junk")
    good = queue.enqueue(priority=0)
    assert queue.worker().claim().number == good
    for number in (no_fields, no_spec, gone, other_type):
        job = queue.job(number)
        assert (job["state"], job["reason"]) == ("failed", "bad_payload")
        assert redis.zscore(keys.failed, number) is not None


def test_log_pieces_are_fenced_ordered_and_bounded(queue: Queue) -> None:
    run = queue.worker_with_job()
    redis, keys, broker = queue.broker.redis, queue.broker.keys, queue.broker
    assert queue.send(broker.log_call(run.number, run.fence, 0, 0, b"one")) == "ok"
    assert queue.send(broker.log_call(run.number, run.fence, 3, 0, b"two")) == "ok"
    assert queue.send(broker.log_call(run.number, run.fence, 0, 0, b"one")) == "ok"  # a repeat is not a second piece
    pieces = redis.xrange(keys.log(run.number))
    assert [entry[1][b"data"] for entry in pieces] == [b"one", b"two"]
    assert pieces[1][0].decode() == f"{run.fence}-3"
    queue.send(broker.log_call(run.number, run.fence, 100_000, 3, b"three"))
    assert [entry[1][b"data"] for entry in redis.xrange(keys.log(run.number))] == [b"two", b"three"]


def test_register_and_its_late_copies(queue: Queue) -> None:
    broker = queue.broker
    assert queue.send(broker.register_call("w1", "GPU-1", 1, b"first")) == "ok"
    assert queue.send(broker.register_call("w1", "GPU-1", 2, b"second")) == "ok"
    assert queue.send(broker.register_call("w2", "GPU-1", 1, b"successor")) == "ok"
    before = queue.snapshot()
    for late in (
        broker.register_call("w1", "GPU-1", 1, b"first"),
        broker.register_call("w1", "GPU-1", 3, b"third"),
        broker.register_call("w2", "GPU-1", 1, b"successor"),
    ):
        assert queue.send(late) == "stale"
    assert queue.snapshot() == before


def test_environments_are_stored_once_per_content(queue: Queue) -> None:
    queue.enqueue()
    queue.enqueue()
    digest = queue.job(1)["env"]
    assert queue.job(2)["env"] == digest
    assert len(queue.broker.redis.keys("*env:*")) == 1
    assert queue.broker.environment(digest)
    assert queue.broker.redis.pttl(queue.broker.keys.env(digest)) > 89 * 86400 * 1000


def test_the_same_environment_in_another_order_is_stored_once(queue: Queue) -> None:
    for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"}):
        queue.broker.enqueue(NewJob("job", "g1", 5, 0, 1000, pack({})), Environment.of(env))
    assert queue.job(1)["env"] == queue.job(2)["env"]


def test_settings_go_into_an_empty_namespace_only(queue: Queue) -> None:
    from foxqueue.errors import SettingsDiffer

    assert queue.broker.settings().ttl_ms == 15000
    changed = queue.broker.configure(2000)
    assert (changed.ttl_ms, changed.beat_ms, changed.margin_ms) == (2000, 666, 2000)
    queue.enqueue()
    assert queue.broker.configure(2000) == changed
    with pytest.raises(SettingsDiffer):
        queue.broker.configure(3000)


def test_a_scheduled_job_that_cannot_be_read_becomes_a_dead_letter(queue: Queue) -> None:
    number = queue.enqueue(retries=1)
    queue.fail(queue.worker().claim(), delay_ms=0)
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.hdel(keys.job(number), "rank")
    queue.reap()
    job = queue.job(number)
    assert (job["state"], job["reason"]) == ("failed", "bad_payload")
    assert redis.zscore(keys.failed, number) is not None and redis.zcard(keys.scheduled) == 0


def test_a_worker_takes_its_device_back_from_one_that_died_before_its_register_came(queue: Queue) -> None:
    broker, redis, keys = queue.broker, queue.broker.redis, queue.broker.keys
    late = broker.register_call("dead", "GPU-1", 1, b"late")
    assert queue.send(broker.register_call("alive", "GPU-1", 1, b"one")) == "ok"
    assert queue.send(late) == "ok"  # nobody can know that it is dead
    assert queue.send(broker.register_call("alive", "GPU-1", 2, b"two")) == "stale"
    redis.zincrby(keys.workers, -20_000, "dead")  # it stays silent
    assert queue.send(broker.register_call("alive", "GPU-1", 3, b"three")) == "ok"
