"""Simulated devices to lease, and processes that lease them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvml_stub import Child
from pretend import register
from queue_driver import Queue
from servers import RealServer

from foxqueue.config import load_config
from foxqueue.leases import GpuLeases
from foxqueue.locks import DeviceLock, lock_places
from foxqueue.places import home_id
from foxqueue.survey import survey

HOST = socket.gethostname()


@pytest.fixture
def gpus(queue: Queue, tmp_path: Path) -> list[str]:
    """Three simulated devices of the home, registered as their workers would: 8G, 24G, 24G."""
    made = survey("1x8G,2x24G", 0, home_id(load_config(home=tmp_path)), HOST, {}).devices
    for device in made:
        mib = device.memory_total_mib
        register(queue, device.uuid, f"w{device.index}", index=device.index, memory_total_mib=mib, memory_free_mib=mib)
    return [device.uuid for device in made]


@pytest.fixture
def leases(server: RealServer, gpus: list[str], tmp_path: Path) -> Iterator[GpuLeases]:
    """Leases of these."""
    with GpuLeases(server.url, "test", home=tmp_path) as made:
        yield made


@pytest.fixture
def start(server: RealServer, gpus: list[str], tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Start a process that has ``leases`` of the same devices."""
    children: list[Child] = []

    def start_one(**more: str) -> Child:
        child = Child({**os.environ, **more})
        children.append(child)
        child.run(
            "import os, signal, threading, time\nfrom foxqueue.leases import GpuLeases\n"
            f"leases = GpuLeases({server.url!r}, 'test', home={str(tmp_path)!r})"
        )
        return child

    yield start_one
    for child in children:
        child.close()


def lock_of(home: Path, device: str) -> DeviceLock:
    """The ``.gpu`` lock of a simulated device."""
    return DeviceLock(device, "gpu", lock_places("simulated", load_config(home=home).machine_dir, {}))


def is_unlocked(home: Path, device: str) -> bool:
    """Whether nobody holds that lock."""
    lock = lock_of(home, device)
    try:
        return lock.acquire()
    finally:
        lock.release()


def is_free(queue: Queue, device: str) -> bool:
    """Whether the server has no lease of it."""
    return not queue.broker.redis.exists(queue.broker.keys.lease(device))


def in_line(queue: Queue, device: str) -> int:
    """How many stand in its line."""
    return int(queue.broker.redis.zcard(f"{queue.broker.keys.prefix}lease_waiting:{device}"))
