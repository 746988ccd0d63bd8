"""Why a job waits: the word and the sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foxqueue.devices import SeenDevice
from foxqueue.requirement import Requirement
from foxqueue.states import WAIT_REASONS
from foxqueue.waiting import never_fits, why_scheduled, why_waiting

GPU = SeenDevice(
    uuid="GPU-1",
    index=0,
    name="H200",
    kind="nvml",
    memory_total_mib=24576,
    memory_free_mib=24000,
    utilization=None,
    state="free",
    detail="",
    job=None,
    worker="w",
    worker_state="idle",
    host="box",
    pid=1,
    since_ms=1,
    observed_ms=1,
    live=True,
)
OTHER = replace(GPU, uuid="GPU-2", index=1)
CPU = replace(GPU, uuid="CPU-1", kind="cpu", memory_total_mib=None, memory_free_mib=None)
LEASED = replace(GPU, state="leased", job=3)
BIG = Requirement(1, 16384)


@pytest.mark.parametrize(
    ("need", "devices", "ahead", "word", "text"),
    [
        (Requirement(), [], 0, "no_worker", "foxqueue up"),
        (Requirement(0), [GPU], 0, "no_matching_device", "--cpu 2"),
        (Requirement(), [CPU], 0, "no_matching_device", "only CPU slots"),
        (Requirement(), [replace(GPU, live=False)], 0, "no_worker", "no worker is running"),
        (Requirement(), [replace(GPU, worker_state="draining")], 0, "no_worker", "no worker is running"),
        (BIG, [replace(GPU, memory_total_mib=8192)], 0, "unsatisfiable", "needs 16G .* has 8G"),
        (BIG, [replace(GPU, memory_total_mib=None)], 0, "unsatisfiable", "no registered device can tell"),
        (BIG, [replace(GPU, memory_free_mib=8192)], 0, "memory", "needs 16G .* free are 8G of 24G on gpu:0 on box"),
        (BIG, [replace(GPU, memory_free_mib=None)], 0, "memory", "free are unknown of 24G"),
        (Requirement(), [replace(LEASED), replace(OTHER, state="leased")], 3, "devices_busy", "both .* leased, 3 jobs"),
        (Requirement(), [LEASED], 0, "devices_busy", "the matching device is leased, next in line"),
        (Requirement(), [LEASED, replace(OTHER, state="occupied")], 1, "devices_busy", "1 leased, 1 occupied, 1 job"),
        (Requirement(), [replace(GPU, state="occupied", detail="9G held")], 0, "occupied", "gpu:0 on box: 9G held"),
        (
            Requirement(),
            [replace(GPU, state="unavailable", detail="driver")],
            0,
            "devices_busy",
            "unavailable.*driver",
        ),
        (Requirement(), [GPU], 12, "behind", "12 jobs ahead"),
        (Requirement(), [GPU, LEASED], 0, "behind", "next in line: gpu:0 on box is free"),
        (Requirement(0), [CPU, LEASED], 0, "behind", "cpu:0 on box is free"),
        (None, [GPU], 0, "no_matching_device", "this version"),
    ],
)
def test_a_pending_job_says_why(
    need: Requirement | None, devices: list[SeenDevice], ahead: int, word: str, text: str
) -> None:
    found, sentence = why_waiting(need, devices, ahead)
    assert found == word
    assert found in WAIT_REASONS
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(sentence)


def test_a_scheduled_job_says_why() -> None:
    assert why_scheduled(0, 61_000) == ("scheduled", "due in 1m01s")
    assert why_scheduled(2, 8_000) == ("backoff", "attempt 2 failed, the next one is due in 8s")
    assert why_scheduled(1, None)[0] == "backoff"


def test_only_registered_devices_of_the_kind_can_refuse_for_ever() -> None:
    gone = replace(GPU, live=False)
    assert never_fits(BIG, []) is None
    assert never_fits(BIG, [CPU]) is None
    assert never_fits(BIG, [gone]) is None
    assert "24G" in str(never_fits(Requirement(1, 32768), [gone, OTHER, CPU]))
    assert never_fits(Requirement(0), [CPU]) is None
