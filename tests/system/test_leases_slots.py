"""Leases of slots: several share a GPU, as far as the memory goes that they declare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from leases_place import HOST
from pretend import register
from queue_driver import Queue
from servers import RealServer

from foxqueue.config import load_config
from foxqueue.errors import GpuAlreadyLeased, InsufficientMemory, NoGpuAvailable, Unsatisfiable
from foxqueue.leases import GpuLeases
from foxqueue.places import home_id
from foxqueue.survey import survey


@pytest.fixture
def whole(queue: Queue, tmp_path: Path) -> str:
    """A simulated GPU of 24 GiB, served in three slots."""
    device = survey("1x24G", 0, home_id(load_config(home=tmp_path)), HOST, {}).devices[0]
    for slot in range(3):
        part = device.as_slot(slot)
        register(queue, part.uuid, f"w{slot}", index=0, slot=slot, ref=part.ref)
    return device.uuid


@pytest.fixture
def leases(server: RealServer, whole: str, tmp_path: Path) -> Iterator[GpuLeases]:
    with GpuLeases(server.url, "test", home=tmp_path) as made:
        yield made


def test_slots_are_had_as_far_as_the_memory_goes(leases: GpuLeases, whole: str) -> None:
    first = leases.acquire_any(memory="10G", timeout=0)
    second = leases.acquire_any(memory="8G", timeout=0)
    assert [first.gpu_uuid, second.gpu_uuid] == [f"{whole}/0", f"{whole}/1"]
    assert first.env() == second.env()
    with pytest.raises(NoGpuAvailable, match="6G not declared by others"):
        leases.acquire_any(memory="8G", timeout=0)
    with pytest.raises(InsufficientMemory) as caught:
        leases.acquire("sim:0/2", memory="8G", timeout=0)
    assert (caught.value.available, caught.value.ever) == (6144, True)
    leases.acquire("sim:0/2", memory="6G", timeout=0)
    assert leases.statistics() == (3, 3, 0, 3)
    first.release()
    assert leases.acquire_any(memory="10G", timeout=0).gpu_uuid == f"{whole}/0"


def test_who_names_no_memory_has_all_of_it(leases: GpuLeases, whole: str) -> None:
    lease = leases.acquire_any(timeout=0)
    assert lease.gpu_uuid == whole
    with pytest.raises(NoGpuAvailable):
        leases.acquire_any(memory="1G", timeout=0)
    lease.release()
    slot = leases.acquire("sim:0/1", timeout=0)
    with pytest.raises(NoGpuAvailable, match="not declared"):
        leases.acquire_any(memory="1G", timeout=0)
    with pytest.raises((GpuAlreadyLeased, NoGpuAvailable)):
        leases.acquire(whole, timeout=0)
    slot.release()


def test_two_slots_of_one_gpu_are_not_two_gpus(leases: GpuLeases) -> None:
    with pytest.raises(Unsatisfiable):
        leases.acquire_many(2, memory="1G", timeout=0)
