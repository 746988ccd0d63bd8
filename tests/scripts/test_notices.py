"""Ends that somebody wants to be told of: at least once, and not for ever."""

from __future__ import annotations

import pytest
from queue_driver import Queue
from wait import until


def due(queue: Queue, limit: int = 10) -> list[tuple[int, str]]:
    """Take what is due: numbers and born."""
    words = [word.decode() for word in queue.broker.send(queue.broker.notice_call(limit))[0].rest]
    return [(int(number), born) for number, born in zip(words[::2], words[1::2], strict=True)]


def told(queue: Queue, number: int) -> str:
    job = queue.job(number)
    return queue.send(queue.broker.told_call(number, job["born"], int(job["finished_at"]), "w1"))


def a_minute_later(queue: Queue) -> None:
    for job in queue.broker.redis.zrange(queue.broker.keys.notices, 0, -1):
        queue.broker.redis.zadd(queue.broker.keys.notices, {job: 1})


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled", "cancelled unrun", "expired"])
def test_each_end_is_due_once_it_has_come(queue: Queue, how: str) -> None:
    queue.enqueue(shape="g2")
    number = queue.enqueue(more="notify=1\nexpires_ms=60000\n")
    assert due(queue) == []
    match how:
        case "expired":
            queue.broker.redis.zadd(queue.broker.keys.expiry, {str(number): 1})
            assert queue.sweep()[5] == 1, "a sweep says that there is something to tell"
        case "cancelled unrun":
            queue.broker.cancel(number, "", "me")
        case _:
            run = queue.worker().claim()
            if how == "cancelled":
                queue.broker.cancel(number, "", "me")
            queue.fail(run, delay_ms=None) if how == "failed" else queue.complete(run)
    assert due(queue) == [(number, queue.job(number)["born"])]
    assert due(queue) == [], "whoever took it has a minute"
    assert told(queue, number) == "ok"
    a_minute_later(queue)
    assert due(queue) == []
    assert told(queue, number) == "stale"


def test_a_retry_is_no_end(queue: Queue) -> None:
    queue.enqueue(retries=1, more="notify=1\n")
    queue.fail(queue.worker().claim())
    assert due(queue) == []


def test_what_nobody_told_comes_again_five_times_at_most(queue: Queue) -> None:
    number = queue.enqueue(more="notify=1\n")
    queue.broker.cancel(number, "", "me")
    for _ in range(5):
        assert [one for one, _ in due(queue)] == [number]
        a_minute_later(queue)
    assert due(queue) == []
    assert not queue.broker.redis.exists(queue.broker.keys.notices)
    last = queue.broker.redis.xrevrange(queue.broker.keys.events, count=1)[0][1]
    assert (last[b"event"], last[b"reason"]) == (b"told", b"given up")


def test_a_requeued_job_is_told_of_its_new_end_alone(queue: Queue) -> None:
    number = queue.enqueue(more="notify=1\n")
    queue.broker.cancel(number, "", "me")
    due(queue)
    job = queue.job(number)
    late = queue.broker.told_call(number, job["born"], int(job["finished_at"]), "w1")
    assert queue.broker.requeue(number, "", "me").word == "ok"
    assert due(queue) == []
    until(lambda: queue.broker.server_time_ms() > int(job["finished_at"]))  # the new end has another ms
    queue.complete(queue.worker().claim())
    assert queue.send(late) == "stale", "that was the end before"
    assert [one for one, _ in due(queue)] == [number]


def test_a_job_is_not_purged_before_its_end_is_told(queue: Queue) -> None:
    number = queue.enqueue(more="notify=1\n")
    queue.broker.cancel(number, "", "me")
    queue.broker.change_settings({"retain_finished_ms": "1000"}, "me")
    queue.broker.redis.zadd(queue.broker.keys.dropped, {str(number): 1})
    queue.sweep()
    assert [one for one, _ in due(queue)] == [number]
    assert told(queue, number) == "ok"
    queue.sweep()
    assert not queue.job(number) and not queue.broker.redis.exists(queue.broker.keys.notices)


def test_no_more_than_asked_for(queue: Queue) -> None:
    for _ in range(5):
        queue.broker.cancel(queue.enqueue(more="notify=1\n"), "", "me")
    assert [len(due(queue, 2)) for _ in range(4)] == [2, 2, 1, 0]
