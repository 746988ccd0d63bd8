"""GPUs that others use, that run full, or that do not get their memory back: on a fake machine, with real workers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_stack import TOTAL_MIB, GpuStack, gpu_stack
from nvml_stub import State
from stack import until_exists
from stub_fixtures import StartChild
from wait import until

pytestmark = pytest.mark.nvml


@pytest.fixture
def one(tmp_path: Path, nvml_state: State) -> Iterator[GpuStack]:
    """One GPU."""
    with gpu_stack(tmp_path / "stack", nvml_state) as made:
        yield made


@pytest.fixture
def two(tmp_path: Path, nvml_state: State) -> Iterator[GpuStack]:
    """Two GPUs."""
    with gpu_stack(tmp_path / "stack", nvml_state, 2) as made:
        yield made


def looks(stack: GpuStack, count: int) -> None:
    """Wait until the worker of the first GPU has told of so many more looks: it does with each poll."""

    def told() -> int:
        record = stack.api.redis.hget(stack.api.broker.keys.gpus, stack.gpus[0])
        return int(bytes(record or b"x 0 ").split(b" ")[1])

    before = told()
    until(lambda: told() >= before + count, 15, f"{count} more looks")


@pytest.mark.soak
def test_free_memory_must_hold_for_some_looks(one: GpuStack) -> None:
    """E2: a stranger whose memory comes and goes; a gap between two of his runs starts no job that needs it."""
    one.serve_with(occupied_over="1000G", admission_samples="6")
    stranger = one.stranger(0, 20_000)
    looks(one, 2)
    big = one.queue("true", gpu_memory="8G")
    until(lambda: one.job(big)["waiting_for"] == "memory", 10, "the wait for memory")
    assert "needs 8G of GPU memory, free are 4.47G of 24G" in str(one.job(big)["detail"])
    small = one.queue("true", gpu_memory="4G")
    one.await_state(small, "succeeded")
    stranger.kill()
    stranger.wait()
    looks(one, 2)  # far less than the three seconds in which six looks must agree
    stranger = one.stranger(0, 20_000)
    looks(one, 2)
    assert one.job(big)["state"] == "pending"
    assert [event["event"] for event in one.events(big)] == ["enqueue"]
    stranger.kill()
    one.await_state(big, "succeeded")


def test_a_stranger_who_comes_during_a_run_is_told_and_seen(one: GpuStack) -> None:
    """E2: the run goes on; who he is stands in the trail, in `gpus`, and in the log; then that he is gone."""
    one.serve_with()
    flag = one.root / "flag"
    job = one.queue(*one.holding(flag, (0, 9000)))
    one.await_state(job, "running")
    stranger = one.stranger(0, 3000)
    who = f"pid {stranger.pid} (root, " if Path("/root").owner() == "root" else f"pid {stranger.pid} ("
    occupied = until(lambda: one.trail("occupied"), 10, "the event")[0]
    assert (occupied["job"], occupied["device"]) == (str(job), one.gpus[0])
    assert "2.93G held by processes that are not ours: " + who.partition(" (")[0] in occupied["reason"]
    until(lambda: f"pid {stranger.pid}" in one.detail_of(0), 10, "him in gpus")
    assert one.state_of(0) == "leased" and f"pid {stranger.pid}" in one.fox("gpus").stdout
    stranger.kill()
    stranger.wait()
    until(lambda: one.trail("vacated"), 15, "the event")
    until(lambda: not one.devices()[one.gpus[0]]["detail"], 10, "nobody in gpus")
    flag.touch()
    assert one.await_state(job, "succeeded")["attempts"] == 1
    assert [event["event"] for event in one.trail("occupied", "vacated")] == ["occupied", "vacated"]
    assert f"occupied: 2.93G held by processes that are not ours: pid {stranger.pid}" in one.log("worker")


@pytest.mark.soak
def test_a_job_on_a_gpu_that_it_was_not_given_is_told(two: GpuStack) -> None:
    """F6: it sets CUDA_VISIBLE_DEVICES itself, say. And one that fills the memory of its own."""
    two.serve_with()
    flag = two.root / "flag"
    job = two.queue(*two.holding(flag, (0, 1000), (1, 2000)))
    given = two.await_state(job, "running")["gpu_uuids"][0]
    misplaced = until(lambda: two.trail("misplaced"), 15, "the event")[0]
    other = next(uuid for uuid in two.gpus if uuid != given)
    assert misplaced["device"] == given and misplaced["job"] == str(job) and other in misplaced["reason"]
    assert "does it set CUDA_VISIBLE_DEVICES itself?" in misplaced["reason"]
    until(lambda: other in str(two.devices()[given]["detail"]), 10, "it in gpus")
    until(lambda: two.devices()[other]["state"] == "occupied", 10, "the other GPU is in use")
    flag.touch()
    two.await_state(job, "succeeded")
    assert len(two.trail("misplaced")) == 1 and "misplaced" in two.log("worker")

    full = two.root / "full"
    until(lambda: {two.state_of(0), two.state_of(1)} == {"free"}, 10, "both free")
    job = two.queue(*two.holding(full, (0, 23_500), (1, 23_500)))
    low = until(lambda: two.trail("low_memory"), 15, "the event")[0]
    assert low["job"] == str(job) and "1.06G of 24G free" in low["reason"]
    assert f"low_memory: {low['reason']}" in two.log("worker")
    full.touch()
    two.await_state(job, "succeeded")


def test_a_gpu_whose_memory_does_not_come_back_is_dirty_until_it_does(one: GpuStack) -> None:
    """D2: the end of the run is told at once; the next job waits, for a while for the memory, then for a cure."""
    one.serve_with(memory_return="1s")
    flag = one.root / "flag"
    job = one.queue(*until_exists(flag))
    one.await_state(job, "running")
    one.say("gpu 0 mem_used_mib 3000")
    behind = one.queue("true")
    flag.touch()
    one.await_state(job, "succeeded", seconds=5)
    until(lambda: one.state_of(0) == "dirty", 10, "dirty")
    detail = one.detail_of(0)
    assert f"2.93G of its memory did not come back within 1s after job {job} ended" in detail
    assert f"foxqueue gpus --clear {one.gpus[0]}" in detail and "nvidia-smi --gpu-reset" in detail
    assert one.job(behind)["state"] == "pending"
    assert [event["event"] for event in one.events(behind)] == ["enqueue"]
    one.say()
    one.await_state(behind, "succeeded")
    assert one.trail("withhold", "clear")[0]["reason"].startswith("dirty")
    assert one.state_of(0) == "free"


@pytest.mark.soak
def test_memory_that_comes_back_in_time_is_waited_for(one: GpuStack) -> None:
    """A driver that takes a moment, and what was there before the run."""
    one.say("gpu 0 mem_used_mib 20")
    one.serve_with(memory_return="20s")
    flag = one.root / "flag"
    job = one.queue(*until_exists(flag))
    one.await_state(job, "running")
    one.say("gpu 0 mem_used_mib 3000")
    behind = one.queue("true")
    flag.touch()
    one.await_state(job, "succeeded", seconds=5)
    until(lambda: "is still coming back" in one.detail_of(0), 10, "the wait shown")
    assert one.job(behind)["state"] == "pending"
    began = time.monotonic()
    one.say("gpu 0 mem_used_mib 250")
    one.await_state(behind, "succeeded")
    assert time.monotonic() - began < 4, "the look is not put off until the next poll"
    assert one.trail("withhold") == []


@pytest.mark.soak
def test_a_desktop_that_is_to_be_ignored_is_none_of_ours_and_no_stranger(one: GpuStack) -> None:
    """Its memory is counted as used, before the run and after it, and grows without making the GPU dirty."""
    one.serve_with(ignore_processes="python3,python,python3.11", memory_return="1s")
    desktop = one.stranger(0, 2000)
    job = one.queue("true", gpu_memory="20G")
    one.await_state(job, "succeeded")
    desktop.kill()
    flag = one.root / "flag"
    job = one.queue(*until_exists(flag))
    one.await_state(job, "running")
    one.stranger(0, 4000)
    flag.touch()
    one.await_state(job, "succeeded")
    one.await_state(one.queue("true"), "succeeded")
    assert one.trail("withhold", "occupied") == []


@pytest.mark.soak
def test_a_gpu_outside_the_set_is_never_used(two: GpuStack) -> None:
    """F7: of two equal GPUs one is for us; it is full for a while, the other one stays untouched all the same."""
    two.environ["CUDA_VISIBLE_DEVICES"] = "1"
    two.serve_with()
    stranger = two.stranger(1, 20_000)
    until(lambda: two.state_of(1) == "occupied", 10, "his arrival")
    jobs = [two.queue("sh", "-c", "echo $CUDA_VISIBLE_DEVICES") for _ in range(4)]
    looks_before = two.job(jobs[0])
    assert (looks_before["state"], looks_before["waiting_for"]) == ("pending", "occupied")
    stranger.kill()
    for number in jobs:
        assert two.await_state(number, "succeeded")["gpu_uuids"] == [two.gpus[1]]
        assert two.api.job(number).logs() == b"1\n"
    assert list(two.devices()) == [two.gpus[1]]


@pytest.mark.soak
def test_mig_instances_are_devices_of_their_own(one: GpuStack) -> None:
    """G6: memory is that of the instance, utilisation is told of none, and a job is shown its instance by UUID."""
    instances = [f"MIG-{uuid.uuid4()}" for _ in range(2)]
    one.also += instances
    one.gpus = []
    lines = [f"mig 0 {number} uuid {instance}" for number, instance in enumerate(instances)]
    lines += ["mig 0 0 mem_total_mib 9984", "mig 0 1 mem_total_mib 19968", "gpu 0 mig_mode 1"]
    silent = "gpu 0 error nvmlDeviceGetUtilizationRates NOT_SUPPORTED"
    one.say(*lines, silent)
    one.serve_with()
    assert set(one.devices()) == set(instances)
    assert {device["utilization"] for device in one.devices().values()} == {None}
    job = one.queue("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", gpu_memory="12G")
    assert one.await_state(job, "succeeded")["gpu_uuids"] == [instances[1]]
    assert one.api.job(job).logs().decode().strip() == instances[1]
    one.say(*lines, silent, "mig 0 1 proc 1 5000")
    until(lambda: one.devices()[instances[1]]["state"] == "occupied", 10, "a stranger on one of them")
    assert one.devices()[instances[0]]["state"] == "free"
    waiting = one.queue("true", gpu_memory="12G")
    assert one.await_state(one.queue("true"), "succeeded")["gpu_uuids"] == [instances[0]]
    assert one.job(waiting)["waiting_for"] == "occupied"


def test_looking_costs_far_less_than_half_a_percent_of_a_core(nvml_state: State, start_child: StartChild) -> None:
    """Looks come a hundred times as often as they do, so that there is something to measure."""
    nvml_state.write(*(f"gpu {index} mem_total_mib {TOTAL_MIB}" for index in range(8)))
    child = start_child(cwd=Path(__file__).parent.parent.parent)
    child.run(
        "import os, time\n"
        "from foxqueue.survey import discover\n"
        "from workers import sampling\n"
        "every, sampling.EVERY_S, sampling.QUICKLY_S = sampling.EVERY_S, 0.02, 0.02\n"
        "sampler = sampling.Sampler(discover(None, 0, 'home', 'host', {})[0], lambda: None)\n"
        "sampler.begin(3)\n"
        "sampler.watch(os.getpid())\n"
        "assert sampler.fresh(5) is not None\n"
        "sampler.looks()\n"
        "cpu, looks, end = time.process_time(), 0, time.monotonic() + 1.0\n"
        "while time.monotonic() < end:\n"
        "    time.sleep(0.1)\n"
        "    looks += len(sampler.looks())\n"
        "cpu = time.process_time() - cpu\n"
    )
    looks, share = child.ask("looks"), child.ask("cpu / looks / every")
    assert looks > 10 and share < 0.005, f"{share:.3%} of a core"
