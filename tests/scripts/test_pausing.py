"""Pause and resume of the namespace, a group and a device: nothing starts, nobody is forgotten."""

from __future__ import annotations

import pytest
from queue_driver import Queue, Worker

SHAPES = ("g1", "g1@a")
SCOPES = ("*", "@a", "GPU-1")


def worker(queue: Queue, at: int = 1, seen: bool = True) -> Worker:
    found = queue.worker(f"w{at}", f"GPU-{at}", SHAPES)
    if seen:
        queue.send(queue.broker.register_call(found.name, found.device, 1, b"seen", "host", "boot"))
    return found


@pytest.mark.parametrize("scope", SCOPES)
def test_nothing_starts_until_it_is_resumed_and_then_at_once(queue: Queue, scope: str) -> None:
    number = queue.enqueue(shape="g1@a")
    one = worker(queue)
    assert queue.broker.pause(scope, "driver update", "ann") == ("ok", 0)
    assert one.ask().word == "empty"
    second = queue.enqueue(shape="g1@a")
    assert one.ask().word == "empty"
    if scope == "GPU-1":
        assert worker(queue, 2).claim().number == number, "on other devices it goes on"
        number = second
    if scope == "@a":
        plain = queue.enqueue()
        queue.complete(one.claim())
        assert queue.state(plain) == "succeeded", "other jobs go on"
        assert one.ask().word == "empty"
    one.tokens()
    assert queue.broker.resume(scope, "ben") == "ok"
    assert one.tokens(), "nobody waits for the next poll"
    assert one.claim().number == number


@pytest.mark.parametrize("scope", SCOPES)
def test_everybody_sees_why(queue: Queue, scope: str) -> None:
    queue.enqueue(shape="g1@a")
    worker(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    seen = lambda: redis.hget(keys.group("a"), "paused") if scope == "@a" else redis.hget(keys.paused, scope)  # noqa: E731
    queue.broker.pause(scope, "driver update", "ann")
    assert seen() == b"ann: driver update"
    assert queue.broker.pause(scope, "driver update", "ann") == ("no", 0)
    assert queue.broker.pause(scope, "", "ben") == ("ok", 0) and seen() == b"ben"
    assert queue.broker.resume(scope, "ben") == "ok" and seen() is None
    assert queue.broker.resume(scope, "ben") == "no"
    found = [fields for _, fields in redis.xrange(keys.events) if fields[b"event"] in (b"pause", b"resume")]
    assert [(event[b"event"], event[b"by"]) for event in found] == [
        (b"pause", b"ann"), (b"pause", b"ben"), (b"resume", b"ben"),
    ]  # fmt: skip
    assert {event[b"scope"] for event in found} == {scope.encode()}


@pytest.mark.parametrize("scope", ["@gone", "GPU-9"])
def test_what_is_not_there_is_missing(queue: Queue, scope: str) -> None:
    assert queue.broker.pause(scope, "", "ann")[0] == "missing"
    assert queue.broker.resume(scope, "ann") == "missing"
    assert not queue.broker.redis.exists(queue.broker.keys.paused, queue.broker.keys.group("gone"))


@pytest.mark.parametrize(("scope", "asked"), [("*", {1, 2, 3}), ("@a", {1, 2}), ("GPU-3", {3})])
def test_what_runs_there_may_be_given_back(queue: Queue, scope: str, asked: set[int]) -> None:
    for shape in ("g1@a", "g1@a", "g1"):
        queue.enqueue(shape=shape)
    workers = [worker(queue, at) for at in (1, 2, 3)]
    runs = [one.claim() for one in workers]
    assert queue.broker.pause(scope, "now", "ann", requeue_running=True) == ("ok", len(asked))
    for run, one in zip(runs, workers, strict=True):
        said = queue.broker.send(queue.broker.heartbeat_call(run.number, run.fence))[0].rest[1]
        assert said == (b"paused by ann: now" if run.number in asked else b"")
        assert one.tokens() == ([f"cancel:{run.number}"] if run.number in asked else []), "and at once"
    for run in runs:
        if run.number in asked:
            assert queue.send(queue.broker.release_call(run.number, run.fence, "paused", "by ann")) == "released"
            job = queue.job(run.number)
            assert (job["state"], job["reason"], job["attempts"]) == ("pending", "paused", "0")
    queue.broker.resume(scope, "ann")
    for at in asked:
        again = worker(queue, 10 + at, seen=False)
        again.device = f"GPU-{at}"
        assert "release_requested" not in queue.job(again.claim().number), "the next run is not meant"


def test_keep_asks_no_run_to_stop(queue: Queue) -> None:
    queue.enqueue()
    run = worker(queue).claim()
    assert queue.broker.pause("*", "", "ann") == ("ok", 0)
    assert queue.broker.send(queue.broker.heartbeat_call(run.number, run.fence))[0].rest == (b"", b"")
    assert queue.complete(run) == "succeeded"


@pytest.mark.parametrize("scope", SCOPES)
def test_sent_again_they_change_nothing(queue: Queue, scope: str) -> None:
    queue.enqueue(shape="g1@a")
    worker(queue).claim()
    for call in (
        queue.broker.pause_call(scope, "", "ann", "a1", requeue_running=True),
        queue.broker.resume_call(scope, "ann", "a2"),
    ):
        reply = queue.broker.send(call)[0]
        before = queue.snapshot()
        assert queue.broker.send(call)[0] == reply
        assert queue.snapshot() == before
    assert queue.broker.send(queue.broker.pause_call(scope, "", "ann", "a1", requeue_running=True))[0].word == "ok"
    assert queue.snapshot() == before, "a late copy pauses nothing"


def test_a_worker_that_is_woken_and_may_not_passes_it_on(queue: Queue) -> None:
    """The newest idle worker is woken, and its device is paused by then."""
    queue.broker.cancel(queue.enqueue(), "", "me")
    other, paused = worker(queue, 1), worker(queue, 2)
    assert other.ask().word == paused.ask().word == "empty"
    queue.broker.pause("GPU-2", "", "ann")
    number = queue.enqueue()
    assert paused.tokens() == ["g1"] and paused.ask().word == "empty"
    assert other.tokens() == ["g1"] and other.claim().number == number
