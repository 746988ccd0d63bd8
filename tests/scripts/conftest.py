"""Scripts are tested on real servers: the embedded one, and redis-server where PATH has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from queue_driver import Queue
from servers import RealServer, binaries


@pytest.fixture(scope="module", params=binaries(), ids=str)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(request.param, tmp_path_factory.mktemp("server")).start() as running:
        yield running


@pytest.fixture
def queue(server: RealServer, request: pytest.FixtureRequest) -> Iterator[Queue]:
    namespace = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]
    queue = Queue(server.url, namespace)
    yield queue
    queue.broker.redis.flushall()
    queue.broker.close()
