"""The locks of slots: a device is used whole or in slots, by one each; and what the slots know of each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wait import until

from foxqueue.errors import InvalidInput
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, Role, devices_in, slot_of
from foxqueue.processes import ProcessId
from foxqueue.siblings import Siblings, foreign_seat, in_slots, siblings

UUID = "GPU-1"
Make = Callable[..., DeviceLock]


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "one", tmp_path / "two"]
    for place in made:
        place.mkdir()
    return made


@pytest.fixture
def make(places: list[Path]) -> Iterator[Make]:
    made: list[DeviceLock] = []

    def lock(slot: int | None = None, role: Role = "gpu") -> DeviceLock:
        made.append(DeviceLock(UUID if slot is None else f"{UUID}/{slot}", role, places))
        return made[-1]

    yield lock
    for one in made:
        one.release()


@pytest.mark.parametrize("role", ["gpu", "worker"])
def test_whole_or_in_slots(make: Make, role: Role) -> None:
    whole, first, second, again = make(None, role), make(0, role), make(1, role), make(0, role)
    assert first.acquire() and second.acquire()
    assert not again.acquire()
    assert not whole.acquire()
    first.release()
    assert again.acquire()
    again.release()
    assert not whole.acquire()  # one slot is enough
    second.release()
    assert whole.acquire()
    assert not first.acquire() and not first.held and first.fds == []
    whole.unlock()
    assert first.acquire()


def test_a_slot_that_is_refused_leaves_nothing_locked(make: Make) -> None:
    first, again, whole = make(0), make(0), make()
    assert first.acquire() and not again.acquire()
    first.release()
    assert whole.acquire()  # `again` has not kept its share


def test_a_slot_unlocked_leaves_the_share_of_the_others(make: Make) -> None:
    first, second, whole = make(0), make(1), make()
    assert first.acquire() and second.acquire()
    for lock in first.relatives():
        lock.unlock()
    assert not whole.acquire()
    first.unlock()
    assert not whole.acquire()
    second.unlock()
    assert whole.acquire()


def test_files_and_records_are_apart(make: Make, places: list[Path]) -> None:
    first, second, whole = make(0), make(1), make()
    assert first.acquire() and second.acquire()
    first.write({"job": 1})
    second.write({"job": 2})
    assert (first.read(), second.read(), whole.read()) == ({"job": 1}, {"job": 2}, None)
    assert sorted(path.name for path in places[0].iterdir()) == ["GPU-1.gpu", "GPU-1~0.gpu", "GPU-1~1.gpu"]
    assert devices_in(places, "gpu") == [UUID, f"{UUID}/0", f"{UUID}/1"]
    assert devices_in([*places, places[0] / "none"], "worker") == []
    assert whole.records() == [{"job": 1}, {"job": 2}]
    assert first.others() == [{"job": 2}] and whole.others() == []


def test_who_keeps_a_slot_is_whoever_has_it_whole(make: Make) -> None:
    whole, first = make(), make(0)
    assert whole.acquire()
    whole.write({"job": 7})
    assert not first.acquire()
    assert first.records() == [{"job": 7}]


def test_what_a_dead_holder_left_is_found_from_beside(make: Make) -> None:
    """Given records of slots, when the device is taken whole, then they can be read and settled; and the reverse."""
    slot, whole = make(3), make()
    with pytest.raises(RuntimeError):
        whole.relatives()
    assert slot.acquire()
    slot.write({"mark": "left"})
    slot.release()
    assert whole.acquire()
    (found,) = whole.relatives()
    assert (found.device, found.held, found.read()) == (f"{UUID}/3", True, {"mark": "left"})
    found.write({})
    found.release()
    assert make(3).read() == {}
    whole.write({"mark": "left whole"})
    whole.release()
    assert slot.acquire()
    (found,) = slot.relatives()
    assert (found.device, found.read()) == (UUID, {"mark": "left whole"})
    found.release()
    assert not whole.acquire()  # it looked, and let nobody in


def test_descriptors_of_a_slot_are_shared_with_another_process(make: Make, places: list[Path]) -> None:
    """Given a child that has a slot's descriptors, when we let go, then slot and device stay taken until it ends."""
    slot, whole, again = make(0), make(), make(0)
    assert slot.acquire() and len(slot.fds) == 4
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, pass_fds=slot.fds)
    copy = DeviceLock.from_fds(f"{UUID}/0", "gpu", places, [os.dup(fd) for fd in slot.fds])
    slot.release()
    copy.release()
    assert not whole.acquire() and not again.acquire()
    child.communicate()
    assert again.acquire()
    with pytest.raises(InvalidInput):
        DeviceLock.from_fds(f"{UUID}/0", "gpu", places, again.fds[:2])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GPU-1", ("GPU-1", None)),
        ("GPU-1/15", ("GPU-1", 15)),
        ("GPU-1/x", ("GPU-1/x", None)),
        ("a/1/0", ("a/1/0", None)),
    ],
)
def test_names_of_slots(name: str, expected: tuple[str, int | None], places: list[Path]) -> None:
    assert slot_of(name) == expected
    if "/" in expected[0]:
        with pytest.raises(InvalidInput):
            DeviceLock(name, "gpu", places)


# --- siblings -----------------------------------------------------------------------------------------

GPU = Device(UUID, 0, "NVIDIA H200", "nvml", 24576)
CPU = Device("CPU-1", 0, "CPU slot 0", "cpu", None)


def test_each_gpu_is_parted_and_cpu_slots_are_not() -> None:
    found = in_slots([GPU, CPU], 3)
    assert [device.uuid for device in found] == [f"{UUID}/0", f"{UUID}/1", f"{UUID}/2", "CPU-1"]
    assert [device.ref for device in found] == ["gpu:0/0", "gpu:0/1", "gpu:0/2", "cpu:0"]
    assert {device.memory_total_mib for device in found[:3]} == {24576}
    assert in_slots([GPU, CPU], 0) == [GPU, CPU]


@pytest.mark.parametrize(
    ("devices", "count", "text"),
    [
        ([GPU], 1, "give 2 to 16"),
        ([GPU], 17, "give 2 to 16"),
        ([GPU], -1, "give 2 to 16"),
        ([CPU], 2, "there is none here.*--simulate"),
        ([Device(UUID, 0, "GB10", "nvml", None)], 2, r"gpu:0 \(GB10\) does not tell how much memory"),
        ([Device(f"GPU-{i}", i, "x", "nvml", 1) for i in range(20)], 16, "20 GPUs in 16 slots"),
    ],
)
def test_what_cannot_be_parted_is_refused(devices: list[Device], count: int, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        in_slots(devices, count)


def test_who_runs_beside_a_slot(make: Make) -> None:
    """Given a run, a lease and a dead run on other slots, then the living ones are told, with all their processes."""
    mine, run, lease, dead, done, whole = make(0), make(1), make(2), make(3), make(4), make()
    with living() as (runner, child):
        for lock in (mine, run, lease, dead, done):
            assert lock.acquire()
        mine.write({"fence": 1, "runner": ProcessId.of().to_dict(), "declares": 999})  # type: ignore[union-attr]
        run.write({"fence": 2, "runner": runner.to_dict(), "worker": ProcessId.of(1).to_dict(), "declares": 8192})  # type: ignore[union-attr]
        lease.write({"fence": 3, "lease": "ab", "worker": ProcessId.of().to_dict(), "declares": 1024})  # type: ignore[union-attr]
        dead.write({"fence": 4, "runner": {**runner.to_dict(), "start": 1}, "declares": 4096})
        done.write({"home": "/h", "namespace": "default"})
        found = siblings(mine)
        assert found == Siblings(frozenset({runner.pid, os.getpid()}), 9216, 2)
        assert {runner.pid, child, os.getpid()} <= found.pids
        assert siblings(whole) == Siblings()
    assert siblings(mine).roots == {os.getpid()}


def test_slots_of_one_device_belong_to_one_queue(make: Make) -> None:
    me = ProcessId.of()
    assert me is not None
    mine, theirs = make(0, "worker"), make(1, "worker")
    assert mine.acquire() and theirs.acquire()
    ours = {"home": "/a", "namespace": "default"}
    theirs.write({"process": me.to_dict(), **ours})
    assert foreign_seat(mine, lambda record: record["home"] == "/a") == ""
    theirs.write({"process": me.to_dict(), **ours, "home": "/b", "user": "bob"})
    assert f"pid {me.pid} of user bob" in foreign_seat(mine, lambda record: record["home"] == "/a")
    theirs.write({"process": {**me.to_dict(), "start": 1}, **ours, "home": "/b"})  # long gone
    assert foreign_seat(mine, lambda record: record["home"] == "/a") == ""


class living:
    """A process with a child."""

    def __enter__(self) -> tuple[ProcessId, int]:
        code = (
            "import os, subprocess, sys\n"
            "child = subprocess.Popen([sys.executable, '-S', '-c', 'input()'])\n"
            "print(child.pid, flush=True); input(); child.kill()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        child = int(json.loads(self.process.stdout.readline()))
        found = ProcessId.of(self.process.pid)
        assert found is not None
        return found, child

    def __exit__(self, *_: object) -> None:
        self.process.communicate(b"\n\n")
        until(lambda: self.process.poll() is not None, 5)
