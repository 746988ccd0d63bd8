"""Workers of RQ, of the oldest version that is supported and of the newest, on simulated devices and a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from leases_place import gpus, leases
from queue_driver import Queue
from rq_place import Rq
from servers import RealServer
from stub_fixtures import nvml_library, nvml_state, start_child

__all__ = ["gpus", "leases", "nvml_library", "nvml_state", "start_child"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """The embedded one."""
    with RealServer(None, tmp_path_factory.mktemp("server")).start() as made:
        yield made


@pytest.fixture
def queue(server: RealServer) -> Iterator[Queue]:
    """An empty namespace, and an empty database for RQ."""
    made = Queue(server.url, "test")
    yield made
    made.broker.redis.flushall()
    made.broker.close()


@pytest.fixture(params=["2.12", "newest"])
def version(request: pytest.FixtureRequest) -> str:
    """Of RQ."""
    return str(request.param)


@pytest.fixture
def rq(server: RealServer, gpus: list[str], tmp_path: Path, version: str) -> Iterator[Rq]:
    """RQ, whose workers have the three simulated devices of `gpus`, or the first alone."""
    made = Rq(server, tmp_path, version, {"FOXQUEUE_RQ_GPUS": gpus[0]})
    yield made
    made.close()


@pytest.fixture
def device(gpus: list[str]) -> str:
    """The one that the workers have."""
    return gpus[0]
