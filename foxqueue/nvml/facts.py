"""What does not change about the GPUs of a machine and their driver."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from foxqueue.nvml.binding import NOT_FOUND, NvmlCaller, NvmlFault, ask, ask_if_told, open_nvml, shut_down, text_of
from foxqueue.nvml.readings import has_mig, memory

INVENTORY_TIMEOUT_S = 20.0  # without persistence mode the first init wakes every GPU, a second or two each
GPU_TIMEOUT_S = 5.0

Bus = tuple[int, int, int]


@dataclass(frozen=True)
class MigFacts:
    """A MIG instance of a GPU. ``number`` is NVML's; ``gpu_instance`` and ``compute_instance`` are the driver's ids."""

    number: int
    uuid: str
    name: str
    memory_total_mib: int | None
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True)
class GpuFacts:
    """What does not change about a GPU. ``index`` is NVML's, ``bus`` (domain, bus, device) on PCI.

    With ``mig`` it is cut into ``instances``, and nothing runs on it but on them.
    """

    index: int
    uuid: str
    name: str
    bus: Bus | None
    memory_total_mib: int | None
    mig: bool
    instances: tuple[MigFacts, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """Every GPU the driver counts: the readable ones, and why each other one (by NVML index) is not."""

    gpus: tuple[GpuFacts, ...]
    unreadable: dict[int, str]


@dataclass(frozen=True)
class Versions:
    """What NVIDIA's parts say of themselves; ``cuda`` is the newest CUDA that the driver runs, like ``12.9``."""

    library: str
    driver: str
    cuda: str


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
                caller.call(partial(shut_down, pynvml), GPU_TIMEOUT_S)
    finally:
        caller.close()
    return Inventory(tuple(gpus), unreadable)


def pci_order(buses: Iterable[tuple[int, Bus | None]]) -> dict[int, int]:
    """CUDA's index of each GPU under CUDA_DEVICE_ORDER=PCI_BUS_ID.

    NVML promises no order of its own. Where it is PCI's, its indices are kept: those of GPUs that cannot be
    read then stay counted.

    Args:
        buses: NVML index and place on PCI of each GPU that can be read.

    Returns:
        NVML index -> CUDA's.
    """
    found = list(buses)
    known = [bus for _, bus in found if bus is not None]
    if len(known) < len(found) or known == sorted(known):
        return {index: index for index, _ in found}
    placed = sorted(found, key=lambda gpu: gpu[1] or (0, 0, 0))
    return {index: place for place, (index, _) in enumerate(placed)}


def bus_of(pynvml: Any, handle: Any) -> Bus | None:
    """A GPU's domain, bus and device on PCI."""
    pci = ask_if_told(pynvml, "nvmlDeviceGetPciInfo", handle)
    return None if pci is None else (int(pci.domain), int(pci.bus), int(pci.device))


def instance_handles(pynvml: Any, handle: Any) -> list[tuple[int, Any]]:
    """Number and handle of each MIG instance of a GPU. Numbers of instances that were removed are left out."""
    found = []
    for number in range(int(ask_if_told(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)):
        try:
            instance = ask_if_told(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        except NvmlFault as fault:
            if getattr(fault.__cause__, "value", None) == NOT_FOUND:
                continue
            raise
        if instance is not None:
            found.append((number, instance))
    return found


def name_of(pynvml: Any, handle: Any) -> str:
    """A GPU's name."""
    try:
        name = text_of(ask_if_told(pynvml, "nvmlDeviceGetName", handle) or "")
    except UnicodeDecodeError:  # the binding decodes strictly
        name = ""
    return name or "unnamed NVIDIA GPU"


def uuid_of(pynvml: Any, handle: Any) -> str:
    """The UUID of a GPU or a MIG instance."""
    return text_of(ask(pynvml, "nvmlDeviceGetUUID", handle))


def _open_and_count() -> tuple[Any, int]:
    pynvml = open_nvml()
    try:
        return pynvml, int(ask(pynvml, "nvmlDeviceGetCount"))
    except NvmlFault:
        shut_down(pynvml)
        raise


def _versions() -> Versions:
    pynvml = open_nvml()
    try:
        names = ("nvmlSystemGetNVMLVersion", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion")
        library, driver, cuda = (ask_if_told(pynvml, name) for name in names)
    finally:
        shut_down(pynvml)
    newest = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "unknown"
    return Versions(text_of(library or "unknown"), text_of(driver or "unknown"), newest)


def _facts(pynvml: Any, index: int) -> GpuFacts:
    handle = ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
    mig = has_mig(pynvml, handle)
    return GpuFacts(
        index=index,
        uuid=uuid_of(pynvml, handle),
        name=name_of(pynvml, handle),
        bus=bus_of(pynvml, handle),
        memory_total_mib=memory(pynvml, handle)[0],
        mig=mig,
        instances=tuple(_instances(pynvml, handle)) if mig else (),
    )


def _instances(pynvml: Any, gpu: Any) -> Iterable[MigFacts]:
    for number, handle in instance_handles(pynvml, gpu):
        gpu_instance = ask_if_told(pynvml, "nvmlDeviceGetGpuInstanceId", handle)
        compute_instance = ask_if_told(pynvml, "nvmlDeviceGetComputeInstanceId", handle)
        yield MigFacts(
            number=number,
            uuid=uuid_of(pynvml, handle),
            name=name_of(pynvml, handle),
            memory_total_mib=memory(pynvml, handle)[0],
            gpu_instance=None if gpu_instance is None else int(gpu_instance),
            compute_instance=None if compute_instance is None else int(compute_instance),
        )
