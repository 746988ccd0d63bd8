"""A device's lease and its last grant: what heals, what is loss, and what nobody else may touch."""

from __future__ import annotations

import pytest
from lease_driver import Holder, grant
from queue_driver import Queue

from foxqueue.broker import Claimed
from foxqueue.codec import pack

DEVICE = "GPU-1"
OTHER = "9999999999999999"  # a fence later than any


def lease(queue: Queue) -> str | None:
    value = queue.broker.redis.get(queue.broker.keys.lease(DEVICE))
    return value.decode() if value is not None else None


def granted(queue: Queue) -> str:
    return str(queue.broker.redis.hget(queue.broker.keys.granted, DEVICE).decode())


def test_a_claim_sets_lease_and_grant_with_the_leases_time(queue: Queue) -> None:
    run = queue.worker_with_job()
    redis, keys = queue.broker.redis, queue.broker.keys
    assert lease(queue) == run.fence and granted(queue) == f"{run.fence} job:{run.number}"
    assert 20_000 < redis.pttl(keys.lease(DEVICE)) <= 30_000
    redis.pexpire(keys.lease(DEVICE), 5_000)
    redis.zadd(keys.running, {str(run.number): 1})
    assert queue.beat(run) == "ok"
    assert 20_000 < redis.pttl(keys.lease(DEVICE)) <= 30_000
    deadline = redis.zscore(keys.running, run.number) - queue.broker.server_time_ms()
    assert 20_000 < deadline <= 30_000


def test_a_deleted_lease_heals_at_the_next_beat(queue: Queue) -> None:
    run = queue.worker_with_job()
    queue.broker.redis.delete(queue.broker.keys.lease(DEVICE))
    assert queue.beat(run) == "ok"
    assert lease(queue) == run.fence


def test_a_run_missing_from_running_heals_at_the_next_beat(queue: Queue) -> None:
    run = queue.worker_with_job()
    queue.broker.redis.zrem(queue.broker.keys.running, run.number)
    assert queue.beat(run) == "ok"
    assert queue.broker.redis.zscore(queue.broker.keys.running, run.number)


@pytest.mark.parametrize("what", ["lease", "grant", "both", "freed"])
def test_another_owner_is_told_to_the_first_by_its_beat(queue: Queue, what: str) -> None:
    run = queue.worker_with_job()
    redis, keys = queue.broker.redis, queue.broker.keys
    if what in ("lease", "both"):
        redis.set(keys.lease(DEVICE), OTHER)
    if what in ("grant", "both"):
        redis.hset(keys.granted, DEVICE, f"{OTHER} lease:somebody")
    if what == "freed":
        redis.hset(keys.granted, DEVICE, f"{run.fence} -")
    before = queue.snapshot()
    assert queue.beat(run) == "taken"
    assert queue.snapshot() == before


def test_a_grant_without_a_lease_key_is_not_healed_over_another_grant(queue: Queue) -> None:
    run = queue.worker_with_job()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.hset(keys.granted, DEVICE, f"{OTHER} job:77")
    redis.delete(keys.lease(DEVICE))
    assert queue.beat(run) == "taken"
    assert lease(queue) is None


@pytest.mark.parametrize("end", ["lease_lost", "complete", "release", "lose", "reap"])
def test_no_end_touches_another_owners_lease_or_grant(queue: Queue, end: str) -> None:
    run = queue.worker_with_job()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.set(keys.lease(DEVICE), OTHER)
    redis.hset(keys.granted, DEVICE, f"{OTHER} lease:somebody")
    if end == "lease_lost":
        assert queue.beat(run) == "taken"
        assert queue.fail(run, "lease_lost", None) == "failed"
        assert queue.job(run.number)["reason"] == "lease_lost"
    elif end == "reap":
        redis.zadd(keys.running, {str(run.number): 1})
        queue.reap()
    else:
        getattr(queue, end)(run)
    assert queue.job(run.number)["state"] != "running"
    assert lease(queue) == OTHER and granted(queue) == f"{OTHER} lease:somebody"
    assert queue.worker("w2").ask().word == "taken"


def test_an_end_before_the_lease_is_lost_frees_lease_and_grant(queue: Queue) -> None:
    for end in (queue.complete, queue.fail, queue.release, queue.lose):
        queue.enqueue()
        run = queue.worker(end.__name__).claim()
        end(run)
        assert lease(queue) is None
        assert granted(queue) == f"{run.fence} -"


def test_a_key_without_a_grant_keeps_the_device(queue: Queue) -> None:
    """Whoever set it: no script takes a lease that it does not know."""
    queue.enqueue()
    queue.broker.redis.set(queue.broker.keys.lease(DEVICE), OTHER)
    assert queue.worker("w1").ask().word == "taken"
    queue.broker.redis.delete(queue.broker.keys.lease(DEVICE))
    assert queue.worker("w2").ask().word == "ok"


@pytest.mark.parametrize("grant", ["123 -", "123 job:77", "123 lease:gone", ""])
def test_a_last_grant_that_holds_nothing_frees_the_device(queue: Queue, grant: str) -> None:
    queue.enqueue()
    queue.broker.redis.hset(queue.broker.keys.granted, DEVICE, grant)
    assert queue.worker().ask().word == "ok"


def test_two_workers_of_one_device_and_a_pause(queue: Queue) -> None:
    """A pauses, its job is taken over by B on the same device, A resumes: B's lease stays B's."""
    number = queue.enqueue()
    paused = queue.worker("a").claim()
    queue.overdue(number)
    queue.reap()
    second = queue.worker("b").claim()
    assert queue.beat(paused) == "lost"
    assert queue.complete(paused) == "lost"
    assert queue.fail(paused, "lease_lost", None) == "lost"
    assert lease(queue) == second.fence and granted(queue) == f"{second.fence} job:{number}"
    assert queue.beat(second) == "ok"
    assert queue.complete(second) == "succeeded"


def test_every_reply_about_a_run_carries_the_instance(queue: Queue) -> None:
    """Only under the instance of its claim does `missing` count: an emptied server kills nobody's run."""
    run = queue.worker_with_job()
    instance = queue.broker.settings().instance
    assert instance and run.instance == instance
    calls = [
        queue.broker.heartbeat_call(run.number, run.fence),
        queue.broker.log_call(run.number, run.fence, 0, 0, b""),
        queue.broker.complete_call(run.number, run.fence, pack({})),
        queue.broker.fail_call(run.number, run.fence, "signal", "", None, pack({}), None),
        queue.broker.release_call(run.number, run.fence, "shutdown", ""),
        queue.broker.lose_call(run.number, run.fence),
        queue.broker.sweep_call(),
        queue.broker.register_call("w1", DEVICE, 1, b""),
    ]
    assert {reply.instance for reply in queue.broker.send(*calls)} == {instance}
    queue.broker.redis.flushall()
    replies = queue.broker.send(*calls[:7])
    assert {reply.instance for reply in replies} == {""}
    assert {reply.word for reply in replies[:6]} == {"missing"}
    assert not queue.broker.redis.exists(queue.broker.keys.job(run.number))
    assert queue.broker.settings().instance not in ("", instance)


def test_a_number_given_out_again_is_another_job(queue: Queue) -> None:
    """What a server that lost its last second looks like: the same number, another `born`."""
    number, born = queue.enqueue_born()
    run: Claimed = queue.worker().claim()
    queue.broker.redis.flushall()
    again, other = queue.enqueue_born()
    assert again == number and other != born
    assert queue.complete(run) == "stale"
    assert queue.broker.cancel(number, born, "me") == "stale"
    assert queue.job(number)["state"] == "pending"
    assert queue.worker("w2").claim().born == other


def test_a_renewal_heals_what_the_server_has_forgotten_and_nothing_when_the_rest_is_lost(queue: Queue) -> None:
    """Given a server that has lost the grant of one of two devices: the same fence has it again, as long as the other
    is not somebody else's."""
    lent = Holder(queue, ("GPU-1", "GPU-2")).acquire()
    redis, keys = queue.broker.redis, queue.broker.keys
    for other, word in ((f"{int(lent.fence) + 1} -", "lost"), (f"{lent.fence} lease:{lent.token}", "ok")):
        redis.hset(keys.granted, mapping={"GPU-1": "1000000000000000 -", "GPU-2": other})
        redis.delete(keys.lease("GPU-1"), keys.lease("GPU-2"))
        assert lent.renew().word == word
        healed = f"{lent.fence} lease:{lent.token}"
        assert grant(queue, "GPU-1") == (healed if word == "ok" else "1000000000000000 -")
