"""Slots: several leases on one device, as long as what they declare fits; and whole or slotted, never both."""

from __future__ import annotations

import pytest
from changed_rules import changed
from lease_driver import Holder, grant, lapse, lease
from queue_driver import Queue, Worker

WHOLE, FIRST, SECOND, THIRD = "GPU-1", "GPU-1/0", "GPU-1/1", "GPU-1/2"
ROOM = 8192
SMALL, BIG = "g1.m3000", "g1.m5000"
MIB = {"g1": ROOM, SMALL: 3000, BIG: 5000}


def slot(queue: Queue, device: str = FIRST, name: str = "", shapes: tuple[str, ...] = (SMALL, BIG, "g1")) -> Worker:
    """The worker of a slot."""
    worker = queue.worker(name or f"w{device[-1]}", device, shapes)
    worker.declares, worker.room = tuple(MIB[shape] for shape in shapes), ROOM
    return worker


def holder(queue: Queue, device: str = FIRST, mib: int = 3000) -> Holder:
    return Holder(queue, (device,), declares=mib, room=ROOM)


def declared(queue: Queue) -> dict[str, int]:
    found = queue.broker.redis.hgetall(queue.broker.keys.declared(WHOLE))
    return {slot.decode(): int(mib) for slot, mib in found.items()}


def fills_up(queue: Queue) -> None:
    """Two that fit beside each other run, what does not fit waits, and goes when there is room."""
    for shape in (SMALL, BIG, SMALL):
        queue.enqueue(shape=shape)
    one, two, three = (slot(queue, device) for device in (FIRST, SECOND, THIRD))
    first, second = one.claim(), two.claim()
    assert (first.shape, second.shape) == (SMALL, BIG)
    assert declared(queue) == {"0": 3000, "1": 5000}
    assert three.ask().word == "empty"
    queue.complete(second)
    assert declared(queue) == {"0": 3000}
    assert three.tokens() == [WHOLE], "what ends beside it may leave room"
    assert three.claim().shape == SMALL
    queue.complete(first)
    assert declared(queue) == {"2": 3000}


def test_jobs_share_a_device_as_long_as_what_they_declare_fits(queue: Queue) -> None:
    fills_up(queue)


def test_leases_share_a_device_with_jobs(queue: Queue) -> None:
    queue.enqueue(shape=BIG)
    run = slot(queue).claim()
    lent = holder(queue, SECOND).acquire()
    reply = holder(queue, THIRD).ask()
    assert (reply.word, *reply.rest) == ("full", THIRD.encode(), str(ROOM - 8000).encode())
    queue.complete(run)
    holder(queue, THIRD).acquire()
    lent.release()
    assert declared(queue) == {"2": 3000}


def test_a_lapsed_lease_declares_nothing(queue: Queue) -> None:
    holder(queue, FIRST, 8000).acquire()
    assert holder(queue, SECOND).ask().word == "full"
    lapse(queue, FIRST)
    holder(queue, SECOND).acquire()


def test_a_lease_whose_memory_others_have_declared_since_does_not_go_on(queue: Queue) -> None:
    late = holder(queue, FIRST, 8000).acquire()
    lapse(queue, FIRST)
    other = holder(queue, SECOND).acquire()
    reply = late.renew()
    assert (reply.word, *reply.rest) == ("lost", b"it was not heard of, and others have declared its memory")
    other.release()
    assert late.renew().word == "ok", "there is room again"


@pytest.mark.parametrize(("late", "other"), [(WHOLE, FIRST), (FIRST, WHOLE)])
def test_a_lapsed_lease_does_not_go_on_beside_what_keeps_it_out(queue: Queue, late: str, other: str) -> None:
    first = holder(queue, late).acquire()
    lapse(queue, late)
    holder(queue, other).acquire()
    before = queue.snapshot()
    reply = first.renew()
    assert reply.word == "lost" and other.encode() in reply.rest[0]
    assert queue.snapshot() == before


def test_a_lapsed_lease_that_still_fits_goes_on(queue: Queue) -> None:
    late = holder(queue, FIRST).acquire()
    lapse(queue, FIRST)
    holder(queue, SECOND, 5000).acquire()
    assert late.renew().word == "ok"


def whole_or_slotted(queue: Queue) -> None:
    """A job or lease of the whole device and one of a slot keep each other out."""
    whole = Holder(queue, (WHOLE,)).acquire()
    queue.enqueue()
    reply = holder(queue).ask()
    assert reply.word == "taken" and reply.rest[:2] == (FIRST.encode(), grant(queue, WHOLE).encode())
    assert slot(queue).ask().word == "taken"
    whole.release()
    part = holder(queue).acquire()
    reply = Holder(queue, (WHOLE,)).ask()
    assert reply.word == "taken" and reply.rest[:2] == (WHOLE.encode(), grant(queue, FIRST).encode())
    assert queue.worker("whole", WHOLE).ask().word == "taken"
    part.release()
    run = queue.worker("another", WHOLE).claim()
    assert slot(queue, SECOND).ask().word == "taken"
    queue.complete(run)


def test_whole_or_slotted_never_both(queue: Queue) -> None:
    whole_or_slotted(queue)


@pytest.mark.parametrize("late", [WHOLE, FIRST])
def test_a_lapsed_lease_is_not_renewed_beside_another(queue: Queue, late: str) -> None:
    dead = Holder(queue, (late,), declares=3000, room=ROOM).acquire()
    lapse(queue, late)
    other = Holder(queue, (FIRST if late == WHOLE else WHOLE,), declares=3000, room=ROOM).acquire()
    before = queue.snapshot()
    reply = dead.renew()
    assert reply.word == "lost" and other.devices[0].encode() in reply.rest[0]
    assert queue.snapshot() == before
    assert lease(queue, late) == ""


def test_a_withheld_device_keeps_its_slots(queue: Queue) -> None:
    queue.enqueue(shape=SMALL)
    queue.send(queue.broker.withhold_call(WHOLE, "dirty", "memory", "", "", "w0"))
    worker, waits = slot(queue), holder(queue).wait()
    assert worker.ask().word == "taken"
    assert holder(queue, SECOND).ask().word == "withheld"
    for device in (FIRST, SECOND):
        queue.send(queue.broker.register_call(f"w{device[-1]}", device, 1, b""))
    assert queue.broker.clear(WHOLE, "me") == "ok"
    assert worker.tokens() and waits.called()
    assert worker.claim().shape == SMALL


def test_a_stream_of_small_jobs_starves_no_big_one(queue: Queue) -> None:
    """One that fits now has the head start of one level of priority, no more."""
    queue.enqueue(shape=SMALL)
    running = slot(queue).claim()
    big = queue.enqueue()
    queue.enqueue(shape=SMALL)
    other = slot(queue, SECOND)
    overtakes = other.claim()
    assert overtakes.number != big
    queue.complete(overtakes)
    queue.broker.redis.hset(queue.broker.keys.settings, "aging_us", 0)  # as if it had come four hours later
    queue.enqueue(shape=SMALL)
    assert other.ask().word == "empty", "the device is left to empty"
    assert other.tokens() == []
    queue.complete(running)
    assert other.tokens() == [WHOLE]
    assert other.claim().number == big


def test_a_shape_that_the_memory_of_the_moment_does_not_suffice_for_is_not_started(queue: Queue) -> None:
    queue.enqueue(shape=SMALL)
    worker = slot(queue, shapes=(SMALL,))
    worker.declares = (0,)
    assert worker.ask().word == "empty"
    worker.declares = (3000,)
    assert worker.claim().shape == SMALL


def test_workers_without_room_do_not_wake_each_other(queue: Queue) -> None:
    """A pending job that has no room stands for nobody: each answer passes on what it was woken for."""
    queue.enqueue(shape=BIG)
    slot(queue).claim()
    workers = [slot(queue, device) for device in (SECOND, THIRD)]
    for worker in workers:
        assert worker.ask().word == "empty"
    queue.enqueue(shape=BIG)
    asked = 0
    while asked < 20 and (woken := [worker for worker in workers if worker.tokens()]):
        for worker in woken:
            worker.ask()
            asked += 1
    assert asked <= 2


def test_forgetting_a_device_forgets_what_its_slots_had(queue: Queue) -> None:
    held = holder(queue).acquire()
    queue.send(queue.broker.withhold_call(WHOLE, "dirty", "memory", "", "", "w0"))
    assert queue.broker.forget(WHOLE, "me") == ("no", "granted")
    held.release()
    assert queue.broker.forget(WHOLE, "me") == ("ok", "")
    assert queue.broker.forget(FIRST, "me") == ("ok", "")
    assert grant(queue, FIRST) == "" and declared(queue) == {}


RULES = {
    "declared room": ("claim", "tonumber(mib) > 0 and tonumber(mib) <= left_mib", "true"),
    "what ended is not declared": ("_idle", "'HDEL', prefix .. 'declared:'", "'HGET', prefix .. 'declared:'"),
    "waking those beside it": ("_idle", "    wake(whole_name or '', 16)\n", ""),
    "the other way round": ("_slots", "or in_the_way(name))", ")"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_missing_is_found(queue: Queue, rule: str) -> None:
    with changed(*RULES[rule]), pytest.raises(AssertionError):
        (whole_or_slotted if rule == "the other way round" else fills_up)(queue)
