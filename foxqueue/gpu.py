"""Devices: NVIDIA GPUs, their MIG instances, simulated GPUs and CPU slots; how they are named, how a job is shown one.

Pure: nothing here asks NVML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from foxqueue.errors import InvalidInput, NoDevice
from foxqueue.units import parse_memory

Kind = Literal["nvml", "simulated", "cpu"]

OCCUPIED_MIB = 256  # a desktop or a monitoring agent holds less, a training run more
MAX_DEVICES = 64
NAMED_UUID = re.compile(r"(GPU|MIG|SIM|CPU)-[0-9a-z]", re.IGNORECASE)  # its beginning is enough, as for the driver

_REF_PREFIX: dict[Kind, str] = {"nvml": "gpu", "simulated": "sim", "cpu": "cpu"}
_SIMULATED = re.compile(r"([0-9]{1,9})x(.+)\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """Something one job at a time can have.

    Attributes:
        uuid: its identity, the same after a restart: NVIDIA's, or ``SIM-…`` and ``CPU-…``; of a slot ``<uuid>/1``.
        index: of a GPU its place in PCI order, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID; of a MIG instance
            that of its GPU.
        name: for people; that of a simulated device says so.
        kind: ``nvml``, ``simulated`` or ``cpu``.
        memory_total_mib: None when unknown, and for CPU slots; of a slot that of the whole GPU.
        mig: the instance's number on its GPU; None for what is no MIG instance.
        slot: the slot's number on its GPU; None for a whole device.
    """

    uuid: str
    index: int
    name: str
    kind: Kind
    memory_total_mib: int | None
    mig: int | None = None
    slot: int | None = None

    @property
    def ref(self) -> str:
        """A short name on this machine: ``gpu:0``, ``mig:0.1``, ``sim:0``, ``cpu:0``; of a slot ``gpu:0/1``."""
        ref = f"{_REF_PREFIX[self.kind]}:{self.index}" if self.mig is None else f"mig:{self.index}.{self.mig}"
        return ref if self.slot is None else f"{ref}/{self.slot}"

    @property
    def whole(self) -> str:
        """The UUID of the whole device; its own where it is no slot."""
        return self.uuid if self.slot is None else self.uuid.removesuffix(f"/{self.slot}")

    def as_slot(self, number: int) -> Device:
        """Slot ``number`` of this device."""
        return replace(self, uuid=f"{self.whole}/{number}", slot=number)

    @property
    def of_slot(self) -> Device:
        """The whole device that a slot is of; itself where it is no slot."""
        return replace(self, uuid=self.whole, slot=None)


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


def find(devices: Sequence[Device], ref: str) -> Device:
    """The device that ``ref`` names.

    Args:
        devices: those to choose from.
        ref: a UUID or its beginning, a GPU's index like ``0``, or ``gpu:0``, ``mig:0.1``, ``sim:0``, ``cpu:0``, each
            with ``/1`` behind it for a slot. ``gpu:0`` names a simulated GPU too.

    Raises:
        NoDevice: none of ``devices`` is meant. The text lists them.
        InvalidInput: more than one may be meant. The text lists those.
    """
    wanted = ref.strip().lower()
    for device in devices:
        if wanted in _names(device):
            return device
    begin = [device for device in devices if device.uuid.lower().startswith(wanted)] if NAMED_UUID.match(wanted) else []
    if len(begin) == 1:
        return begin[0]
    parts = begin or [device for device in devices if wanted in _wider_names(device)]
    if parts:
        raise InvalidInput(f"{ref!r} may mean more than one device, say which: {_listed(parts)}")
    raise NoDevice(f"no device {ref!r} here; there are: {_listed(devices) or 'none'}")


def find_all(devices: Sequence[Device], refs: Iterable[str]) -> list[Device]:
    """The devices that ``refs`` name, in that order.

    Raises:
        NoDevice, InvalidInput: as `find`; also when two of ``refs`` name the same device.
    """
    found: dict[str, str] = {}
    chosen: list[Device] = []
    for ref in refs:
        device = find(devices, ref)
        if device.uuid in found:
            raise InvalidInput(f"{found[device.uuid]!r} and {ref!r} name the same device, {device.uuid}: give it once")
        found[device.uuid] = ref
        chosen.append(device)
    return chosen


def _names(device: Device) -> set[str]:
    names = {device.uuid.lower(), device.ref}
    tail = "" if device.slot is None else f"/{device.slot}"
    if device.mig is not None:
        names.add(f"{device.index}.{device.mig}{tail}")
    elif device.kind != "cpu":
        names |= {f"{device.index}{tail}", f"gpu:{device.index}{tail}"}
    return names


def _wider_names(device: Device) -> set[str]:
    """Names of what the device is a part of: the GPU of a MIG instance, the whole of a slot."""
    names = set() if device.slot is None else _names(device.of_slot)
    return names if device.mig is None else names | {str(device.index), f"gpu:{device.index}"}


def _listed(devices: Iterable[Device]) -> str:
    return ", ".join(f"{device.ref} ({device.name}, {device.uuid})" for device in devices)


def cuda_visible(device: Device, how: str) -> str:
    """The value of CUDA_VISIBLE_DEVICES that shows a job this device and no other.

    Args:
        device: which; of a slot the job sees the whole GPU.
        how: ``index`` (together with CUDA_DEVICE_ORDER=PCI_BUS_ID) or ``uuid``. A MIG instance has no index to CUDA: it
            is shown by its UUID always.

    Returns:
        Empty for simulated devices and CPU slots: the job shall see no real GPU.

    Raises:
        InvalidInput: another ``how``.
    """
    if how not in ("index", "uuid"):
        raise InvalidInput(f"visible {how!r} is not understood: give index or uuid")
    if device.kind != "nvml":
        return ""
    return device.whole if how == "uuid" or device.mig is not None else str(device.index)
