"""RQ of one version on a real server: its queue, and workers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvml_stub import Child
from queue_driver import Queue
from servers import RealServer
from wait import until

TESTS = Path(__file__).parent
RQ = "import sys; from rq.cli import main; sys.exit(main())"
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

    def enqueue_for(self, seconds: int, function: str, *arguments: Any) -> str:
        """The same, with a time limit."""
        return str(self._driver.ask(f"queue.enqueue('rq_jobs.{function}', *{arguments!r}, job_timeout={seconds}).id"))

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

    def rq(self, *words: str) -> str:
        """What a command of RQ prints."""
        command = [sys.executable, "-c", RQ, words[0], "--url", self.url, *words[1:]]
        return subprocess.run(command, env=self.environ, check=True, capture_output=True, text=True).stdout

    def worker(
        self,
        *options: str,
        command: str = "worker",
        worker_class: str = "workers.rq_bridge.GpuWorker",
        **environ: str,
    ) -> subprocess.Popen[bytes]:
        """Start `rq worker`, or `rq worker-pool`, with our class, in a process group of its own."""
        words = [command, "--worker-class", worker_class, "--url", self.url, *options, "q"]
        with (self.home / f"worker{len(self._workers)}.log").open("wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-c", RQ, *words],
                env={**self.environ, **environ},
                stdout=log,
                stderr=log,
                process_group=0,  # RQ kills groups
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


def is_free(queue: Queue, device: str) -> bool:
    """Whether the server has no lease of it."""
    return not queue.broker.redis.exists(queue.broker.keys.lease(device))
