"""NVIDIA's management library through nvidia-ml-py: the only module that imports pynvml.

Answers are normalised here: text instead of bytes, MiB instead of bytes, None for what NVML does not tell.
"""

from __future__ import annotations

import importlib.util
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from foxqueue.bounded import BoundedCaller
from foxqueue.errors import FoxqueueError

INVENTORY_TIMEOUT_S = 20.0  # without persistence mode the first init wakes every GPU, a second or two each
GPU_TIMEOUT_S = 5.0
V1_RESERVED_MIB = 1024  # drivers before 510 count their own part as used and do not say how much it is

_MIB = 1024 * 1024
_NO_FIGURE = 2**63  # NVML's "not available" is all ones
# Codes of NVML's ABI that mean "this GPU or driver does not tell", not that something is broken: NOT_SUPPORTED,
# NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, ARGUMENT_VERSION_MISMATCH, DEPRECATED.
_NOT_TOLD = frozenset({3, 4, 13, 21, 25, 26})
_FAULTS = {
    4: "no permission to ask the NVIDIA driver: let this user open /dev/nvidia*",
    6: "the driver no longer knows a GPU with this UUID",
    9: "the NVIDIA driver is not loaded: load it (modprobe nvidia) or reboot",
    10: "the NVIDIA driver timed out: see dmesg for Xid lines",
    12: "NVIDIA's library libnvidia-ml.so.1 is absent: no NVIDIA driver is installed",
    13: "the NVIDIA driver is too old for NVML: install a newer one",
    15: "the GPU is lost (fell off the bus): reset it or reboot",
    16: "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot",
    18: "driver upgraded, reboot: NVIDIA's library and the loaded kernel module differ in version",
}
_NEEDED = ("nvmlInit", "nvmlMemory_v2", "nvmlDeviceGetComputeRunningProcesses_v3")


class NvmlFault(FoxqueueError):
    """NVML cannot be used, or says that a GPU cannot. The text says why and, where there is one, the cure."""


@dataclass(frozen=True)
class GpuFacts:
    """What does not change about a GPU. ``index`` is NVML's, ``bus`` (domain, bus, device) on PCI."""

    index: int
    uuid: str
    name: str
    bus: tuple[int, int, int] | None
    memory_total_mib: int | None
    mig: bool


@dataclass(frozen=True)
class Inventory:
    """Every GPU the driver counts: the readable ones, and why each other one (by NVML index) is not."""

    gpus: tuple[GpuFacts, ...]
    unreadable: dict[int, str]


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU. ``pid`` as NVML sees it; ``mib`` None where NVML gives no figure."""

    pid: int
    mib: int | None
    compute: bool


@dataclass(frozen=True)
class Sample:
    """One look at a GPU. ``used_mib`` leaves out what the driver reserves for itself."""

    index: int
    memory_total_mib: int | None
    memory_free_mib: int | None
    memory_used_mib: int | None
    utilization: int | None
    mig: bool
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class Versions:
    """What NVIDIA's parts say of themselves; ``cuda`` is the newest CUDA that the driver runs, like ``12.9``."""

    library: str
    driver: str
    cuda: str


class NvmlCaller(BoundedCaller):
    """Makes calls to NVML; one that does not come back in time raises NvmlFault."""

    def __init__(self) -> None:
        super().__init__("nvml", _silent)


def _silent(seconds: float) -> NvmlFault:
    return NvmlFault(f"the NVIDIA driver has not answered for {seconds:.1f} s: see dmesg for Xid lines")


def load_binding() -> Any:
    """Import nvidia-ml-py's module ``pynvml`` and return it.

    Raises:
        NvmlFault: it is missing, or another ``pynvml`` stands in its place.
    """
    spec = importlib.util.find_spec("pynvml")
    if spec is None:
        raise NvmlFault("the Python package nvidia-ml-py is missing: pip install nvidia-ml-py")
    foreign = NvmlFault(
        f"{spec.origin} is a foreign module pynvml that stands in nvidia-ml-py's place: "
        "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
    )
    if not _is_nvidias(Path(spec.origin or "")):
        raise foreign  # before any of its code runs
    import pynvml

    if not all(hasattr(pynvml, name) for name in _NEEDED):
        raise foreign
    return pynvml


def _is_nvidias(origin: Path) -> bool:
    return _owns("nvidia-ml-py", origin) and not _owns("pynvml", origin)


def _owns(distribution: str, origin: Path) -> bool:
    """Whether the installed distribution lists the file. One without a list owns all, as we depend on it."""
    from importlib import metadata  # costs 15 ms, which only machines that ask NVML should pay

    try:
        files = metadata.files(distribution)
    except metadata.PackageNotFoundError:
        return False
    if files is None:
        return distribution == "nvidia-ml-py"
    real = origin.resolve()
    return any(file.name == real.name and Path(str(file.locate())).resolve() == real for file in files)


def binding_version() -> str:
    """Version of nvidia-ml-py; ``unknown`` when it was installed without its metadata."""
    from importlib import metadata

    try:
        return metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return "unknown"


def versions(timeout_s: float = INVENTORY_TIMEOUT_S) -> Versions:
    """Versions of NVIDIA's library and driver. Takes at most ``timeout_s`` seconds.

    Raises:
        NvmlFault: NVML cannot be used.
    """
    caller = NvmlCaller()
    try:
        return caller.call(_versions, timeout_s)
    finally:
        caller.close()


def inventory(timeout_s: float = INVENTORY_TIMEOUT_S) -> Inventory:
    """List the GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says. Takes at most ``timeout_s`` seconds.

    Raises:
        NvmlFault: NVML cannot be used at all.
    """
    deadline = time.monotonic() + timeout_s
    caller = NvmlCaller()
    gpus: list[GpuFacts] = []
    unreadable: dict[int, str] = {}
    hung = False
    try:
        pynvml, count = caller.call(_open_and_count, timeout_s)
        for index in range(count):
            limit = min(GPU_TIMEOUT_S, deadline - time.monotonic())
            try:
                gpus.append(caller.call(partial(_facts, pynvml, index), limit))
            except NvmlFault as fault:
                unreadable[index] = str(fault)
            if caller.hangs:  # leave that thread to its GPU and ask about the others from a new one
                hung = True
                caller.close()
                caller = NvmlCaller()
        if not hung:  # nothing may be shut down under a call that is still inside the library
            with suppress(NvmlFault):
                caller.call(partial(_shut_down, pynvml), GPU_TIMEOUT_S)
    finally:
        caller.close()
    return Inventory(tuple(gpus), unreadable)


class GpuReader:
    """Reads one GPU, found by its UUID. NVML is opened at the first read and, after a fault, anew at the next.

    Its calls may hang: make them through an NvmlCaller.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._opened: tuple[Any, Any] | None = None

    def read(self) -> Sample:
        """Take one sample.

        Raises:
            NvmlFault: NVML or the GPU cannot be used.
        """
        try:
            if self._opened is None:
                self._opened = _open_gpu(self.uuid)
            _check_driver(self._opened[0])
            return _sample(*self._opened)
        except NvmlFault:
            self.close()
            raise

    def close(self) -> None:
        """Close NVML, if it is open."""
        if self._opened is not None:
            pynvml, self._opened = self._opened[0], None
            _shut_down(pynvml)


def _open() -> Any:
    pynvml = load_binding()
    _ask(pynvml, "nvmlInit")
    return pynvml


def _open_and_count() -> tuple[Any, int]:
    pynvml = _open()
    try:
        return pynvml, int(_ask(pynvml, "nvmlDeviceGetCount"))
    except NvmlFault:
        _shut_down(pynvml)
        raise


def _versions() -> Versions:
    pynvml = _open()
    try:
        names = ("nvmlSystemGetNVMLVersion", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion")
        library, driver, cuda = (_ask_if_told(pynvml, name) for name in names)
    finally:
        _shut_down(pynvml)
    newest = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "unknown"
    return Versions(_text(library or "unknown"), _text(driver or "unknown"), newest)


def _open_gpu(uuid: str) -> tuple[Any, Any]:
    pynvml = _open()
    try:
        # bytes, because bindings that take text encode it and older ones take nothing else
        return pynvml, _ask(pynvml, "nvmlDeviceGetHandleByUUID", uuid.encode())
    except NvmlFault:
        _shut_down(pynvml)
        raise


def _check_driver(pynvml: Any) -> None:
    """Raise NvmlFault when the driver was upgraded under us: what is open goes on working, a new job would not.

    Opening NVML once more is what tells of a mismatch, and costs nothing: it is counted. The library in this process
    is the old one, though, and agrees with the old driver; then the file it came from is gone.
    """
    _ask(pynvml, "nvmlInit")
    _shut_down(pynvml)
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if any("/libnvidia-ml.so" in line and line.endswith(" (deleted)") for line in maps.splitlines()):
        raise NvmlFault(
            "driver upgraded, reboot: NVIDIA's library was replaced since this worker started (where the kernel "
            "module was reloaded too, a restart of the worker will do)"
        )


def _shut_down(pynvml: Any) -> None:
    with suppress(pynvml.NVMLError):  # a driver that is gone cannot be closed either
        pynvml.nvmlShutdown()


def _facts(pynvml: Any, index: int) -> GpuFacts:
    handle = _ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
    try:
        name = _text(_ask_if_told(pynvml, "nvmlDeviceGetName", handle) or "")
    except UnicodeDecodeError:  # the binding decodes strictly
        name = ""
    pci = _ask_if_told(pynvml, "nvmlDeviceGetPciInfo", handle)
    return GpuFacts(
        index=index,
        uuid=_text(_ask(pynvml, "nvmlDeviceGetUUID", handle)),
        name=name or "unnamed NVIDIA GPU",
        bus=None if pci is None else (int(pci.domain), int(pci.bus), int(pci.device)),
        memory_total_mib=_memory(pynvml, handle)[0],
        mig=_has_mig(pynvml, handle),
    )


def _sample(pynvml: Any, handle: Any) -> Sample:
    total, free, used = _memory(pynvml, handle)
    rates = _ask_if_told(pynvml, "nvmlDeviceGetUtilizationRates", handle)
    return Sample(
        index=int(_ask(pynvml, "nvmlDeviceGetIndex", handle)),
        memory_total_mib=total,
        memory_free_mib=free,
        memory_used_mib=used,
        utilization=None if rates is None else int(rates.gpu),
        mig=_has_mig(pynvml, handle),
        processes=_processes(pynvml, handle),
    )


def _memory(pynvml: Any, handle: Any) -> tuple[int | None, int | None, int | None]:
    """Total, free and used MiB; three None where the driver does not tell (unified memory, some vGPUs).

    A total that is the machine's own memory is not told either: what the whole machine uses is no GPU memory.
    """
    reserved = 0
    info = _ask_if_told(pynvml, "nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if info is None:
        reserved = V1_RESERVED_MIB
        info = _ask_if_told(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    if info is None or not info.total or abs(info.total - _system_bytes()) < _MIB:
        return None, None, None
    return info.total // _MIB, info.free // _MIB, max(0, -(-info.used // _MIB) - reserved)


def _system_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _has_mig(pynvml: Any, handle: Any) -> bool:
    modes = _ask_if_told(pynvml, "nvmlDeviceGetMigMode", handle)
    return modes is not None and modes[0] == 1


def _processes(pynvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for kind in ("Compute", "MPSCompute", "Graphics"):
        compute = kind != "Graphics"
        for entry in _running(pynvml, kind, handle):
            mib = entry.usedGpuMemory
            mib = None if mib is None or mib >= _NO_FIGURE else -(-mib // _MIB)
            known = found.get(int(entry.pid))
            if known is not None:  # one that computes and draws stands in both lists with the same figure
                mib = max((x for x in (known.mib, mib) if x is not None), default=None)
                compute = compute or known.compute
            found[int(entry.pid)] = GpuProcess(int(entry.pid), mib, compute)
    return tuple(found.values())


def _running(pynvml: Any, kind: str, handle: Any) -> list[Any]:
    for version in ("_v3", "_v2"):  # drivers before 510 have only the second
        entries = _ask_if_told(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
        if entries is not None:
            return list(entries)
    return []


def _ask_if_told(pynvml: Any, name: str, *arguments: Any) -> Any | None:
    """As `_ask`, but None for what the GPU or the driver does not tell."""
    function = getattr(pynvml, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_TOLD:
            return None
        raise NvmlFault(_explain(name, error)) from error


def _ask(pynvml: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the binding; its errors become NvmlFault."""
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlFault(_explain(name, error)) from error


def _explain(name: str, error: Any) -> str:
    return _FAULTS.get(error.value) or f"the NVIDIA driver answers {name} with: {error} (code {error.value})"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
