"""Workers and claims beside leases: a device that a lease holds, whose turn it is, and who is woken when it is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from claims import claim, device_of
from stack import Stack, until_exists
from wait import until

from foxqueue import Client
from foxqueue.leases import GpuLeases
from foxqueue.processes import ProcessId, descendants
from foxqueue.seat import ClaimHold


def leases_of(stack: Stack) -> GpuLeases:
    return GpuLeases(url=stack.environ.get("FOXQUEUE_URL") or stack.api.broker.connection.url, home=str(stack.home))


def test_a_lease_keeps_a_worker_from_its_device_and_its_release_wakes_it(stack: Stack) -> None:
    stack.up("--simulate", "1x24G", "--lease-ttl", "15s", workers=1)  # an idle worker polls each 5 s
    device = next(iter(stack.devices()))
    with leases_of(stack) as leases:
        lease = leases.acquire(device, timeout=5)
        job = stack.queue("true")
        until(lambda: stack.devices()[device]["state"] == "leased", 10, "the lease in gpus")
        key = stack.api.broker.keys.idle_for(device)
        until(lambda: stack.api.redis.zcard(key), 10, "the worker in line for its device")
        assert stack.job(job)["state"] == "pending"
        released = time.monotonic()
        lease.release()
        stack.await_state(job, "succeeded")
        assert time.monotonic() - released < 2, "not only at the next poll"


@pytest.mark.soak
def test_who_waits_for_a_lease_and_ranks_first_gets_the_device_between_two_jobs(stack: Stack, tmp_path: Path) -> None:
    stack.up("--simulate", "1x24G", "--lease-ttl", "15s", workers=1)
    device = next(iter(stack.devices()))
    flag, got = tmp_path / "flag", threading.Event()
    running = stack.queue(*until_exists(flag))
    stack.await_state(running, "running")
    behind = [stack.queue("true") for _ in range(3)]
    with leases_of(stack) as leases:
        order: list[str] = []

        def take() -> None:
            with leases.acquire(device, timeout=30, priority=9):
                order.append(str(stack.job(behind[0])["state"]))
                got.set()

        taker = threading.Thread(target=take)
        taker.start()
        until(lambda: stack.api.redis.exists(stack.api.broker.keys._key(f"lease_waiting:{device}")), 10, "his place")
        flag.touch()
        assert got.wait(10)
        taker.join(10)
        assert order == ["pending"], "before the jobs, which rank behind"
        for number in behind:
            stack.await_state(number, "succeeded", seconds=10)


HOLDS = """
import sys, time
from foxqueue.leases import GpuLeases
lease = GpuLeases(url={url!r}, home={home!r}).acquire({device!r}, timeout=10)
print("holds", flush=True)
time.sleep(600)
"""


@pytest.mark.soak
def test_a_lease_whose_holder_and_helper_were_killed_is_given_back_by_the_worker(stack: Stack) -> None:
    stack.up("--simulate", "1x24G", "--lease-ttl", "15s", workers=1)  # it would lapse after half a minute
    device = next(iter(stack.devices()))
    code = HOLDS.format(url=stack.api.broker.connection.url, home=str(stack.home), device=device)
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=stack.environ)
    assert holder.stdout is not None and holder.stdout.readline() == b"holds\n"
    job = stack.queue("true")
    until(lambda: stack.devices()[device]["state"] == "leased", 10, "the lease in gpus")
    helpers = descendants(holder.pid)
    assert helpers
    for pid in (*helpers, holder.pid):  # the helper first: else it would tell
        os.kill(pid, signal.SIGKILL)
    holder.communicate()
    began = time.monotonic()
    stack.await_state(job, "succeeded", seconds=15)
    assert time.monotonic() - began < 12
    assert "left by a dead process" in stack.log("up")


def test_a_custom_worker_waits_for_a_lease_and_is_woken_by_its_release(fox: Client) -> None:
    job = fox.submit(["a"])
    device = device_of(fox)
    found: list[int] = []

    def serve() -> None:
        with claim(fox, timeout=30) as run:
            found.append(run.number if run is not None else 0)

    # Simulated devices are known by their workers: there is none, so the lock is all that a lease has here.
    hold = ClaimHold(fox.config, device, "host", fox.broker)
    assert hold.gpu.acquire()
    token = os.urandom(8).hex()
    reply = fox.broker.send(fox.broker.lease_acquire_call(token, [device.uuid], "ann\thost\t1\t\t"))[0]
    assert reply.word == "ok", reply
    fence = reply.rest[0].decode()
    me = ProcessId.of()
    assert me is not None
    facts = {"lease": token, "fence": int(fence), "devices": [device.uuid], "worker": me.to_dict(), "user": "ann"}
    hold.gpu.write({**hold.whose(), **facts})
    serving = threading.Thread(target=serve)
    serving.start()
    try:
        until(lambda: fox.redis.zcard(fox.broker.keys.idle_for(device.uuid)), 10, "the claim in line")
        assert not found
        assert fox.broker.send(fox.broker.lease_release_call(token, fence, [device.uuid]))[0].word == "ok"
        hold.done()
        hold.gpu.unlock()
        released = time.monotonic()
        serving.join(10)
        assert found == [job.number] and time.monotonic() - released < 2
    finally:
        hold.gpu.unlock()
        serving.join(30)
