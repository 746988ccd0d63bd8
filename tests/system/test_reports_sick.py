"""GPUs that are sick: what NVML says, calls that hang, memory errors, runs that fail at once; real workers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_stack import GpuStack, gpu_stack
from nvml_stub import State
from stack import until_exists
from wait import until

from foxqueue.processes import short_boot_id

pytestmark = pytest.mark.nvml

LOST = "gpu {} error * GPU_IS_LOST"
BROKEN = "import sys; print('RuntimeError: CUDA error: unknown error'); sys.exit(1)"


@pytest.fixture
def two(tmp_path: Path, nvml_state: State) -> Iterator[GpuStack]:
    """Two GPUs."""
    with gpu_stack(tmp_path / "stack", nvml_state, 2) as made:
        yield made


def started_on(stack: GpuStack, number: int) -> int:
    """Index of the GPU that a job got."""
    return stack.gpus.index(stack.await_state(number, "running")["gpu_uuids"][0])


def test_a_lost_gpu_is_quarantined_its_failed_run_given_back_and_the_others_go_on(two: GpuStack) -> None:
    """G3, D10: a run that ends well is accepted all the same; one that fails by itself is not to blame."""
    two.serve_with()
    flags = [two.root / name for name in ("one", "two")]
    first = two.queue("sh", "-c", f"while [ ! -e {flags[0]} ]; do sleep 0.05; done; [ $FOXQUEUE_ATTEMPT = 1 ]; exit $?")
    sick = started_on(two, first)
    two.say(LOST.format(sick))
    until(lambda: two.trail("withhold"), 10, "the quarantine")
    assert two.job(first)["state"] == "running", "no run is killed for it"
    assert two.state_of(sick) in ("leased", "quarantined")
    others = [two.queue("true") for _ in range(3)]
    for number in others:
        assert two.await_state(number, "succeeded")["gpu_uuids"] == [two.gpus[1 - sick]]
    flags[0].touch()
    assert two.await_state(first, "succeeded")["losses"] == 0
    until(lambda: two.state_of(sick) == "quarantined", 10, "quarantined")
    assert "the GPU is lost" in two.detail_of(sick) and f"--clear {two.gpus[sick]}" in two.detail_of(sick)

    # It is well again, says NVML: an operator has to say so too, or its worker be started anew.
    two.say()
    assert two.fox("gpus", "--clear", two.gpus[sick]).returncode == 0
    until(lambda: two.state_of(sick) == "free", 10, "free")
    running = two.queue(*until_exists(flags[1]))
    other = started_on(two, running)
    code = (
        "import os, sys, time\n"
        f"while not os.path.exists({str(two.root / 'fail')!r}): time.sleep(0.02)\n"
        f"sys.exit(3 if os.environ['FOXQUEUE_GPUS'] == {two.gpus[1 - other]!r} else 0)"
    )
    fails = two.queue(sys.executable, "-S", "-c", code)
    broken = started_on(two, fails)
    assert broken != other
    two.say(LOST.format(broken))
    (two.root / "fail").touch()
    released = until(lambda: two.events(fails, "release"), 15, "given back")[0]
    assert released["reason"] == "quarantined"
    until(lambda: "lost" in str(two.job(fails)["detail"]), 5, "why it waits again")
    flags[1].touch()
    ended = two.await_state(fails, "succeeded")
    assert (ended["gpu_uuids"], ended["attempts"], ended["losses"]) == ([two.gpus[other]], 1, 0)


@pytest.mark.soak
def test_a_worker_that_is_started_anew_clears_what_a_repair_has_cured(two: GpuStack) -> None:
    """And what another boot has; not what runs have shown in this one: that an operator clears."""
    two.serve(2000)
    for device, boot in zip(two.gpus, ("00000000", short_boot_id()), strict=True):
        withhold = two.api.broker.withhold_call(device, "quarantined", "ecc", "found before", boot, "a worker")
        assert two.api.broker.send(withhold)[0].word == "ok"
    two.set(fast_failures="1")
    two.up("--lease-ttl", "2s")
    until(lambda: (two.state_of(0), two.state_of(1)) == ("free", "quarantined"), 10, "the first one cleared")
    two.fox("gpus", "--clear", two.gpus[1])
    until(lambda: two.state_of(1) == "free", 5, "the other one cleared")
    two.say("gpu 0 error nvmlDeviceGetMemoryInfo UNKNOWN")
    until(lambda: two.state_of(0) == "quarantined", 10, "quarantined")
    two.say()
    pid = next(worker["pid"] for worker in two.api.workers() if two.gpus[0] in str(worker))
    until(lambda: two.state_of(0) == "quarantined", 5, "still")
    os.kill(pid, signal.SIGKILL)
    until(lambda: two.state_of(0) == "free", 20, "free after the restart")

    jobs = [two.queue(sys.executable, "-c", BROKEN) for _ in range(2)]
    for number in jobs:
        assert two.await_state(number, "failed")["reason"] == "exit_code"
    until(lambda: two.state_of(0) == two.state_of(1) == "quarantined", 15, "both quarantined")
    pids = [worker["pid"] for worker in two.api.workers()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: {worker["pid"] for worker in two.api.workers()}.isdisjoint(pids), 20, "new workers")
    until(lambda: two.state_of(0) == two.state_of(1) == "quarantined", 10, "quarantined still")
    for device in two.gpus:
        two.fox("gpus", "--clear", device)
    two.await_state(two.queue("true"), "succeeded")


def test_fast_failures_in_a_row_quarantine_one_gpu(two: GpuStack) -> None:
    """D10: a sticky error. Failures of programs, and one success between, do not."""
    two.environ["CUDA_VISIBLE_DEVICES"] = "0"
    two.serve_with(fast_failures="3")

    def run(code: str) -> str:
        return str(two.await_state(two.queue(sys.executable, "-S", "-c", code), "failed", "succeeded")["state"])

    for _ in range(2):
        assert run(BROKEN) == "failed"
    assert run("pass") == "succeeded"
    for _ in range(3):
        assert run("raise SystemExit('torch.OutOfMemoryError: CUDA out of memory')") == "failed"
    for _ in range(2):
        assert run(BROKEN) == "failed"
    assert two.trail("withhold") == []
    assert run(BROKEN) == "failed"
    until(lambda: two.state_of(0) == "quarantined", 10, "quarantined")
    assert "3 runs in a row failed on it within a minute" in two.detail_of(0)
    assert "RuntimeError: CUDA error: unknown error" in two.detail_of(0)
    waiting = two.queue("true")
    assert two.job(waiting)["waiting_for"] == "quarantined"
    two.fox("gpus", "--clear", two.gpus[0])
    two.await_state(waiting, "succeeded", seconds=5)
    for _ in range(2):
        assert run(BROKEN) == "failed", "the count begins anew"
    assert len(two.trail("withhold")) == 1


@pytest.mark.soak
def test_memory_errors_that_grow_quarantine_a_gpu_and_jobs_without_one_run_all_the_same(two: GpuStack) -> None:
    """M5: CPU slots do not wait for GPUs, sick ones or busy ones."""
    two.say("gpu 0 ecc 4")
    two.serve_with("--cpu", "1")
    two.start_worker("cpu:0", "--cpu", "1")
    until(lambda: len(two.devices()) == 3, 15, "the CPU slot")
    assert {two.state_of(0), two.state_of(1)} == {"free"}, "what was there before counts for nothing"
    two.say("gpu 0 ecc 6", LOST.format(1))
    until(lambda: two.state_of(0) == two.state_of(1) == "quarantined", 15, "both quarantined")
    assert "2 uncorrected ECC errors since its worker started (6 in all)" in two.detail_of(0)
    waiting = [two.queue("true") for _ in range(3)]
    for _ in range(2):
        two.await_state(two.queue("true", gpus=0), "succeeded", seconds=10)
    assert {two.job(number)["state"] for number in waiting} == {"pending"}
    assert two.job(waiting[0])["waiting_for"] == "quarantined"


@pytest.mark.soak
def test_a_driver_that_hangs_costs_the_heartbeat_nothing(two: GpuStack) -> None:
    """G7: a run goes on under a lease of two seconds, the other GPU serves, the sick one is quarantined."""
    two.serve_with()
    flag = two.root / "flag"
    job = two.queue(*until_exists(flag))
    sick = started_on(two, job)
    two.say(f"gpu {sick} delay_ms nvmlDeviceGetMemoryInfo -1")
    two.await_state(two.queue("true"), "succeeded", seconds=10)
    until(lambda: two.trail("withhold"), 25, "the quarantine")
    assert "has not answered for" in two.trail("withhold")[0]["reason"]
    flag.touch()
    ended = two.await_state(job, "succeeded", seconds=5)
    assert (ended["attempts"], ended["losses"]) == (1, 0)
    two.await_state(two.queue("true"), "succeeded", seconds=10)
    until(lambda: two.state_of(sick) == "quarantined", 5, "quarantined")
    worker = next(worker for worker in two.api.workers() if two.gpus[sick] in str(worker))
    os.kill(worker["pid"], signal.SIGTERM)
    assert two.exit_status(worker["pid"]) == 0, "it obeys, though a call hangs"
    two.say()
