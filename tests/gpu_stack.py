"""A fake machine with GPUs of its own and a foxqueue that serves them: system tests of what GPUs can do to one."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nvml_stub import HERE, State
from stack import Stack, ended
from wait import until

from foxqueue.locks import SHARED_PLACES

TOTAL_MIB = 24_576
# Python that runs in workers first: they look, and lose patience with a driver, four and ten times as soon.
QUICKLY = """
from foxqueue.probing import Probe
from workers import sampling
sampling.EVERY_S = 0.5
Probe.__init__.__defaults__ = (0.5,)
"""


class GpuStack(Stack):
    """A stack on a machine with so many GPUs of 24 GiB.

    Attributes:
        state: of the fake machine.
        gpus: UUIDs, by index; unlike those of any other test, for locks belong to the whole machine.
        also: UUIDs of other devices, whose lock files are to be removed too.
    """

    def __init__(self, root: Path, state: State, gpus: int) -> None:
        super().__init__(root, state.env({}, LD_LIBRARY_PATH=str(state.library)))
        self.state = state
        self.gpus = [f"GPU-{uuid.uuid4()}" for _ in range(gpus)]
        self.also: list[str] = []
        self._strangers: list[subprocess.Popen[bytes]] = []
        self.say()

    def say(self, *lines: str) -> None:
        """What the machine tells from now on, beside what it is: lines of the stub's state file."""
        every = [f"gpu {index} uuid {uuid}" for index, uuid in enumerate(self.gpus)]
        every += [f"gpu {index} mem_total_mib {TOTAL_MIB}" for index in range(len(self.gpus))]
        self.state.write(*every, *lines)

    def set(self, **settings: str) -> None:
        """Change settings of the namespace, by a server that runs."""
        for name, value in settings.items():
            self.fox("config", "set", name, value)

    def serve_with(self, *flags: str, ttl_ms: int = 2000, **settings: str) -> None:
        """Start the server, change settings, and start a worker for each GPU that looks at it each half second.

        Args:
            flags: of the workers.
            ttl_ms: length of the leases.
            settings: name and value.
        """
        self.serve(ttl_ms)
        self.set(**settings)
        visible = self.environ.get("CUDA_VISIBLE_DEVICES")
        served = self.gpus if visible is None else [self.gpus[int(visible)]]
        self.serve_devices(*served, *self.also, flags=flags)

    def serve_devices(self, *devices: str, flags: Sequence[str] = ()) -> None:
        """Start workers for these devices, and wait until they have looked at them."""
        for device in devices:
            self.start_worker(device, *flags, before=QUICKLY)

        def looked_at() -> bool:
            found = {uuid: device["detail"] or "" for uuid, device in self.devices().items()}
            return all(device in found and "looked at" not in found[device] for device in devices)

        until(looked_at, 30, f"looks at {devices}: {self.log('worker')[-1500:]}")

    def stranger(self, gpu: int, mib: int) -> subprocess.Popen[bytes]:
        """A process that is none of ours and holds memory of a GPU until it is killed."""
        process = subprocess.Popen(self.state.holding(gpu, mib), stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"})
        self._strangers.append(process)
        assert process.stdout is not None and process.stdout.readline()
        return process

    def holding(self, flag: Path, *memory: tuple[int, int]) -> tuple[str, ...]:
        """A command that holds memory of GPUs, (index, MiB) each, until the file is there."""
        lines = [f"nvml_stub.hold(Path({str(self.state.procs)!r}), {gpu}, {mib})" for gpu, mib in memory]
        code = (
            f"import sys, os, time; sys.path.insert(0, {str(HERE)!r}); import nvml_stub; from pathlib import Path\n"
            + "\n".join(lines)
            + f"\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.02)"
        )
        return (sys.executable, "-S", "-c", code)

    def state_of(self, gpu: int) -> str:
        """The state in which ``foxqueue gpus`` shows a GPU."""
        return str(self.devices()[self.gpus[gpu]]["state"])

    def detail_of(self, gpu: int) -> str:
        """What it says beside."""
        return str(self.devices()[self.gpus[gpu]]["detail"])

    def trail(self, *names: str) -> list[dict[str, str]]:
        """The audit trail's events of these names, oldest first."""
        entries: Any = self.api.redis.xrange(self.api.broker.keys.events)
        found = [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in entries]
        return [event for event in found if event["event"] in names]

    def end(self) -> None:
        """End whatever is left, strangers too, and leave no lock file."""
        for process in self._strangers:
            process.kill()
            process.communicate()
        super().end()
        for place in SHARED_PLACES:
            for device in (*self.gpus, *self.also):
                for file in place.glob(f"{device}[.~]*"):
                    with suppress(FileNotFoundError):
                        file.unlink()


@contextmanager
def gpu_stack(root: Path, state: State, gpus: int = 1) -> Iterator[GpuStack]:
    """A stack, ended afterwards."""
    with ended(GpuStack(root, state, gpus)) as made:
        assert isinstance(made, GpuStack)
        yield made
