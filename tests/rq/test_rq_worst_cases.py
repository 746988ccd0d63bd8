"""GpuWorker when things go wrong at the wrong moment, and what a job sees of a real GPU."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from pathlib import Path

import pytest
from nvml_stub import State
from queue_driver import Queue
from rq_place import Rq, is_free
from servers import RealServer
from wait import until

from foxqueue.processes import ProcessId


def started(path: Path) -> ProcessId:
    until(lambda: path.exists() and bool(path.read_text()), 20, f"{path.name} to be there")
    found = ProcessId.of(int(path.read_text()))
    assert found is not None
    return found


def free(queue: Queue, device: str) -> None:
    until(lambda: is_free(queue, device), 10, "the device to be free")


def passes(seconds: float) -> None:
    """What must not happen has had this long to happen."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end, seconds + 5, "time to pass")


@pytest.mark.soak
def test_a_stop_just_after_a_job_does_not_keep_it_from_sweeping_up(
    rq: Rq, queue: Queue, device: str, tmp_path: Path
) -> None:
    for number in range(3):
        worker = rq.worker()
        job = rq.enqueue("leave_behind", str(tmp_path / f"a{number}"))
        left = started(tmp_path / f"a{number}")
        rq.ends_as(job, "finished")
        worker.terminate()
        assert worker.wait(20) == 0, rq.said(number)
        alive = left.alive()
        left.send(signal.SIGKILL)
        assert not alive and is_free(queue, device), rq.said(number)


@pytest.mark.soak
def test_a_cold_shutdown_and_a_time_out_give_the_device_back(rq: Rq, queue: Queue, device: str, tmp_path: Path) -> None:
    worker = rq.worker()
    late = rq.enqueue_for(1, "wait_for", str(tmp_path / "never"), str(tmp_path / "a"))
    rq.ends_as(late, "failed")
    assert "imeout" in rq.why(late)
    free(queue, device)
    rq.enqueue("wait_for", str(tmp_path / "never"), str(tmp_path / "b"))
    horse = started(tmp_path / "b")

    def ended() -> bool:  # RQ does not hear a second signal within a second of the first
        worker.terminate()
        return worker.poll() is not None

    until(ended, 20, "the worker to end", every=0.2)
    assert not horse.alive() and is_free(queue, device), rq.said()


@pytest.mark.soak
def test_memory_that_no_device_has_ends_it_with_a_reason(rq: Rq, tmp_path: Path) -> None:
    job = rq.enqueue("see", str(tmp_path / "seen"))
    worker = rq.worker(FOXQUEUE_RQ_MEMORY="999G")
    assert worker.wait(20) == 1
    assert "8,192 MiB in all" in rq.said() and "Traceback" not in rq.said()
    assert rq.status(job) == "queued"


@pytest.mark.soak
def test_it_outlives_a_restart_of_rqs_server(
    rq: Rq, queue: Queue, server: RealServer, device: str, tmp_path: Path
) -> None:
    worker = rq.worker()
    rq.ends_as(rq.enqueue("see", str(tmp_path / "seen")), "finished")
    free(queue, device)
    passes(0.5)  # idle: RQ itself ends where its server goes in the middle of a job
    server.stop()
    try:
        until(lambda: "asked again" in rq.said() or worker.poll() is not None, 15, "it to notice")
    finally:
        server.start()
    assert worker.poll() is None, rq.said()
    rq.ends_as(rq.enqueue("fail"), "failed")


@pytest.mark.soak
def test_it_outlives_a_restart_of_the_leases_server(
    server: RealServer, queue: Queue, nvml_state: State, version: str, tmp_path: Path
) -> None:
    nvml_state.write(f"gpu 0 uuid GPU-{uuid.uuid4()}", "gpu 0 mem_total_mib 24576")
    home = tmp_path / "home"
    home.mkdir()
    with RealServer(None, tmp_path / "other").start() as other:
        rq = Rq(server, home, version, nvml_state.env({}, LD_LIBRARY_PATH=str(nvml_state.library)))
        try:
            worker = rq.worker(FOXQUEUE_URL=other.url)
            rq.ends_as(rq.enqueue("see", str(tmp_path / "seen")), "finished")
            other.stop()
            job = rq.enqueue("see", str(tmp_path / "seen"))
            passes(2)
            assert worker.poll() is None and rq.status(job) == "queued", rq.said()
            other.start()
            rq.ends_as(job, "finished")
        finally:
            rq.close()


@pytest.mark.soak
def test_a_job_sees_its_gpu(server: RealServer, queue: Queue, nvml_state: State, version: str, tmp_path: Path) -> None:
    cards = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    nvml_state.write(
        *(f"gpu {index} uuid {card}" for index, card in enumerate(cards)),
        *(f"gpu {index} mem_total_mib 24576" for index in range(2)),
    )
    environ = nvml_state.env({}, LD_LIBRARY_PATH=str(nvml_state.library))
    rq = Rq(server, tmp_path, version, {**environ, "FOXQUEUE_RQ_GPUS": "1"})
    try:
        rq.enqueue("see", str(tmp_path / "seen"))
        assert rq.worker("--burst").wait(30) == 0, rq.said()
        seen = json.loads((tmp_path / "seen").read_text())
        assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("1", "PCI_BUS_ID")
        assert seen["FOXQUEUE_GPUS"] == cards[1] and is_free(queue, cards[1])
    finally:
        rq.close()


@pytest.mark.soak
def test_a_killed_helper_and_a_killed_worker_take_nothing_from_a_running_job(
    rq: Rq, queue: Queue, device: str, tmp_path: Path
) -> None:
    worker = rq.worker()
    rq.enqueue("with_child", str(tmp_path / "go"), str(tmp_path / "a"))
    child = started(tmp_path / "a")

    def helpers() -> set[int]:
        tasks = Path(f"/proc/{worker.pid}/task").iterdir()
        children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
        return {pid for pid in children if b"leases.helper" in Path(f"/proc/{pid}/cmdline").read_bytes()}

    (first,) = helpers()
    os.kill(first, signal.SIGKILL)
    until(lambda: helpers() - {first}, 10, "another helper")
    passes(1)  # killed with its helper, it would leave the lease to lapse
    worker.kill()
    worker.wait()
    passes(1)
    assert child.alive() and not is_free(queue, device)
    (tmp_path / "go").touch()
    free(queue, device)
    assert not child.alive()
