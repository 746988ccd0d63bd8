"""Devices: NVIDIA GPUs, simulated ones and CPU slots; what they are, who uses them, how a job is shown one."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from foxqueue import nvml
from foxqueue.errors import InvalidInput, NoDevice
from foxqueue.nvml import GpuFacts, GpuProcess, Inventory, NvmlFault, Sample
from foxqueue.units import format_memory, parse_memory

Kind = Literal["nvml", "simulated", "cpu"]

OCCUPIED_MIB = 256  # a desktop or a monitoring agent holds less, a training run more
MAX_DEVICES = 64
PROBE_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)
_DEVICES = uuid.UUID("b5a1f8a2-6f0e-5f3b-9f4c-2a6f6b1c7d10")  # names made from it must never change
_REF_PREFIX: dict[Kind, str] = {"nvml": "gpu", "simulated": "sim", "cpu": "cpu"}
_SIMULATED = re.compile(r"([0-9]{1,9})x(.+)\Z", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]{1,9}\Z")
_VISIBLE_CURE = "write indices like 0,2 or whole UUIDs from nvidia-smi -L, or unset it for all GPUs"


@dataclass(frozen=True)
class Device:
    """Something one job at a time can have.

    Attributes:
        uuid: its identity, the same after a restart: NVIDIA's, or ``SIM-…`` and ``CPU-…``.
        index: of a GPU its place in PCI order, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID.
        name: for people; that of a simulated device says so.
        kind: ``nvml``, ``simulated`` or ``cpu``.
        memory_total_mib: None when unknown, and for CPU slots.
    """

    uuid: str
    index: int
    name: str
    kind: Kind
    memory_total_mib: int | None

    @property
    def ref(self) -> str:
        """A short name on this machine: ``gpu:0``, ``sim:0``, ``cpu:0``."""
        return f"{_REF_PREFIX[self.kind]}:{self.index}"


@dataclass(frozen=True)
class Observation:
    """What one look at a device saw.

    Attributes:
        memory_total_mib: None when unknown, which is neither none nor all.
        memory_free_mib: likewise.
        utilization: percent of the last sample period; None when unknown.
        state: ``occupied`` when others hold more than OCCUPIED_MIB of it, ``unavailable`` when it cannot be used.
        detail: why, for people; empty when free.
        strangers: (pid, MiB or None) of each process on it that is not ours.
    """

    memory_total_mib: int | None
    memory_free_mib: int | None
    utilization: int | None
    state: Literal["free", "occupied", "unavailable"]
    detail: str = ""
    strangers: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True)
class Survey:
    """The devices found, what the user should know about them, and why NVML gave none (None: it gave some)."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()
    no_gpu: str | None = None


def discover(simulate: str | None, cpu: int, identity: str, host: str, environ: Mapping[str, str]) -> list[Device]:
    """As `survey`; its notes are logged as warnings.

    Raises:
        InvalidInput: as `survey`.
        NoDevice: there is none. The text says what to do and why NVML gave none.
    """
    found = survey(simulate, cpu, identity, host, environ)
    for note in found.notes:
        _log.warning("%s", note)
    if not found.devices:
        why = "; ".join((found.no_gpu or "", *found.notes)).strip("; ")
        raise NoDevice(f"no device found: --simulate 2x24G or --cpu 2 ({why})")
    return list(found.devices)


def survey(simulate: str | None, cpu: int, identity: str, host: str, environ: Mapping[str, str]) -> Survey:
    """Find the devices of this machine, GPUs first. Takes at most 20 s, however sick a GPU is.

    Args:
        simulate: simulated GPUs in place of real ones, like ``2x24G`` or ``1x24G,1x8G``.
        cpu: CPU slots to add.
        identity: of the home; simulated devices and CPU slots of two homes differ by it.
        host: name of this machine, part of the same identities.
        environ: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read from it.

    Raises:
        InvalidInput: ``simulate``, ``cpu`` or CUDA_VISIBLE_DEVICES is malformed or names what is not there.
    """
    sizes = [] if simulate is None else parse_simulate(simulate)
    if cpu < 0 or len(sizes) + cpu > MAX_DEVICES:
        raise InvalidInput(f"{len(sizes)} simulated devices and {cpu} CPU slots: 0 to {MAX_DEVICES} in all")
    made = tuple(
        Device(_made_uuid("SIM", identity, host, index), index, f"simulated GPU {format_memory(mib)}", "simulated", mib)
        for index, mib in enumerate(sizes)
    )
    slots = tuple(
        Device(_made_uuid("CPU", identity, host, index), index, f"CPU slot {index}", "cpu", None)
        for index in range(cpu)
    )
    if simulate is not None:
        return Survey(made + slots)
    gpus = _survey_nvml(environ)
    return Survey(gpus.devices + slots, gpus.notes, gpus.no_gpu)


def parse_simulate(text: str) -> list[int]:
    """Read simulated devices such as ``2x24G`` or ``1x24G,1x8G``.

    Returns:
        MiB of each device, in order.

    Raises:
        InvalidInput: another spelling, no device, no memory, or more than 64 devices.
    """
    sizes: list[int] = []
    for part in text.split(","):
        match = _SIMULATED.match(part.strip())
        if match is None:
            raise InvalidInput(
                f"simulated devices {text!r} are not understood: write COUNTxMEMORY, like 2x24G or 1x24G,1x8G"
            )
        count, mib = int(match[1]), parse_memory(match[2])
        if count == 0 or mib == 0:
            raise InvalidInput(f"simulated devices {text!r}: count and memory must be above 0, like 2x24G")
        if len(sizes) + count > MAX_DEVICES:
            raise InvalidInput(f"simulated devices {text!r} are too many: at most {MAX_DEVICES}")
        sizes += [mib] * count
    return sizes


def _made_uuid(kind: str, identity: str, host: str, index: int) -> str:
    return f"{kind}-{uuid.uuid5(_DEVICES, '|'.join((identity, host, kind, str(index))))}"


def find(devices: Sequence[Device], ref: str) -> Device:
    """The device that ``ref`` names: a UUID, a GPU's index like ``0``, or ``gpu:0``, ``sim:0``, ``cpu:0``.

    ``gpu:0`` names a simulated GPU too.

    Raises:
        NoDevice: none of ``devices`` is meant. The text lists them.
    """
    wanted = ref.strip().lower()
    for device in devices:
        names = {device.uuid.lower(), device.ref}
        if device.kind != "cpu":
            names |= {str(device.index), f"gpu:{device.index}"}
        if wanted in names:
            return device
    there = ", ".join(f"{device.ref} ({device.name}, {device.uuid})" for device in devices)
    raise NoDevice(f"no device {ref!r} here; there are: {there or 'none'}")


def cuda_visible(device: Device, how: str) -> str:
    """The value of CUDA_VISIBLE_DEVICES that shows a job this device and no other.

    Args:
        how: ``index`` (together with CUDA_DEVICE_ORDER=PCI_BUS_ID) or ``uuid``.

    Returns:
        Empty for simulated devices and CPU slots: the job shall see no real GPU.

    Raises:
        InvalidInput: another ``how``.
    """
    if how not in ("index", "uuid"):
        raise InvalidInput(f"visible {how!r} is not understood: give index or uuid")
    if device.kind != "nvml":
        return ""
    return device.uuid if how == "uuid" else str(device.index)


class Probe:
    """Looks at one device, from one thread.

    Args:
        device: what to look at.
        timeout_s: seconds after which a look gives up on a driver that hangs.
    """

    def __init__(self, device: Device, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self.device = device
        self.timeout_s = timeout_s
        self._reader = nvml.GpuReader(device.uuid)
        self._caller = nvml.NvmlCaller() if device.kind == "nvml" else None
        self._nvml_index: int | None = None

    def look(self, ours: Collection[int]) -> Observation:
        """See what is on the device now. Faults make it ``unavailable``; they are never raised.

        Args:
            ours: pids of the processes whose memory is not a stranger's.
        """
        if self._caller is None:
            total = self.device.memory_total_mib
            return Observation(total, total, None, "free")
        try:
            sample = self._caller.call(self._reader.read, self.timeout_s)
        except NvmlFault as fault:
            return Observation(self.device.memory_total_mib, None, None, "unavailable", str(fault))
        if self._nvml_index is None:
            self._nvml_index = sample.index
        return _judge(sample, frozenset(ours), self._obstacle(sample))

    def close(self) -> None:
        """End the thread that asks NVML."""
        if self._caller is not None:
            self._caller.close()

    def _obstacle(self, sample: Sample) -> str:
        if sample.mig:
            return "MIG was enabled on it, and MIG instances cannot be leased yet: nvidia-smi -mig 0"
        if sample.index != self._nvml_index:  # a job given the old index would land on somebody else's GPU
            return f"its index changed from {self._nvml_index} to {sample.index}: restart the worker"
        return ""


def _judge(sample: Sample, ours: frozenset[int], obstacle: str) -> Observation:
    strangers = [process for process in sample.processes if process.pid not in ours]
    state: Literal["free", "occupied", "unavailable"] = "free"
    detail = _occupied(sample, strangers, ours)
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
        tuple((process.pid, process.mib) for process in strangers),
    )


def _occupied(sample: Sample, strangers: list[GpuProcess], ours: frozenset[int]) -> str:
    """Why the GPU counts as occupied; empty when it does not."""
    held = sum(process.mib or 0 for process in strangers)
    mute = [process for process in strangers if process.mib is None]
    # Processes of other containers or users may be hidden, or listed without a figure: then the memory in use tells.
    if mute or not strangers:
        held = max(held, _used_by_others(sample, ours))
    if held > OCCUPIED_MIB:
        who = ", ".join(_shown(process) for process in strangers) or "none that can be seen from here"
        return f"{format_memory(held)} held by processes that are not ours: {who}"
    if sample.memory_used_mib is None and any(process.compute for process in mute):
        # Drawing programs without a figure are on every desktop; one that computes is somebody's run.
        who = ", ".join(_shown(process) for process in mute if process.compute)
        return f"in use by processes that are not ours: {who}"
    return ""


def _used_by_others(sample: Sample, ours: frozenset[int]) -> int:
    mine = [process.mib for process in sample.processes if process.pid in ours]
    if sample.memory_used_mib is None or (None in mine and len(mine) == len(sample.processes)):
        return 0  # unknown, or only our own processes are there and how much they use is not told
    return max(0, sample.memory_used_mib - sum(mib or 0 for mib in mine))


def _shown(process: GpuProcess) -> str:
    return f"pid {process.pid} ({format_memory(process.mib)})"


def _survey_nvml(environ: Mapping[str, str]) -> Survey:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else parse_visible(visible)
    if wanted is not None and not wanted:
        return Survey((), no_gpu=f"CUDA_VISIBLE_DEVICES is {visible!r}, which means no GPU")
    try:
        there = nvml.inventory()
    except NvmlFault as fault:
        return Survey((), no_gpu=str(fault))
    if not there.gpus and not there.unreadable:
        return Survey((), no_gpu="the NVIDIA driver finds no GPU")
    gpus = _in_pci_order(there)
    notes: list[str] = []
    if wanted is not None:
        notes += _check_order(gpus, wanted, environ.get("CUDA_DEVICE_ORDER"))
        gpus = _choose(gpus, there, wanted)
    for index, why in there.unreadable.items():
        if wanted is None or index in wanted:
            notes.append(f"GPU {index} is left out: {why}")
    for index, gpu in gpus.items():
        if gpu.mig:
            notes.append(
                f"GPU {index} ({gpu.name}, {gpu.uuid}) is left out: MIG is enabled on it, and MIG instances "
                f"cannot be leased yet; nvidia-smi -i {gpu.uuid} -mig 0 makes it one GPU again"
            )
    devices = tuple(
        Device(gpu.uuid, index, gpu.name, "nvml", gpu.memory_total_mib)
        for index, gpu in sorted(gpus.items())
        if not gpu.mig
    )
    return Survey(devices, tuple(notes), None if devices else "no usable NVIDIA GPU")


def _in_pci_order(there: Inventory) -> dict[int, GpuFacts]:
    """The GPUs by the index that CUDA gives them under CUDA_DEVICE_ORDER=PCI_BUS_ID.

    NVML promises no order of its own. Where it is PCI's, its indices are kept: those of GPUs that cannot be
    read then stay counted.
    """
    buses = [gpu.bus for gpu in there.gpus]
    known = [bus for bus in buses if bus is not None]
    if len(known) < len(buses) or known == sorted(known):
        return {gpu.index: gpu for gpu in there.gpus}
    return dict(enumerate(sorted(there.gpus, key=lambda gpu: gpu.bus or (0, 0, 0))))


def parse_visible(text: str) -> tuple[int | str, ...]:
    """Read CUDA_VISIBLE_DEVICES: indices or UUIDs (given back in lower case), not both.

    Returns:
        Empty for ``""`` and ``-1``, which mean no GPU.

    Raises:
        InvalidInput: anything that CUDA itself would guess at, or that we cannot serve yet. The text has the cure.
    """
    parts = [part.strip() for part in text.split(",")]
    if parts in ([""], ["-1"]):
        return ()
    shown = f"CUDA_VISIBLE_DEVICES={text}"
    entries: list[int | str] = []
    for part in parts:
        if _INDEX.match(part):
            entries.append(int(part))
        elif part.upper().startswith("GPU-"):
            entries.append(part.lower())
        elif part.upper().startswith("MIG"):
            raise InvalidInput(f"{shown}: MIG instances cannot be leased yet; {_VISIBLE_CURE}")
        else:
            raise InvalidInput(f"{shown}: {part!r} is not understood; {_VISIBLE_CURE}")
    if len({type(entry) for entry in entries}) > 1:
        raise InvalidInput(f"{shown} mixes indices and UUIDs; {_VISIBLE_CURE}")
    if len(set(entries)) < len(entries):
        raise InvalidInput(f"{shown} names a GPU twice; {_VISIBLE_CURE}")
    return tuple(entries)


def _choose(gpus: Mapping[int, GpuFacts], there: Inventory, wanted: Iterable[int | str]) -> dict[int, GpuFacts]:
    by_uuid = {gpu.uuid.lower(): index for index, gpu in gpus.items()}
    chosen: dict[int, GpuFacts] = {}
    for entry in wanted:
        index = entry if isinstance(entry, int) else by_uuid.get(entry, -1)
        if index in gpus:
            chosen[index] = gpus[index]
        elif index not in there.unreadable:
            known = [f"{number} ({gpu.uuid})" for number, gpu in sorted(gpus.items())]
            known += [f"{number} ({why})" for number, why in there.unreadable.items()]
            raise InvalidInput(
                f"CUDA_VISIBLE_DEVICES names {entry}, which is no index and no whole UUID of a GPU here; "
                f"there are {', '.join(known)}; {_VISIBLE_CURE}"
            )
    return chosen


def _check_order(gpus: Mapping[int, GpuFacts], wanted: Collection[int | str], order: str | None) -> list[str]:
    """CUDA's own order is fastest first, so an index among unlike GPUs is clear only with PCI_BUS_ID."""
    alike = len({(gpu.name, gpu.memory_total_mib) for gpu in gpus.values()}) < 2
    if alike or order == "PCI_BUS_ID" or set(wanted) >= set(gpus) or isinstance(next(iter(wanted)), str):
        return []
    if order:
        raise InvalidInput(
            f"CUDA_DEVICE_ORDER={order} leaves open which of these unlike GPUs CUDA_VISIBLE_DEVICES means: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID (the order of nvidia-smi) or write whole UUIDs"
        )
    return [
        "the GPUs are unlike, and the indices of CUDA_VISIBLE_DEVICES are taken in the order of nvidia-smi: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID to say so, or write whole UUIDs"
    ]
