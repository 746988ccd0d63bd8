"""Leases of GPUs as the driver shows them, without any worker."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from leases_place import is_free
from nvml_stub import Answered, Child, State
from pretend import register
from queue_driver import Queue
from servers import RealServer
from stub_fixtures import StartChild

from foxqueue.locks import SHARED_PLACES

pytestmark = pytest.mark.nvml

ERRORS = "from foxqueue.errors import *\nimport os, signal, sys, time\nfrom foxqueue.leases import GpuLeases"


class Site:
    """Two GPUs of 10,000 MiB that no other test has, and processes that lease them."""

    def __init__(self, start: StartChild, state: State, url: str, home: Path) -> None:
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
        self.state = state
        self._start = start
        self._made = f"leases = GpuLeases({url!r}, 'test', home={str(home)!r})"
        self.write()

    def write(self, *lines: str) -> None:
        """The machine, with these lines too."""
        base = [
            line
            for index, name in enumerate(self.uuids)
            for line in (
                f"gpu {index} uuid {name}",
                f"gpu {index} name NVIDIA H200",
                f"gpu {index} mem_total_mib 10000",
                f"gpu {index} bus 00000000:{index + 1:02X}:00.0",
            )
        ]
        self.state.write(*base, *lines)

    def child(self, **environ: str) -> Child:
        """A process that has ``leases``."""
        child = self._start(**environ)
        child.run(f"{ERRORS}\n{self._made}")
        return child


@pytest.fixture
def site(start_child: StartChild, nvml_state: State, server: RealServer, queue: Queue, tmp_path: Path) -> Any:
    made = Site(start_child, nvml_state, server.url, tmp_path)
    yield made
    for place in SHARED_PLACES:
        for name in made.uuids:
            (place / f"{name}.gpu").unlink(missing_ok=True)


def refused(child: Child, source: str) -> str:
    """Name and text of the error that an expression raises."""
    with pytest.raises(Exception) as caught:
        child.ask(source)
    return str(caught.value)


def test_a_gpu_is_had_without_a_worker(site: Site, queue: Queue) -> None:
    child = site.child()
    child.run("lease = leases.acquire(1, holder='notebook')\nlease.apply()")
    assert child.ask("(lease.gpu_uuid, lease.index)") == [site.uuids[1], 1]
    assert child.ask("(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])") == ["1", "PCI_BUS_ID"]
    assert child.ask("leases.acquire_any(timeout=0).gpu_uuid") == site.uuids[0]
    # What the first one applied binds neither this nor other GpuLeases of the process.
    child.run(site._made.replace("leases =", "others ="))
    assert child.ask("others.statistics()[0]") == 2
    other = site.child()
    assert "GpuAlreadyLeased" in refused(other, "leases.acquire(1, timeout=0)")
    assert '"notebook"' in refused(other, f"leases.acquire({site.uuids[1]!r}, timeout=0)")
    child.close()
    other.run("lease = leases.acquire(1, timeout=10)")


def test_what_cuda_may_not_see_is_never_used(site: Site) -> None:
    child = site.child(CUDA_VISIBLE_DEVICES="1")
    assert child.ask("leases.acquire_any(timeout=0).gpu_uuid") == site.uuids[1]
    assert "NoGpuAvailable" in refused(child, "leases.acquire_any(timeout=0)")
    assert "GpuNotFound" in refused(child, "leases.acquire(0, timeout=0)")
    none = site.child(CUDA_VISIBLE_DEVICES="")
    assert "GpuNotFound" in refused(none, "leases.acquire_any(timeout=0)")
    assert none.ask("leases.acquire_any(no_gpu_ok=True).gpu_uuid") is None
    wrong = site.child(CUDA_VISIBLE_DEVICES="7")
    assert "InvalidInput" in refused(wrong, "leases.acquire_any(timeout=0)")


def test_a_gpu_that_others_use_is_not_given(site: Site, queue: Queue) -> None:
    site.write("gpu 0 proc 4204242 3000")
    child = site.child()
    said = refused(child, "leases.acquire(0, timeout=0)")
    assert "NoGpuAvailable" in said and "occupied" in said and "4204242" in said
    assert child.ask("leases.acquire_any(timeout=0).gpu_uuid") == site.uuids[1]
    queue.broker.change_settings({"occupied_over_mib": "4096"}, "root")
    again = site.child()
    assert again.ask("leases.acquire(0, timeout=0).gpu_uuid") == site.uuids[0]


@pytest.mark.soak
def test_what_this_process_holds_of_it_is_no_strangers(site: Site) -> None:
    child = site.child()
    site.state.hold(0, 3000, child.process.pid)
    assert child.ask("leases.acquire(0, timeout=0).index") == 0


def test_memory_that_is_asked_for_must_be_free(site: Site) -> None:
    site.write("gpu 0 proc 4204242 200", "gpu 0 mem_used_mib 5000", "gpu 1 proc 4204242 200")
    child = site.child()
    assert "NoGpuAvailable" in refused(child, "leases.acquire(0, memory='8G', timeout=0)")  # occupied all the same
    assert child.ask("leases.acquire_any(memory='8G', timeout=0).index") == 1
    assert "InsufficientMemory" in refused(child, "leases.acquire(0, memory='16G')")
    child.run(
        "from foxqueue import settings\nleases._core.broker.change_settings({'occupied_over_mib': '9000'}, 'root')\n"
        "leases._core.refresh()\n"
        "try:\n    leases.acquire(0, memory='8G', timeout=0)\nexcept InsufficientMemory as error:\n    caught = error"
    )
    assert child.ask("(caught.required, caught.available, caught.ever)") == [8192, 5000, True]


@pytest.mark.soak
def test_memory_that_comes_and_goes_is_not_counted_on(site: Site) -> None:
    child = site.child()
    child.run(
        "import threading\n"
        "from foxqueue.leases.spot import Spot\n"
        "look = Spot._look\nlooks = []\n"
        "def counted(self, settings):\n"
        "    seen = look(self, settings)\n    looks.append(seen.memory_free_mib)\n    return seen\n"
        "Spot._look = counted\nleases.acquire(0, memory='8G', timeout=0).release()"
    )
    assert child.ask("looks") == [10000] * 3  # admission_samples
    child.run("looks.clear()\nleases.acquire(0, timeout=0)")
    assert child.ask("looks") == [10000]


@pytest.mark.soak
def test_memory_and_use_are_told(site: Site) -> None:
    site.write("gpu 0 mem_used_mib 1234", "gpu 0 util 37 12")
    child = site.child()
    total, used, free, observed = child.ask("leases.memory(0)")
    assert (total, used, free) == (10000, 1234, 8766) and child.ask("time.time()") - observed < 60
    assert child.ask("leases.utilization(0)") == 37
    site.write(
        "gpu 0 error nvmlDeviceGetMemoryInfo NOT_SUPPORTED", "gpu 0 error nvmlDeviceGetUtilizationRates NOT_SUPPORTED"
    )
    assert "MemoryQueryFailed" in refused(child, "leases.memory(0)")
    assert "UtilizationQueryFailed" in refused(child, "leases.utilization(0)")


def test_a_sick_gpu_is_not_given(site: Site) -> None:
    child = site.child()
    child.run("leases.acquire(0, timeout=0).release()")
    site.write("gpu 0 error * GPU_IS_LOST")
    said = refused(child, "leases.acquire(0, timeout=0)")
    assert "NoGpuAvailable" in said and "unavailable" in said
    assert "MemoryQueryFailed" in refused(child, "leases.memory(0)")
    site.write()
    child.run("lease = leases.acquire(0, timeout=5)")


@pytest.mark.soak
def test_in_a_forked_process_the_driver_is_asked_anew(site: Site) -> None:
    child = site.child()
    child.run("lease = leases.acquire(0, timeout=0)")
    child.run(
        "pid = os.fork()\nif pid == 0:\n    try:\n        leases.acquire(1, timeout=0).release()\n"
        "        assert leases.memory(1).total == 10000\n        os._exit(7)\n    finally:\n        os._exit(1)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert child.ask("status") == 7


@pytest.mark.soak
def test_a_dead_holders_gpu_is_had_by_the_next(site: Site, queue: Queue) -> None:
    child, other = site.child(), site.child()
    child.run("lease = leases.acquire(0, timeout=0)")
    child.process.kill()
    child.process.wait()
    other.run("lease = leases.acquire(0, timeout=10)")
    assert not is_free(queue, site.uuids[0])


def test_a_gpu_that_was_lost_is_told_as_lost_and_not_as_unknown(site: Site, queue: Queue) -> None:
    register(queue, site.uuids[0], "w0", index=0, kind="nvml", memory_total_mib=10000)
    site.write("gpu 0 error * GPU_IS_LOST")
    child = site.child()
    with pytest.raises(Answered, match="lost"):
        child.ask("leases.acquire(0, timeout=0)")
    assert child.ask("leases.statistics()")[0] == 2


def test_refusals_are_counted(site: Site, queue: Queue) -> None:
    holder, other = site.child(), site.child()
    holder.run("lease = leases.acquire(0, timeout=0)")
    for timeout in (0, 0.1):
        with pytest.raises(Answered, match="in use by"):
            other.ask(f"leases.acquire(0, timeout={timeout})")
    assert queue.broker.redis.hget(queue.broker.keys.lease_stats, "contended") == b"2"
