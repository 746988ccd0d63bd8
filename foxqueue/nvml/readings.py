"""What one call or two ask of one GPU or MIG instance."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from foxqueue.nvml.binding import ask_if_told

V1_RESERVED_MIB = 1024  # drivers before 510 count their own part as used and do not say how much it is

_MIB = 1024 * 1024
_NO_FIGURE = 2**63  # NVML's "not available" is all ones
_UNCORRECTED, _SINCE_BOOT = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU. ``pid`` as NVML sees it; ``mib`` None where NVML gives no figure."""

    pid: int
    mib: int | None
    compute: bool


def memory(pynvml: Any, handle: Any) -> tuple[int | None, int | None, int | None]:
    """Total, free and used MiB; three None where the driver does not tell (unified memory, some vGPUs).

    A total that is the machine's own memory is not told either: what the whole machine uses is no GPU memory.
    """
    reserved = 0
    info = ask_if_told(pynvml, "nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if info is None:
        reserved = V1_RESERVED_MIB
        info = ask_if_told(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    if info is None or not info.total or abs(info.total - _system_bytes()) < _MIB:
        return None, None, None
    return info.total // _MIB, info.free // _MIB, max(0, -(-info.used // _MIB) - reserved)


def _system_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def utilization(pynvml: Any, handle: Any) -> int | None:
    """Percent of the last sample period in which something ran; None where the driver does not tell."""
    rates = ask_if_told(pynvml, "nvmlDeviceGetUtilizationRates", handle)
    return None if rates is None else int(rates.gpu)


def has_mig(pynvml: Any, handle: Any) -> bool:
    """Whether a GPU (not an instance) is cut into MIG instances now."""
    modes = ask_if_told(pynvml, "nvmlDeviceGetMigMode", handle)
    return modes is not None and modes[0] == 1


def ecc_uncorrected(pynvml: Any, handle: Any) -> int | None:
    """Memory errors that ECC could not correct since the driver was loaded; None without ECC."""
    count = ask_if_told(pynvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_BOOT)
    return None if count is None else int(count)


def processes(pynvml: Any, handle: Any) -> tuple[tuple[GpuProcess, ...], bool]:
    """The processes on it, and whether the driver lists those that compute at all."""
    found: dict[int, GpuProcess] = {}
    listed = False
    for kind in ("Compute", "MPSCompute", "Graphics"):
        compute = kind != "Graphics"
        entries = _running(pynvml, kind, handle)
        listed = listed or (kind == "Compute" and entries is not None)
        for entry in entries or ():
            pid = int(entry.pid)
            mib = _figure(entry.usedGpuMemory)
            known = found.get(pid)
            if known is not None:  # one that computes and draws stands in both lists with the same figure
                mib = max((x for x in (known.mib, mib) if x is not None), default=None)
                compute = compute or known.compute
            found[pid] = GpuProcess(pid, mib, compute)
    return tuple(found.values()), listed


def _figure(used: int | None) -> int | None:
    """MiB. Drivers that translate process numbers for a container give 0 there, which nothing on a GPU can use."""
    return None if not used or used >= _NO_FIGURE else -(-used // _MIB)


def _running(pynvml: Any, kind: str, handle: Any) -> list[Any] | None:
    for version in ("_v3", "_v2"):  # drivers before 510 have only the second
        entries = ask_if_told(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
        if entries is not None:
            return list(entries)
    return None
