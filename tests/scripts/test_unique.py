"""B8: of the unfinished jobs one has a unique key; another is refused, or takes its place."""

from __future__ import annotations

import pytest
from queue_driver import Queue

from foxqueue.errors import JobExists


def unique(queue: Queue, exists: str = "refuse", more: str = "", key: str = "k", user: str = "ann") -> int:
    return queue.enqueue(more=f"unique={key}\nexists={exists}\n{more}", user=user)


def holder(queue: Queue, key: str = "k") -> int:
    return int(queue.broker.redis.hget(queue.broker.keys.unique, key) or 0)


@pytest.mark.parametrize("exists", ["refuse", "return"])
@pytest.mark.parametrize("state", ["pending", "scheduled", "blocked", "running"])
def test_a_key_in_use_is_refused_with_the_job_that_has_it(queue: Queue, exists: str, state: str) -> None:
    more = {"scheduled": "delay_ms=3600000\n", "blocked": "held=ann\n"}.get(state, "")
    number = unique(queue, more=more)
    if state == "running":
        queue.worker().claim()
    before = queue.snapshot()
    with pytest.raises(JobExists) as caught:
        unique(queue, exists)
    assert (caught.value.number, caught.value.born) == (number, queue.job(number)["born"])
    assert queue.snapshot() == before
    assert unique(queue, key="other") == number + 1


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_an_ended_job_leaves_its_key_and_keeps_its_own_run(queue: Queue, end: str) -> None:
    first = unique(queue)
    run = queue.worker("w1").claim()
    if end == "cancelled":
        queue.broker.cancel(first, "", "me")
    queue.fail(run, delay_ms=None) if end == "failed" else queue.complete(run)
    before = queue.job(first)
    second = unique(queue)
    assert (before["state"], queue.job(first)) == (end, before), "never mixed: another number, another record"
    assert holder(queue) == second
    assert queue.worker("w2").claim().number == second
    assert queue.complete(run) == end, "a late copy of the old run"
    assert queue.state(second) == "running"


@pytest.mark.parametrize("more", ["", "delay_ms=3600000\n", "held=ann\n"])
def test_a_waiting_job_is_replaced_at_once(queue: Queue, more: str) -> None:
    old = unique(queue, more=more)
    new = unique(queue, "replace")
    job = queue.job(old)
    assert (job["state"], job["detail"]) == ("cancelled", "cancelled by ann")
    assert queue.state(new) == "pending" and holder(queue) == new


@pytest.mark.parametrize("user", ["ann", ""])
def test_a_running_job_is_asked_to_stop_and_its_successor_waits_for_that(queue: Queue, user: str) -> None:
    old = unique(queue)
    run = queue.worker().claim()
    new = unique(queue, "replace", user=user)
    newer = unique(queue, "replace", user=user)
    assert (
        queue.broker.send(queue.broker.heartbeat_call(run.number, run.fence))[0].rest[0]
        == (user or "a newer job").encode()
    ), "whoever asks, the worker hears that somebody did"
    assert (queue.state(new), queue.state(newer)) == ("cancelled", "blocked"), "two with one key would run"
    assert queue.worker("w2", "GPU-2").ask().word == "empty"
    assert queue.complete(run) == "cancelled" and queue.state(old) == "cancelled"
    assert queue.state(newer) == "pending"


def test_the_successor_starts_when_the_processes_are_gone(queue: Queue) -> None:
    unique(queue)
    run = queue.worker().claim()
    new = unique(queue, "replace")
    assert queue.state(new) == "blocked"
    assert queue.worker("w2", "GPU-2").ask().word == "empty"
    queue.overdue(run.number)
    queue.reap()  # its worker has died: it is gone too
    assert queue.state(new) == "pending"


def test_a_requeue_must_not_take_the_key_from_another(queue: Queue) -> None:
    old = unique(queue)
    queue.broker.cancel(old, "", "me")
    new = unique(queue)
    reply = queue.broker.requeue(old, "", "me")
    assert (reply.word, reply.rest) == ("exists", (str(new).encode(),))
    queue.broker.cancel(new, "", "me")
    assert queue.broker.requeue(old, "", "me").word == "ok"
    assert holder(queue) == old
    with pytest.raises(JobExists):
        unique(queue)


def test_a_purged_job_takes_its_key_along_unless_another_has_it(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    for count in (1, 2):
        for _ in range(count):
            last = unique(queue)
            queue.broker.cancel(last, "", "me")
        queue.broker.redis.zadd(keys.dropped, {str(last): 1})
        queue.broker.change_settings({"retain_finished_ms": "1000"}, "me")
        queue.sweep()
        assert not queue.job(last) and not redis.hexists(keys.unique, "k")
    first = unique(queue)
    queue.broker.cancel(first, "", "me")
    second = unique(queue)
    redis.zadd(keys.dropped, {str(first): 1})
    queue.sweep()
    assert not queue.job(first) and holder(queue) == second


def test_the_answer_of_a_resent_request_is_the_same(queue: Queue) -> None:
    first = queue.enqueue(token="ab", more="unique=k\nexists=refuse\n")
    assert queue.enqueue(token="ab", more="unique=k\nexists=refuse\n") == first
    second = queue.enqueue(token="cd", more="unique=k\nexists=replace\n")
    before = queue.snapshot()
    assert queue.enqueue(token="cd", more="unique=k\nexists=replace\n") == second
    assert queue.snapshot() == before
