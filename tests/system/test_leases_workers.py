"""Leases and a foxqueue's workers share its devices."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from nvml_stub import Child
from stack import Stack, until_exists
from wait import until

from foxqueue.errors import GpuAlreadyLeased
from foxqueue.leases import GpuLeases, Lease


@pytest.fixture
def one(stack: Stack) -> Stack:
    """One simulated device, served under short leases."""
    stack.up("--simulate", "1x24G", "--lease-ttl", "2s", workers=1)
    return stack


@pytest.fixture
def leases(one: Stack) -> Iterator[GpuLeases]:
    with GpuLeases(home=one.home) as made:
        yield made


def waiting(leases: GpuLeases, **options: Any) -> tuple[threading.Thread, list[Lease]]:
    """A thread that acquires the device."""
    got: list[Lease] = []
    thread = threading.Thread(target=lambda: got.append(leases.acquire(0, timeout=60, **options)), daemon=True)
    thread.start()
    return thread, got


@pytest.mark.soak
def test_a_job_waits_for_the_lease_and_starts_when_it_ends(one: Stack, leases: GpuLeases) -> None:
    lease = leases.acquire("sim:0", holder="notebook")
    number = one.queue("true")
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        assert one.job(number)["state"] == "pending"
        lease.check()
        time.sleep(0.1)
    lease.release()
    released = time.monotonic()
    one.await_state(number, "succeeded")
    assert time.monotonic() - released < 5


def test_a_lease_waits_for_the_job_and_is_called_when_it_ends(one: Stack, leases: GpuLeases) -> None:
    flag = one.root / "flag"
    number = one.queue(*until_exists(flag))
    one.await_state(number, "running")
    with pytest.raises(GpuAlreadyLeased, match=f"job {number} of") as caught:
        leases.acquire(0, timeout=0)
    assert caught.value.holder is not None and caught.value.holder.job == number
    thread, got = waiting(leases)
    keys = one.api.broker.keys
    until(lambda: one.api.redis.zcard(keys.lease_waiting(leases._core.places.all[0].uuid)), 10, "the line")
    later = one.queue("true")
    flag.touch()
    thread.join(20)
    assert one.job(later)["state"] == "pending"  # it came after the waiter
    got[0].release()
    one.await_state(later, "succeeded")


@pytest.mark.soak
def test_an_urgent_job_goes_before_a_waiter(one: Stack, leases: GpuLeases) -> None:
    lease = leases.acquire(0)
    urgent = one.queue(*until_exists(one.root / "flag"), priority=9)
    thread, got = waiting(leases)
    lease.release()
    one.await_state(urgent, "running")
    assert not got
    (one.root / "flag").touch()
    thread.join(20)
    got[0].release()
    one.await_state(urgent, "succeeded")


@pytest.mark.soak
def test_the_worker_gives_back_what_a_dead_holder_left(one: Stack, leases: GpuLeases) -> None:
    child = Child(one.environ)
    try:
        child.run(f"from foxqueue.leases import GpuLeases\nlease = GpuLeases(home={str(one.home)!r}).acquire(0)")
        helper = child.ask("lease._renewals.helper")
        number = one.queue("true")
        os.kill(helper, signal.SIGKILL)
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()
        one.await_state(number, "succeeded", seconds=20)
    finally:
        child.close()


@pytest.mark.soak
def test_an_idle_worker_refuses_no_lease(one: Stack, leases: GpuLeases) -> None:
    for _ in range(60):
        leases.acquire(0, timeout=0).release()


@pytest.mark.soak
def test_many_of_both_take_turns(one: Stack, leases: GpuLeases) -> None:
    numbers = [one.queue("true") for _ in range(6)]
    for _ in range(6):
        with leases.acquire(0, timeout=60) as lease:
            lease.check()
            states = [one.job(number)["state"] for number in numbers]
            assert "running" not in states
    for number in numbers:
        one.await_state(number, "succeeded", seconds=40)
