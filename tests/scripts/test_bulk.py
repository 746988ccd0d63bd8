"""20,000 jobs are due, expire, are cancelled, purged, or wait for one parent: each step is bounded, and all is done."""

from __future__ import annotations

import pytest
from queue_driver import ENVIRONMENT, Queue
from servers import binaries

from foxqueue.broker import CHUNK_JOBS, NewJob
from foxqueue.codec import pack

MANY, LIMIT = 20_000, 100
SLOW_US = 50_000
ONE_SERVER = pytest.mark.parametrize("server", binaries()[:1], ids=str, indirect=True)
# All members of a sorted set are as old as can be.
AGE = "for _, n in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, n) end"


class Slow:
    """Which scripts took too long. A busy machine may hold up one in a hundred."""

    def __init__(self, queue: Queue) -> None:
        self.redis = queue.broker.redis

    def __enter__(self) -> Slow:
        self.redis.config_set("slowlog-log-slower-than", SLOW_US)
        self.redis.slowlog_reset()
        return self

    def __exit__(self, *_: object) -> None:
        found = [entry["duration"] for entry in self.redis.slowlog_get(128) if entry["command"].startswith(b"EVALSHA")]
        assert len(found) <= MANY // LIMIT // 100, f"scripts of {found} us"


def enqueue(queue: Queue, more: str) -> None:
    job = NewJob("", "g1", 5, 0, 0, pack({"v": 1, "argv": ["true"]}), more)
    for _ in range(MANY // CHUNK_JOBS):
        queue.broker.enqueue_many([job] * CHUNK_JOBS, ENVIRONMENT)


def swept(queue: Queue, part: int) -> int:
    """Sweep as a worker does, at once again while there is more; how many there were of one part."""
    found = 0
    queue.been_looking()
    for _ in range(MANY // LIMIT + 1):
        reply = queue.broker.send(queue.broker.sweep_call(LIMIT))[0]
        assert reply.word == "ok"
        numbers = [int(word) for word in reply.rest]
        assert numbers[part] <= LIMIT
        found += numbers[part]
        if max(numbers[:5]) < LIMIT:
            break
    return found


@pytest.mark.soak
@ONE_SERVER
def test_due_cancelled_and_purged_at_once(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    enqueue(queue, "delay_ms=3600000\n")
    redis.eval(AGE, 1, keys.scheduled)
    with Slow(queue):
        assert swept(queue, 0) == MANY
    assert redis.zcard(keys.pending("g1")) == MANY and not redis.zcard(keys.scheduled)
    with Slow(queue):
        for first in range(1, MANY + 1, CHUNK_JOBS):
            calls = [queue.broker.cancel_call(n, "", "me", f"{n:032x}") for n in range(first, first + CHUNK_JOBS)]
            assert {reply.word for reply in queue.broker.send(*calls)} == {"cancelled"}
    assert redis.zcard(keys.dropped) == MANY
    redis.eval(AGE, 1, keys.dropped)
    with Slow(queue):
        assert swept(queue, 2) == MANY
    assert not redis.zcard(keys.dropped) and not redis.keys(keys.prefix.replace("{", "?").replace("}", "?") + "job:*")


@pytest.mark.soak
@ONE_SERVER
def test_children_of_one_parent_and_expired_at_once(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    parent = queue.enqueue()
    enqueue(queue, f"after={parent}::succeeded\nexpires_ms=3600000\n")
    run = queue.worker().claim()
    with Slow(queue):
        assert queue.complete(run) == "succeeded"
        assert redis.zcard(keys.pending("g1")) == LIMIT, "the first hear at once"
        assert swept(queue, 4) >= MANY - LIMIT
    assert redis.zcard(keys.pending("g1")) == MANY and not redis.exists(keys.unsettled)
    redis.eval(AGE, 1, keys.expiry)
    with Slow(queue):
        assert swept(queue, 3) == MANY
    assert redis.zcard(keys.dropped) == MANY and not redis.zcard(keys.blocked)
