"""Many jobs, many workers that wait, many commands: what one costs does not grow with their number."""

from __future__ import annotations

import itertools
import random
import re
import statistics
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from queue_driver import ENVIRONMENT, Queue
from servers import RealServer
from shell import Shell
from stack import Stack
from wait import until

from foxqueue import Client
from foxqueue.broker import CHUNK_JOBS, NewJob
from foxqueue.codec import pack

SPEC = pack({"v": 1, "argv": ["true"]})
FEW, MANY = 200, 50_000
CANCELS = 100
TRIES = 5  # of what other processes on this machine can disturb
# What may cost more the more there is: none of them in a cancel, whatever its arguments.
GROWING = {"zrange", "zrangebyscore", "zrangebylex", "zscan", "zcount", "zremrangebyscore", "zremrangebyrank"} | {
    "lrange", "lrem", "lpos", "linsert", "smembers", "sscan", "hgetall", "hkeys", "hvals", "hscan", "keys", "scan"
}  # fmt: skip


def fill(queue: Queue, count: int) -> list[int]:
    """Enqueue so many jobs of all priorities; their numbers."""
    jobs = [NewJob("job", "g1", priority, 0, 1000, SPEC) for priority in range(10)] * (CHUNK_JOBS // 10)
    numbers: list[int] = []
    while len(numbers) < count:
        chunk = jobs[: count - len(numbers)]
        numbers += [number for number, _ in queue.broker.enqueue_many(chunk, ENVIRONMENT)]
    return numbers


def commands(queue: Queue) -> dict[str, int]:
    """What the server has run since the counters were set to zero, scripts' own commands too."""
    found: Any = queue.broker.redis.info("commandstats")
    own = {"cmdstat_info", "cmdstat_config|resetstat"}
    return {name.removeprefix("cmdstat_"): values["calls"] for name, values in found.items() if name not in own}


def cancel_cost(queue: Queue, numbers: list[int]) -> tuple[float, dict[str, int]]:
    """Median seconds of one cancel, and how often each command was run for all."""
    redis, took = queue.broker.redis, []
    redis.config_resetstat()
    for number in numbers:
        began = time.perf_counter()
        assert queue.broker.cancel(number, "", "me") == "cancelled"
        took.append(time.perf_counter() - began)
    counted = commands(queue)
    assert redis.zcard(queue.broker.keys.dropped) >= len(numbers)
    return statistics.median(took), counted


def test_a_cancel_costs_the_same_among_many(queue: Queue) -> None:
    """L1: given 200 and 50,000 pending jobs, the same commands are run for a cancel, and it takes the same time."""
    chance = random.Random(7)
    few = fill(queue, FEW)
    queue.broker.cancel(few.pop(), "", "me")  # loads the script
    chance.shuffle(few)
    slow, counted = cancel_cost(queue, few[:CANCELS])
    many = fill(queue, MANY)
    chance.shuffle(many)
    for _ in range(TRIES):
        chosen = [many.pop() for _ in range(CANCELS)]
        took, counted_among_many = cancel_cost(queue, chosen)
        # The same commands, each as often; trimming the audit trail is inside of XADD.
        assert counted_among_many == counted
        assert not GROWING & set(counted), counted
        assert all(calls % CANCELS == 0 for calls in counted.values()), counted
        if took < 3 * slow:
            break
    print(f"{slow * 1e6:.0f} us among {FEW}, {took * 1e6:.0f} us among {MANY}")
    assert took < 3 * slow
    assert queue.broker.redis.zcard(queue.broker.keys.pending("g1")) == len(few) - CANCELS + len(many)


def enqueue_cost(queue: Queue, count: int = 200) -> float:
    """Median seconds of one enqueue."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        queue.enqueue()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


@pytest.mark.parametrize("idle", [500, 5000])
def test_many_idle_workers_cost_an_enqueue_next_to_nothing(queue: Queue, idle: int) -> None:
    """Given so many that wait, an enqueue takes less than twice its time without them, and wakes exactly one."""
    broker, keys = queue.broker, queue.broker.keys
    redis: Any = broker.redis
    broker.cancel(queue.enqueue(), "", "me")  # the shape is known
    for _ in range(TRIES):
        alone = enqueue_cost(queue)
        redis.delete(keys.pending("g1"))
        workers = [queue.worker(f"w{at}", f"GPU-{at}") for at in range(idle)]
        for worker in workers:
            worker.version = redis.get(keys.shapes_version).decode()
        assert {reply.word for reply in broker.send(*[worker.claim_call() for worker in workers])} == {"empty"}
        assert redis.zcard(keys.idle) == idle
        (newest,) = redis.zrevrange(keys.idle_for("g1"), 0, 0)
        queue.enqueue()
        assert [worker.name for worker in workers if worker.tokens()] == [newest.decode()]
        assert redis.zcard(keys.idle) == redis.zcard(keys.idle_for("g1")) == idle - 1
        beside = enqueue_cost(queue)
        assert redis.zcard(keys.idle) == idle - 201
        assert sum(len(worker.tokens()) for worker in workers) == 200
        redis.delete(keys.pending("g1"), keys.claims, keys.idle, keys.idle_for("g1"))
        if beside < 2 * alone:
            break
    print(f"{alone * 1e6:.0f} us alone, {beside * 1e6:.0f} us beside {idle}")
    assert beside < 2 * alone


# --- many submissions ------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_many_commands_in_a_loop_stay_in_order(shell: Shell, queue: Queue) -> None:
    """L4: twenty processes one after another: each says its own number, refused ones take none, all run in order."""
    accepted: list[str] = []
    for turn in range(20):
        bad = turn % 8 == 5
        process = shell.start("submit", "-q", *(["--priority", "11"] if bad else []), "--", "echo", str(turn))
        out, err = process.communicate(timeout=30)
        assert process.returncode == (2 if bad else 0), err
        assert out == (b"" if bad else b"%d\n" % (len(accepted) + 1))
        accepted += [] if bad else [str(turn)]
    listed = shell.json("ls", "--limit", "100")
    assert [(job["number"], job["command"][1]) for job in listed] == list(enumerate(accepted, 1))
    worker = queue.worker()
    for number in range(1, len(accepted) + 1):
        run = worker.claim()
        assert run.number == number
        queue.complete(run)
    assert shell.start("cancel", "1000").wait(30) == 1


def test_many_at_once_from_several_clients(server: RealServer, queue: Queue, tmp_path: Path) -> None:
    """L4: three clients of 1,000 jobs each at the same time: chunks are numbered in a row, and nothing is missing."""
    gate, seen, kept = threading.Barrier(3), list[tuple[int, int]](), dict[str, list[int]]()

    def submit(who: str) -> None:
        with Client(server.url, "test", tmp_path) as fox:
            requests = [{"argv": ["echo", str(at)], "name": f"{who}-{at}"} for at in range(1000)]
            gate.wait()
            jobs = fox.submit_many(requests, lambda done, total: seen.append((done, total)))
            assert [job.name for job in jobs] == [request["name"] for request in requests]
            kept[who] = [job.number for job in jobs]

    threads = [threading.Thread(target=submit, args=(who,)) for who in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(done, 1000) for done in range(CHUNK_JOBS, 1001, CHUNK_JOBS) for _ in "abc"]
    assert sorted(itertools.chain(*kept.values())) == list(range(1, 3001))
    for numbers in kept.values():
        assert numbers == sorted(numbers)
        for at in range(0, 1000, CHUNK_JOBS):
            assert numbers[at + CHUNK_JOBS - 1] - numbers[at] == CHUNK_JOBS - 1
    redis: Any = queue.broker.redis
    keys = queue.broker.keys
    assert [int(number) for number in redis.zrange(keys.pending("g1"), 0, -1)] == list(range(1, 3001))
    for who, numbers in kept.items():
        names = [redis.hget(keys.job(number), "name").decode() for number in numbers]
        assert names == [f"{who}-{at}" for at in range(1000)]


# --- ended jobs ------------------------------------------------------------------------------------------------


OF_JOB = re.compile(rb".*:(job|spec|result|value|log):[0-9]+\Z")
KEEPS = ("retain_finished_ms", "retain_failed_ms")


def lasting(stack: Stack) -> set[bytes]:
    """Keys that do not go by themselves."""
    redis: Any = stack.api.redis
    return {key for key in redis.keys("*") if redis.pttl(key) == -1}


def end_some(stack: Stack, count: int) -> None:
    """Jobs that succeed, fail, are cancelled while they wait and while they run, and calls, so many of each."""
    api = stack.api
    numbers = [stack.queue("sh", "-c", code) for code in ("echo out", "echo out; exit 3") for _ in range(count)]
    numbers += [api.enqueue("math:sqrt", (4.0,), cwd=stack.work).number for _ in range(count)]
    waiting = [stack.queue("echo", "never", priority=0) for _ in range(count)]
    running = [stack.queue("sh", "-c", "echo out; exec sleep 300") for _ in range(count)]
    for number in waiting:
        api.job(number).cancel()
    for number in running:
        job = api.job(number)
        until(job.logs, 30, "its output")
        job.cancel()
    api.wait([api.job(number) for number in (*numbers, *waiting, *running)], timeout=60)


@pytest.mark.soak
def test_workers_clean_up_ended_jobs_of_every_kind(quick: Stack) -> None:
    """L5: succeeded, failed and cancelled ones with output, results and values; the same keys are left as before."""
    api, count = quick.api, 10
    idle: Any = partial(api.redis.zcard, api.broker.keys.idle)
    end_some(quick, 1)
    api.broker.change_settings(dict.fromkeys(KEEPS, "1"), "me")
    until(lambda: not api.jobs() and idle() == 2, 20, "the first jobs purged")
    baseline = lasting(quick)
    api.broker.change_settings(dict.fromkeys(KEEPS), "me")
    end_some(quick, count)
    found = Counter(match[1] for key in lasting(quick) if (match := OF_JOB.match(key)))
    assert found == {b"job": 5 * count, b"spec": 5 * count, b"result": 4 * count, b"value": count, b"log": 3 * count}
    api.broker.change_settings(dict.fromkeys(KEEPS, "1"), "me")
    until(lambda: lasting(quick) <= baseline, 20, "the keys of before")
    assert quick.fox("show", "1", check=False).returncode == 1
    assert quick.submit("true") == 5 * (count + 1) + 1
