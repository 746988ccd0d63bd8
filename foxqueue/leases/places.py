"""The devices of which a lease may be had: those of this machine, and of others when they are asked for."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from foxqueue.config import Config
from foxqueue.devices import SeenDevice
from foxqueue.errors import GpuNotFound, InsufficientMemory, InvalidInput, NoDevice, Unsatisfiable
from foxqueue.gpu import MAX_DEVICES, Device, Kind, find
from foxqueue.leases.visible import unapplied
from foxqueue.leases.wish import GpuRef, Wish, check_ref
from foxqueue.locks import slot_of
from foxqueue.places import home_id
from foxqueue.survey import survey

THIS: Final = "this"
ANY: Final = "any"
_KINDS: dict[str, Kind] = {"nvml": "nvml", "simulated": "simulated"}


@dataclass(frozen=True)
class Place:
    """A device that may be leased.

    Attributes:
        device: which.
        host: name of its machine.
        here: whether that is this machine, where its file lock is taken too.
        seen: what its worker published, None where none did.
    """

    device: Device
    host: str
    here: bool
    seen: SeenDevice | None = None

    @property
    def uuid(self) -> str:
        """Its name in the queue."""
        return self.device.uuid

    @property
    def name(self) -> str:
        """How people name it: ``gpu:0``; on other machines ``gpu:0 on box``."""
        return self.device.ref if self.here else f"{self.device.ref} on {self.host}"


class Places:
    """The devices of one GpuLeases.

    Args:
        config: whose home and namespace it is.
        gpus: those that may be used, in order of preference; None for all.
        host: ``this``, ``any``, or the name of a machine.

    Raises:
        InvalidInput: one of them is malformed.
    """

    def __init__(self, config: Config, gpus: Any, host: Any) -> None:
        if not isinstance(host, str) or not host.strip():
            raise InvalidInput(f"host {host!r:.60} is not understood: give 'this', 'any' or the name of a machine")
        self.here = socket.gethostname()
        self.chosen = _chosen(gpus)
        self._host = THIS if host == self.here else host
        self._config = config
        self._found: tuple[Device, ...] = ()
        self._no_gpu = ""
        self._made: frozenset[str] = frozenset()
        self._sees_all = False  # CUDA_VISIBLE_DEVICES leaves all GPUs of this machine
        self._named: dict[GpuRef, Place] = {}
        self.all: list[Place] = []

    def survey(self) -> None:
        """Look for GPUs of this machine that CUDA_VISIBLE_DEVICES leaves. Takes a while.

        Raises:
            InvalidInput: CUDA_VISIBLE_DEVICES is malformed.
        """
        identity = home_id(self._config)
        self._made = frozenset(
            device.uuid for device in survey(f"{MAX_DEVICES}x1G", 0, identity, self.here, {}).devices
        )
        if self._host in (THIS, ANY):
            environ = unapplied()
            self._sees_all = "CUDA_VISIBLE_DEVICES" not in environ
            found = survey(None, 0, identity, self.here, environ)
            self._found = found.devices
            self._no_gpu = "; ".join(filter(None, (found.no_gpu, *found.notes)))

    def learn(self, seen: Sequence[SeenDevice]) -> None:
        """Take what workers have published.

        Args:
            seen: the registered devices.

        Raises:
            GpuNotFound, InvalidInput: one that was chosen is not there, may mean several, or is chosen twice.
        """
        registered = {device.uuid: device for device in seen}
        places = {device.uuid: Place(device, self.here, True, registered.get(device.uuid)) for device in self._found}
        for device in registered.values():
            kind = _KINDS.get(device.kind)
            if kind and self._may_be(device):
                place = _place(device, kind, device.host == self.here)
                places.setdefault(place.uuid, place)
        for ref in self.chosen or ():
            if isinstance(ref, Device):
                places[ref.uuid] = Place(ref, self.here, True, registered.get(ref.uuid))
        for place in list(places.values()):  # what is served in slots can be had whole too
            if place.device.slot is not None:
                whole = place.device.of_slot
                places.setdefault(whole.uuid, Place(whole, place.host, place.here))
        self._named = {}
        self.all = sorted(places.values(), key=_order)
        if self.chosen is not None:
            self.all = self._choose(self.chosen)

    def _may_be(self, device: SeenDevice) -> bool:
        """Whether a registered device is to be considered: a real one of this machine also where NVML has lost it, so
        that it is told what is wrong with it, but not where CUDA_VISIBLE_DEVICES may have left it out."""
        if device.host != self.here:
            return self._host in (ANY, device.host)
        if self._host not in (THIS, ANY):
            return False
        whole = slot_of(device.uuid)[0]
        lost = self._sees_all and device.kind == "nvml" and device.live
        if device.worker_state == "lost" or (device.slot is not None and not device.live):
            return False  # it is not served any more, or no longer in slots
        simulated = whole in self._made
        return lost or simulated or any(found.whole == whole for found in self._found)

    def _choose(self, refs: Sequence[GpuRef]) -> list[Place]:
        chosen: dict[str, GpuRef] = {}
        found = []
        for ref in refs:
            place = self.named(ref)
            if place.uuid in chosen:
                twice = f"{_shown(chosen[place.uuid])} and {_shown(ref)}"
                raise InvalidInput(f"gpus: {twice} name the same device, {place.uuid}: give it once")
            chosen[place.uuid] = ref
            found.append(place)
        self._named = {}
        return found

    # --- choosing --------------------------------------------------------------------------------------

    def named(self, ref: GpuRef) -> Place:
        """The device that is meant.

        Raises:
            GpuNotFound: none.
            InvalidInput: several may be.
        """
        known = self._named.get(ref)
        if known is None:
            known = self._named[ref] = self._find(ref.uuid if isinstance(ref, Device) else str(ref))
        return known

    def _find(self, ref: str) -> Place:
        wanted, _, host = " ".join(ref.split()).lower().replace(" on ", "@").partition("@")
        among = [place for place in self.all if not host or place.host.lower() == host]
        exact = [place for place in among if wanted in (place.device.ref, place.uuid.lower())]
        found = exact or [place for place in among if _is_meant(place.device, wanted)]
        if len(found) == 1:
            return found[0]
        there = ", ".join(f"{place.name} ({place.uuid})" for place in found or self.all)
        if found:
            raise InvalidInput(f"{ref!r} may mean more than one device, give more of its name: {there}")
        raise GpuNotFound(ref, f"no device {ref!r} may be leased here; there are: {there or self.none()}")

    def none(self) -> str:
        """Why there is no device."""
        if self._host not in (THIS, ANY):
            return f"none (no worker of host {self._host!r} has registered a GPU: foxqueue gpus lists them)"
        return f"none ({self._no_gpu or 'no GPU, and no simulated one is registered by foxqueue up --simulate'})"

    def fit(self, wish: Wish) -> list[Place]:
        """The devices that would do, the best first.

        Raises:
            GpuNotFound: there is no device, or not the one that is asked for.
            InvalidInput: several may be meant.
            InsufficientMemory: none can ever have the memory.
            Unsatisfiable: there are not as many.
        """
        if wish.gpu is not None and wish.count == 1 and not wish.memory_mib:
            return [self.named(wish.gpu)]
        among = self.all if wish.gpu is None else [self.named(wish.gpu)]
        if not among:
            raise GpuNotFound("any", f"there is no device to lease: {self.none()}")
        need = wish.memory_mib
        large = [place for place in among if _total(place) is None or not need or (_total(place) or 0) >= need]
        if not large:
            most = max(among, key=lambda place: _total(place) or 0)
            raise InsufficientMemory(most.uuid, need, _total(most), name=most.name, ever=False)
        if len({place.device.whole for place in large}) < wish.count:
            names = ", ".join(f"{place.name} ({place.uuid})" for place in large)
            raise Unsatisfiable(f"{wish.count} devices are asked for, and only {len(large)} would do: {names}")
        return large if self.chosen is not None or len(large) == 1 else sorted(large, key=lambda one: _size(one, need))


def _chosen(gpus: Any) -> tuple[GpuRef, ...] | None:
    if gpus is None:
        return None
    if isinstance(gpus, str):
        gpus = [part.strip() for part in gpus.split(",")]
    elif isinstance(gpus, int | Device):
        gpus = [gpus]
    try:
        refs = tuple(gpus)
    except TypeError as error:
        raise InvalidInput(f"gpus {gpus!r:.60} is no list of devices: give indices, gpu:0 or UUIDs") from error
    if not refs:
        raise InvalidInput("gpus is empty: name at least one device, or leave it out for all of this machine")
    for ref in refs:
        check_ref(ref)
    for at, ref in enumerate(refs):
        if ref in refs[:at]:
            raise InvalidInput(f"gpus names {_shown(ref)} twice: give it once")
    return refs


def _shown(ref: GpuRef) -> str:
    return ref.ref if isinstance(ref, Device) else repr(ref)


def _place(seen: SeenDevice, kind: Kind, here: bool) -> Place:
    mig = seen.ref.partition(".")[2].partition("/")[0] if seen.ref.startswith("mig:") else ""
    device = Device(
        seen.uuid,
        seen.index or 0,
        seen.name,
        kind,
        seen.memory_total_mib,
        int(mig) if mig.isdigit() else None,
        slot_of(seen.uuid)[1],
    )
    return Place(device, seen.host, here, seen)


def _is_meant(device: Device, wanted: str) -> bool:
    try:
        return find([device], wanted) is device
    except (NoDevice, InvalidInput):
        return False


def _total(place: Place) -> int | None:
    return place.device.memory_total_mib


def _order(place: Place) -> tuple[Any, ...]:
    device = place.device
    return (
        not place.here,
        place.host,
        device.index,
        -1 if device.mig is None else device.mig,
        device.slot or 0,
        device.uuid,
    )


def _size(place: Place, need: int) -> tuple[Any, ...]:
    """The smallest that will do comes first, and what is shared before what is whole where little memory is needed."""
    slotted = place.device.slot is not None
    return (slotted != bool(need), _total(place) or 2**31, *_order(place))
