"""Parts ``calls``, ``many`` and ``waiters``: what one call costs, beside an empty script call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redis import Redis

from benchmarks.driver import COMMAND, EMPTY, Driver, empty_call
from benchmarks.measure import Figure, Operation, Scale, Timed, at_least, at_most, in_turn, one_core, two_cores
from benchmarks.servers import BenchServer, ScriptTimes, pid_of, script_times, watch_scripts
from foxqueue.broker import CHUNK_JOBS

WAITERS = 500
FUNCTION = "benchmarks.tasks:nothing"


def calls(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """Single calls, each as a ratio to the empty one."""
    with server.client("calls") as fox:
        driver, redis = Driver(fox.broker), fox.redis
        driver.enqueue()
        driver.learn_shapes()
        sha: Any = redis.script_load(EMPTY)
        nothing = empty_call()
        waking, waiting = Driver(server.broker("waking")), Driver(server.broker("waiting"))
        _stand(waking)
        operations = [
            Operation("empty", lambda: redis.evalsha(sha, 0)),
            Operation("empty, our connection", lambda: driver.broker.send(nothing)),
            Operation("enqueue by script", driver.enqueue),
            Operation("enqueue with three dependencies", waiting.enqueue_dependent),
            Operation("submit by client", lambda: fox.submit(COMMAND), before=lambda _: driver.serve()),
            Operation("call by client", lambda: fox.enqueue(FUNCTION, (1, 0.5)), before=lambda _: driver.serve()),
            Operation("enqueue, waking one", waking.enqueue, after=lambda: _take(waking), share=0.5),
            Operation("complete + claim", driver.complete_and_claim, before=lambda _: driver.claim_if_free()),
            Operation("heartbeat", driver.heartbeat),
            Operation("cancel", driver.cancel, before=driver.renew),
        ]
        watch_scripts(redis)
        with two_cores(pid_of(redis)):
            found = in_turn(operations, scale.of(21, 3), scale.of(200, 60))
        yield from _rates(found)
        with one_core(pid_of(redis)):
            strictly = in_turn(operations, scale.of(15, 2), scale.of(200, 60))
        for name, timed in strictly.items():
            if name != "empty":
                yield Figure("calls", f"on one core: {name}, of empty", timed.rate_to(strictly["empty"]), "x")
        cost = found["enqueue with three dependencies"].cost_to(found["enqueue by script"])
        yield Figure("calls", "enqueue with three dependencies, to one without", cost, "x", at_most(2))
        yield from slowest("calls", "scripts", script_times(redis, sha))
        waking.broker.close()
        waiting.broker.close()


def _stand(driver: Driver) -> None:
    """One worker stands idle, and nothing is pending."""
    driver.enqueue()
    driver.learn_shapes()
    _take(driver)


def _take(driver: Driver) -> None:
    driver.claim()
    driver.complete()
    driver.stand_idle("bench")


def _rates(found: Mapping[str, Timed]) -> Iterator[Figure]:
    base = found["empty"]
    yield Figure("calls", "empty", base.rate, "per second")
    yield Figure("calls", "empty: p99", base.p99_ms, "ms")
    targets = {
        "enqueue by script": at_least(0.5),
        "submit by client": at_least(0.5),
        "complete + claim": at_least(0.4),
    }
    for name, timed in found.items():
        if name != "empty":
            yield Figure("calls", f"{name}, of empty", timed.rate_to(base), "x", targets.get(name))
    for name in ("enqueue by script", "submit by client"):
        yield Figure("calls", f"{name}: p99, of empty's", found[name].p99_to(base), "x", at_most(3))


def slowest(part: str, what: str, times: ScriptTimes) -> Iterator[Figure]:
    """What scripts took, and what the machine made of one that does nothing."""
    yield Figure(part, f"{what}: p99", times.p99, "ms", at_most(5))
    yield Figure(part, f"{what}: longest", times.longest, "ms", at_most(50))
    yield Figure(part, f"{what}: longest empty one", times.longest_empty, "ms")


def many(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """Jobs in chunks, as a ratio to empty calls: jobs a second by calls a second."""
    with server.client("many") as fox:
        driver, redis = Driver(fox.broker), fox.redis
        driver.serve()
        sha: Any = redis.script_load(EMPTY)
        count = scale.of(2_000, 400)
        requests: list[Any] = [{"argv": [*COMMAND, "--trial", str(trial)]} for trial in range(count)]
        operations = [
            Operation("empty", lambda: redis.evalsha(sha, 0)),
            Operation("chunk by script", driver.enqueue_many, share=0.02, jobs=CHUNK_JOBS),
            Operation(
                "submit_many",
                lambda: fox.submit_many(requests),
                before=lambda _: driver.serve(),
                share=0.01,
                jobs=count,
            ),
        ]
        watch_scripts(redis)
        with two_cores(pid_of(redis)):
            found = in_turn(operations, scale.of(9, 2), scale.of(300, 60))
        with one_core(pid_of(redis)):
            strictly = in_turn(operations, scale.of(5, 2), scale.of(300, 60))
        for name in ("submit_many", "chunk by script"):
            target = at_least(2.5) if name == "submit_many" else None
            yield Figure("many", f"jobs by {name}, of empty", found[name].rate_to(found["empty"]), "x", target)
        for name in ("submit_many", "chunk by script"):
            ratio = strictly[name].rate_to(strictly["empty"])
            yield Figure("many", f"on one core: jobs by {name}, of empty", ratio, "x")
        yield Figure("many", "jobs by submit_many", found["submit_many"].rate, "per second")
        yield from slowest("many", "scripts", script_times(redis, sha))


def waiters(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """An enqueue beside 500 idle workers that block on their wake-ups, all from this process, and beside none."""
    drivers = [Driver(server.broker(f"waiters-{name}")) for name in ("none", "one", "crowd")]
    none, one, crowd = drivers
    none.enqueue()
    few, all_of_them = Waiting(one, 1), Waiting(crowd, scale.of(WAITERS, 50))
    operations = [
        Operation("none", none.enqueue),
        Operation("one", one.enqueue, before=few.stand, after=few.answer),
        Operation("crowd", crowd.enqueue, before=all_of_them.stand, after=all_of_them.answer),
    ]
    redis = none.broker.redis
    with two_cores(pid_of(redis)):
        found = in_turn(operations, scale.of(21, 3), scale.of(100, 20))
    with one_core(pid_of(redis)):
        strictly = in_turn(operations, scale.of(9, 2), scale.of(100, 20))
    few.close()
    all_of_them.close()
    for driver in drivers:
        driver.broker.close()
    what = f"enqueue that wakes one of {all_of_them.count}"
    yield Figure("waiters", f"{what}, to one that finds none", found["crowd"].cost_to(found["none"]), "x", at_most(1.2))
    yield Figure("waiters", f"{what}, to one that wakes the only one", found["crowd"].cost_to(found["one"]), "x")
    ratio = strictly["crowd"].cost_to(strictly["none"])
    yield Figure("waiters", f"on one core: {what}, to one that finds none", ratio, "x")


class Waiting:
    """Idle workers of one namespace, each with a connection that blocks on its wake-ups.

    Args:
        driver: of the namespace.
        count: how many workers.
    """

    def __init__(self, driver: Driver, count: int) -> None:
        self.count = count
        self._driver = driver
        self._client = Redis.from_url(driver.broker.connection.url, max_connections=count)
        self._links: list[Any] = [self._client.connection_pool.get_connection() for _ in range(count)]
        driver.enqueue()
        driver.learn_shapes()
        driver.claim()
        driver.complete()
        for at, link in enumerate(self._links):
            self._block(at, link)

    def stand(self, _: int) -> None:
        """Register all again, as each does within a beat."""
        for at in range(self.count):
            self._driver.stand_idle(f"w{at}")

    def answer(self) -> None:
        """The newest was woken: it takes the job and stands idle again."""
        newest = self.count - 1
        self._links[newest].read_response()
        self._driver.claim()
        self._driver.complete()
        self._driver.stand_idle(f"w{newest}")
        self._block(newest, self._links[newest])

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.disconnect()
            self._client.connection_pool.release(link)
        self._client.close()

    def _block(self, at: int, link: Any) -> None:
        link.send_command("BLPOP", self._driver.broker.keys.wake(f"w{at}"), 60)
