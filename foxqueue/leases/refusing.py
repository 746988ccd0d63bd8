"""What is told to somebody who cannot have a device: who has it, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from foxqueue.errors import FoxqueueError, GpuAlreadyLeased, InsufficientMemory, LeaseError, NoGpuAvailable
from foxqueue.holders import job_holder, job_number, read_holder
from foxqueue.leases.effects import Read, Steps
from foxqueue.leases.places import Place
from foxqueue.leases.spot import Refusal, Spot
from foxqueue.leases.wish import Wish
from foxqueue.replies import text
from foxqueue.withheld import read_withheld

if TYPE_CHECKING:
    from foxqueue.leases.steps import Acquisition


def name_holders(acquisition: Acquisition, spots: Sequence[Spot]) -> Steps[None]:
    """Ask the server who has the devices of which nothing here tells, and whose the jobs are."""
    refusals, keys = acquisition.refusals, acquisition.core.broker.keys
    yield from _name_withheld(acquisition, spots)
    names = [spot.place.uuid for spot in spots if _is_open(refusals[spot.place.uuid])]
    if not names:
        return
    with suppress(FoxqueueError):
        grants, holders = yield Read((("HMGET", keys.granted, *names), ("HMGET", keys.holders, *names)))
        given = {name: text(grant or b"") for name, grant in zip(names, grants, strict=True)}
        jobs = {name: number for name, grant in given.items() if (number := job_number(grant)) is not None}
        reads = tuple(("HMGET", keys.job(number), "user", "host") for number in jobs.values())
        found = dict(zip(jobs, (yield Read(reads)), strict=True)) if jobs else {}
        for name, words in zip(names, holders, strict=True):
            if name in found:
                whose = [text(value or b"") for value in found[name]]
                holder = job_holder(given[name], whose[0], whose[1])
            else:
                holder = read_holder(given[name], None if words is None else text(words))
            if holder is not None:
                refusals[name] = replace(
                    refusals[name], text=f"in use by {holder.shown}", holder=holder, momentary=False
                )


def _name_withheld(acquisition: Acquisition, spots: Sequence[Spot]) -> Steps[None]:
    """A device that looks used or sick may be dirty or quarantined: then that is to be said, with the cure."""
    refusals = acquisition.refusals
    odd = [spot.place for spot in spots if refusals[spot.place.uuid].kind == "device"]
    if odd:
        with suppress(FoxqueueError):
            wholes = [place.device.whole for place in odd]
            (found,) = yield Read((("HMGET", acquisition.core.broker.keys.withheld, *wholes),))
            for place, value in zip(odd, found, strict=True):
                why = None if value is None else read_withheld(text(value))
                if why is not None:
                    refusals[place.uuid] = replace(refusals[place.uuid], text=f"{why.word}: {why.text}")


def _is_open(refusal: Refusal) -> bool:
    """Whether it is somebody's of whom more could be told."""
    holder = refusal.holder
    return refusal.kind == "held" and (holder is None or (holder.job is not None and not holder.user))


def refusal_error(wish: Wish, refused: Sequence[tuple[Place, Refusal]]) -> LeaseError:
    """The error for a wish of which each device was refused."""
    if wish.gpu is not None:
        place, refusal = refused[0]
        if refusal.kind == "held":
            return GpuAlreadyLeased(place.uuid, refusal.holder, place.name)
        if refusal.kind == "memory":
            required = wish.memory_mib or place.device.memory_total_mib or 0  # a slot without a wish takes all
            return InsufficientMemory(place.uuid, required, refusal.free_mib, name=place.name)
    said = "; ".join(f"{place.name}: {refusal.text}" for place, refusal in refused)
    what = (
        "the device cannot" if wish.gpu is not None else "no device can" if wish.count == 1 else f"{wish.count} cannot"
    )
    return NoGpuAvailable(
        f"{what} be had now ({said}): wait, or try later",
        {place.uuid: refusal.text for place, refusal in refused},
        {place.uuid: refusal.holder for place, refusal in refused if refusal.holder is not None},
    )
