"""Slots in the queue: what is declared on a device adds up to at most its memory; nobody is forgotten, or starves."""

from __future__ import annotations

import pytest
from queue_driver import Queue, Worker

ROOM = 10240
MIB = {"g1": ROOM, "g1.m4096": 4096, "g1.m2048": 2048, "g1.m8192": 8192}
SMALL, LARGE, WHOLE = "g1.m4096", "g1.m8192", "g1"


def slot(queue: Queue, number: int, *shapes: str, now: bool = True) -> Worker:
    """The worker of a slot; ``now`` is false where measured memory does not suffice."""
    worker = queue.worker(f"w{number}", f"GPU-1/{number}", shapes or tuple(MIB))
    worker.declares, worker.room = tuple(MIB[shape] if now else 0 for shape in worker.shapes), ROOM
    return worker


def declared(queue: Queue) -> dict[str, int]:
    found = queue.broker.redis.hgetall(queue.broker.keys.declared("GPU-1"))
    return {name.decode(): int(mib) for name, mib in found.items()}


def known(queue: Queue) -> None:
    """Shapes that everybody has seen before."""
    for shape in MIB:
        queue.broker.cancel(queue.enqueue(shape=shape), "", "me")


def test_what_is_declared_counts_from_the_claim_to_the_end(queue: Queue) -> None:
    for _ in range(3):
        queue.enqueue(shape=SMALL)
    first, second, third = (slot(queue, number) for number in range(3))
    runs = [first.claim(), second.claim()]
    assert declared(queue) == {"0": 4096, "1": 4096}
    assert third.ask().word == "empty"
    queue.enqueue(shape="g1.m2048")
    assert third.claim().number == 4  # which fits beside them
    assert queue.complete(runs[0]) == "succeeded"
    assert declared(queue) == {"1": 4096, "2": 2048}
    assert first.claim().number == 3
    assert queue.job(3)["gpus"] == "GPU-1/0"


@pytest.mark.parametrize("end", ["complete", "fail", "release", "lose", "reap"])
def test_every_end_gives_it_back(queue: Queue, end: str) -> None:
    number = queue.enqueue(shape=WHOLE)
    run = slot(queue, 0).claim()
    assert declared(queue) == {"0": ROOM}
    if end == "reap":
        queue.been_looking()
        queue.overdue(number)
        queue.reap()
    else:
        getattr(queue, end)(run)
    assert declared(queue) == {}


def test_a_device_is_whole_or_in_slots(queue: Queue) -> None:
    for _ in range(2):
        queue.enqueue(shape=SMALL)
    whole, part = queue.worker("w", "GPU-1", (SMALL,)), slot(queue, 0)
    run = part.claim()
    assert whole.ask().word == "taken"
    queue.complete(run)
    run = whole.claim()
    assert part.ask().word == "taken"
    queue.complete(run)


def test_a_job_that_fits_only_the_empty_device_waits_for_that(queue: Queue) -> None:
    """declares 0: measured memory does not suffice now, whatever is declared."""
    queue.enqueue(shape=SMALL)
    assert slot(queue, 0, SMALL, now=False).ask().word == "empty"
    assert slot(queue, 1, SMALL).ask().word == "ok"


def test_one_that_has_to_wait_for_room_is_overtaken_for_one_level_of_priority_at_most(queue: Queue) -> None:
    """Given a job that waits for room, then what fits goes first while it ranks less than ``aging`` behind it, and
    not beyond that: the device empties, and the job has it.
    """
    queue.enqueue(shape=SMALL)
    first, second = slot(queue, 0), slot(queue, 1)
    run = first.claim()
    waits = queue.enqueue(shape=LARGE)
    near, far = queue.enqueue(shape=SMALL), queue.enqueue(shape=SMALL, priority=3)  # two levels behind
    assert second.claim().number == near
    assert queue.complete(run) == "succeeded"
    assert first.ask().word == "empty"  # `far` would fit
    queue.complete(_running(queue, near, second))
    assert first.claim().number == waits
    assert queue.state(far) == "pending"


def _running(queue: Queue, number: int, worker: Worker) -> object:
    """The run of a job that a worker has, by its question asked again."""
    worker.question -= 1
    run = worker.claim()
    assert run.number == number
    return run


def test_who_has_no_room_is_woken_when_there_is_some_and_not_before(queue: Queue) -> None:
    """Workers without room would wake each other all the time for what none of them can take."""
    known(queue)
    queue.enqueue(shape=WHOLE)
    first = slot(queue, 0)
    run = first.claim()
    idle = [slot(queue, number) for number in (1, 2)]
    for worker in idle:
        assert worker.ask().word == "empty"
    queue.enqueue(shape=SMALL)
    assert [worker.tokens() for worker in idle] == [[], []]
    queue.complete(run)
    assert [worker.tokens() for worker in idle] == [["GPU-1"], ["GPU-1"]]
    assert idle[0].claim().number > 0
    assert idle[1].ask().word == "empty"  # nothing is left, and it stands under what it has room for
    queue.enqueue(shape=LARGE)
    assert idle[1].tokens() == []
    queue.enqueue(shape=SMALL)
    assert idle[1].tokens() == [SMALL]


def test_who_leaves_jobs_for_one_that_waits_for_room_is_not_woken_for_them(queue: Queue) -> None:
    known(queue)
    queue.enqueue(shape=SMALL)
    run = slot(queue, 0).claim()
    queue.enqueue(shape=LARGE)
    queue.enqueue(shape=SMALL, priority=3)
    idle = [slot(queue, number) for number in (1, 2)]
    for worker in idle:
        assert worker.ask().word == "empty"
    queue.enqueue(shape=SMALL, priority=3)
    assert [worker.tokens() for worker in idle] == [[], []]
    queue.complete(run)
    assert [worker.tokens() for worker in idle] == [["GPU-1"], ["GPU-1"]]
