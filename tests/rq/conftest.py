"""Workers of RQ, of the oldest version that is supported and of the newest, on simulated devices and a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from leases_place import gpus, leases
from nvml_stub import Child
from queue_driver import Queue
from servers import RealServer
from stub_fixtures import nvml_library, nvml_state, start_child
from wait import until

__all__ = ["gpus", "leases", "nvml_library", "nvml_state", "start_child"]

TESTS = Path(__file__).parents[1]
OLDEST = Path(sys.prefix) / "rq-2.12"  # put there by make setup


class Rq:
    """RQ of one version: its queue, and workers as processes.

    Args:
        server: for RQ and for the leases.
        home: of foxqueue.
        version: ``2.12`` or ``newest``.
        environ: more variables for workers.
    """

    def __init__(self, server: RealServer, home: Path, version: str, environ: dict[str, str]) -> None:
        self.home = home
        self.url = f"unix://{server.socket}?db=1"
        path = [str(TESTS), str(TESTS.parent)]
        if version == "2.12":
            assert (OLDEST / "rq").is_dir(), "run make setup"
            path.insert(0, str(OLDEST))
        self.environ = {
            **os.environ,
            **environ,
            "PYTHONPATH": os.pathsep.join(path),
            "FOXQUEUE_URL": server.url,
            "FOXQUEUE_HOME": str(home),
            "FOXQUEUE_NAMESPACE": "test",
        }
        self._workers: list[subprocess.Popen[bytes]] = []
        self._driver = Child(self.environ)
        self._driver.run(
            "import rq, redis\nfrom rq.command import send_stop_job_command\nfrom rq.job import Job\n"
            f"connection = redis.Redis.from_url({self.url!r})\nqueue = rq.Queue('q', connection=connection)"
        )

    @property
    def version(self) -> str:
        """Of the RQ that runs."""
        return str(self._driver.ask("rq.VERSION"))

    def enqueue(self, function: str, *arguments: Any) -> str:
        """A job of tests/rq_jobs.py. Its id."""
        return str(self._driver.ask(f"queue.enqueue('rq_jobs.{function}', *{arguments!r}).id"))

    def status(self, job: str) -> str:
        """Queued, started, finished, failed or stopped."""
        return str(self._driver.ask(f"str(Job.fetch({job!r}, connection=connection).get_status().value)"))

    def why(self, job: str) -> str:
        """What RQ says of a failure."""
        return str(self._driver.ask(f"str(Job.fetch({job!r}, connection=connection).latest_result().exc_string)"))

    def stop_job(self, job: str) -> None:
        """As `send_stop_job_command`."""
        self._driver.run(f"send_stop_job_command(connection, {job!r})")

    def queued(self) -> int:
        """Jobs that wait."""
        return int(self._driver.ask("len(queue)"))

    def ends_as(self, job: str, status: str) -> None:
        """Wait for it."""
        until(lambda: self.status(job) == status, 20, f"{job} to be {status}, it is {self.status(job)}")

    def worker(self, *options: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start `rq worker` with our class."""
        words = ["worker", "--worker-class", "workers.rq_bridge.GpuWorker", "--url", self.url, *options, "q"]
        code = "import sys; from rq.cli import main; sys.exit(main())"
        with (self.home / f"worker{len(self._workers)}.log").open("wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-c", code, *words], env={**self.environ, **environ}, stdout=log, stderr=log
            )
        self._workers.append(started)
        return started

    def said(self, number: int = 0) -> str:
        """The log of one worker."""
        return (self.home / f"worker{number}.log").read_text()

    def close(self) -> None:
        """End all."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._driver.close()


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


def is_free(queue: Queue, device: str) -> bool:
    """Whether the server has no lease of it."""
    return not queue.broker.redis.exists(queue.broker.keys.lease(device))
