"""Nobody starves: priority is a head start in time, and no more."""

from __future__ import annotations

import time

import pytest
from queue_driver import Queue

AGING_S = 1.0


@pytest.mark.parametrize(("low", "high"), [(0, 2), (4, 5)])
def test_with_high_jobs_arriving_for_ever_a_low_one_starts_within_its_bound(queue: Queue, low: int, high: int) -> None:
    queue.broker.change_settings({"aging_us": str(int(AGING_S * 1e6))}, "me")
    for _ in range(3):
        queue.enqueue(priority=high)  # there are always some that wait
    patient, began = queue.enqueue(priority=low), time.monotonic()
    bound_s, worker = (high - low) * AGING_S, queue.worker()
    passed = 0
    while True:
        queue.enqueue(priority=high)
        run = worker.claim()
        queue.complete(run)
        if run.number == patient:
            break
        passed += 1
        head_start_us = int(queue.job(patient)["tick"]) + bound_s * 1e6 - int(queue.job(run.number)["tick"])
        assert head_start_us > 0, f"job {run.number} came {-head_start_us} us too late to go first"
    assert passed > 100, "nobody was in its way"
    assert bound_s <= time.monotonic() - began + 0.1 < bound_s + 2, "its bound is kept, but for who was there before"
