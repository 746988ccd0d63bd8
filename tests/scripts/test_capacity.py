"""Limits on unfinished jobs: refused atomically, and counted so that they cannot drift."""

from __future__ import annotations

import random

import pytest
from queue_driver import ENVIRONMENT, Queue

from foxqueue.broker import Claimed, NewJob
from foxqueue.codec import pack
from foxqueue.errors import QueueFull

ENDED = ("", "succeeded", "failed", "cancelled")


def limit(queue: Queue, **limits: str) -> None:
    queue.broker.change_settings(limits, "me")


def many(queue: Queue, count: int, user: str = "ann") -> list[int]:
    jobs = [NewJob("", "g1", 5, 0, 0, pack({"v": 1}))] * count
    return [number for number, _ in queue.broker.enqueue_many(jobs, ENVIRONMENT, user=user)]


def counted(queue: Queue) -> dict[str, int]:
    found = queue.broker.redis.hgetall(queue.broker.keys.unfinished)
    return {user.decode(): int(count) for user, count in found.items()}


def recounted(queue: Queue) -> dict[str, int]:
    found: dict[str, int] = {}
    for number in range(1, int(queue.broker.redis.get(queue.broker.keys.next)) + 1):
        job = queue.job(number)
        if job.get("state", "") not in ENDED and job["user"]:
            found[job["user"]] = found.get(job["user"], 0) + 1
    return found


def test_the_namespace_s_limit_refuses_all_or_nothing(queue: Queue) -> None:
    limit(queue, max_unfinished="3")
    many(queue, 2)
    before = queue.snapshot()
    with pytest.raises(QueueFull) as caught:
        many(queue, 2, "ben")
    assert (caught.value.limit, caught.value.current, caught.value.exit_code) == (3, 2, 75)
    assert queue.snapshot() == before
    many(queue, 1, "ben")
    with pytest.raises(QueueFull):
        many(queue, 1)
    queue.complete(queue.worker().claim())
    assert many(queue, 1) == [4]


def test_a_user_s_limit_is_that_user_s_alone(queue: Queue) -> None:
    limit(queue, max_unfinished_user="1")
    many(queue, 1)
    with pytest.raises(QueueFull) as caught:
        many(queue, 1)
    assert (caught.value.limit, caught.value.current) == (1, 1)
    assert many(queue, 1, "ben") == [2]


def test_a_request_that_was_full_may_be_sent_again_when_there_is_room(queue: Queue) -> None:
    limit(queue, max_unfinished="1")
    number = queue.enqueue(user="ann")
    with pytest.raises(QueueFull):
        queue.enqueue(user="ann", token="ab")
    queue.broker.cancel(number, "", "me")
    assert queue.enqueue(user="ann", token="ab") == 2
    assert queue.enqueue(user="ann", token="ab") == 2


def test_a_job_that_replaces_another_needs_no_room(queue: Queue) -> None:
    limit(queue, max_unfinished="1")
    queue.enqueue(more="unique=k\nexists=refuse\n", user="ann")
    assert queue.enqueue(more="unique=k\nexists=replace\n", user="ann") == 2
    assert counted(queue) == recounted(queue) == {"ann": 1}


def test_requeue_needs_room_too(queue: Queue) -> None:
    limit(queue, max_unfinished="1")
    number = queue.enqueue(user="ann")
    queue.broker.cancel(number, "", "me")
    queue.enqueue(user="ben")
    reply = queue.broker.requeue(number, "", "me", "ab")
    assert (reply.word, reply.rest) == ("full", (b"queue", b"1", b"1"))
    queue.broker.cancel(number + 1, "", "me")
    assert queue.broker.requeue(number, "", "me", "ab").word == "ok"
    assert counted(queue) == recounted(queue) == {"ann": 1}


def test_jobs_of_nobody_are_not_counted_whatever_becomes_of_them(queue: Queue) -> None:
    number = queue.enqueue()
    queue.broker.cancel(number, "", "me")
    assert queue.broker.requeue(number, "", "me").word == "ok"
    assert counted(queue) == {}


@pytest.mark.parametrize("seed", range(4))
def test_however_jobs_end_a_recount_says_the_same(queue: Queue, seed: int) -> None:
    chance = random.Random(seed)
    queue.enqueue(user="ann")
    wishes = ("", "", "delay_ms=60000\n", "held=ann\n", "expires_ms=60000\n", "unique=k\nexists=replace\n")
    for lives in range(80):
        number = chance.randint(1, int(queue.broker.redis.get(queue.broker.keys.next)))
        match chance.choice(("new", "new", "run", "run", "cancel", "requeue", "expire", "purge", "after")):
            case "new":
                queue.enqueue(user=chance.choice(("ann", "ben", "")), more=chance.choice(wishes))
            case "after" if queue.job(number):
                queue.enqueue(user="ann", more=f"after={number}::{chance.choice(('succeeded', 'any'))}\n")
            case "run":
                reply = queue.worker(f"w{lives}", f"GPU-{lives}").ask()
                if reply.word == "ok":
                    chance.choice((queue.complete, queue.release, queue.lose, queue.fail))(Claimed.of(reply))
            case "cancel":
                queue.broker.cancel(number, "", "me")
            case "requeue":
                queue.broker.requeue(number, "", "me")
            case "expire":
                for job in queue.broker.redis.zrange(queue.broker.keys.expiry, 0, -1)[:1]:
                    queue.broker.redis.zadd(queue.broker.keys.expiry, {job: 1})
                queue.sweep()
            case "purge":
                for job in queue.broker.redis.zrange(queue.broker.keys.dropped, 0, -1)[:1]:
                    queue.broker.redis.zadd(queue.broker.keys.dropped, {job: 1})
                queue.sweep()
        assert counted(queue) == recounted(queue)
