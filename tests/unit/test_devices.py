"""Devices as the queue sees them: what a grant makes of a worker's record, and how people name them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foxqueue.codec import pack
from foxqueue.devices import SeenDevice, Told, device_dict, leased_device, named, seen_device
from foxqueue.errors import InvalidInput, NoDevice


def seen(uuid: str = "GPU-11111111-2222", grant: str = "", heard: int = 100, **look: object) -> SeenDevice:
    """A device of worker ``w``, who is heard of lately from 50 on."""
    record = b"w 1 " + pack({"index": 0, "kind": "nvml", "state": "free", "host": "one", **look})
    found = seen_device(uuid, record, Told({uuid: grant} if grant else {}), {"w": heard}, 50)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("grant", "state", "job", "detail"),
    [
        ("1 -", "free", None, ""),
        ("1 job:7", "leased", 7, ""),
        ("1 released:7", "leased", 7, "being released"),
        ("1 released:", "free", None, ""),
        ("1 released:x", "free", None, ""),
        ("released:7", "free", None, ""),
    ],
)
def test_the_grant_sets_the_record_right(grant: str, state: str, job: int | None, detail: str) -> None:
    for published in ("free", "leased"):
        device = seen(grant=grant, state=published)
        assert (device.state, device.job, device.detail) == (state, job, detail)


def test_a_run_of_which_the_queue_has_lost_all_data_keeps_its_device() -> None:
    assert seen(state="free").state == "free"
    device = seen(state="leased", worker_state="busy")
    assert (device.state, device.job, device.detail) == ("leased", None, "its run is of an earlier life of this queue")


def test_a_device_without_a_live_worker_says_so_and_that_it_is_being_released() -> None:
    gone = seen(grant="1 job:7", heard=1)
    assert (gone.state, gone.job, gone.detail) == ("unavailable", 7, "its worker is gone")
    released = seen(grant="1 released:7", heard=1)
    assert (released.state, released.job) == ("unavailable", 7)
    assert released.detail == "being released, its worker is gone"


PAUSED = {"GPU-11111111-2222": "ann: upgrade", "*": "bob"}


@pytest.mark.parametrize(
    ("grant", "look", "heard", "state", "detail"),
    [
        ("", {}, 100, "paused", "paused by ann: upgrade"),
        ("1 job:7", {}, 100, "leased", "paused by ann: upgrade"),
        ("", {"state": "occupied", "detail": "9G held"}, 100, "paused", "paused by ann: upgrade; 9G held"),
        ("", {}, 1, "unavailable", "paused by ann: upgrade; its worker is gone"),
    ],
)
def test_a_paused_device_says_by_whom_and_why(
    grant: str, look: dict[str, object], heard: int, state: str, detail: str
) -> None:
    uuid = "GPU-11111111-2222"
    record = b"w 1 " + pack({"index": 0, "kind": "nvml", "state": "free", **look})
    told = Told({uuid: grant} if grant else {}, paused=PAUSED)
    found = seen_device(uuid, record, told, {"w": heard}, 50)
    assert found is not None and (found.state, found.detail) == (state, detail)
    other = seen_device("GPU-2", record, told, {"w": heard}, 50)
    assert other is not None and "paused" not in other.detail and other.state != "paused"


FENCE = 1_796_087_000_000_000
GRANT = f"{FENCE} lease:00ff"
HOLDER = "ann\tbox\t4711\t1796090600000\tnotebook"
GPU = "GPU-11111111-2222"


def told(uuid: str = GPU, grant: str = GRANT, heard_of: bool = True, **more: dict[str, Any]) -> Told:
    return Told({uuid: grant}, {uuid: HOLDER}, {uuid} if heard_of else (), **more)


def look(told: Told, uuid: str = GPU, heard: int = 100, **look: object) -> SeenDevice:
    record = b"w 1 " + pack({"index": 0, "kind": "nvml", "state": "free", "host": "one", **look})
    found = seen_device(uuid, record, told, {"w": heard}, 50)
    assert found is not None
    return found


def test_a_leased_device_says_by_whom_and_until_when() -> None:
    device = look(told(), state="held", detail="a lease of ann of home /x uses it")
    assert (device.state, device.job) == ("leased", None)
    assert device.holder is not None and (device.holder.user, device.holder.until_ms) == ("ann", 1796090600000)
    assert device.detail == f"by {device.holder.shown}" and "until" in device.detail
    taken = look(replace(told(grant=f"{FENCE} released_lease:00ff"), holders={GPU: HOLDER + "\tbob"}))
    assert taken.state == "leased" and "taken away by bob" in taken.detail


def test_a_lease_unheard_of_counts_as_free() -> None:
    for published in ("free", "leased"):
        device = look(told(heard_of=False), state=published)
        assert (device.state, device.holder, device.detail) == ("free", None, "")


def test_a_lease_outlives_the_devices_worker() -> None:
    device = look(told(), heard=1)
    assert (device.state, device.live) == ("leased", False)
    assert device.detail.endswith("; its worker is gone")
    bare = leased_device(GPU, told())
    assert bare is not None and (bare.state, bare.live, bare.label) == ("leased", False, GPU)
    assert named([bare], "gpu-11111111") is bare
    assert leased_device(GPU, told(heard_of=False)) is None


def test_a_lease_of_the_whole_device_has_its_slots() -> None:
    slot = look(told(), uuid=f"{GPU}/1", ref="gpu:0/1")
    assert (slot.state, slot.slot, slot.whole, slot.short) == ("leased", 1, GPU, "gpu:0/1")
    other = look(told(f"{GPU}/0", declared={f"{GPU}/0": 8192, f"{GPU}/1": 4096}), uuid=f"{GPU}/1")
    assert (other.state, other.declared_mib, other.short) == ("free", None, "gpu:0/1")
    held = look(told(f"{GPU}/0", declared={f"{GPU}/0": 8192}), uuid=f"{GPU}/0")
    assert (held.state, held.declared_mib) == ("leased", 8192)


QUARANTINED = "quarantined\t1796087000123\tb00t\tecc\t3 errors; foxqueue gpus --clear gpu:0"


@pytest.mark.parametrize(
    ("grant", "heard", "published", "state", "detail"),
    [
        ("1 -", 100, "free", "quarantined", "3 errors; foxqueue gpus --clear gpu:0"),
        ("1 -", 100, "leased", "quarantined", "3 errors; foxqueue gpus --clear gpu:0"),
        ("1 -", 100, "dirty", "quarantined", "3 errors; foxqueue gpus --clear gpu:0"),
        ("1 -", 100, "occupied", "quarantined", "3 errors; foxqueue gpus --clear gpu:0"),
        ("1 job:7", 100, "leased", "leased", "quarantined: 3 errors; foxqueue gpus --clear gpu:0"),
        ("1 -", 1, "free", "unavailable", "its worker is gone; quarantined: 3 errors; foxqueue gpus --clear gpu:0"),
        ("1 -", 100, "unavailable", "unavailable", "quarantined: 3 errors; foxqueue gpus --clear gpu:0"),
    ],
)
def test_a_withheld_device_says_why(grant: str, heard: int, published: str, state: str, detail: str) -> None:
    device = look(Told({GPU: grant}, withheld={GPU: QUARANTINED}), heard=heard, state=published)
    assert (device.state, device.detail) == (state, detail)
    assert device.withheld is not None and device.withheld.kind == "ecc"
    slot = look(Told({}, withheld={GPU: QUARANTINED}), uuid=f"{GPU}/1")
    assert slot.state == "quarantined"


def test_a_device_that_is_withheld_no_more_is_free_before_its_worker_says_so() -> None:
    device = look(Told({GPU: "1 -"}), state="dirty", detail="2G of a run")
    assert (device.state, device.detail) == ("free", "")


def test_strangers_and_the_json_object() -> None:
    strangers = [[4242, 1228, "ann", "python"], [1, None, "", ""], ["?"], 7]
    device = look(told(withheld={GPU: QUARANTINED}), strangers=strangers)
    found = device_dict(device, lambda ms: None if ms is None else f"t{ms}")
    assert found["strangers"] == [
        {"pid": 4242, "mib": 1228, "user": "ann", "command": "python"},
        {"pid": 1, "mib": None, "user": "", "command": ""},
    ]
    assert found["holder"] == {
        "user": "ann",
        "host": "box",
        "pid": 4711,
        "label": "notebook",
        "since": f"t{FENCE // 1000}",
        "until": "t1796090600000",
        "fence": str(FENCE),
        "taken_by": None,
    }
    assert found["withheld"]["word"] == "quarantined" and found["withheld"]["since"] == "t1796087000123"


DEVICES = [
    seen("GPU-11111111-aaaa"),
    seen("GPU-11111111-bbbb", index=1),
    seen("GPU-22222222-cccc", host="Two"),
    seen("SIM-33333333-dddd", kind="simulated", host="Two"),
    seen("CPU-44444444-eeee", kind="cpu"),
]


@pytest.mark.parametrize(
    ("ref", "at"),
    [
        ("GPU-11111111-bbbb", 1),
        ("gpu-11111111-BBBB", 1),
        ("GPU-11111111-b", 1),
        ("GPU-2222", 2),
        ("gpu:1", 1),
        ("GPU:1", 1),
        ("gpu:0@one", 0),
        ("gpu:0 on one", 0),
        (" gpu:0  on  Two ", 2),
        ("gpu:0@two", 2),
        ("sim:0", 3),
        ("cpu:0", 4),
    ],
)
def test_names_that_mean_one_device(ref: str, at: int) -> None:
    assert named(DEVICES, ref) is DEVICES[at]
    assert named(DEVICES, DEVICES[at].label) is DEVICES[at]


@pytest.mark.parametrize(("ref", "candidates"), [("gpu:0", (0, 2)), ("GPU-1111", (0, 1)), ("GPU-11111111-", (0, 1))])
def test_names_that_may_mean_several_list_them(ref: str, candidates: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        named(DEVICES, ref)
    said = str(refused.value)
    for at, device in enumerate(DEVICES):
        assert (f"{device.label} ({device.uuid})" in said) is (at in candidates)


@pytest.mark.parametrize("ref", ["", " ", "GPU-111", "gpu:2", "gpu:0@three", "gpu:1@Two", "gpu:0@", "0", "x" * 40])
def test_names_that_mean_none_list_all(ref: str) -> None:
    with pytest.raises(NoDevice) as refused:
        named(DEVICES, ref)
    assert all(device.uuid in str(refused.value) for device in DEVICES)
    with pytest.raises(NoDevice, match="there are: none"):
        named([], ref)


def test_a_device_without_an_index_is_named_by_its_uuid() -> None:
    bare = replace(DEVICES[0], index=None)
    assert bare.label == bare.short == bare.uuid
    assert named([bare], bare.uuid) is bare
