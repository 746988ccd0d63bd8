"""A real runner for a test: started, ordered about, and ended with everything it started."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wait import until

from foxqueue.processes import kill_marked
from foxqueue.rundirs import MARK, make_run_dir, mark_of
from workers.runs import RunnerHandle, output_path, spawn_runner

PYTHON = [sys.executable, "-S", "-c"]

ORDER: dict[str, Any] = {
    "job": 7,
    "born": 1,
    "fence": 3,
    "env": {"PATH": os.defpath},
    "cwd": "/",
    "umask": 0o022,
    "time_limit_s": None,
    "grace_s": 0.3,
    "beat_grace_s": 0.2,
    "clock": "monotonic",
}


class Rig:
    """One runner that stands by, and the run directory of its job."""

    def __init__(self, tmp_path: Path) -> None:
        self.instance = uuid.uuid4().hex
        self.mark = mark_of(self.instance, 7, 1, 3)
        self.run_dir = make_run_dir(tmp_path / "jobs", self.instance, 7, 1, 3)
        self.handle: RunnerHandle = spawn_runner()
        self.heard: list[dict[str, Any]] = []

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], MARK: self.mark}

    def order(self, argv: list[str], **changes: Any) -> dict[str, Any]:
        order = {**ORDER, "argv": argv, "env": self.env, "run_dir": str(self.run_dir)}
        return {**order, "feed_until": time.monotonic() + 60.0, **changes}

    def start(self, argv: list[str], *, lock_fds: Sequence[int] = (), **changes: Any) -> None:
        self.handle.start(self.order(argv, **changes), lock_fds)

    def wait_for(self, op: str, seconds: float = 15.0) -> dict[str, Any]:
        """The first message of this kind, heard before or waited for."""

        def look() -> dict[str, Any] | None:
            self.heard += self.handle.hear()
            return next((message for message in self.heard if message["op"] == op), None)

        return until(look, seconds, what=f"message {op!r} (heard {self.heard})", every=0.005)

    def ended(self, seconds: float = 15.0) -> dict[str, Any]:
        """The exit record, when the runner has sent it."""
        record: dict[str, Any] = self.wait_for("exited", seconds)["record"]
        return record

    def run(self, argv: list[str], **changes: Any) -> dict[str, Any]:
        self.start(argv, **changes)
        return self.ended()

    def output(self) -> bytes:
        return output_path(self.run_dir).read_bytes()

    def wait_for_output(self, text: bytes) -> bytes:
        path = output_path(self.run_dir)
        return until(lambda: path.exists() and text in self.output() and self.output(), what=f"output {text!r}")

    def close(self) -> None:
        self.handle.channel.close()
        if self.handle.process.poll() is None:
            os.kill(self.handle.pid, signal.SIGKILL)
        self.handle.process.wait()
        assert kill_marked(MARK, self.mark, 0, 10)


@contextmanager
def rig_in(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    try:
        yield rig
    finally:
        rig.close()
