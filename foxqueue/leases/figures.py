"""What is told of devices and their holders: memory, use, figures, who has what."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from foxqueue.errors import MemoryQueryFailed, UtilizationQueryFailed
from foxqueue.holders import Holder, job_holder, job_number, lease_token, read_holder
from foxqueue.leases.core import Core
from foxqueue.leases.effects import Local, Read, Steps
from foxqueue.leases.places import Place
from foxqueue.leases.wish import GpuRef, check_ref
from foxqueue.nvml import NvmlFault
from foxqueue.replies import fields, text, whole
from foxqueue.snapshots import memory_of, utilization_of
from foxqueue.states import RUNNING

COUNTERS: Final = ("acquired", "contended", "lost", "released", "wait_ms", "hold_ms")
_NOT_READY: Final = ("occupied", "unavailable", "held")


class GpuMemoryInfo(NamedTuple):
    """Memory of a device.

    Attributes:
        total, used, free: MiB. ``used`` is by everybody.
        observed_at: epoch seconds.
    """

    total: int
    used: int
    free: int
    observed_at: float


class GpuStatistics(NamedTuple):
    """The devices of a GpuLeases at one moment.

    Attributes:
        total: how many there are.
        leased: how many somebody has, by a lease or by a job.
        available: how many could be acquired now, as far as is known without looking at them.
        active_jobs: leases and jobs that have them.
    """

    total: int
    leased: int
    available: int
    active_jobs: int


class ActiveHolder(NamedTuple):
    """Who has a device.

    Attributes:
        gpu: UUID of the device.
        name: of the device for people.
        holder: who.
    """

    gpu: str
    name: str
    holder: Holder


@dataclass(frozen=True)
class _Standing:
    """What Redis says of one device."""

    place: Place
    grant: str
    holder: Holder | None
    withheld: bool
    paused: bool


def place_of(core: Core, gpu: GpuRef) -> Steps[Place]:
    """The device that is meant.

    Raises:
        InvalidInput, GpuNotFound: it is malformed, or there is none.
    """
    check_ref(gpu)
    yield from fresh(core)
    return core.places.named(gpu)


def fresh(core: Core) -> Steps[None]:
    """Have devices and settings known."""
    if not core.is_fresh():
        yield Local(core.refresh)


def memory(core: Core, gpu: GpuRef) -> Steps[GpuMemoryInfo]:
    """Memory of a device, looked at now; of another machine's, as its worker last published it.

    Raises:
        MemoryQueryFailed: it cannot be told.
    """
    place = yield from place_of(core, gpu)
    if not place.here:
        seen = (yield from _published(core, place)).seen
        if seen is None or seen.memory_total_mib is None or seen.memory_free_mib is None:
            raise MemoryQueryFailed(place.uuid, "its worker does not tell")
        used = seen.memory_total_mib - seen.memory_free_mib
        return GpuMemoryInfo(seen.memory_total_mib, used, seen.memory_free_mib, (seen.observed_ms or 0) / 1000)
    try:
        found = yield Local(partial(memory_of, place.device))
    except NvmlFault as fault:
        raise MemoryQueryFailed(place.uuid, str(fault)) from fault
    if found is None or None in (found.total_mib, found.used_mib, found.free_mib):
        raise MemoryQueryFailed(place.uuid, "the driver does not tell")
    return GpuMemoryInfo(found.total_mib, found.used_mib, found.free_mib, time.time())


def utilization(core: Core, gpu: GpuRef) -> Steps[int]:
    """How busy a device is, percent of its last sample period.

    Raises:
        UtilizationQueryFailed: it cannot be told.
    """
    place = yield from place_of(core, gpu)
    if place.here:
        try:
            found = yield Local(partial(utilization_of, place.device))
        except NvmlFault as fault:
            raise UtilizationQueryFailed(place.uuid, str(fault)) from fault
    else:
        seen = (yield from _published(core, place)).seen
        found = seen.utilization if seen else None
    if found is None:
        why = "it is simulated" if place.device.kind == "simulated" else "the driver does not tell"
        raise UtilizationQueryFailed(place.uuid, why)
    return int(found)


def _published(core: Core, place: Place) -> Steps[Place]:
    yield Local(core.refresh)
    return core.places.named(place.uuid)


def statistics(core: Core) -> Steps[GpuStatistics]:
    """Figures of the devices."""
    found = yield from _standings(core)
    held = [one for one in found if one.holder is not None]
    whole_held = {one.place.device.whole for one in held}
    parts = _parts(core.places.all)
    free = [
        one
        for one in parts
        if one.device.whole not in whole_held or (one.device.slot is not None and not _has(held, one))
    ]
    standing = {one.place.uuid: one for one in found}
    ready = [one for one in free if _is_ready(standing[one.uuid])]
    taken = sum(1 for one in parts if one not in free)
    return GpuStatistics(len(parts), taken, len(ready), len({one.grant for one in held}))


def _parts(places: Sequence[Place]) -> list[Place]:
    """The devices, each once: in slots where they are served so."""
    slotted = {place.device.whole for place in places if place.device.slot is not None}
    return [place for place in places if place.device.slot is not None or place.device.whole not in slotted]


def _has(held: Sequence[_Standing], part: Place) -> bool:
    return any(one.place.uuid in (part.uuid, part.device.whole) for one in held)


def _is_ready(one: _Standing) -> bool:
    seen = one.place.seen
    return not (one.withheld or one.paused or (seen is not None and seen.state in _NOT_READY))


def active(core: Core) -> Steps[list[ActiveHolder]]:
    """Who has devices now, by leases and by jobs."""
    found = yield from _standings(core)
    return [ActiveHolder(one.place.uuid, one.place.name, one.holder) for one in found if one.holder is not None]


def holder_of(core: Core, place: Place) -> Steps[Holder | None]:
    """Who has a device; None for nobody."""
    found = yield from _standings(core, [place])
    return found[0].holder


def counters(core: Core) -> Steps[dict[str, int]]:
    """Counts of the namespace since its beginning: acquired, contended (had to wait, or were refused), lost, released;
    and the sums of wait and hold times in ms.
    """
    answer = (yield Read((("HGETALL", core.broker.keys.lease_stats),)))[0]
    found = fields(answer)
    return {name: whole(found.get(name, "0")) for name in dict.fromkeys((*COUNTERS, *found))}


def _standings(core: Core, places: Sequence[Place] | None = None) -> Steps[list[_Standing]]:
    yield from fresh(core)
    places = core.places.all if places is None else places
    if not places:
        return []
    keys, names = core.broker.keys, [place.uuid for place in places]
    hashes = (keys.granted, keys.holders, keys.withheld, keys.paused)
    reads: list[tuple[Any, ...]] = [("HMGET", name, *names) for name in hashes]
    reads += [("EXISTS", keys.lease(name)) for name in names]
    grants, texts, withheld, paused, *alive = yield Read(tuple(reads))
    given = [text(grant or b"") for grant in grants]
    jobs = [number for grant in given if (number := job_number(grant)) is not None]
    running: dict[int, tuple[str, str]] = {}
    if jobs:
        commands = tuple(("HMGET", keys.job(number), "state", "user", "host") for number in jobs)
        for number, (state, user, host) in zip(jobs, (yield Read(commands)), strict=True):
            if text(state or b"") == RUNNING:
                running[number] = (text(user or b""), text(host or b""))
    found = []
    for at, place in enumerate(places):
        holder = _holder(given[at], texts[at], bool(alive[at]), running)
        found.append(_Standing(place, given[at], holder, withheld[at] is not None, paused[at] is not None))
    return found


def _holder(grant: str, words: Any, alive: bool, running: dict[int, tuple[str, str]]) -> Holder | None:
    number = job_number(grant)
    if number is not None:
        return job_holder(grant, *running[number]) if number in running else None
    if lease_token(grant) is None or not alive:
        return None
    return read_holder(grant, None if words is None else text(words))
