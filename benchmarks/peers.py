"""Parts ``peers`` and ``memory``: RQ and huey on the same server in the same run.

What they do for a job differs: theirs is a Python call that runs in the worker, foxqueue's is a lease on a device, a
fence, an event and a record of its end. So the rates say what a job costs the queue, not which queue is better.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from redis import Redis

from benchmarks.driver import COMMAND, EMPTY, Driver
from benchmarks.measure import Figure, Operation, Scale, at_most, in_turn, two_cores
from benchmarks.servers import BenchServer, forget_all, pid_of, used_memory
from benchmarks.tasks import nothing

TEXT = ("0123456789abcdef" * 8)[:116]  # with COMMAND, what a spec of 200 bytes holds
REDIS_PY = "empty"


class Peer(Protocol):
    """A queue as far as it is measured."""

    name: str

    def enqueue(self) -> object:
        """One job."""

    def process(self, count: int) -> object:
        """Take so many jobs, one after the other, and end each."""


class Foxqueue:
    """Ours, without processes: enqueue; complete and the next claim in one round trip."""

    name = "foxqueue"

    def __init__(self, server: BenchServer) -> None:
        self._driver = Driver(server.broker("peers"))
        self.enqueue = self._driver.enqueue
        self._driver.enqueue()
        self._driver.learn_shapes()
        self._driver.claim()
        self._driver.complete()

    def process(self, count: int) -> None:
        """As a worker that is always busy."""
        self._driver.claim()
        for _ in range(count - 1):
            self._driver.complete_and_claim()
        self._driver.complete()


class Rq:
    """RQ: a SimpleWorker in this process, which works until the queue is empty."""

    name = "RQ"

    def __init__(self, redis: Redis) -> None:
        import rq

        self._rq, self._redis = rq, redis
        self._queue = rq.Queue("bench", connection=redis)

    def enqueue(self) -> object:
        """One call."""
        return self._queue.enqueue(nothing, *COMMAND, TEXT)

    def process(self, count: int) -> None:
        """In burst mode."""
        worker = self._rq.SimpleWorker([self._queue], connection=self._redis, log_job_description=False)
        worker.work(burst=True, max_jobs=count, logging_level="ERROR")


class Huey:
    """huey: what its consumer does for a task, in a loop of this process.

    Args:
        redis: the server.
        priority: the storage that knows priorities, a sorted set in place of a list.
    """

    def __init__(self, redis: Redis, *, priority: bool) -> None:
        import huey

        self.name = "huey, with priorities" if priority else "huey"
        kind = huey.PriorityRedisHuey if priority else huey.RedisHuey
        self._huey = kind("benchp" if priority else "bench", connection_pool=redis.connection_pool, blocking=False)
        self._task: Any = self._huey.task()(nothing)
        self._options = {"priority": 5} if priority else {}

    def enqueue(self) -> object:
        """One call."""
        return self._task(*COMMAND, TEXT, **self._options)

    def process(self, count: int) -> None:
        """One by one."""
        for _ in range(count):
            self._huey.execute(self._huey.dequeue())


def _all(server: BenchServer, redis: Redis) -> Sequence[Peer]:
    for name in ("rq.worker", "huey"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return [Foxqueue(server), Rq(redis), Huey(redis, priority=False), Huey(redis, priority=True)]


@contextlib.contextmanager
def _one_connection(server: BenchServer) -> Iterator[Redis]:
    redis = Redis.from_url(server.url)
    try:
        yield redis
    finally:
        forget_all(redis)
        redis.close()


def peers(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """How many jobs a second can be enqueued, and taken and ended."""
    with _one_connection(server) as redis:
        queues = _all(server, redis)
        sha: Any = redis.script_load(EMPTY)
        batch = scale.of(200, 20)
        operations = [Operation(REDIS_PY, lambda: redis.evalsha(sha, 0))]
        for queue in queues:
            operations.append(Operation(f"{queue.name}: enqueue", queue.enqueue))
            process = partial(queue.process, batch)
            operations.append(Operation(f"{queue.name}: process", process, share=1 / batch, jobs=batch))
        with two_cores(pid_of(redis)):
            found = in_turn(operations, scale.of(7, 2), 2 * batch)  # each enqueues what it processes in two calls
        for operation in operations:
            timed = found[operation.name]
            yield Figure("peers", operation.name, timed.rate, "per second")
            if operation.name != REDIS_PY:
                yield Figure("peers", f"{operation.name}, of empty", timed.rate_to(found[REDIS_PY]), "x")


def memory(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """Bytes that a queued job takes on the server, all that belongs to it included."""
    count = scale.of(10_000, 1_000)
    with _one_connection(server) as redis:
        for queue in _all(server, redis):
            queue.enqueue()
            before = used_memory(redis)
            for _ in range(count):
                queue.enqueue()
            bytes_each = (used_memory(redis) - before) / count
            target = at_most(800) if queue.name == Foxqueue.name else None
            yield Figure("memory", f"{queue.name}: a queued job with a spec of 200 bytes", bytes_each, "bytes", target)
            forget_all(redis)
