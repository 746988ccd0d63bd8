"""GPU leases without the queue: a device for a notebook, a script or a service, that nobody else of the cluster uses.

from foxqueue.leases import GpuLeases

leases = GpuLeases()
with leases.acquire_any(holder="notebook", memory="8G", timeout=60) as lease:
    lease.apply()  # before CUDA is used for the first time
    train()

`GpuLeases` is for threads, `AsyncGpuLeases` for asyncio; they share all but the waiting. What happens stands in
`steps` and `line`, as generators that do no I/O; `blocking` and `aio` drive them. `helper` is the process that renews
what this one holds, `renewing` this process's side of it. `places` are the devices of which one may be had, `spot` one
of them with its file lock, `figures` what is told of them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foxqueue.holders import Holder
    from foxqueue.leases.aio import AsyncGpuLeases, AsyncLease
    from foxqueue.leases.blocking import GpuLeases, Lease
    from foxqueue.leases.figures import ActiveHolder, GpuMemoryInfo, GpuStatistics

_WHERE = {
    "ActiveHolder": "foxqueue.leases.figures",
    "AsyncGpuLeases": "foxqueue.leases.aio",
    "AsyncLease": "foxqueue.leases.aio",
    "GpuLeases": "foxqueue.leases.blocking",
    "GpuMemoryInfo": "foxqueue.leases.figures",
    "GpuStatistics": "foxqueue.leases.figures",
    "Holder": "foxqueue.holders",
    "Lease": "foxqueue.leases.blocking",
}

__all__ = [
    "ActiveHolder",
    "AsyncGpuLeases",
    "AsyncLease",
    "GpuLeases",
    "GpuMemoryInfo",
    "GpuStatistics",
    "Holder",
    "Lease",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'foxqueue.leases' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
