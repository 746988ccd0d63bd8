"""Finding the devices of this machine, and what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from foxqueue import nvml
from foxqueue.errors import InvalidInput, NoDevice
from foxqueue.gpu import MAX_DEVICES, NAMED_UUID, Device, parse_simulate
from foxqueue.nvml import GpuFacts, Inventory, MigFacts, NvmlFault
from foxqueue.units import format_memory

_log = logging.getLogger(__name__)
_DEVICES = uuid.UUID("b5a1f8a2-6f0e-5f3b-9f4c-2a6f6b1c7d10")  # names made from it must never change
_INDEX = re.compile(r"[0-9]{1,9}\Z")
_OLD_MIG = re.compile(r"mig-(gpu-[0-9a-f-]+)/([0-9]{1,3})/([0-9]{1,3})\Z")  # how drivers before 470 name instances
_VISIBLE_CURE = "write indices like 0,2 or UUIDs from nvidia-smi -L, or unset it for all GPUs"


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


def _made_uuid(kind: str, identity: str, host: str, index: int) -> str:
    return f"{kind}-{uuid.uuid5(_DEVICES, '|'.join((identity, host, kind, str(index))))}"


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
    every, unusable = _devices(gpus)
    chosen, left_out = every, set(there.unreadable) | set(unusable)
    if wanted is not None:
        notes += _check_order(gpus, wanted, environ.get("CUDA_DEVICE_ORDER"))
        choice = _Choice(gpus, every, there.unreadable)
        chosen = choice.choose(wanted)
        left_out &= choice.named
    notes += [f"GPU {index} is left out: {why}" for index, why in there.unreadable.items() if index in left_out]
    notes += [why for index, why in unusable.items() if index in left_out]
    return Survey(tuple(chosen), tuple(notes), None if chosen else "no usable NVIDIA GPU")


def _in_pci_order(there: Inventory) -> dict[int, GpuFacts]:
    """The GPUs by the index that CUDA gives them under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    place = nvml.pci_order((gpu.index, gpu.bus) for gpu in there.gpus)
    return {place[gpu.index]: gpu for gpu in sorted(there.gpus, key=lambda gpu: place[gpu.index])}


def _devices(gpus: Mapping[int, GpuFacts]) -> tuple[list[Device], dict[int, str]]:
    """All of them, MIG instances in place of the GPU that is cut into them, and why each other GPU gives none."""
    devices: list[Device] = []
    unusable: dict[int, str] = {}
    for index, gpu in gpus.items():
        if not gpu.mig:
            devices.append(Device(gpu.uuid, index, gpu.name, "nvml", gpu.memory_total_mib))
            continue
        # A slash would be taken for a slot, and cannot be in a lock file's name.
        good = [instance for instance in gpu.instances if "/" not in instance.uuid]
        devices += [_instance(index, instance) for instance in good]
        shown = f"GPU {index} ({gpu.name}, {gpu.uuid})"
        if not gpu.instances:
            unusable[index] = (
                f"{shown} is left out: MIG is enabled on it and it has no instance; nvidia-smi mig -i {index} "
                f"-cgi … -C makes some, nvidia-smi -i {gpu.uuid} -mig 0 makes it one GPU again"
            )
        elif len(good) < len(gpu.instances):
            unusable[index] = (
                f"MIG instances of {shown} are left out: their names are of a driver before 470, upgrade it"
            )
    return devices, unusable


def _instance(index: int, found: MigFacts) -> Device:
    return Device(found.uuid, index, found.name, "nvml", found.memory_total_mib, mig=found.number)


def parse_visible(text: str) -> tuple[int | str, ...]:
    """Read CUDA_VISIBLE_DEVICES: indices or UUIDs or beginnings of them (given back in lower case), not both.

    Returns:
        Empty for ``""`` and ``-1``, which mean no GPU.

    Raises:
        InvalidInput: anything that CUDA itself would guess at. The text has the cure.
    """
    parts = [part.strip() for part in text.split(",")]
    if parts in ([""], ["-1"]):
        return ()
    shown = f"CUDA_VISIBLE_DEVICES={text:.200}"
    entries: list[int | str] = []
    for part in parts:
        if _INDEX.match(part):
            entries.append(int(part))
        elif NAMED_UUID.match(part) and part[:3].upper() in ("GPU", "MIG"):
            entries.append(part.lower())
        else:
            raise InvalidInput(f"{shown}: {part[:60]!r} is not understood; {_VISIBLE_CURE}")
    if len({type(entry) for entry in entries}) > 1:
        raise InvalidInput(f"{shown} mixes indices and UUIDs; {_VISIBLE_CURE}")
    if len(set(entries)) < len(entries):
        raise InvalidInput(f"{shown} names a GPU twice; {_VISIBLE_CURE}")
    return tuple(entries)


class _Choice:
    """What the entries of CUDA_VISIBLE_DEVICES mean on this machine.

    An entry that names a GPU cut into MIG instances means all of them: each is served by itself.

    Attributes:
        named: indices of the GPUs that were named or of which an instance was.
    """

    def __init__(self, gpus: Mapping[int, GpuFacts], every: Sequence[Device], unreadable: Mapping[int, str]) -> None:
        self._gpus = gpus
        self._every = every
        self._unreadable = unreadable
        self.named: set[int] = set()

    def choose(self, wanted: Collection[int | str]) -> list[Device]:
        """The devices, in the order of their indices.

        Raises:
            InvalidInput: an entry names nothing here, or more than one, or what another one has named.
        """
        chosen: dict[str, Device] = {}
        for entry in wanted:
            meant = self._by_index(entry) if isinstance(entry, int) else self._by_uuid(entry)
            for device in meant:
                if device.uuid in chosen:
                    raise InvalidInput(f"CUDA_VISIBLE_DEVICES names {device.uuid} twice; {_VISIBLE_CURE}")
                chosen[device.uuid] = device
        return [device for device in self._every if device.uuid in chosen]

    def _by_index(self, index: int) -> list[Device]:
        if index not in self._gpus and index not in self._unreadable:
            raise self._unknown(str(index))
        return self._of_gpu(index)

    def _of_gpu(self, index: int) -> list[Device]:
        self.named.add(index)
        return [device for device in self._every if device.index == index]

    def _by_uuid(self, entry: str) -> list[Device]:
        old = _OLD_MIG.match(entry)
        if old is not None:
            return self._by_ids(entry, old[1], int(old[2]), int(old[3]))
        names = {gpu.uuid.lower(): index for index, gpu in self._gpus.items()}
        instances = {device.uuid.lower(): device for device in self._every if device.mig is not None}
        found = [name for name in (*names, *instances) if name == entry]
        found = found or [name for name in (*names, *instances) if name.startswith(entry)]
        if len(found) > 1:
            raise InvalidInput(
                f"CUDA_VISIBLE_DEVICES names {entry}, and more than one has a UUID that begins so: "
                f"{', '.join(self._shown(lambda uuid: uuid.lower() in found))}; give more of it"
            )
        if not found:
            raise self._unknown(entry)
        if found[0] in names:
            return self._of_gpu(names[found[0]])
        device = instances[found[0]]
        self.named.add(device.index)
        return [device]

    def _by_ids(self, entry: str, gpu_uuid: str, gpu_instance: int, compute_instance: int) -> list[Device]:
        for index, gpu in self._gpus.items():
            for instance in gpu.instances if gpu.uuid.lower() == gpu_uuid else ():
                if (instance.gpu_instance, instance.compute_instance) == (gpu_instance, compute_instance):
                    self.named.add(index)
                    return [device for device in self._every if device.uuid == instance.uuid]
        raise self._unknown(entry)

    def _shown(self, wanted: Callable[[str], bool]) -> list[str]:
        """The GPUs and instances here, for people."""
        shown = [f"{index} ({gpu.uuid})" for index, gpu in sorted(self._gpus.items()) if wanted(gpu.uuid)]
        return shown + [f"{one.ref} ({one.uuid})" for one in self._every if one.mig is not None and wanted(one.uuid)]

    def _unknown(self, entry: str) -> InvalidInput:
        known = self._shown(lambda _: True) + [f"{number} ({why})" for number, why in self._unreadable.items()]
        return InvalidInput(
            f"CUDA_VISIBLE_DEVICES names {entry[:100]}, which is no index and no beginning of a UUID of a GPU here; "
            f"there are {', '.join(known)}; {_VISIBLE_CURE}"
        )


def _check_order(gpus: Mapping[int, GpuFacts], wanted: Collection[int | str], order: str | None) -> list[str]:
    """CUDA's own order is fastest first, so an index among unlike GPUs is clear only with PCI_BUS_ID."""
    names, sizes = {gpu.name for gpu in gpus.values()}, {gpu.memory_total_mib for gpu in gpus.values()}
    alike = len(names) < 2 and len(sizes - {None}) < 2
    if alike or order == "PCI_BUS_ID" or set(wanted) >= set(gpus) or isinstance(next(iter(wanted)), str):
        return []
    if order:
        raise InvalidInput(
            f"CUDA_DEVICE_ORDER={order} leaves open which of these unlike GPUs CUDA_VISIBLE_DEVICES means: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID (the order of nvidia-smi) or write UUIDs"
        )
    return [
        "the GPUs are unlike, and the indices of CUDA_VISIBLE_DEVICES are taken in the order of nvidia-smi: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID to say so, or write UUIDs"
    ]
