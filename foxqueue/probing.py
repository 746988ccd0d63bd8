"""Looking at a device: what is free of it, who uses it, what ails it."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass
from typing import Literal

from foxqueue.gpu import OCCUPIED_MIB, Device
from foxqueue.nvml import Fault, GpuReader, NvmlCaller, NvmlFault, Sample
from foxqueue.strangers import Register, Stranger
from foxqueue.units import format_memory

PROBE_TIMEOUT_S = 5.0

State = Literal["free", "occupied", "unavailable"]


@dataclass(frozen=True)
class Observation:
    """What one look at a device saw.

    Attributes:
        memory_total_mib: None when unknown, which is neither none nor all; likewise all figures.
        memory_free_mib: likewise.
        utilization: percent of the last sample period.
        state: ``occupied`` when others hold more of it than they may, ``unavailable`` when it cannot be used.
        detail: why, for people; empty when free.
        strangers: the processes on it that are neither ours nor to be ignored.
        memory_used_mib: by everybody, without what the driver reserves for itself.
        ecc_uncorrected: memory errors that ECC could not correct since the driver was loaded.
        fault: why it is ``unavailable``, in one word; empty when it is not.
        pids_known: False in a container where NVML's process numbers are the host's: nothing can be told to be ours,
            and all memory in use counts as others'.
        ours: (pid, MiB or None) of each process on it that is ours.
        ignored: the processes on it that were to be ignored.
    """

    memory_total_mib: int | None
    memory_free_mib: int | None
    utilization: int | None
    state: State
    detail: str = ""
    strangers: tuple[Stranger, ...] = ()
    memory_used_mib: int | None = None
    ecc_uncorrected: int | None = None
    fault: Fault = ""
    pids_known: bool = True
    ours: tuple[tuple[int, int | None], ...] = ()
    ignored: tuple[Stranger, ...] = ()

    @property
    def ours_mib(self) -> int | None:
        """What our processes hold; None when a figure is missing."""
        figures = [mib for _, mib in self.ours]
        return None if None in figures or not self.pids_known else sum(filter(None, figures))


class Probe:
    """Looks at one device, from one thread. For a slot it looks at the whole GPU.

    Args:
        device: what to look at.
        timeout_s: seconds after which a look gives up on a driver that hangs.
    """

    def __init__(self, device: Device, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self.device = device
        self.timeout_s = timeout_s
        self._reader = GpuReader(device.whole, device.mig is not None)
        self._caller = NvmlCaller() if device.kind == "nvml" else None
        self._nvml_index: int | None = None
        self._register = Register()

    def look(
        self,
        ours: Container[int],
        ignore: Collection[str] = (),
        over_mib: int = OCCUPIED_MIB,
        allowed_mib: int = 0,
    ) -> Observation:
        """See what is on the device now. Faults make it ``unavailable``; they are never raised.

        Args:
            ours: pids of the processes whose memory is not a stranger's.
            ignore: names of programs that do not count, like ``Xorg``.
            over_mib: MiB that strangers may hold of it together before it counts as occupied.
            allowed_mib: MiB in use that count as ours where NVML's process numbers mean nothing (in containers).
        """
        if self._caller is None:
            total = self.device.memory_total_mib
            return Observation(total, total, None, "free", memory_used_mib=None if total is None else 0)
        try:
            sample = self.sample()
        except NvmlFault as fault:
            return Observation(self.device.memory_total_mib, None, None, "unavailable", str(fault), fault=fault.kind)
        if self._nvml_index is None:
            self._nvml_index = sample.index
        judge = _Judge(sample, self._register, ours, ignore, over_mib, allowed_mib)
        return judge.observation(self._obstacle(sample))

    def sample(self) -> Sample:
        """What NVML tells of the GPU now.

        Raises:
            NvmlFault: NVML or the GPU cannot be used, or the device is none of NVIDIA's.
        """
        if self._caller is None:
            raise NvmlFault(f"{self.device.ref} is no NVIDIA GPU")
        return self._caller.call(self._reader.read, self.timeout_s)

    def close(self) -> None:
        """End the thread that asks NVML."""
        if self._caller is not None:
            self._caller.close()

    def _obstacle(self, sample: Sample) -> str:
        if sample.mig:
            return "MIG was enabled on it since, and its instances are devices of their own: restart the worker"
        if self.device.mig is None and sample.index != self._nvml_index:
            # a job given the old index would land on somebody else's GPU
            return f"its index changed from {self._nvml_index} to {sample.index}: restart the worker"
        if sample.memory_used_mib is None and not sample.listed:
            return "the driver tells neither its memory nor its processes, so nobody can tell whether it is in use"
        return ""


class _Judge:
    """Tells strangers from ours in one sample."""

    def __init__(
        self,
        sample: Sample,
        register: Register,
        ours: Container[int],
        ignore: Collection[str],
        over_mib: int,
        allowed_mib: int,
    ) -> None:
        self._sample = sample
        self._over_mib = over_mib
        self.pids_known = register.believable(process.pid for process in sample.processes)
        self._allowed_mib = 0 if self.pids_known else allowed_mib
        self.ours: list[tuple[int, int | None]] = []
        self.ignored: list[Stranger] = []
        self.strangers: list[Stranger] = []
        self._computing: list[Stranger] = []
        for process in sample.processes:
            if not self.pids_known:
                stranger = Stranger(process.pid, process.mib)
            elif process.pid in ours:
                self.ours.append((process.pid, process.mib))
                continue
            else:
                who = register.who(process.pid)
                if who.pid != process.pid and who.pid in ours:
                    self.ours.append((who.pid, process.mib))
                    continue
                stranger = Stranger(process.pid, process.mib, who.user, who.command)
                if not who.names.isdisjoint(ignore):
                    self.ignored.append(stranger)
                    continue
            self.strangers.append(stranger)
            if process.compute:
                self._computing.append(stranger)
        register.keep({process.pid for process in sample.processes})

    def observation(self, obstacle: str) -> Observation:
        sample = self._sample
        state: State = "free"
        detail = self._occupied()
        if detail:
            state = "occupied"
        if obstacle:
            state, detail = "unavailable", obstacle
        return Observation(
            sample.memory_total_mib,
            sample.memory_free_mib,
            sample.utilization,
            state,
            detail,
            tuple(self.strangers),
            sample.memory_used_mib,
            sample.ecc_uncorrected,
            "other" if obstacle else "",
            self.pids_known,
            tuple(self.ours),
            tuple(self.ignored),
        )

    def _occupied(self) -> str:
        """Why the GPU counts as occupied; empty when it does not."""
        listed = sum(stranger.mib or 0 for stranger in self.strangers)
        mute = [stranger for stranger in self.strangers if stranger.mib is None]
        held = max(0, listed - self._allowed_mib)
        in_use, known = self._used_by_others()
        hidden = known and in_use - held > self._over_mib
        # Processes of other containers may be hidden, or listed without a figure: then the memory in use tells.
        if mute or hidden or not self.strangers:
            held = max(held, in_use)
        if held > self._over_mib:
            return f"{format_memory(held)} held by processes that are not ours: {self._shown(hidden and not mute)}"
        if self._sample.memory_used_mib is None and any(stranger.mib is None for stranger in self._computing):
            # Drawing programs without a figure are on every desktop; one that computes is somebody's run.
            who = ", ".join(stranger.shown for stranger in self._computing if stranger.mib is None)
            return f"in use by processes that are not ours: {who}"
        return ""

    def _used_by_others(self) -> tuple[int, bool]:
        """Memory in use that is not of processes that do not count, and whether all their figures are told."""
        quiet = [mib for _, mib in self.ours] + [process.mib for process in self.ignored]
        if self._sample.memory_used_mib is None or (None in quiet and not self.strangers):
            return 0, False
        used = self._sample.memory_used_mib - sum(mib or 0 for mib in quiet) - self._allowed_mib
        return max(0, used), None not in quiet

    def _shown(self, hidden: bool) -> str:
        shown = [stranger.shown for stranger in self.strangers]
        if not self.pids_known:
            shown = [f"{text}, as the host counts" for text in shown]
        if not shown:
            return "none that can be seen from here"
        return ", ".join(shown) + (", and some that cannot be seen from here" if hidden else "")
