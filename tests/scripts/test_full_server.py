"""A server that refuses writes: nothing new goes in, what is there drains, and it says so to the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from queue_driver import Queue

from foxqueue.errors import FoxqueueError, ServerRefused, ServerUnavailable


@contextlib.contextmanager
def configured(queue: Queue, name: str, value: str | int) -> Iterator[None]:
    """Set one setting of the server for a while."""
    redis = queue.broker.redis
    before = redis.config_get(name)[name]
    redis.config_set(name, value)
    try:
        yield
    finally:
        redis.config_set(name, before)


@contextlib.contextmanager
def full(queue: Queue) -> Iterator[None]:
    """Whatever needs memory is refused."""
    with configured(queue, "maxmemory-policy", "noeviction"), configured(queue, "maxmemory", 1):
        yield


def refusal(queue: Queue) -> ServerUnavailable:
    with pytest.raises(ServerUnavailable) as caught:
        queue.enqueue()
    assert caught.value.exit_code == 75 and caught.value.definite
    return caught.value


def test_a_full_server_refuses_new_jobs_and_takes_them_when_there_is_room(queue: Queue) -> None:
    queue.enqueue()
    with full(queue):
        before = queue.snapshot()
        assert "refuses enqueue now" in str(refusal(queue)) and "maxmemory" in str(refusal(queue))
        assert queue.snapshot() == before, "refused, and yet something was written"
    assert queue.enqueue() == 2


def test_a_full_server_refuses_a_first_job_too(queue: Queue) -> None:
    with full(queue):
        refusal(queue)
        assert queue.snapshot() == {}
    assert queue.enqueue() == 1


def test_a_full_server_knows_what_it_accepted(queue: Queue) -> None:
    """The answer got lost, then memory ran out: sent again, it is still the same job."""
    number = queue.enqueue(token="ab")
    with full(queue):
        assert queue.enqueue(token="ab") == number


def test_a_full_server_drains(queue: Queue) -> None:
    jobs = [queue.enqueue(str(index), retries=1) for index in range(8)]
    dead = queue.worker("dead", "GPU-9").claim()
    queue.overdue(dead.number)
    queue.been_looking()
    with full(queue):
        worker = queue.worker()
        broker = queue.broker
        assert broker.settings().ttl_ms == 15000
        assert queue.send(broker.register_call("w1", "GPU-1", 1, b"x" * 1000)) == "ok"
        succeeded = worker.claim()
        assert queue.beat(succeeded) == "ok"
        assert queue.complete(succeeded) == "succeeded"
        failed = worker.claim()
        assert queue.fail(failed, delay_ms=None) == "failed"
        retried = worker.claim()
        assert queue.fail(retried, delay_ms=3600_000) == "failed"
        released = worker.claim()
        assert queue.release(released) == "released"
        lost = worker.claim()
        assert lost.number == released.number
        assert queue.lose(lost) == "lost"
        cancelled = worker.claim()
        assert broker.cancel(cancelled.number, "", "me") == "ok"
        assert queue.complete(cancelled) == "cancelled"
        assert broker.cancel(jobs[-1], "", "me") == "cancelled"
        assert broker.cancel(retried.number, "", "me") == "cancelled"
        assert queue.broker.sweep().rest[:3] == (b"0", b"1", b"0")
        while (reply := worker.ask()).word == "ok":
            number = int(reply.rest[0])
            broker.send(broker.complete_call(number, reply.rest[1].decode(), b"x"))
    states = [queue.job(number)["state"] for number in jobs]
    assert states == ["succeeded", "succeeded", "failed", *["cancelled"] * 2, "succeeded", "succeeded", "cancelled"]


def test_a_full_server_promotes_and_wakes(queue: Queue) -> None:
    number = queue.enqueue(retries=1)
    worker = queue.worker()
    queue.fail(worker.claim(), delay_ms=3600_000)
    assert worker.ask().word == "empty"
    queue.broker.redis.zadd(queue.broker.keys.scheduled, {str(number): 1})
    queue.been_looking()
    with full(queue):
        assert queue.broker.sweep().rest[:3] == (b"1", b"0", b"0")
        assert worker.tokens() == ["g1"]
        assert worker.claim().number == number


def test_output_waits_while_the_server_is_full(queue: Queue) -> None:
    """It is in a file; the piece goes again when there is room."""
    run = queue.worker_with_job()
    piece = queue.broker.log_call(run.number, run.fence, 0, 0, b"line")
    with full(queue), pytest.raises(ServerUnavailable) as caught:
        queue.send(piece)
    assert caught.value.definite
    assert queue.send(piece) == "ok"
    assert queue.broker.redis.xlen(queue.broker.keys.log(run.number)) == 1


def test_a_server_without_its_replicas_refuses(queue: Queue) -> None:
    """Before its first write each script is stopped: nothing half done."""
    run = queue.worker_with_job()
    with configured(queue, "min-replicas-to-write", 1):
        before = queue.snapshot()
        assert "NOREPLICAS" in str(refusal(queue))
        for act in (queue.beat, queue.complete, queue.fail, queue.release, queue.lose):
            with pytest.raises(ServerUnavailable) as caught:
                act(run)
            assert caught.value.definite
        with pytest.raises(ServerUnavailable):
            queue.broker.cancel(run.number, "", "me")
        assert queue.snapshot() == before
    assert queue.complete(run) == "succeeded"


@pytest.mark.parametrize("stale", ["yes", "no"])
def test_a_replica_refuses(queue: Queue, stale: str) -> None:
    """READONLY, and MASTERDOWN where it does not answer either: both mean that Redis is away."""
    run = queue.worker_with_job()
    redis = queue.broker.redis
    with configured(queue, "replica-serve-stale-data", stale):
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(ServerUnavailable) as caught:
                queue.beat(run)
            assert caught.value.definite and caught.value.exit_code == 75
            assert caught.value.passing == (stale == "no")
        finally:
            redis.execute_command("REPLICAOF", "NO", "ONE")
    assert queue.beat(run) == "ok"


def test_a_password_set_meanwhile_is_named(queue: Queue) -> None:
    run = queue.worker_with_job()
    admin = queue.broker.blocking(1)  # its connection is there before the password is
    admin.ping()
    admin.config_set("requirepass", "secret-word")
    try:
        queue.broker.close()
        with pytest.raises(ServerRefused, match="FOXQUEUE_PASSWORD") as caught:
            queue.beat(run)
        assert "secret-word" not in str(caught.value)
    finally:
        admin.config_set("requirepass", "")
        admin.close()
    assert queue.beat(run) == "ok"


def test_an_error_that_is_a_bug_is_not_called_redis_away(queue: Queue) -> None:
    run = queue.worker_with_job()
    queue.broker.redis.delete(queue.broker.keys.granted)
    queue.broker.redis.set(queue.broker.keys.granted, "junk")
    with pytest.raises(FoxqueueError) as caught:
        queue.beat(run)
    assert not isinstance(caught.value, ServerUnavailable)
    assert "WRONGTYPE" in str(caught.value)


def test_a_thousand_shapes_are_the_most(queue: Queue) -> None:
    for memory in range(1000):
        queue.enqueue(shape=f"g1.m{memory + 1}")
    before = queue.snapshot()
    with pytest.raises(ServerUnavailable, match="1,000") as caught:
        queue.enqueue(shape="g1.m5000")
    assert caught.value.exit_code == 75
    assert queue.snapshot() == before
    assert queue.enqueue(shape="g1.m7") == 1001  # a known one is not one more
    queue.broker.cancel(1, "", "me")  # now m1 has no job
    version = int(queue.broker.redis.get(queue.broker.keys.shapes_version))
    assert queue.enqueue(shape="g1.m5000") == 1002
    redis, keys = queue.broker.redis, queue.broker.keys
    assert redis.hlen(keys.shapes) == 1000 and not redis.hexists(keys.shapes, "g1.m1")
    assert int(redis.get(keys.shapes_version)) > version
