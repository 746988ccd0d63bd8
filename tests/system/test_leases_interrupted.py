"""An acquisition that is interrupted at any of its steps leaves nothing behind, and is asked twice without harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leases_place import gpus, in_line, is_free, is_unlocked, leases
from queue_driver import Queue

from foxqueue.errors import ServerUnavailable
from foxqueue.leases import GpuLeases
from foxqueue.leases.driving import _Doing
from foxqueue.leases.effects import Ask, Listen, Pause, Step
from foxqueue.leases.steps import Acquisition
from foxqueue.leases.wish import wish

__all__ = ["gpus", "leases"]


class Interrupted(BaseException):
    """As Ctrl-C would be."""


def interrupt(
    leases: GpuLeases,
    acquisition: Acquisition,
    at: int,
    *,
    done: bool,
    error: Callable[[], BaseException],
    seen: list[Step] | None = None,
) -> tuple[Any, list[Step]]:
    """Drive it, with an error thrown in at the step of that number: before it is done, or after."""
    doing, steps, seen = _Doing(leases._core), acquisition.run(), [] if seen is None else seen
    value: Any = None
    problem: BaseException | None = None
    try:
        while True:
            try:
                step = steps.send(value) if problem is None else steps.throw(problem)
            except StopIteration as stop:
                return stop.value, seen
            seen.append(step)
            value, problem = None, None
            if len(seen) - 1 == at and not done:
                problem = error()
                continue
            try:
                value = doing.do(step)
            except ServerUnavailable as fault:
                problem = fault
            if len(seen) - 1 == at:
                value, problem = None, error()
    finally:
        doing.close()


@pytest.mark.parametrize("done", [False, True])
def test_interrupted_at_any_step_it_leaves_nothing(
    leases: GpuLeases, queue: Queue, gpus: list[str], tmp_path: Path, done: bool
) -> None:
    leases.acquire(0).release()  # what only the first one does is no part of it
    for at in range(10):
        leases._core._read_at = -1e9  # the devices are read again: one more step
        try:
            grant, seen = interrupt(leases, Acquisition(leases._core, wish(0)), at, done=done, error=Interrupted)
        except Interrupted:
            assert is_free(queue, gpus[0])
            assert not queue.broker.redis.exists(queue.broker.keys.waiter("*"))
            assert is_unlocked(tmp_path, gpus[0])
        else:
            assert at == len(seen) == 2 and [spot.place.uuid for spot in grant.spots] == [gpus[0]]
            break
    else:
        raise AssertionError("it never came to its end")


@pytest.mark.soak
@pytest.mark.parametrize("done", [False, True])
def test_interrupted_in_line_it_leaves_the_line(
    leases: GpuLeases, queue: Queue, gpus: list[str], tmp_path: Path, done: bool
) -> None:
    lease = leases.acquire(0)
    stood = 0
    for at in range(12):
        acquisition, seen = Acquisition(leases._core, wish(0, timeout=0.4)), list[Step]()
        try:
            interrupt(leases, acquisition, at, done=done, error=Interrupted, seen=seen)
        except Interrupted:
            stood += acquisition.standing
            if at == len(seen) - 1:  # it was about to leave: a second Ctrl-C, and the server waits for a minute
                assert len(seen) >= 3
                break
        except Exception as error:  # noqa: BLE001 - the time was over before that step
            assert "GpuAlreadyLeased" in type(error).__name__
        assert in_line(queue, gpus[0]) == 0 and not queue.broker.redis.keys("*waiter:*")
    assert stood >= 1
    lease.release()
    leases.acquire(0, timeout=10).release()  # one that did not come to leave holds the others up for a second


def test_an_answer_that_was_lost_is_asked_for_again(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    leases.acquire(0).release()
    acquisition = Acquisition(leases._core, wish(0, timeout=5))

    def lost() -> ServerUnavailable:
        return ServerUnavailable("the answer was lost")

    grant, seen = interrupt(leases, acquisition, 0, done=True, error=lost)
    asked = [step for step in seen if isinstance(step, Ask)]
    assert len(asked) == 2 and asked[0] == asked[1]  # the same question, word by word
    assert queue.broker.redis.get(queue.broker.keys.lease(gpus[0])) == str(grant.fence).encode()
    assert queue.broker.redis.hget(queue.broker.keys.lease_stats, "acquired") == b"2"


@pytest.mark.soak
def test_who_waits_asks_nothing_but_what_is_due(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    leases.acquire(0)
    again = Acquisition(leases._core, wish(0, timeout=2.5))
    seen: list[Step] = []
    run, doing = again.run(), _Doing(leases._core)
    value: Any = None
    with pytest.raises(Exception, match="in use by"):
        while True:
            step = run.send(value)
            seen.append(step)
            value = doing.do(step)
    doing.close()
    names = [call.script.name for step in seen if isinstance(step, Ask) for call in step.calls]
    assert names == ["lease_wait", "lease_wait"]  # it stands, and it leaves
    assert sum(isinstance(step, Listen) for step in seen) >= 2


def test_what_is_given_back_while_one_comes_to_stand_in_line_is_not_missed(
    leases: GpuLeases, queue: Queue, gpus: list[str]
) -> None:
    lease = leases.acquire(0)
    acquisition = Acquisition(leases._core, wish(0, timeout=20))
    run, doing, broker = acquisition.run(), _Doing(leases._core), leases._core.broker
    value: Any = None
    steps = 0
    try:
        while True:
            step = run.send(value)
            steps += 1
            if isinstance(step, Ask) and step.calls[0].script.name == "lease_wait":
                broker.send(broker.lease_release_call(lease.token, lease.fence, gpus[:1]))  # before it stands there
            elif isinstance(step, Pause) and not lease.released:
                lease.release()  # and the lock a moment later
            assert not isinstance(step, Listen), "nobody will call it"
            value = doing.do(step)
    except StopIteration as stop:
        grant = stop.value
    finally:
        doing.close()
    assert grant.spots[0].place.uuid == gpus[0] and steps < 20
