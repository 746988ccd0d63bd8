"""GpuWorker with real RQ: a lease before each job, given back on every end."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from queue_driver import Queue
from rq_place import Rq, is_free
from wait import until

from foxqueue.leases import GpuLeases
from foxqueue.processes import ProcessId


def free(queue: Queue, device: str) -> None:
    until(lambda: is_free(queue, device), 10, "the device to be free")


def started(path: Path) -> int:
    until(lambda: path.exists() and bool(path.read_text()), 20, f"{path.name} to be there")
    return int(path.read_text())


def test_both_versions_are_tested(rq: Rq, version: str) -> None:
    assert rq.version.startswith("2.12.") if version == "2.12" else not rq.version.startswith("2.")


def test_a_job_has_a_device_and_a_burst_ends_when_the_queue_is_empty(
    rq: Rq, queue: Queue, device: str, tmp_path: Path
) -> None:
    job, bad = rq.enqueue("see", str(tmp_path / "seen")), rq.enqueue("fail")
    worker = rq.worker("--burst")
    assert worker.wait(30) == 0, rq.said()
    assert (rq.status(job), rq.status(bad)) == ("finished", "failed")
    assert "no good" in rq.why(bad)
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["CUDA_VISIBLE_DEVICES"] == "" and seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # a simulated device
    assert seen["FOXQUEUE_GPUS"] == device and int(seen["FOXQUEUE_FENCE"]) > 10**15 and seen["FOXQUEUE_RUN"]
    assert is_free(queue, device)


def test_every_end_gives_the_device_back(rq: Rq, queue: Queue, device: str, tmp_path: Path) -> None:
    """The horse is killed, the job is stopped, the worker is stopped while it is idle."""
    worker = rq.worker()
    killed = rq.enqueue("wait_for", str(tmp_path / "never"), str(tmp_path / "a"))
    horse = started(tmp_path / "a")
    assert not is_free(queue, device)
    os.kill(horse, signal.SIGKILL)
    rq.ends_as(killed, "failed")
    free(queue, device)
    stopped = rq.enqueue("wait_for", str(tmp_path / "never"), str(tmp_path / "b"))
    started(tmp_path / "b")
    rq.stop_job(stopped)
    rq.ends_as(stopped, "stopped")
    free(queue, device)
    worker.terminate()
    assert worker.wait(10) == 0, rq.said()


def test_a_lost_lease_ends_the_job_and_says_so(
    rq: Rq, queue: Queue, device: str, leases: GpuLeases, tmp_path: Path
) -> None:
    rq.worker()
    job = rq.enqueue("wait_for", str(tmp_path / "never"), str(tmp_path / "a"))
    started(tmp_path / "a")
    leases.force_release(device, by="ann")
    rq.ends_as(job, "failed")
    assert "the lease of" in rq.why(job) and "taken away by ann" in rq.why(job)
    free(queue, device)


def test_what_a_job_leaves_behind_is_gone_before_the_device_is_given_on(
    rq: Rq, queue: Queue, device: str, tmp_path: Path
) -> None:
    rq.worker()
    rq.enqueue("leave_behind", str(tmp_path / "a"))
    left = ProcessId.of(started(tmp_path / "a"))
    free(queue, device)
    assert left is None or not left.alive()


def test_it_waits_for_a_device_while_its_queue_holds_jobs_and_stops_when_told(
    rq: Rq, queue: Queue, device: str, leases: GpuLeases, tmp_path: Path
) -> None:
    with leases.acquire(device, timeout=0):
        job = rq.enqueue("see", str(tmp_path / "seen"))
        waiting = rq.worker("--burst")
        told = rq.worker()
        until(lambda: queue.broker.redis.zcard(queue.broker.keys.lease_waiting(device)) == 2, 20, "both in line")
        assert rq.status(job) == "queued" and waiting.poll() is None
        told.terminate()
        assert told.wait(10) == 0, rq.said(1)
        until(lambda: queue.broker.redis.zcard(queue.broker.keys.lease_waiting(device)) == 1, 5, "it to leave the line")
    assert waiting.wait(20) == 0, rq.said()
    assert rq.status(job) == "finished"


def test_a_burst_that_waits_ends_when_others_have_emptied_the_queue(
    rq: Rq, queue: Queue, device: str, leases: GpuLeases, gpus: list[str], tmp_path: Path
) -> None:
    with leases.acquire(device, timeout=0):
        job = rq.enqueue("see", str(tmp_path / "seen"))
        waiting = rq.worker("--burst")
        until(lambda: queue.broker.redis.zcard(queue.broker.keys.lease_waiting(device)) == 1, 20, "it in line")
        assert rq.worker("--burst", FOXQUEUE_RQ_GPUS=gpus[1]).wait(20) == 0, rq.said(1)
        assert rq.status(job) == "finished"
        assert waiting.wait(20) == 0, rq.said()
        assert not queue.broker.redis.zcard(queue.broker.keys.lease_waiting(device))


def test_a_killed_worker_leaves_the_device_to_its_horse(rq: Rq, queue: Queue, device: str, tmp_path: Path) -> None:
    worker = rq.worker()
    rq.enqueue("wait_for", str(tmp_path / "go"), str(tmp_path / "a"))
    horse = ProcessId.of(started(tmp_path / "a"))
    assert horse is not None
    worker.kill()
    worker.wait()
    with pytest.raises(Exception, match="in use by"):
        GpuLeases(rq.environ["FOXQUEUE_URL"], "test", home=tmp_path).acquire(device, timeout=0)
    assert horse.alive() and not is_free(queue, device)
    (tmp_path / "go").touch()
    until(lambda: not horse.alive(), 10, "the horse to end")
    free(queue, device)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MEMORY", "much", "much"),
        ("MEMORY", "0", "not possible"),
        ("PRIORITY", "11", "11"),
        ("GPUS", "gpu:77", "gpu:77"),
    ],
)
def test_what_is_malformed_is_said_before_anything_starts(rq: Rq, name: str, value: str, text: str) -> None:
    worker = rq.worker("--burst", **{f"FOXQUEUE_RQ_{name}": value})
    assert worker.wait(20) == 1
    assert text in rq.said() and "Traceback" not in rq.said()


@pytest.mark.soak
def test_two_workers_and_a_lease_share_a_device_one_after_the_other(
    rq: Rq, leases: GpuLeases, device: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    jobs = [rq.enqueue("log_use", str(log), 0.05) for _ in range(30)]
    workers = [rq.worker("--burst"), rq.worker("--burst")]
    turns = 0
    while any(worker.poll() is None for worker in workers):
        with leases.acquire(device, timeout=30):
            turns += 1
            log.open("a").write(json.dumps([device, *_use()]) + "\n")
    assert {rq.status(job) for job in jobs} == {"finished"}
    spans = sorted(json.loads(line)[1:] for line in log.read_text().splitlines())
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert turns >= 5


def _use() -> tuple[float, float]:
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 0.02, 1, "a moment")
    return began, time.monotonic()
