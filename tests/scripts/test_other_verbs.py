"""What holds for every script about holds, places, pauses, groups and notices, whatever goes wrong with the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cutter import Cutter
from queue_driver import ENVIRONMENT, Queue
from servers import RealServer

from foxqueue.broker import NewJob
from foxqueue.codec import pack
from foxqueue.errors import ServerUnavailable
from foxqueue.scripts import Call, load

HOW = ("reply", "request", "late")
WISHES = "after=1::succeeded\ndelay_ms=60000\nexpires_ms=90000\nunique=k\nexists=replace\nnotify=1\n"


def hold(queue: Queue) -> Call:
    return queue.broker.hold_call(queue.enqueue(), "", "me", "ab")


def unhold(queue: Queue) -> Call:
    return queue.broker.unhold_call(queue.enqueue(more="held=me\n"), "", "me", "ab")


def reprioritize(queue: Queue) -> Call:
    queue.enqueue()
    return queue.broker.reprioritize_call(queue.enqueue(), "", 9, "me", "ab", front=True)


def pause(queue: Queue) -> Call:
    queue.worker_with_job()
    return queue.broker.pause_call("*", "why", "me", "ab", requeue_running=True)


def resume(queue: Queue) -> Call:
    queue.enqueue(shape="g1@a")
    queue.worker(shapes=("g1@a",)).ask()
    queue.broker.pause("@a", "", "me")
    return queue.broker.resume_call("@a", "me", "ab")


def open_group(queue: Queue) -> Call:
    job = NewJob("", "g1@a", 5, 0, 0, pack({}))
    queue.broker.enqueue_many([job] * 2, ENVIRONMENT, filling="s")
    return queue.broker.open_call("a", "s", 2, "me", "ab", max_concurrent=1)


def told(queue: Queue) -> Call:
    number = queue.enqueue(more="notify=1\n")
    queue.broker.cancel(number, "", "me")
    job = queue.job(number)
    return queue.broker.told_call(number, job["born"], int(job["finished_at"]), "w1")


def notice(queue: Queue) -> Call:
    told(queue)
    return queue.broker.notice_call(10)


def enqueue(queue: Queue) -> Call:
    """With all that a job may wish for."""
    for number in range(3):
        queue.enqueue(more="unique=k\nexists=refuse\n" * (number == 2), user="ann")
    job = NewJob("", "g1@a", 5, 0, 0, pack({}), WISHES)
    return queue.broker.enqueue_call([job], ENVIRONMENT, "ab", with_env=True, user="ann")


VERBS = (hold, unhold, reprioritize, pause, resume, open_group, told, notice, enqueue)
EACH = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)


@pytest.fixture
def cutter(server: RealServer, tmp_path: Path) -> Iterator[Cutter]:
    with Cutter(server.socket, tmp_path / "p") as proxy:
        yield proxy


@EACH
def test_each_is_done_although_the_server_has_forgotten_it(queue: Queue, verb: Callable[[Queue], Call]) -> None:
    call = verb(queue)
    before = queue.snapshot()
    queue.broker.redis.script_flush()
    assert queue.send(call) == "ok"
    assert queue.snapshot() != before


@EACH
def test_each_answers_a_repeat_as_before_and_changes_nothing(queue: Queue, verb: Callable[[Queue], Call]) -> None:
    call = verb(queue)
    first = queue.broker.send(call)[0]
    before = queue.snapshot()
    again = queue.broker.send(call)[0]
    if verb is told:
        assert again.word == "stale"
    elif verb is notice:
        assert again.word == "ok" and again.rest == ()
    else:
        assert again == first
    assert queue.snapshot() == before


@EACH
def test_a_full_server_lets_all_through_but_new_jobs(queue: Queue, verb: Callable[[Queue], Call]) -> None:
    call = verb(queue)
    redis = queue.broker.redis
    redis.config_set("maxmemory", 1)
    try:
        before = queue.snapshot()
        if verb is enqueue:
            with pytest.raises(ServerUnavailable):
                queue.send(call)
            assert queue.snapshot() == before, "refused, and yet something was written"
        else:
            assert queue.send(call) == "ok"
    finally:
        redis.config_set("maxmemory", 0)


@EACH
@pytest.mark.parametrize("how", HOW)
def test_lost_answers_and_copies_that_come_late(
    queue: Queue, cutter: Cutter, verb: Callable[[Queue], Call], how: str
) -> None:
    call = verb(queue)
    queue.broker.redis.script_load(load(call.script.name).text)
    through = Queue(cutter.url, queue.broker.keys.namespace)
    cutter.lose(how, call.script.sha, 2)
    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            through.send(call)
    assert through.send(call) in ("ok", "stale" if verb is told and how == "reply" else "ok")
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    through.broker.close()
