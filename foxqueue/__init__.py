"""foxqueue: a Redis-native job broker that gives every training run a GPU nobody else is using.

The names below are loaded at their first use, so that ``import foxqueue`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foxqueue.client import Client, Job
    from foxqueue.errors import (
        AlreadyRunning,
        DeviceHeld,
        Fail,
        FoxqueueError,
        GpuAlreadyLeased,
        GpuNotFound,
        GroupExists,
        GroupNotFound,
        InsufficientMemory,
        InvalidInput,
        JobCancelled,
        JobExists,
        JobFailed,
        JobGone,
        JobNotFound,
        LeaseBusy,
        LeaseError,
        LeaseForked,
        LeaseLost,
        LeaseReleased,
        MemoryQueryFailed,
        NoDevice,
        NoGpuAvailable,
        NoServer,
        NotCancelled,
        NotChanged,
        NotLeaseHolder,
        NotRequeued,
        OutcomeUnknown,
        PartlySubmitted,
        QueueFull,
        Retry,
        ServerError,
        ServerRefused,
        ServerUnavailable,
        SettingsDiffer,
        Unsatisfiable,
        UtilizationQueryFailed,
        ValueUnreadable,
        WaitTimeout,
    )
    from foxqueue.leases import AsyncGpuLeases, GpuLeases, GpuMemoryInfo, GpuStatistics, Lease

    __version__: str

__all__ = [
    "AlreadyRunning",
    "AsyncGpuLeases",
    "Client",
    "DeviceHeld",
    "Fail",
    "FoxqueueError",
    "GpuAlreadyLeased",
    "GpuLeases",
    "GpuMemoryInfo",
    "GpuNotFound",
    "GpuStatistics",
    "GroupExists",
    "GroupNotFound",
    "InsufficientMemory",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobFailed",
    "JobGone",
    "JobNotFound",
    "Lease",
    "LeaseBusy",
    "LeaseError",
    "LeaseForked",
    "LeaseLost",
    "LeaseReleased",
    "MemoryQueryFailed",
    "NoDevice",
    "NoGpuAvailable",
    "NoServer",
    "NotCancelled",
    "NotChanged",
    "NotLeaseHolder",
    "NotRequeued",
    "OutcomeUnknown",
    "PartlySubmitted",
    "QueueFull",
    "Retry",
    "ServerError",
    "ServerRefused",
    "ServerUnavailable",
    "SettingsDiffer",
    "Unsatisfiable",
    "UtilizationQueryFailed",
    "ValueUnreadable",
    "WaitTimeout",
    "__version__",
]

_WHERE = {
    "AsyncGpuLeases": "foxqueue.leases",
    "Client": "foxqueue.client",
    "GpuLeases": "foxqueue.leases",
    "GpuMemoryInfo": "foxqueue.leases",
    "GpuStatistics": "foxqueue.leases",
    "Job": "foxqueue.client",
    "Lease": "foxqueue.leases",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("foxqueue")
    if name not in __all__:
        raise AttributeError(f"module 'foxqueue' has no attribute {name!r}")
    return getattr(import_module(_WHERE.get(name, "foxqueue.errors")), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
