"""Why a job waits: the word and the sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foxqueue.devices import SeenDevice
from foxqueue.groups import GroupView
from foxqueue.holders import Holder
from foxqueue.requirement import Requirement
from foxqueue.states import WAIT_REASONS
from foxqueue.waiting import never_fits, why_blocked, why_held_back, why_scheduled, why_waiting

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
HELD = replace(GPU, state="leased", holder=Holder("ann", "box", 4711, "notebook", None, None, None, 1))
EITHER = Requirement(1, 16384, True)
SLOT = replace(GPU, uuid="GPU-1/0", slot=0)
TAKEN = replace(LEASED, uuid="GPU-1/1", slot=1, declared_mib=10240)
LITTLE = replace(TAKEN, declared_mib=1)


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
        (Requirement(), [HELD], 2, "devices_busy", r'is leased .gpu:0 on box by ann on box .pid 4711, "notebook"'),
        (Requirement(), [HELD, LEASED], 0, "devices_busy", "both .* are leased .gpu:0 on box by ann"),
        (Requirement(), [HELD] * 4, 0, "devices_busy", "2 more by others., next in line"),
        (
            Requirement(),
            [replace(GPU, state="dirty", detail="2G left")],
            0,
            "occupied",
            "is dirty .gpu:0 on box: 2G left",
        ),
        (Requirement(), [replace(GPU, state="quarantined", detail="ECC")], 0, "quarantined", "box: ECC"),
        (Requirement(), [replace(GPU, state="occupied", detail="9G held")], 0, "occupied", "gpu:0 on box: 9G held"),
        (Requirement(), [replace(GPU, state="paused", detail="paused by ann")], 0, "paused", "box: paused by ann"),
        (Requirement(), [replace(GPU, state="paused"), replace(OTHER, state="leased")], 0, "devices_busy", "1 paused"),
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
        (EITHER, [GPU, CPU], 0, "behind", "gpu:0 on box is free"),
        (EITHER, [LEASED, CPU], 0, "devices_busy", "the matching device is leased"),
        (EITHER, [replace(GPU, live=False), CPU], 0, "behind", "cpu:0 on box is free"),
        (EITHER, [replace(CPU, state="leased")], 2, "devices_busy", "the matching device is leased, 2 jobs ahead"),
        (EITHER, [replace(GPU, live=False), replace(CPU, live=False)], 0, "no_worker", "any of the 2 matching"),
        (EITHER, [], 0, "no_worker", "no device is registered"),
        (EITHER, [replace(GPU, memory_total_mib=8192), CPU], 0, "unsatisfiable", "needs 16G .* has 8G"),
        (BIG, [SLOT, TAKEN], 0, "memory", "needs 16G of GPU memory, and 10G of 24G are declared on gpu:0/0 on box"),
        (Requirement(), [SLOT, TAKEN], 0, "memory", "needs all of the GPU's 24G, and 10G of 24G are declared"),
        (Requirement(1, 4096), [SLOT, TAKEN], 0, "behind", "gpu:0/0 on box is free"),
        (BIG, [SLOT, TAKEN, OTHER], 0, "behind", "gpu:1 on box is free"),
        (
            BIG,
            [replace(SLOT, memory_free_mib=9000), replace(TAKEN, declared_mib=1)],
            0,
            "memory",
            "free are 8.79G of 24G",
        ),
        (BIG, [TAKEN, TAKEN], 0, "devices_busy", "both matching devices are leased"),
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


MANY = dict.fromkeys(range(1, 9), "succeeded")


@pytest.mark.parametrize(
    ("held", "parents", "still_open", "word", "text"),
    [
        ("ann", {}, 0, "held", "held by ann: foxqueue unhold"),
        ("ann", {41: "succeeded"}, 0, "held", "held by ann: foxqueue unhold"),
        (None, {41: "succeeded"}, 1, "dependencies", "waits for 41 (succeeded)"),
        (None, {41: "succeeded", 42: "any"}, 2, "dependencies", "waits for 41 (succeeded) and 42 (any end)"),
        (None, {41: "failed", 42: "any"}, 1, "dependencies", "waits for 1 of 41 (failed) and 42 (any end)"),
        ("ann", {41: "ended"}, 1, "dependencies", "waits for 41 (replaced by this one), and held by ann"),
        (None, MANY, 8, "dependencies", f"waits for {', '.join(f'{n} (succeeded)' for n in range(1, 6))} and 3 more"),
        (None, {}, 2, "dependencies", "waits for 2 jobs"),
        (None, {}, 0, "held", "about to be queued"),
    ],
)
def test_a_blocked_job_says_why(
    held: str | None, parents: dict[int, str], still_open: int, word: str, text: str
) -> None:
    assert why_blocked(held, parents, still_open) == (word, text)
    assert word in WAIT_REASONS


@pytest.mark.parametrize(
    ("paused", "group", "why"),
    [
        (None, None, None),
        (None, GroupView("lr", max_concurrent=4, running=3, total=9), None),
        ("ann: upgrade", None, ("paused", "paused by ann: upgrade")),
        ("ann", GroupView("lr", paused="bob"), ("paused", "paused by ann")),
        (None, GroupView("lr", paused="bob: bad data"), ("paused", "group lr is paused by bob: bad data")),
        (None, GroupView("lr", max_concurrent=4, running=4), ("limit", "group lr runs 4 at once, its most")),
        (None, GroupView("lr", filling=True, paused="bob"), ("held", "its group lr is still being enqueued")),
    ],
)
def test_a_pending_job_may_be_held_back_whatever_the_devices_do(
    paused: str | None, group: GroupView | None, why: tuple[str, str] | None
) -> None:
    assert why_held_back(paused, group) == why
    assert why is None or why[0] in WAIT_REASONS


def test_only_registered_devices_of_the_kind_can_refuse_for_ever() -> None:
    gone = replace(GPU, live=False)
    assert never_fits(BIG, []) is None
    assert never_fits(BIG, [CPU]) is None
    assert never_fits(BIG, [gone]) is None
    assert "24G" in str(never_fits(Requirement(1, 32768), [gone, OTHER, CPU]))
    assert never_fits(Requirement(0), [CPU]) is None
