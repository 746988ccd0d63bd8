"""Real processes that use ``foxqueue.leases``: told what to do one after another, or all at once."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvml_stub import Child

from foxqueue import Client
from foxqueue.errors import GpuAlreadyLeased, NoGpuAvailable
from foxqueue.leases import GpuLeases
from foxqueue.places import home_id
from foxqueue.presence import Presence
from foxqueue.probing import Observation
from foxqueue.processes import ProcessId, children
from foxqueue.survey import discover


def register(fox: Client, simulate: str = "2x24G") -> list[str]:
    """Make simulated devices of this machine known, as workers of the home would; their UUIDs."""
    host = socket.gethostname()
    devices = discover(simulate, 0, home_id(fox.config), host, {})
    for device in devices:
        presence = Presence(fox.broker, device, f"pretended-{device.index}", host)
        presence.look(Observation(device.memory_total_mib, device.memory_total_mib, 0, "free", ""))
        presence.idle()
        presence.register()
    return [device.uuid for device in devices]


def in_line(fox: Client, device: str) -> int:
    """How many wait for a device."""
    found: Any = fox.redis.zcard(fox.broker.keys.lease_waiting(device))
    return int(found)


def environ_of(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of processes of this home."""
    known = os.environ if base is None else base
    kept = {name: value for name, value in known.items() if not name.startswith(("FOXQUEUE_", "CUDA_"))}
    return {**kept, "FOXQUEUE_HOME": str(home)}


class Process(Child):
    """A process with a ``leases = GpuLeases(…)``; what its ``lost`` was called with goes into the list ``losses``.

    Args:
        url: of the server.
        environ: as of `environ_of`.
        namespace: of the queue.
        more: further arguments of GpuLeases, as source.
    """

    def __init__(self, url: str, environ: Mapping[str, str], namespace: str = "test", more: str = "") -> None:
        super().__init__(environ)
        self.run("import os, time\nfrom foxqueue.leases import GpuLeases\nlosses = []")
        self.run(f"leases = GpuLeases({url!r}, {namespace!r}, lost=losses.append, {more})")

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def acquire(self, gpu: str | int = 0, *, name: str = "lease", **options: Any) -> dict[str, Any]:
        """Acquire a device, not waiting unless told; what it got. ``name`` is that of the variable."""
        wanted = {"holder": "notebook", "timeout": 0, **options}
        self.run(f"{name} = leases.acquire({gpu!r}, **{wanted!r})")
        return self.told(name)

    def told(self, name: str = "lease") -> dict[str, Any]:
        """What a lease says of itself."""
        fields = {"uuid": "gpu_uuid", "uuids": "gpu_uuids", "index": "index", "fence": "fence", "env": "env()"}
        words = ", ".join(f"{key}={name}.{field}" for key, field in fields.items())
        found: dict[str, Any] = self.ask(f"dict({words})")
        return found

    def helper(self) -> ProcessId:
        """The process that renews for it."""
        (pid,) = children(self.pid)
        found = ProcessId.of(pid)
        assert found is not None
        return found

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- what processes of a Crowd do ---------------------------------------------------------------------------------


def try_one(url: str, gpu: str | None, flag: str) -> dict[str, Any]:
    """Ask once for a device, any without ``gpu``, and hold it until the flag is there.

    Returns:
        The device that it got, or None, with the fence; who has what it was refused, and the words.
    """
    label = f"racer {os.getpid()}"
    with GpuLeases(url, "test") as leases:
        try:
            lease = (
                leases.acquire_any(holder=label, timeout=0)
                if gpu is None
                else leases.acquire(gpu, holder=label, timeout=0)
            )
        except GpuAlreadyLeased as error:
            return {"got": None, "gpu": error.gpu, "by": [_named(error.holder)], "text": str(error)}
        except NoGpuAvailable as error:
            return {"got": None, "by": [_named(holder) for holder in error.holders.values()], "text": str(error)}
        with lease:
            _until_exists(flag)
            lease.check()
        return {"got": lease.gpu_uuid, "fence": lease.fence, "pid": os.getpid()}


def notebook(ends: float, seed: int) -> list[list[Any]]:
    """A person: takes any device for a moment, again and again.

    Args:
        ends: epoch second after which it does not begin again.
        seed: of how long it keeps them.

    Returns:
        Of each turn the device, when it was asked for, granted and given back (epoch seconds).
    """
    return _take_turns("notebook", ends, random.Random(seed), time.sleep, (0.05, 0.3))


def bridge(ends: float, seed: int) -> list[list[Any]]:
    """As a worker of RQ: first the device, then a job of its own, in a process that it forks. Args as of `notebook`."""

    def work(seconds: float) -> None:
        horse = os.fork()
        if not horse:
            time.sleep(seconds)
            os._exit(0)
        os.waitpid(horse, 0)

    return _take_turns("rq", ends, random.Random(seed), work, (0.1, 0.2))


def _take_turns(
    label: str, ends: float, chance: random.Random, work: Callable[[float], None], lasts: tuple[float, float]
) -> list[list[Any]]:
    turns = []
    with GpuLeases() as leases:
        while time.time() < ends:
            asked = time.time()
            with leases.acquire_any(holder=label, timeout=60) as lease:
                work(chance.uniform(*lasts))
                turns.append([lease.gpu_uuid, asked, lease.fence / 1e6, time.time()])
    return turns


def _named(holder: Any) -> list[Any] | None:
    return None if holder is None else [holder.pid, holder.label]


def _until_exists(flag: str) -> None:
    deadline = time.monotonic() + 60
    while not Path(flag).exists():
        assert time.monotonic() < deadline, f"{flag} did not come"
        time.sleep(0.01)
