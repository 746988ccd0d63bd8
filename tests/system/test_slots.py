"""Slots: jobs that share a GPU, by the memory that they declare and by what NVML measures. E2 of the reported cases."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import State
from slotted import Shared, shared_gpu
from stack import Stack, until_exists
from wait import until

from foxqueue.processes import ProcessId

pytestmark = pytest.mark.nvml

FORTY = "4G"  # of 10


@pytest.fixture
def shared(tmp_path: Path, nvml_state: State) -> Iterator[Shared]:
    with shared_gpu(tmp_path / "stack", nvml_state) as made:
        yield made


def test_two_jobs_of_40_percent_share_a_gpu_and_a_third_waits(shared: Shared) -> None:
    """E2: what is declared counts from the claim on, so a slow starter is not overrun; what is measured counts too."""
    shared.up(4)
    stack = shared.stack
    slow, second = shared.job("slow", gpu_memory=FORTY), shared.job("second", gpu_memory=FORTY)
    devices = {slow.runs(), second.runs()}
    assert len(devices) == 2 and all(device.startswith(f"{shared.uuid}/") for device in devices)
    third = shared.job("third", gpu_memory=FORTY)
    third.waits_for("memory", "needs 4G of GPU memory, and 8G of 10G are declared")
    slow.hold(4000)  # late, and there is room
    second.hold(4000)
    until(lambda: stack.devices()[min(devices)]["memory_free_mib"] == 2240, 10, "8000 MiB seen in use")
    small = shared.job("small", gpu_memory="1G")
    assert small.runs() not in devices  # the others are no strangers to it
    assert stack.job(third.number)["state"] == "pending"
    small.end()
    second.hold(6200)  # more than it declared: nobody stops that, and the next one sees it
    until(lambda: stack.devices()[min(devices)]["memory_free_mib"] == 40, 10, "10200 MiB seen in use")
    slow.end()
    third.waits_for("memory", "needs 4G of GPU memory, free are")
    second.end()
    third.runs()
    third.end()
    assert [event["event"] for event in stack.events(third.number)] == ["enqueue", "claim", "complete"]


def test_a_job_that_declares_nothing_has_the_gpu_alone(shared: Shared) -> None:
    shared.up(2)
    stack = shared.stack
    small = shared.job("small", gpu_memory="1G")
    small.runs()
    show = 'echo "$CUDA_DEVICE_ORDER|$CUDA_VISIBLE_DEVICES|$FOXQUEUE_GPUS"'
    whole = shared.job("whole")
    whole.waits_for("memory", "needs all of the GPU's 10G, and 1G of 10G are declared")
    small.end()
    device = whole.runs()
    next_one = stack.queue("sh", "-c", show, gpu_memory="1M")
    until(lambda: stack.job(next_one)["waiting_for"] == "memory", 10, "no room beside the whole")
    whole.end()
    stack.await_state(next_one, "succeeded")
    order, visible, gpus = stack.api.job(next_one).logs().decode().strip().split("|")
    assert (order, visible) == ("PCI_BUS_ID", "0") and gpus in (f"{shared.uuid}/0", f"{shared.uuid}/1")
    by_uuid = stack.queue("sh", "-c", show, visible="uuid")
    stack.await_state(by_uuid, "succeeded")
    assert stack.api.job(by_uuid).logs().decode().split("|")[1] == shared.uuid
    assert device.startswith(f"{shared.uuid}/")


@pytest.mark.soak
def test_a_stranger_beside_the_slots_is_one(shared: Shared) -> None:
    stack = shared.stack
    stranger = subprocess.Popen(shared.state.holding(0, 2000), stdout=subprocess.PIPE)
    try:
        assert stranger.stdout is not None and stranger.stdout.readline()
        shared.up(2)
        assert {device["state"] for device in stack.devices().values()} == {"occupied"}
        waits = shared.job("waits", gpu_memory="1G")
        waits.waits_for("occupied", str(stranger.pid))
    finally:
        stranger.kill()
        stranger.communicate()
    waits.runs()
    waits.end()


@pytest.mark.soak
def test_what_dies_on_one_slot_leaves_the_others_alone(shared: Shared) -> None:
    """Given a run on each of two slots, when one's worker is killed, then its runner too, then the other one's run
    is the same all the while, and what the dead ones declared is free again.
    """
    shared.up(2)
    stack = shared.stack
    one, other = shared.job("one", gpu_memory="5G"), shared.job("other", gpu_memory="5G")
    slot = one.runs()
    other.runs()
    other.hold(5000)
    kept = stack.job(other.number)["fence"]
    stack.worker_of(one.number).send(signal.SIGKILL)
    until(lambda: stack.job(one.number)["losses"] == 1 and one.runs(), 20, "the run again")
    assert stack.job(one.number)["gpu_uuids"] == [slot]
    worker, runner = stack.worker_of(one.number), stack.runner_of(one.number)
    left = stack.processes_of(one.number)
    for process in (worker, runner):
        process.send(signal.SIGKILL)
    until(lambda: stack.job(one.number)["losses"] == 2 and one.runs(), 20, "the run again")
    assert not any(identity.alive() for identity in map(ProcessId.of, left) if identity is not None)
    assert (stack.job(other.number)["fence"], stack.job(other.number)["attempts"]) == (kept, 1)
    one.end()
    other.end()
    assert stack.api.redis.hgetall(f"{stack.api.broker.keys.prefix}declared:{shared.uuid}") == {}
    whole = shared.job("whole")
    whole.runs()
    whole.end()
    assert stack.fox("down").returncode == 0
    assert stack.all_processes() == []


@pytest.mark.soak
@pytest.mark.parametrize("before", ["whole", "slots"])
def test_what_runs_whole_is_ended_before_slots_begin_and_the_reverse(shared: Shared, before: str) -> None:
    """Given a run whose worker and `up` were killed, when `up` serves the same GPU the other way, then the run is ended
    and told first, and runs again.
    """
    stack = shared.stack
    flags = {"whole": ("--lease-ttl", "2s"), "slots": ("--lease-ttl", "2s", "--slots", "2")}
    up = stack.up(*flags[before], workers=1 if before == "whole" else 2)
    job = shared.job("job", gpu_memory=FORTY)
    job.runs()
    worker, runner = stack.worker_of(job.number), stack.runner_of(job.number)
    up.kill()
    workers = [ProcessId.of(found["pid"]) for found in stack.api.workers()]
    for process in (*workers, worker):
        assert process is not None
        process.send(signal.SIGKILL)
    after = "slots" if before == "whole" else "whole"
    stack.up(*flags[after], workers=1)
    until(lambda: stack.job(job.number)["losses"] == 1, 20, "the run told as lost")
    assert not runner.alive()
    assert ("/" in job.runs()) is (after == "slots")
    job.end()


@pytest.mark.soak
def test_down_ends_what_runs_on_slots_without_up(shared: Shared) -> None:
    """Given `up` and a worker killed, then `down` ends the other worker with its run, and the run without one."""
    up, stack = shared.up(2), shared.stack
    jobs = [shared.job(name, gpu_memory=FORTY) for name in ("one", "other")]
    for job in jobs:
        job.runs()
    processes = [*stack.processes_of(jobs[0].number), *stack.processes_of(jobs[1].number)]
    workers = [stack.worker_of(job.number) for job in jobs]
    up.kill()
    workers[0].send(signal.SIGKILL)
    down = stack.start("down")
    until(lambda: not workers[0].alive() and workers[1].alive(), 10, "the dead worker gone")
    jobs[1].finish()
    assert stack.exit_status(down.pid, 40) == 0
    assert stack.all_processes() == [] and len(processes) >= 2
    assert f"ending job {jobs[0].number}, which has no worker any more" in stack.log("down")


@pytest.mark.soak
def test_up_goes_on_with_the_slots_that_another_up_left(stack: Stack) -> None:
    """Given `up` killed, then the next one with slots watches its workers, and one without is refused."""
    simulated = ("--simulate", "1x8G")
    stack.up(*simulated, "--slots", "2", workers=2).kill()
    refused = stack.fox("up", *simulated, check=False)
    assert refused.returncode != 0 and "serve sim:0 in slots: run foxqueue down first" in refused.stderr
    workers = {worker["pid"] for worker in stack.api.workers()}
    assert len(workers) == 2
    stack.up(*simulated, "--slots", "3", workers=3)
    assert stack.log("up").count("did not start") == 2
    assert workers < {worker["pid"] for worker in stack.api.workers()}


def test_a_device_is_whole_or_in_slots_for_all_users(shared: Shared) -> None:
    """Given slots served, when another queue wants the GPU whole or one slot, then it is told by whom it is held."""
    shared.up(2)
    stack = shared.stack
    environ = {"FOXQUEUE_HOME": str(stack.root / "other"), "FOXQUEUE_URL": stack.api.broker.connection.url}
    pids = [worker["pid"] for worker in stack.api.workers()]
    for flags in (("--gpu", "0"), ("--gpu", "gpu:0/5", "--slots", "8")):
        refused = stack.fox("worker", *flags, "--namespace", "other", check=False, environ=environ)
        assert refused.returncode == 1, refused
        assert any(f"pid {pid}" in refused.stderr for pid in pids) and str(stack.home) in refused.stderr, refused


def test_memory_above_what_was_declared(shared: Shared) -> None:
    """--enforce-memory kill: the run ends as gpu_oom with the figures; its neighbour, of the same size, does not."""
    shared.up(2, "--enforce-memory", "kill")
    stack = shared.stack
    greedy, modest = shared.job("greedy", gpu_memory=FORTY), shared.job("modest", gpu_memory="5G")
    greedy.runs()
    modest.runs()
    modest.hold(5000)
    greedy.hold(4200)
    job = stack.await_state(greedy.number, "failed")
    assert job["reason"] == "gpu_oom"
    for text in ("4200 MiB", "declared 4G (4096 MiB)", "--enforce-memory"):
        assert text in job["detail"], job["detail"]
    assert len(stack.events(greedy.number, "over_memory")) == 1
    assert stack.job(modest.number)["state"] == "running"
    modest.end()


@pytest.mark.soak
def test_memory_above_what_was_declared_is_told(shared: Shared) -> None:
    """--enforce-memory warn, on a whole GPU: an event with the figures, once, and the run goes on."""
    stack = shared.stack
    stack.up("--enforce-memory", "warn", workers=1)
    greedy = shared.job("greedy", gpu_memory=FORTY)
    greedy.runs()
    greedy.hold(4200)
    found = until(lambda: stack.events(greedy.number, "over_memory"), 15, "the event")
    assert "4200 MiB" in found[0]["reason"] and "4096 MiB" in found[0]["reason"]
    assert greedy.end()["reason"] == "exit_code"
    assert len(stack.events(greedy.number, "over_memory")) == 1


def test_what_cannot_be_parted_starts_nothing(stack: Stack) -> None:
    for flags, texts in (
        (("--slots", "1", "--simulate", "1x8G"), ("--slots", "2<=x<=16")),
        (("--slots", "17", "--simulate", "1x8G"), ("--slots", "2<=x<=16")),
        (("--slots", "2.0", "--simulate", "1x8G"), ("--slots", "not a whole number")),
        (("--slots", "2", "--cpu", "2"), ("--slots shares GPUs", "--simulate")),
        (("--slots", "16", "--simulate", "20x8G"), ("20 GPUs in 16 slots", "give fewer")),
        (("--enforce-memory", "maybe", "--simulate", "1x8G"), ("--enforce-memory", "warn", "kill")),
    ):
        refused = stack.fox("up", *flags, check=False)
        assert refused.returncode == 2, (flags, refused)
        assert all(text in refused.stderr for text in texts), (flags, refused.stderr)
    assert stack.all_processes() == []
    for slots, code in (("4", 0), ("1", 2)):  # the service refuses what `up` would
        words = ("service", "install", "--user", "--dry-run", "--", "--slots", slots, "--enforce-memory", "kill")
        done = stack.fox(*words, check=False)
        assert done.returncode == code and (" up --slots 4 --enforce-memory kill" in done.stdout) is (code == 0), done
    unknown = stack.fox("worker", "--gpu", "sim:0/1", "--simulate", "1x8G", check=False)
    assert unknown.returncode == 1 and "sim:0" in unknown.stderr


@pytest.mark.soak
def test_slots_of_simulated_gpus(stack: Stack) -> None:
    """Without NVML: each GPU in slots, CPU slots beside them as they are, and texts that say which."""
    stack.up("--simulate", "2x8G", "--cpu", "1", "--slots", "2", workers=5)
    refs = sorted(line.split()[0] for line in stack.fox("gpus").stdout.splitlines() if ":" in line.split()[0])
    assert refs == ["cpu:0", "sim:0/0", "sim:0/1", "sim:1/0", "sim:1/1"]
    flag = stack.root / "flag"
    jobs = [stack.queue(*until_exists(flag), gpu_memory="4G") for _ in range(5)]
    devices = {stack.await_state(number, "running")["gpu_uuids"][0] for number in jobs[:4]}
    assert len(devices) == 4
    assert stack.job(jobs[4])["state"] == "pending"
    flag.touch()
    for number in jobs:
        stack.await_state(number, "succeeded")
    cpu = stack.queue(sys.executable, "-S", "-c", "pass", gpus=0)
    stack.await_state(cpu, "succeeded")


@pytest.mark.soak
def test_room_that_comes_is_used_at_once(stack: Stack) -> None:
    """Given slots that stand idle as memory is lacking, when the run beside them ends, then they need not ask again."""
    stack.up("--simulate", "1x9G", "--slots", "3", "--cpu", "1", workers=4)
    flag, end = stack.root / "flag", stack.root / "end"
    large = stack.queue(*until_exists(flag), gpu_memory="9G")
    stack.await_state(large, "running")
    small = [stack.queue(*until_exists(end), gpu_memory="3G") for _ in range(3)]
    until(lambda: stack.job(small[0])["waiting_for"] == "memory", 10, "no room")
    until(lambda: int(stack.api.redis.zcard(stack.api.broker.keys.idle)) >= 2, 10, "both idle")
    last = stack.queue(*until_exists(end), gpu_memory="3G")  # wakes nobody
    before = _questions(stack)
    stack.await_state(stack.queue("sleep", "1", gpus=0), "succeeded")  # for so long nobody finds room
    assert _questions(stack) - before < 20  # nor do they ask all the time
    flag.touch()
    for number in small:
        stack.await_state(number, "running", seconds=2.5)
    end.touch()
    for number in (*small, last):
        stack.await_state(number, "succeeded")


def _questions(stack: Stack) -> int:
    """How many claims the workers have sent."""
    asked: Any = stack.api.redis.hvals(stack.api.broker.keys.claims)
    return sum(int(found.split(b":")[0]) for found in asked)
