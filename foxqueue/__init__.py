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
        GroupExists,
        GroupNotFound,
        InvalidInput,
        JobCancelled,
        JobExists,
        JobFailed,
        JobGone,
        JobNotFound,
        LeaseLost,
        NoDevice,
        NoServer,
        NotCancelled,
        NotChanged,
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
        ValueUnreadable,
        WaitTimeout,
    )

    __version__: str

__all__ = [
    "AlreadyRunning",
    "Client",
    "DeviceHeld",
    "Fail",
    "FoxqueueError",
    "GroupExists",
    "GroupNotFound",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobFailed",
    "JobGone",
    "JobNotFound",
    "LeaseLost",
    "NoDevice",
    "NoServer",
    "NotCancelled",
    "NotChanged",
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
    "ValueUnreadable",
    "WaitTimeout",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("foxqueue")
    if name not in __all__:
        raise AttributeError(f"module 'foxqueue' has no attribute {name!r}")
    module = "foxqueue.client" if name in ("Client", "Job") else "foxqueue.errors"
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
