"""One worker on a server of its own, and jobs for it that say all that a spec can say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import RealServer
from stack import Stack, ended
from wait import until

from foxqueue import payload
from foxqueue.broker import Environment, NewJob
from foxqueue.codec import pack


class Workplace:
    """A stack whose server is there already.

    Args:
        stack: whose ``FOXQUEUE_URL`` names a server.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.broker = stack.api.broker

    def start(self, gpu: str = "sim:0", before: str = "") -> int:
        """Start a worker and wait for it; its pid."""
        known = set(self._workers())
        process = self.stack.start_worker(gpu, "--simulate", "2x24G", before=before)
        until(lambda: set(self._workers()) - known, 20, f"the worker: {self.stack.log('worker')}")
        return process.pid

    def _workers(self) -> list[str]:
        return [name.decode() for name in self.stack.api.redis.zrange(self.broker.keys.workers, 0, -1)]

    def put(
        self, *argv: str, retries: int = 0, delay_ms: int = 0, more: str = "", shape: str = "g1", **spec: Any
    ) -> int:
        """Enqueue a command, or with ``call`` a Python call; the job's number."""
        whole = {"v": 1, "argv": list(argv), "cwd": str(self.stack.work), "umask": 0o022, **spec}
        job = NewJob("", shape, 5, retries, delay_ms, pack(whole), more)
        return self.broker.enqueue(job, Environment.of({"PATH": os.environ["PATH"]}))[0]

    def call(self, module: str, function: str, *args: Any, **options: Any) -> int:
        """Enqueue a call of a module in the work directory."""
        what = {"module": module, "qualname": function, "python": sys.executable}
        return self.put(f"{module}:{function}()", call={**what, "data": payload.pack([list(args), {}])}, **options)

    def hash(self, number: int) -> dict[str, str]:
        """The fields of a job."""
        found = self.stack.api.redis.hgetall(self.broker.keys.job(number))
        return {name.decode(): value.decode() for name, value in found.items()}

    def await_state(self, number: int, *states: str, seconds: float = 20.0) -> dict[str, str]:
        """The fields of a job when it is in one of the states."""

        def arrived() -> dict[str, str] | None:
            found = self.hash(number)
            return found if found.get("state") in states else None

        found = until(arrived, seconds, f"job {number} in {states}; it is {self.hash(number)}")
        assert found is not None
        return found

    def history(self, number: int) -> list[list[str]]:
        """The ends of its runs: attempt, fence, started, ended, host, device, how, reason, exit code, detail."""
        found = self.stack.api.redis.lrange(self.broker.keys.history(number), 0, -1)
        return [entry.decode().split("\n", 9) for entry in found]

    def output(self, number: int) -> str:
        """What is kept of its output."""
        return b"".join(piece.data for piece in self.stack.api.inspector.log(number)).decode()


@contextmanager
def workplace(root: Path, **environ: str) -> Iterator[Workplace]:
    """A server and a stack; the test starts its workers."""
    with RealServer(None, root / "server").start() as server:
        made = Stack(root / "stack", {"FOXQUEUE_URL": server.url, **environ})
        with ended(made):
            place = Workplace(made)
            place.broker.configure(3000)  # so it is swept every second
            yield place
