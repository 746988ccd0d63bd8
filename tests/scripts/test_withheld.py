"""Devices that are dirty or quarantined: nobody gets them until they are cleared; those that are gone are forgotten."""

from __future__ import annotations

import pytest
from lease_driver import Holder, events, grant, served
from queue_driver import Queue

from foxqueue.scripts import Call

DEVICE = "GPU-1"


def call(queue: Queue, word: str = "dirty", kind: str = "memory", text: str = "3G are not back", job: int = 0) -> Call:
    return queue.broker.withhold_call(DEVICE, word, kind, text, "boot-1", "w1", job)


def withheld(queue: Queue) -> list[str]:
    value = queue.broker.redis.hget(queue.broker.keys.withheld, DEVICE)
    return value.decode().split("\t") if value else []


@pytest.mark.parametrize("word", ["dirty", "quarantined"])
def test_neither_jobs_nor_leases_get_it_and_what_runs_there_goes_on(queue: Queue, word: str) -> None:
    run = queue.worker_with_job()
    assert queue.send(call(queue, word, job=run.number)) == "ok"
    kind_of, since, boot, kind, text = withheld(queue)
    assert (kind_of, boot, kind, text) == (word, "boot-1", "memory", "3G are not back")
    assert abs(int(since) - queue.broker.server_time_ms()) < 5_000
    assert queue.beat(run) == "ok" and queue.complete(run) == "succeeded"
    queue.enqueue()
    worker, waits = queue.worker("w2"), Holder(queue)
    assert worker.ask().word == "taken"
    reply = waits.ask()
    assert reply.word == "withheld" and reply.rest[1].decode().split("\t") == withheld(queue)
    waits.wait()
    assert queue.broker.clear(DEVICE, "me") == "ok"
    assert worker.tokens() == [DEVICE] and waits.called() == [DEVICE]
    assert worker.claim().number == 2
    trail = events(queue, "withhold", "clear")
    assert [(event["job"], event.get("worker"), event["reason"]) for event in trail] == [
        ("1", "w1", f"{word}: 3G are not back"),
        ("", None, word),
    ]


def test_only_the_device_that_is_meant(queue: Queue) -> None:
    queue.send(call(queue))
    queue.enqueue()
    assert queue.worker("w2", "GPU-2").ask().word == "ok"
    assert Holder(queue, ("GPU-3",)).ask().word == "ok"
    assert Holder(queue, ("GPU-4", DEVICE)).ask().word == "withheld"


@pytest.mark.parametrize(
    ("before", "word", "kind", "answer"),
    [
        ("dirty", "dirty", "memory", "no"),
        ("dirty", "quarantined", "fault", "ok"),
        ("quarantined", "dirty", "memory", "no"),
        ("quarantined", "quarantined", "ecc", "no"),
    ],
)
def test_the_graver_word_stands(queue: Queue, before: str, word: str, kind: str, answer: str) -> None:
    queue.send(call(queue, before))
    old = withheld(queue)
    assert queue.send(call(queue, word, kind)) == answer
    assert (withheld(queue) == old) == (answer == "no")


def test_text_with_tabs_and_lines_is_one_line(queue: Queue) -> None:
    queue.send(call(queue, text="a\tb\nc"))
    assert withheld(queue)[4] == "a b c"


def test_a_late_copy_after_a_clear_does_not_withhold_again(queue: Queue) -> None:
    late = call(queue)
    assert queue.send(late) == "ok"
    queue.broker.clear(DEVICE, "me")
    before = queue.snapshot()
    assert queue.send(late) == "ok"
    assert queue.snapshot() == before


@pytest.mark.parametrize(("kind", "answer"), [("fault", "no"), ("memory", "ok"), ("", "ok")])
def test_a_worker_clears_only_what_it_knows_to_be_over(queue: Queue, kind: str, answer: str) -> None:
    queue.send(call(queue))
    assert queue.send(queue.broker.clear_call(DEVICE, "w1", "ab", kind)) == answer
    assert bool(withheld(queue)) == (answer == "no")
    assert queue.broker.clear(DEVICE, "me") == ("ok" if answer == "no" else "no")


def test_a_late_copy_of_a_clear_does_not_clear_what_came_later(queue: Queue) -> None:
    queue.send(call(queue))
    clear = queue.broker.clear_call(DEVICE, "me", "ab")
    assert queue.send(clear) == "ok"
    queue.send(call(queue, "quarantined", "ecc"))
    before = queue.snapshot()
    assert queue.send(clear) == "ok"
    assert queue.snapshot() == before


def test_what_stands_there_unreadably_withholds_and_can_be_replaced(queue: Queue) -> None:
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.hset(keys.withheld, DEVICE, "junk")
    assert Holder(queue).ask().word == "withheld"
    assert queue.send(call(queue)) == "ok" and queue.broker.clear(DEVICE, "me") == "ok"


# --- forgotten devices ------------------------------------------------------------------------------------


def test_a_device_that_is_gone_leaves_all_lists(queue: Queue) -> None:
    served(queue)
    queue.broker.pause(DEVICE, "", "me")
    queue.broker.resume(DEVICE, "me")
    Holder(queue).acquire().release()
    queue.send(call(queue))
    queue.broker.pause(DEVICE, "", "me")
    redis, keys = queue.broker.redis, queue.broker.keys
    assert queue.broker.forget(DEVICE, "me") == ("no", "live")
    redis.zadd(keys.workers, {"w1": 1})
    assert queue.broker.forget(DEVICE, "me") == ("ok", "")
    assert queue.broker.forget(DEVICE, "me") == ("missing", "")
    for name in (keys.gpus, keys.granted, keys.holders, keys.withheld, keys.paused):
        assert not redis.hexists(name, DEVICE), name
    assert [event["device"] for event in events(queue, "forget")] == [DEVICE]


@pytest.mark.parametrize("by", ["job", "lease"])
def test_a_device_that_somebody_has_is_not_forgotten(queue: Queue, by: str) -> None:
    run = queue.worker_with_job() if by == "job" else None
    held = None if run else Holder(queue).acquire()
    before = grant(queue, DEVICE)
    assert queue.broker.forget(DEVICE, "me") == ("no", "granted")
    assert grant(queue, DEVICE) == before
    if run:
        queue.complete(run)
    elif held:
        held.release()
    assert queue.broker.forget(DEVICE, "me") == ("ok", "")


def test_a_late_copy_of_a_forget_does_not_forget_a_device_that_came_back(queue: Queue) -> None:
    queue.send(call(queue))
    forget = queue.broker.forget_call(DEVICE, "me", "ab")
    assert queue.send(forget) == "ok"
    Holder(queue).acquire().release()
    before = queue.snapshot()
    assert queue.send(forget) == "ok"
    assert queue.snapshot() == before


def test_fences_go_on_after_a_device_was_forgotten(queue: Queue) -> None:
    first = Holder(queue).acquire()
    first.release()
    queue.broker.forget(DEVICE, "me")
    assert first.renew().word == "lost" and first.release() == "lost"
    assert int(Holder(queue).acquire().fence) > int(first.fence)


def test_what_a_worker_notes_goes_into_the_trail_once(queue: Queue) -> None:
    noted = [("occupied", "", "4711 (ann, train.py) has 3G"), ("over_memory", 7, "9G of 8G")]
    register = queue.broker.register_call("w1", DEVICE, 1, b"", noted=noted)
    assert queue.send(register) == "ok" and queue.send(register) == "stale"
    found = [(event["event"], event["job"], event["reason"]) for event in events(queue)]
    assert found == [("occupied", "", "4711 (ann, train.py) has 3G"), ("over_memory", "7", "9G of 8G")]
    assert {event["worker"] for event in events(queue)} == {"w1"}
