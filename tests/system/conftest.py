"""System tests run whole foxqueues; nothing of one is left when its test ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_driver import Queue
from servers import RealServer
from shell import Shell
from stack import Stack
from stub_fixtures import nvml_library, nvml_state, start_child

from foxqueue import Client

__all__ = ["nvml_library", "nvml_state", "start_child"]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A home of its own; the test starts what it needs."""
    made = Stack(tmp_path)
    yield made
    made.end()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def running(stack: Stack) -> Stack:
    """Two simulated devices, served."""
    stack.up()
    return stack


@pytest.fixture
def quick(stack: Stack) -> Stack:
    """Two simulated devices under short leases: what takes 30 s takes 4."""
    stack.up("--simulate", "2x24G", "--lease-ttl", "2s")
    return stack


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server for clients; nothing works for it."""
    with RealServer(None, tmp_path_factory.mktemp("server")).start() as running:
        yield running


@pytest.fixture
def queue(server: RealServer) -> Iterator[Queue]:
    """Its namespace ``test``, driven by scripts alone, and empty afterwards."""
    driver = Queue(server.url, "test")
    yield driver
    driver.broker.redis.flushall()
    driver.broker.close()


@pytest.fixture
def fox(server: RealServer, queue: Queue, tmp_path: Path) -> Iterator[Client]:
    """A client of the same namespace."""
    with Client(server.url, "test", tmp_path) as client:
        yield client


@pytest.fixture
def shell(server: RealServer, queue: Queue, tmp_path: Path) -> Shell:
    """The command line on the same namespace."""
    return Shell(server, tmp_path)
