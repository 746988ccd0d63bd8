"""One GPU that several jobs share, on a fake machine: jobs that take memory and end when they are told."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nvml_stub
from stack import Stack, ended
from wait import until

from foxqueue.locks import SHARED_PLACES

TOTAL_MIB = 10240

JOB = """
import sys, time
sys.path.insert(0, {stub!r})
from pathlib import Path
import nvml_stub
while not Path({end!r}).exists():
    if Path({wants!r}).exists():
        nvml_stub.hold(Path({procs!r}), 0, int(Path({wants!r}).read_text()))
    time.sleep(0.02)
"""


class Shared:
    """A home on a machine with one GPU of 10 GiB.

    Attributes:
        uuid: of the GPU; locks belong to the whole machine, so it has a new one each time.
    """

    def __init__(self, root: Path, state: nvml_stub.State) -> None:
        self.uuid = f"GPU-{uuid.uuid4()}"
        self.state = state
        self.write()
        self.stack = Stack(root, state.env({}, LD_LIBRARY_PATH=str(state.library)))

    def write(self, *lines: str) -> None:
        """Say more of the machine."""
        gpu = [f"uuid {self.uuid}", "name NVIDIA A10", "bus 00000000:10:00.0", f"mem_total_mib {TOTAL_MIB}"]
        self.state.write(*(f"gpu 0 {line}" for line in gpu), *lines)

    def up(self, slots: int, *flags: str) -> subprocess.Popen[bytes]:
        """Run ``foxqueue up --slots``."""
        return self.stack.up("--slots", str(slots), "--lease-ttl", "2s", *flags, workers=slots)

    def job(self, name: str, **options: Any) -> Job:
        """Submit one."""
        return Job(self, name, options)


class Job:
    """A job that holds as much memory as it is told, until it is told to end."""

    def __init__(self, shared: Shared, name: str, options: dict[str, Any]) -> None:
        self._stack = shared.stack
        self._end, self._wants = (shared.stack.root / f"{name}.{what}" for what in ("end", "wants"))
        files = {"stub": str(nvml_stub.HERE), "procs": str(shared.state.procs)}
        code = JOB.format(**files, end=str(self._end), wants=str(self._wants))
        self.number = self._stack.queue(sys.executable, "-S", "-c", code, name=name, **options)

    def hold(self, mib: int) -> None:
        """Have it hold so much."""
        fresh = self._wants.with_suffix(".new")
        fresh.write_text(str(mib))
        fresh.replace(self._wants)

    def runs(self) -> str:
        """Wait until it does; its device."""
        return str(self._stack.await_state(self.number, "running")["gpu_uuids"][0])

    def finish(self) -> None:
        """Let it end."""
        self._end.touch()

    def end(self) -> dict[str, Any]:
        """Let it end, and wait for that."""
        self.finish()
        return self._stack.await_state(self.number, "succeeded")

    def waits_for(self, word: str, *texts: str) -> None:
        """Wait until it says that it waits for this."""
        stack = self._stack

        def says() -> bool:
            job = stack.job(self.number)
            assert job["state"] == "pending", job
            return job["waiting_for"] == word and all(text in str(job["detail"]) for text in texts)

        until(says, 10, f"job {self.number} waiting for {word} {texts}: {stack.job(self.number)['detail']}")


@contextmanager
def shared_gpu(root: Path, state: nvml_stub.State) -> Iterator[Shared]:
    """The machine, ended afterwards."""
    made = Shared(root, state)
    with ended(made.stack):
        yield made
    for place in SHARED_PLACES:
        for file in place.glob(f"{made.uuid}*"):
            file.unlink()
