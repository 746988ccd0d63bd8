"""Many jobs in one step: numbers and ticks in a row, all of them or none, the environment once."""

from __future__ import annotations

import pytest
from queue_driver import ENVIRONMENT, Queue

from foxqueue.broker import CHUNK_BYTES, CHUNK_JOBS, Environment, NewJob
from foxqueue.codec import pack
from foxqueue.errors import InvalidInput, ServerUnavailable

SPEC = pack({"v": 1, "argv": ["true"]})


def jobs(count: int, shape: str = "g1") -> list[NewJob]:
    return [NewJob(f"job{at}", shape, 5, 0, 1000, SPEC) for at in range(count)]


def test_they_run_in_the_order_given_with_numbers_and_ticks_in_a_row(queue: Queue) -> None:
    found = queue.broker.enqueue_many(jobs(5), ENVIRONMENT)
    assert [number for number, _ in found] == [1, 2, 3, 4, 5]
    borns = [int(born) for _, born in found]
    assert borns == list(range(borns[0], borns[0] + 5))
    assert [queue.job(number)["born"] for number, _ in found] == [born for _, born in found]
    assert [queue.job(number)["name"] for number, _ in found] == ["job0", "job1", "job2", "job3", "job4"]
    worker = queue.worker()
    for number, _ in found:
        run = worker.claim()
        assert run.number == number
        queue.complete(run)
    assert queue.enqueue_born()[1] > found[-1][1]


def test_a_lost_answer_is_given_again(queue: Queue) -> None:
    first = queue.broker.enqueue_many(jobs(3), ENVIRONMENT, token="ab")
    before = queue.snapshot()
    assert queue.broker.enqueue_many(jobs(3), ENVIRONMENT, token="ab") == first
    assert queue.snapshot() == before


def test_each_wakes_a_worker(queue: Queue) -> None:
    workers = [queue.worker(f"w{at}", f"GPU-{at}") for at in range(4)]
    queue.broker.cancel(queue.enqueue(), "", "me")  # the shape is known from here on
    for worker in workers:
        assert worker.ask().word == "empty"
    queue.broker.enqueue_many(jobs(3), ENVIRONMENT)
    assert sorted(len(worker.tokens()) for worker in workers) == [0, 1, 1, 1]


def test_too_many_requirements_refuse_all_of_them(queue: Queue) -> None:
    for start in range(0, 1000, CHUNK_JOBS):
        queue.broker.enqueue_many(
            [NewJob("", f"g1.m{at}", 5, 0, 0, SPEC) for at in range(start, start + CHUNK_JOBS)], ENVIRONMENT
        )
    before = queue.snapshot()
    known, fresh = jobs(1, "g1.m1"), jobs(1, "g1.m99999")
    with pytest.raises(ServerUnavailable, match="1,000 different requirements"):
        queue.broker.enqueue_many([*known, *fresh], ENVIRONMENT)
    assert queue.snapshot() == before
    queue.broker.enqueue_many(known, ENVIRONMENT)
    queue.broker.cancel(500, "", "me")  # now one requirement has no job any more
    assert queue.broker.enqueue_many([*known, *fresh], ENVIRONMENT)


def test_a_full_server_refuses_all_of_them(queue: Queue) -> None:
    queue.enqueue()
    redis = queue.broker.redis
    redis.config_set("maxmemory", 1)
    try:
        before = queue.snapshot()
        with pytest.raises(ServerUnavailable):
            queue.broker.enqueue_many(jobs(CHUNK_JOBS), ENVIRONMENT)
        assert queue.snapshot() == before
    finally:
        redis.config_set("maxmemory", 0)


@pytest.mark.parametrize("given", [[], jobs(CHUNK_JOBS + 1), [NewJob("", "g1", 5, 0, 0, b"x" * CHUNK_BYTES)] * 2])
def test_no_step_is_endless(queue: Queue, given: list[NewJob]) -> None:
    with pytest.raises(InvalidInput, match="1 to 100"):
        queue.broker.enqueue_many(given, ENVIRONMENT)
    assert queue.broker.redis.get(queue.broker.keys.next) is None


def test_an_environment_is_sent_once_and_again_when_the_server_has_lost_it(queue: Queue) -> None:
    big = Environment.of({"A": "x" * 5000})
    sent = lambda: int(queue.broker.redis.info("stats")["total_net_input_bytes"])  # noqa: E731
    queue.broker.enqueue(jobs(1)[0], big)
    before = sent()
    queue.broker.enqueue(jobs(1)[0], big)
    assert sent() - before < 2000
    redis, key = queue.broker.redis, queue.broker.keys.env(big.digest)
    redis.pexpire(key, 60_000)
    queue.broker.enqueue(jobs(1)[0], big)
    assert redis.pttl(key) > 89 * 86400 * 1000, "a use keeps it on"
    redis.delete(key)
    assert queue.broker.enqueue(jobs(1)[0], big)[0] == 4
    assert redis.get(key) == big.packed
    redis.flushall()
    assert queue.broker.enqueue(jobs(1)[0], big)[0] == 1
    assert redis.get(key) == big.packed
