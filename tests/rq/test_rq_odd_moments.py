"""GpuWorker when a lease is lost, or no longer wanted, between two steps; suspended, and in a pool."""

from __future__ import annotations

from pathlib import Path

import pytest
from queue_driver import Queue
from rq_place import Rq, is_free
from wait import until

from foxqueue.leases import GpuLeases


@pytest.mark.soak
def test_a_lease_lost_before_the_fork_fails_the_job_and_nothing_else(
    rq: Rq, queue: Queue, device: str, tmp_path: Path
) -> None:
    job = rq.enqueue("wait_for", str(tmp_path / "never"), str(tmp_path / "a"))
    worker = rq.worker(worker_class="rq_odd_workers.LosesEarly")
    rq.ends_as(job, "failed")
    assert "taken away by ann" in rq.why(job)
    assert worker.poll() is None, rq.said()
    until(lambda: is_free(queue, device), 10, "the device to be free")


@pytest.mark.soak
def test_a_device_that_comes_when_it_is_no_longer_wanted_is_given_back(rq: Rq, tmp_path: Path) -> None:
    job = rq.enqueue("see", str(tmp_path / "seen"))
    assert rq.worker("--burst", worker_class="rq_odd_workers.GoesAwayLate").wait(20) == 0, rq.said()
    assert rq.status(job) == "finished"


@pytest.mark.soak
def test_a_suspended_worker_leaves_the_line_and_comes_back(
    rq: Rq, queue: Queue, device: str, leases: GpuLeases, tmp_path: Path
) -> None:
    waiting = queue.broker.keys.lease_waiting(device)
    with leases.acquire(device, timeout=0):
        job = rq.enqueue("see", str(tmp_path / "seen"))
        rq.worker()
        until(lambda: queue.broker.redis.zcard(waiting) == 1, 20, "it in line")
        assert "1 workers" in rq.rq("info")
        rq.rq("suspend")
        until(lambda: not queue.broker.redis.zcard(waiting), 10, "it to leave the line")
    assert rq.status(job) == "queued" and is_free(queue, device)
    rq.rq("resume")
    rq.ends_as(job, "finished")


@pytest.mark.soak
def test_a_pool_of_workers_shares_a_device(rq: Rq, queue: Queue, device: str, tmp_path: Path) -> None:
    jobs = [rq.enqueue("see", str(tmp_path / f"seen{number}")) for number in range(3)]
    pool = rq.worker("--burst", "--num-workers", "2", command="worker-pool")
    assert pool.wait(40) == 0, rq.said()
    assert [rq.status(job) for job in jobs] == ["finished"] * 3
    assert is_free(queue, device)
