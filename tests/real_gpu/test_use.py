"""A device in use: by a real CUDA program, by a lease, by a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from real_gpu.gpu_check import CUDA, HELD_MIB, Hold, Told, cuda, digits, say
from stack import Stack
from wait import until

from foxqueue.errors import GpuAlreadyLeased, InsufficientMemory, NoGpuAvailable
from foxqueue.gpu import Device
from foxqueue.leases import GpuLeases
from foxqueue.probing import Observation, Probe
from foxqueue.snapshots import memory_of
from foxqueue.submission import user

pytestmark = pytest.mark.real_gpu

BACK_S = 20.0  # for the driver to give memory back


@pytest.fixture
def leases(stack: Stack, device: Device) -> Iterator[GpuLeases]:
    """Leases of that device, on a server without workers."""
    stack.serve()
    with GpuLeases(home=str(stack.home), gpus=[device.uuid]) as made:
        yield made


def is_free(probe: Probe) -> bool:
    return probe.look(()).state == "free"


def memory_told(device: Device) -> None:
    if memory_of(device) is None:
        pytest.skip("the driver does not tell the memory of this device")


# --- by a stranger -------------------------------------------------------------------------------------


def test_a_cuda_program_occupies_it_with_what_it_holds(device: Device, probe: Probe, hold: Hold) -> None:
    before = probe.look(())
    _, told = hold()
    assert told["devices"] == [digits(device.uuid)]
    seen = probe.look(())
    assert seen.state == "occupied", seen
    assert "not ours" in seen.detail
    say(seen.detail)
    if before.memory_used_mib is not None and seen.memory_used_mib is not None:
        grown = seen.memory_used_mib - before.memory_used_mib
        say(f"{HELD_MIB} MiB allocated, {grown} MiB more in use")
        assert HELD_MIB <= grown < HELD_MIB + 2048
        assert abs(told["total_mib"] - (seen.memory_total_mib or 0)) < 2048


def test_the_program_is_told_with_user_and_command_where_it_can_be_seen(probe: Probe, hold: Hold) -> None:
    process, told = hold()
    seen = probe.look(())
    if not seen.pids_known or told["pid"] not in [stranger.pid for stranger in seen.strangers]:
        pytest.skip(f"NVML does not tell our process numbers here: {_shown(seen)}")
    stranger = next(one for one in seen.strangers if one.pid == process.pid)
    assert stranger.user == user()
    assert stranger.command.startswith("python") and stranger.command.endswith("cuda.py")
    if stranger.mib is None:
        pytest.skip("NVML gives no figure for single processes here")
    assert stranger.mib >= HELD_MIB
    ours = probe.look((process.pid,))
    assert (ours.state, ours.strangers) == ("free", ()) and ours.ours_mib == stranger.mib
    assert probe.look((), ignore=("python", "python3", stranger.command.split()[0])).state == "free"


def _shown(seen: Observation) -> str:
    return f"{[stranger.shown for stranger in seen.strangers]}, {seen.memory_used_mib} MiB in use"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_memory_comes_back_when_its_program_ends(probe: Probe, hold: Hold, end: signal.Signals) -> None:
    before = probe.look(()).memory_used_mib
    process, _ = hold()
    assert not is_free(probe)
    process.send_signal(end)
    process.wait(20)
    began = time.monotonic()
    until(lambda: is_free(probe), BACK_S, "the memory given back")
    say(f"after {end.name} the device was free within {time.monotonic() - began:.2f} s")
    after = probe.look(()).memory_used_mib
    assert before is None or after is None or after < before + 256


# --- by a lease ----------------------------------------------------------------------------------------


def test_a_lease_is_acquired_and_released(leases: GpuLeases, device: Device, stack: Stack) -> None:
    with leases.acquire(device.uuid, holder="gpu-check", timeout=0) as lease:
        assert (lease.gpu_uuid, lease.index) == (device.uuid, device.index)
        with (
            GpuLeases(home=str(stack.home), gpus=[device.uuid]) as others,
            pytest.raises(GpuAlreadyLeased) as refused,
        ):
            others.acquire(device.uuid, timeout=0)
        assert "gpu-check" in str(refused.value)
        told = cuda("take", "64", **lease.env())
        assert told["devices"] == [digits(device.uuid)], "a program sees the leased device and no other"
        first = lease.fence
    again = leases.acquire(device.uuid, timeout=0)
    assert again.fence > first
    again.release()


def test_a_device_in_use_is_not_leased(leases: GpuLeases, device: Device, hold: Hold) -> None:
    """By another process; what a process and its children have of it is their own."""
    _, told = hold(orphan=True)
    with pytest.raises(NoGpuAvailable) as refused:
        leases.acquire(device.uuid, timeout=0)
    assert "not ours" in str(refused.value)
    say(str(refused.value))
    os.kill(told["pid"], signal.SIGKILL)
    leases.acquire(device.uuid, timeout=BACK_S).release()


def test_more_memory_than_is_there_is_refused_with_both_figures(leases: GpuLeases, device: Device) -> None:
    memory_told(device)
    total = leases.memory(device.uuid).total
    with pytest.raises((InsufficientMemory, NoGpuAvailable)) as refused:
        leases.acquire(device.uuid, memory=total + 1024, timeout=0)
    say(str(refused.value))
    leases.acquire(device.uuid, memory=HELD_MIB, timeout=10).release()


# --- by a job ------------------------------------------------------------------------------------------


@pytest.fixture
def served(stack: Stack) -> Stack:
    """A worker of that device."""
    stack.up("--lease-ttl", "2s", workers=1)
    return stack


def take(stack: Stack, words: tuple[str, ...] = ("take", "256"), **options: object) -> int:
    return stack.queue(sys.executable, str(CUDA), *words, **options)


def said(stack: Stack, number: int) -> Told:
    told: Told = json.loads(stack.api.job(number).logs().decode().splitlines()[0])
    return told


def test_a_job_has_the_device_to_itself(served: Stack, device: Device) -> None:
    assert list(served.devices()) == [device.uuid]
    for visible in ("index", "uuid"):
        number = take(served, visible=visible)
        served.await_state(number, "succeeded", seconds=60)
        assert said(served, number)["devices"] == [digits(device.uuid)]


def test_a_job_waits_for_enough_memory_and_for_strangers(
    served: Stack, device: Device, probe: Probe, hold: Hold
) -> None:
    memory_told(device)
    process, _ = hold()
    until(lambda: served.devices()[device.uuid]["state"] == "occupied", 30, "the worker sees the stranger")
    number = take(served, gpu_memory="512M")
    until(lambda: served.job(number)["waiting_for"] == "occupied", 10, "the reason")
    say(str(served.job(number)["detail"]))
    process.kill()
    process.wait()
    served.await_state(number, "succeeded", seconds=60)


@pytest.mark.parametrize("victim", ["command", "worker"])
def test_what_is_killed_gives_the_device_back(served: Stack, probe: Probe, victim: str) -> None:
    """Under the driver's own clean-up: the next job runs when the memory is back, on the same device."""
    number = take(served, ("hold", str(HELD_MIB)))
    served.await_state(number, "running", seconds=60)
    until(lambda: not is_free(probe), 30, "memory held by the job")
    behind = take(served)
    began = time.monotonic()
    if victim == "command":
        for pid in served.processes_of(number):
            subprocess.run(["kill", "-KILL", str(pid)], check=False)
        served.await_state(number, "failed", seconds=60)
    else:
        assert served.worker_of(number).send(signal.SIGKILL)
        until(lambda: served.job(number)["state"] != "running", 60, "the run lost")
        served.api.job(number).cancel()
    served.await_state(behind, "succeeded", seconds=90)
    say(f"after SIGKILL to the {victim} the next job had run within {time.monotonic() - began:.1f} s")
    served.await_state(number, "failed", "cancelled", seconds=60)


def test_foxqueue_tells_of_the_device(served: Stack, device: Device) -> None:
    shown = served.fox("gpus").stdout
    assert device.ref in shown and "free" in shown
    done = served.fox("doctor", check=False)
    assert device.uuid in done.stdout, done.stdout + done.stderr
