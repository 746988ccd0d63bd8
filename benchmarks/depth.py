"""Part ``depth``: what calls cost with a million pending jobs, beside the same with a thousand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.calls import slowest
from benchmarks.driver import EMPTY, Driver
from benchmarks.measure import Figure, Operation, Scale, at_most, in_turn, one_core, percentile
from benchmarks.processes import FOX, environ_of, run_program
from benchmarks.servers import (
    BenchServer,
    memory_available,
    pid_of,
    rewriting,
    script_times,
    used_memory,
    watch_scripts,
)
from foxqueue.broker import CHUNK_JOBS
from foxqueue.inspector import Inspector

FEW = 1_000
MANY = 1_000_000
FILL_S = 90.0
SPARE_BYTES = 2 * 1024**3  # stays free on this machine
BYTES_EACH = 2_000  # of memory and of the file being written anew, at worst


@dataclass
class Side:
    """One of the two queues."""

    driver: Driver
    inspector: Inspector

    @classmethod
    def on(cls, server: BenchServer, namespace: str) -> Side:
        """A queue with a worker that knows its shapes."""
        driver = Driver(server.broker(namespace))
        driver.fill(1)
        driver.learn_shapes()
        driver.serve()
        return cls(driver, Inspector(driver.broker))

    def show(self) -> None:
        """What ``foxqueue show`` reads of a job that waits."""
        number, born = self.driver.pick()
        self.driver.queued.append((number, born))
        self.inspector.job(number)

    def listing(self) -> None:
        """What ``foxqueue ls`` reads."""
        self.inspector.jobs((), None, 51)


def depth(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """Two namespaces on one server, so that only the depth of the queue differs, not how much the server holds."""
    low, high = Side.on(server, "shallow"), Side.on(server, "deep")
    few = scale.of(FEW, 200)
    yield from _fill(high.driver, min(scale.of(MANY, 5_000), _room()))
    low.driver.fill(few)
    redis = high.driver.broker.redis
    watch_scripts(redis)
    sha: Any = redis.script_load(EMPTY)
    pairs = zip(_operations("low", low), _operations("high", high), strict=True)
    operations = [operation for pair in pairs for operation in pair]
    operations.append(Operation("empty", lambda: redis.evalsha(sha, 0)))
    with one_core(pid_of(redis)):
        found = in_turn(operations, scale.of(21, 3), scale.of(100, 20))
    yield _first_page(server, len(high.driver.queued), scale)
    times = script_times(redis, sha)
    held = len(high.driver.queued)
    for side in (low, high):
        side.driver.broker.close()
    what = f"with {held:,} pending, to {few:,}"
    for name in ("enqueue", "claim", "cancel", "show", "ls"):
        ratio = found[f"high {name}"].cost_to(found[f"low {name}"])
        yield Figure("depth", f"{name} {what}", ratio, "x", None if name == "ls" else at_most(1.2))
    cancels = sum(len(times) for times in found["high cancel"].rounds)
    yield Figure(
        "depth",
        f"{cancels:,} cancelled at random of {held:,}: p99, to {few:,}",
        found["high cancel"].p99_to(found["low cancel"]),
        "x",
    )
    yield from slowest("depth", f"scripts with {held:,} pending", times)


def _first_page(server: BenchServer, held: int, scale: Scale) -> Figure:
    """``fox ls`` as a process, beyond one that only starts."""
    environ = environ_of(server.config.home, "deep")
    programs = {"ls": [str(FOX), "ls"], "version": [str(FOX), "version"]}
    looks = [Operation(name, partial(run_program, words, environ)) for name, words in programs.items()]
    found = in_turn(looks, scale.of(11, 2), 1)
    middle = {name: statistics.median(map(statistics.median, timed.rounds)) for name, timed in found.items()}
    beyond = (middle["ls"] - middle["version"]) * 1000
    return Figure("depth", f"fox ls with {held:,} pending, beyond a start", beyond, "ms", at_most(200))


def _operations(prefix: str, side: Side) -> list[Operation]:
    """As many jobs leave as come."""
    driver = side.driver
    return [
        Operation(f"{prefix} enqueue", driver.enqueue, before=lambda _: driver.serve()),
        Operation(f"{prefix} claim", driver.claim, after=driver.complete, share=0.5),
        Operation(f"{prefix} cancel", driver.cancel, share=0.5),
        Operation(f"{prefix} show", side.show, share=0.5),
        Operation(f"{prefix} ls", side.listing, share=0.1),
    ]


def _room() -> int:
    """How many jobs this machine has the memory for."""
    return max((memory_available() - SPARE_BYTES) // BYTES_EACH, FEW)


def _fill(driver: Driver, count: int) -> Iterator[Figure]:
    """Enqueue in chunks, for a minute and a half at most, and wait until the server has its file in order."""
    redis = driver.broker.redis
    sha: Any = redis.script_load(EMPTY)
    watch_scripts(redis)
    before, began, chunks = used_memory(redis), time.monotonic(), []
    while len(driver.queued) < count and time.monotonic() - began < FILL_S:
        at = time.perf_counter()
        driver.enqueue_many()
        chunks.append(time.perf_counter() - at)
        redis.evalsha(sha, 0)
    took = time.monotonic() - began
    times = script_times(redis, sha)
    while rewriting(redis):
        time.sleep(0.1)
    each = (used_memory(redis) - before) / len(driver.queued)
    yield Figure("depth", f"filling with {len(driver.queued):,} jobs in chunks", took, "s")
    yield Figure("depth", f"a chunk of {CHUNK_JOBS}: p99", percentile(chunks, 99) * 1000, "ms")
    yield from slowest("depth", f"script of a chunk of {CHUNK_JOBS}", times)
    yield Figure("depth", "memory of a queued job among them", each, "bytes", at_most(800))
