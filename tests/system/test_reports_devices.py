"""Which GPU a job gets, what it is told about it, and GPUs that are somebody else's or sick: on a fake machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import State
from stack import Stack, ended, until_exists
from wait import until

from foxqueue.locks import SHARED_PLACES

pytestmark = pytest.mark.nvml

SHOW = 'echo "$CUDA_DEVICE_ORDER|$CUDA_VISIBLE_DEVICES|$FOXQUEUE_GPUS"'
MISMATCH = "system error nvmlInit LIB_RM_VERSION_MISMATCH"  # what is open goes on working


class Machine:
    """Two unlike GPUs, the larger one first in NVML's order and second on the bus."""

    def __init__(self, root: Path, state: State) -> None:
        self.state = state
        self.small, self.large = (f"GPU-{uuid.uuid4()}" for _ in range(2))  # locks belong to the whole machine
        self.lines = [
            f"gpu 0 uuid {self.large}",
            "gpu 0 name NVIDIA H200",
            "gpu 0 bus 00000000:3B:00.0",
            "gpu 0 mem_total_mib 143771",
            f"gpu 1 uuid {self.small}",
            "gpu 1 name NVIDIA A10",
            "gpu 1 bus 00000000:10:00.0",
            "gpu 1 mem_total_mib 24576",
        ]
        state.write(*self.lines)
        environ = state.env({}, LD_LIBRARY_PATH=str(state.library))
        self.stack = Stack(root, environ)

    def forget_locks(self) -> None:
        for place in SHARED_PLACES:
            for device in (self.small, self.large):
                for file in place.glob(f"{device}.*"):
                    file.unlink()


@pytest.fixture
def machine(tmp_path: Path, nvml_state: State) -> Iterator[Machine]:
    made = Machine(tmp_path / "stack", nvml_state)
    with ended(made.stack):
        yield made
    made.forget_locks()


def told(stack: Stack, number: int) -> list[str]:
    """What a job that ran SHOW was told: order, visible devices, UUIDs."""
    stack.await_state(number, "succeeded")
    return stack.api.job(number).logs().decode().strip().split("|")


def test_a_job_is_shown_the_gpu_it_has(machine: Machine) -> None:
    """F1, F3, memory floors: PCI order with the index, UUIDs by option, the large job on the large GPU."""
    stack = machine.stack
    warned = _submit_before_any_device(stack)
    stack.up("--cpu", "1", workers=3)
    names = {device["uuid"]: (device["index"], device["name"]) for device in stack.devices().values()}
    assert names[machine.small] == (0, "NVIDIA A10") and names[machine.large] == (1, "NVIDIA H200")
    for number in (warned, stack.queue("sh", "-c", SHOW, gpu_memory="100G")):
        assert told(stack, number) == ["PCI_BUS_ID", "1", machine.large]
    by_uuid = stack.submit("sh", "-c", SHOW, flags=("--gpu-memory", "100G", "--visible", "uuid"))
    assert told(stack, by_uuid) == ["PCI_BUS_ID", machine.large, machine.large]

    flag = stack.root / "flag"
    on_large = stack.queue(*until_exists(flag), gpu_memory="100G")
    stack.await_state(on_large, "running")
    assert told(stack, stack.queue("sh", "-c", SHOW)) == ["PCI_BUS_ID", "0", machine.small]
    environ = {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_CACHE_PATH": "/x"}
    done = stack.fox("submit", "--quiet", "--", "sh", "-c", f"{SHOW}; env | grep CUDA_CACHE", environ=environ)
    assert "CUDA_VISIBLE_DEVICES" in done.stderr and "CUDA_DEVICE_ORDER" in done.stderr
    failed = stack.await_state(int(done.stdout), "failed")  # grep found nothing
    assert failed["reason"] == "exit_code"
    assert stack.fox("logs", done.stdout.strip()).stdout == f"PCI_BUS_ID|0|{machine.small}\n"
    own = stack.fox("submit", "-e", "CUDA_VISIBLE_DEVICES=1", "--", "true", check=False)
    assert own.returncode == 2 and "--visible" in own.stderr

    waits = stack.queue("true", gpu_memory="30G")  # behind the large GPU's job, though the small one is free
    assert stack.job(waits)["waiting_for"] == "devices_busy"
    cpu = stack.queue("sh", "-c", f'{SHOW}; [ -z "$CUDA_VISIBLE_DEVICES" ]', gpus=0)
    assert told(stack, cpu) == ["PCI_BUS_ID", "", ""]
    never = stack.fox("submit", "--gpu-memory", "200G", "--", "true", check=False)
    assert never.returncode == 69 and "200G" in never.stderr and "140.41G" in never.stderr
    flag.touch()
    assert stack.await_state(waits, "succeeded")["gpu_uuids"] == [machine.large]


def _submit_before_any_device(stack: Stack) -> int:
    """A floor that no device is known for yet is accepted with a warning."""
    stack.start("server")
    until(lambda: stack.fox("ls", check=False).returncode == 0, 15, "the server")
    done = stack.fox("submit", "--quiet", "--gpu-memory", "100G", "--", "sh", "-c", SHOW)
    assert "no device is registered yet" in done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("visible", ["1", "the beginning of the large one's UUID"])
def test_a_worker_serves_what_cuda_visible_devices_means(machine: Machine, visible: str) -> None:
    """F4: an index and a UUID mean the physical GPU; the job is told its place among all of them."""
    stack = machine.stack
    stack.environ["CUDA_VISIBLE_DEVICES"] = visible if visible == "1" else machine.large[:20]
    stack.up("--lease-ttl", "2s", workers=1)
    assert list(stack.devices()) == [machine.large]
    assert told(stack, stack.queue("sh", "-c", SHOW)) == ["PCI_BUS_ID", "1", machine.large]
    if visible == "1":
        del stack.environ["CUDA_VISIBLE_DEVICES"]
        # A second worker on the same GPU, of another home and queue: refused with the holder's name.
        environ = {"FOXQUEUE_HOME": str(stack.root / "other"), "FOXQUEUE_URL": stack.api.broker.connection.url}
        refused = stack.fox("worker", "--gpu", machine.large, "--namespace", "other", check=False, environ=environ)
        assert refused.returncode == 1 and f"pid {stack.api.workers()[0]['pid']}" in refused.stderr
        assert str(stack.home) in refused.stderr


def test_cuda_visible_devices_that_means_no_gpu_or_is_unclear_starts_nothing(machine: Machine) -> None:
    """F4: empty is none, not all; what is not there, a mixture, a MIG instance of nobody: refused with the cure."""
    stack = machine.stack
    commands = (("up",), ("worker", "--gpu", "0"))
    for value in ("", "-1"):
        for command in commands[:1]:
            none = stack.fox(*command, check=False, environ={"CUDA_VISIBLE_DEVICES": value})
            assert none.returncode == 1 and "no device found: --simulate 2x24G or --cpu 2" in none.stderr, none
            assert "means no GPU" in none.stderr
    for value in ("GPU-", "2", f"0,{machine.large}", "0,0", "all", "MIG-1"):
        for command in commands if value == "all" else commands[:1]:
            refused = stack.fox(*command, check=False, environ={"CUDA_VISIBLE_DEVICES": value})
            assert refused.returncode == 2, (value, refused)
            assert "write indices like 0,2 or UUIDs from nvidia-smi -L" in refused.stderr, (value, refused.stderr)


def test_a_driver_upgrade_stops_no_job_and_lets_none_start(machine: Machine) -> None:
    """G3: library and kernel module differ from some moment on, until the reboot."""
    stack = machine.stack
    stack.up("--lease-ttl", "2s")
    flags = [stack.root / name for name in ("one", "two")]
    running = []
    for flag, size in zip(flags, ("100G", "1G"), strict=True):  # the large GPU first: the other job fits both
        running.append(stack.queue(*until_exists(flag), gpu_memory=size))
        stack.await_state(running[-1], "running")
    machine.state.write(*machine.lines, MISMATCH)
    waiting = stack.queue("true")
    flags[0].touch()
    assert stack.await_state(running[0], "succeeded")["attempts"] == 1
    sick = stack.job(running[0])["gpu_uuids"][0]
    until(lambda: stack.devices()[sick]["state"] == "quarantined", 10, "the fault shown")
    assert "driver upgraded, reboot" in stack.fox("gpus").stdout
    assert stack.job(running[1])["state"] == "running"
    assert stack.job(waiting)["state"] == "pending"
    assert [event["event"] for event in stack.events(waiting)] == ["enqueue"]
    flags[1].touch()
    assert stack.await_state(running[1], "succeeded")["losses"] == 0
    until(lambda: "driver upgraded" in str(stack.job(waiting)["detail"]), 10, "the reason it waits")
    fresh = stack.fox("worker", "--gpu", "0", check=False)
    assert fresh.returncode == 1 and "driver upgraded, reboot" in fresh.stderr
    machine.state.write(*machine.lines)
    for worker in stack.api.workers():  # as a reboot would
        os.kill(worker["pid"], signal.SIGKILL)
    stack.await_state(waiting, "succeeded", seconds=15)


def test_a_strangers_gpu_is_left_alone_until_he_leaves(machine: Machine) -> None:
    """Occupied: said with the pid, the other GPU is used meanwhile, then this one."""
    stack = machine.stack
    stranger = subprocess.Popen(machine.state.holding(1, 2000), stdout=subprocess.PIPE, env={"PATH": os.defpath})
    try:
        assert stranger.stdout is not None and stranger.stdout.readline()
        held = machine.state.hold(0, 200)  # a desktop: not enough to count
        stack.up("--lease-ttl", "2s")
        device: dict[str, Any] = stack.devices()[machine.small]
        assert device["state"] == "occupied" and f"pid {stranger.pid}" in device["detail"]
        assert stack.devices()[machine.large]["state"] == "free"
        for _ in range(4):
            assert told(stack, stack.queue("sh", "-c", SHOW))[2] == machine.large
        flag = stack.root / "flag"
        holding = stack.queue(*until_exists(flag))
        assert stack.await_state(holding, "running")["gpu_uuids"] == [machine.large]
        waiting = stack.queue("sh", "-c", SHOW)
        assert "occupied" in str(stack.job(waiting)["detail"])
        assert any(
            f"pid {stranger.pid}" in str(found["detail"]) for found in json.loads(stack.fox("gpus", "--json").stdout)
        )
        assert "occupied" in stack.fox("gpus").stdout
        stranger.kill()
        stranger.wait()
        assert told(stack, waiting) == ["PCI_BUS_ID", "0", machine.small]
        held.unlink()
        flag.touch()
        stack.await_state(holding, "succeeded")
    finally:
        stranger.kill()
        with suppress(OSError):
            stranger.communicate()


def test_a_job_that_waits_for_a_full_gpu_is_cancelled_at_once(machine: Machine) -> None:
    """D6: both GPUs are full of a stranger's memory; the head of the queue is cancelled, the next one runs then."""
    stack, pid = machine.stack, os.getpid()
    strangers = [machine.state.hold(gpu, mib, pid) for gpu, mib in ((0, 140_000), (1, 24_000))]
    stack.up("--lease-ttl", "2s")
    assert {device["state"] for device in stack.devices().values()} == {"occupied"}
    head, behind = stack.queue("true", priority=9), stack.queue("true")
    assert (stack.job(head)["state"], stack.job(head)["waiting_for"]) == ("pending", "occupied")
    began = time.monotonic()
    assert stack.api.job(head).cancel().state == "cancelled"
    assert time.monotonic() - began < 1
    assert stack.fox("wait", str(head), check=False, timeout=10).returncode == 1
    assert stack.job(behind)["state"] == "pending"
    for stranger in strangers:
        stranger.unlink()
    stack.await_state(behind, "succeeded")
    assert [event["event"] for event in stack.events(head)] == ["enqueue", "cancel"]


def test_each_kind_of_job_stays_on_its_kind_of_device(stack: Stack) -> None:
    """CPU slots: a GPU job never takes one, a job without a GPU never takes a GPU."""
    stack.up("--simulate", "1x24G,1x8G", "--cpu", "2", workers=4)
    kinds = {device["uuid"]: device["kind"] for device in stack.devices().values()}
    totals = {device["uuid"]: device["memory_total_mib"] for device in stack.devices().values()}
    flag = stack.root / "flag"
    on_gpu = [stack.queue(*until_exists(flag)) for _ in range(3)]
    on_cpu = [stack.queue(*until_exists(flag), gpus=0) for _ in range(3)]
    for number in (*on_gpu[:2], *on_cpu[:2]):
        stack.await_state(number, "running")
    assert stack.job(on_gpu[2])["state"] == stack.job(on_cpu[2])["state"] == "pending"
    assert {device["state"] for device in stack.devices().values()} == {"leased"}
    flag.touch()
    ran = {number: stack.await_state(number, "succeeded")["gpu_uuids"][0] for number in (*on_gpu, *on_cpu)}
    assert {kinds[ran[number]] for number in on_gpu} == {"simulated"}
    assert {kinds[ran[number]] for number in on_cpu} == {"cpu"}
    large = [stack.queue("true", gpu_memory="8.1G") for _ in range(3)]
    for number in large:
        assert totals[stack.await_state(number, "succeeded")["gpu_uuids"][0]] == 24 * 1024
    for flags, text in ((("--gpu-memory", "25G"), "24G"), (("--gpu-memory", "24.1G"), "24G")):
        refused = stack.fox("submit", *flags, "--", "true", check=False)
        assert refused.returncode == 69 and text in refused.stderr
    nonsense = stack.fox("submit", "--gpus", "0", "--gpu-memory", "1G", "--", "true", check=False)
    assert nonsense.returncode == 2
    stats = stack.api.stats()
    assert (stats["total_gpu_slots"], stats["available_gpu_slots"]) == (2, 2)
