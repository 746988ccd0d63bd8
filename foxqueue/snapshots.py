"""All GPUs of the machine in one go, and the figures of one: for statistics and people, not for who claims a device."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from foxqueue.gpu import Device
from foxqueue.nvml import AllReader, Fault, GpuReader, NvmlCaller, NvmlFault, Sample, pci_order
from foxqueue.nvml.facts import Bus

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class GpuState:
    """One GPU, or a MIG instance in its place, as a `snapshot` sees it.

    Attributes:
        uuid: empty when the GPU could not be asked for it.
        index: in PCI order, as that of a Device.
        mig: number of the instance; None for a whole GPU.
        name: for people; empty when it could not be asked.
        sample: what was seen; None when it cannot be used.
        fault: why not, in one word.
        detail: why not, for people.
    """

    uuid: str
    index: int
    mig: int | None
    name: str
    sample: Sample | None
    fault: Fault = ""
    detail: str = ""


@dataclass(frozen=True)
class Memory:
    """Memory of one device. ``observed_at`` is in seconds since the epoch."""

    total_mib: int
    used_mib: int
    free_mib: int
    observed_at: float


class _Task:
    """GPUs to be read by one thread, which may be left behind in a call that hangs."""

    def __init__(self, reader: AllReader, indices: Iterable[int]) -> None:
        self._reader = reader
        self.left = list(indices)
        self.done: dict[int, list[GpuState]] = {}
        self.buses: list[tuple[int, Bus | None]] = []
        self.abandoned = False

    def __call__(self) -> None:
        while self.left and not self.abandoned:
            index = self.left[0]
            try:
                found = self._reader.read(index)
            except NvmlFault as fault:
                self.done[index] = [_failed(index, fault)]
            else:
                self.buses += [(index, found[0][0].bus)] if found else []
                self.done[index] = [GpuState(one.uuid, index, one.instance, one.name, seen) for one, seen in found]
            self.left.pop(0)


def _failed(index: int, fault: NvmlFault) -> GpuState:
    return GpuState("", index, None, "", None, fault.kind, str(fault))


class Snapshots:
    """Looks at all GPUs of the machine in one go, from any thread. NVML is kept open between."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reader = AllReader()
        self._caller: NvmlCaller | None = None
        self._hanging: dict[int, tuple[NvmlCaller, GpuState]] = {}

    def take(self, timeout_s: float = TIMEOUT_S) -> list[GpuState]:
        """All GPUs, in PCI order; MIG instances in place of a GPU that is cut into them.

        Args:
            timeout_s: seconds that one GPU may take. One that hangs costs them once, until it answers again.

        Raises:
            NvmlFault: NVML cannot be used at all.
        """
        if self._pid != os.getpid():  # threads and lock are the parent's
            self._reset()
        with self._lock:
            count = self._count(timeout_s)
            self._hanging = {index: hung for index, hung in self._hanging.items() if hung[0].hangs}
            done = {index: [state] for index, (_, state) in self._hanging.items() if index < count}
            buses: list[tuple[int, Bus | None]] = []
            while len(done) < count:
                task = _Task(self._reader, (index for index in range(count) if index not in done))
                self._run(task, timeout_s)
                done |= task.done
                buses += task.buses
            return _ordered(done, buses)

    def close(self) -> None:
        """End the thread that asks NVML."""
        if self._caller is not None and self._pid == os.getpid():
            self._caller.close()
        self._reset()

    def _count(self, timeout_s: float) -> int:
        if self._caller is None or self._caller.hangs:
            self._new_thread()
        assert self._caller is not None
        return self._caller.call(self._reader.count, timeout_s)

    def _new_thread(self) -> None:
        """Leave the old one to its call, and what it has open to it: nothing may be shut down under a call."""
        if self._caller is not None:
            self._caller.close()
            self._reader = AllReader()
        self._caller = NvmlCaller()

    def _run(self, task: _Task, timeout_s: float) -> None:
        assert self._caller is not None
        try:
            self._caller.call(task, timeout_s)
        except NvmlFault as fault:
            task.abandoned = True
            if not task.left:
                return
            index = task.left[0]
            task.done[index] = [_failed(index, fault)]
            self._hanging[index] = (self._caller, task.done[index][0])
            self._count(timeout_s)


def _ordered(done: dict[int, list[GpuState]], buses: Iterable[tuple[int, Bus | None]]) -> list[GpuState]:
    place = pci_order(buses)
    if all(index == where for index, where in place.items()):
        return [state for _, states in sorted(done.items()) for state in states]
    placed = [replace(state, index=place.get(state.index, state.index)) for states in done.values() for state in states]
    return sorted(placed, key=lambda state: (state.index, state.mig or 0))


class _Readers:
    """One reader and thread for each device that was asked for, kept open."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[threading.Lock, GpuReader, NvmlCaller]] = {}

    def sample(self, device: Device, timeout_s: float) -> Sample:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            if device.whole not in self._known:
                reader = GpuReader(device.whole, device.mig is not None)
                self._known[device.whole] = (threading.Lock(), reader, NvmlCaller())
            lock, reader, caller = self._known[device.whole]
        with lock:
            return caller.call(reader.read, timeout_s)


_snapshots = Snapshots()
_readers = _Readers()


def snapshot(timeout_s: float = TIMEOUT_S) -> list[GpuState]:
    """All GPUs of the machine now, as `Snapshots.take`; from any thread, and in a process forked since.

    Raises:
        NvmlFault: NVML cannot be used at all.
    """
    return _snapshots.take(timeout_s)


def memory_of(device: Device, timeout_s: float = TIMEOUT_S) -> Memory | None:
    """Memory of a device now, of a slot that of the whole GPU; from any thread.

    Args:
        device: which; a simulated one has all of its memory free.
        timeout_s: seconds after which a driver that hangs is given up.

    Returns:
        None where it is unknown: of a CPU slot, or the driver does not tell.

    Raises:
        NvmlFault: NVML or the GPU cannot be used.
    """
    if device.kind != "nvml":
        total = device.memory_total_mib
        return None if total is None else Memory(total, 0, total, time.time())
    seen = _readers.sample(device, timeout_s)
    figures = (seen.memory_total_mib, seen.memory_used_mib, seen.memory_free_mib)
    total, used, free = figures
    return None if total is None or used is None or free is None else Memory(total, used, free, time.time())


def utilization_of(device: Device, timeout_s: float = TIMEOUT_S) -> int | None:
    """Percent of the last sample period in which something ran on a device; from any thread.

    Returns:
        None where it is unknown: of anything but a whole NVIDIA GPU, or the driver does not tell.

    Raises:
        NvmlFault: NVML or the GPU cannot be used.
    """
    return None if device.kind != "nvml" else _readers.sample(device, timeout_s).utilization
