"""What changes about GPUs, one look at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foxqueue.nvml.binding import NvmlFault, ask, check_driver, open_nvml, shut_down
from foxqueue.nvml.facts import Bus, bus_of, instance_handles, name_of, uuid_of
from foxqueue.nvml.readings import GpuProcess, ecc_uncorrected, has_mig, memory, processes, utilization

__all__ = ["AllReader", "GpuProcess", "GpuReader", "Member", "Sample"]


@dataclass(frozen=True)
class Sample:
    """One look at a GPU or a MIG instance.

    Attributes:
        index: NVML's. That of a MIG instance read by itself is its number.
        memory_total_mib: None when the driver does not tell, like all figures.
        memory_used_mib: without what the driver reserves for itself.
        utilization: percent; never told of a MIG instance.
        ecc_uncorrected: memory errors that could not be corrected since the driver was loaded.
        mig: whether it is a GPU that is cut into MIG instances, on which nothing runs but on them.
        processes: those on it.
        listed: whether the driver lists processes that compute at all.
    """

    index: int
    memory_total_mib: int | None
    memory_free_mib: int | None
    memory_used_mib: int | None
    utilization: int | None
    ecc_uncorrected: int | None
    mig: bool
    processes: tuple[GpuProcess, ...]
    listed: bool


def _sample(pynvml: Any, handle: Any, index: int, *, instance: bool, mig: bool) -> Sample:
    total, free, used = memory(pynvml, handle)
    running, listed = processes(pynvml, handle)
    return Sample(
        index=index,
        memory_total_mib=total,
        memory_free_mib=free,
        memory_used_mib=used,
        utilization=None if instance else utilization(pynvml, handle),
        ecc_uncorrected=ecc_uncorrected(pynvml, handle),
        mig=mig,
        processes=running,
        listed=listed,
    )


class GpuReader:
    """Reads one GPU or MIG instance, found by its UUID.

    NVML is opened at the first read and, after a fault, anew at the next. Its calls may hang: make them through an
    NvmlCaller.

    Args:
        uuid: of the GPU or the instance.
        instance: whether it is a MIG instance.
    """

    def __init__(self, uuid: str, instance: bool = False) -> None:
        self.uuid = uuid
        self.instance = instance
        self._opened: tuple[Any, Any] | None = None

    def read(self) -> Sample:
        """Take one sample.

        Raises:
            NvmlFault: NVML or the GPU cannot be used.
        """
        try:
            if self._opened is None:
                self._opened = self._open()
            pynvml, handle = self._opened
            check_driver(pynvml)
            index = int(ask(pynvml, "nvmlDeviceGetIndex", handle))
            mig = not self.instance and has_mig(pynvml, handle)
            return _sample(pynvml, handle, index, instance=self.instance, mig=mig)
        except NvmlFault:
            self.close()
            raise

    def close(self) -> None:
        """Close NVML, if it is open."""
        if self._opened is not None:
            pynvml, self._opened = self._opened[0], None
            shut_down(pynvml)

    def _open(self) -> tuple[Any, Any]:
        pynvml = open_nvml()
        try:
            # bytes, because bindings that take text encode it and older ones take nothing else
            return pynvml, ask(pynvml, "nvmlDeviceGetHandleByUUID", self.uuid.encode())
        except NvmlFault:
            shut_down(pynvml)
            raise


@dataclass(frozen=True)
class Member:
    """A GPU, or a MIG instance in its place, as `AllReader` finds them; ``instance`` None for a GPU."""

    uuid: str
    name: str
    instance: int | None
    bus: Bus | None
    handle: Any


class AllReader:
    """Reads all GPUs of the machine, one after another, and keeps NVML open. Calls may hang, as those of GpuReader."""

    def __init__(self) -> None:
        self._pynvml: Any = None
        self._known: dict[int, tuple[Any, list[Member]]] = {}

    def count(self) -> int:
        """How many GPUs there are. Opens NVML when it is not.

        Raises:
            NvmlFault: NVML cannot be used at all.
        """
        try:
            if self._pynvml is None:
                self._pynvml = open_nvml()
            check_driver(self._pynvml)
            return int(ask(self._pynvml, "nvmlDeviceGetCount"))
        except NvmlFault:
            self.close()
            raise

    def read(self, index: int) -> list[tuple[Member, Sample]]:
        """Look at the GPU with this NVML index: itself, or its MIG instances.

        Raises:
            NvmlFault: it cannot be used.
        """
        pynvml = self._pynvml
        try:
            if index not in self._known:
                self._known[index] = self._find(index)
            gpu, members = self._known[index]
            cut = not members or members[0].instance is not None
            if cut or has_mig(pynvml, gpu):  # instances come and go
                gpu, members = self._known[index] = self._find(index)
            return [
                (one, _sample(pynvml, one.handle, index, instance=one.instance is not None, mig=False))
                for one in members
            ]
        except NvmlFault:
            self._known.pop(index, None)
            raise

    def close(self) -> None:
        """Close NVML, if it is open."""
        self._known.clear()
        if self._pynvml is not None:
            pynvml, self._pynvml = self._pynvml, None
            shut_down(pynvml)

    def _find(self, index: int) -> tuple[Any, list[Member]]:
        pynvml = self._pynvml
        gpu = ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
        bus = bus_of(pynvml, gpu)
        if not has_mig(pynvml, gpu):
            return gpu, [Member(uuid_of(pynvml, gpu), name_of(pynvml, gpu), None, bus, gpu)]
        return gpu, [
            Member(uuid_of(pynvml, handle), name_of(pynvml, handle), number, bus, handle)
            for number, handle in instance_handles(pynvml, gpu)
        ]
