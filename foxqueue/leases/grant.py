"""A lease as the server has granted it: what its locks say, and how it is given back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from foxqueue.bindings import Bindings
from foxqueue.leases.effects import Ask, Steps
from foxqueue.leases.spot import Spot
from foxqueue.processes import ProcessId
from foxqueue.scripts import Call
from foxqueue.submission import user


@dataclass(frozen=True)
class Grant:
    """A lease as it was granted.

    Attributes:
        token: its random name.
        fence: 0 for a lease of no device.
        instance: life of the namespace in which it was granted.
        spots: the devices, locked.
        label, until_ms: of the wish.
        waited_s: from the first try to the grant.
    """

    token: str
    fence: int
    instance: str
    spots: tuple[Spot, ...]
    label: str
    until_ms: int | None = None
    waited_s: float = 0.0
    user: str = field(default_factory=user)


def write_down(grant: Grant, **facts: Any) -> None:
    """Say in the locks of its devices whose lease it is.

    Args:
        grant: the lease.
        facts: what is to be known besides.

    Raises:
        OSError: it cannot be written.
    """
    record = {
        "instance": grant.instance,
        "devices": [spot.place.uuid for spot in grant.spots],
        "worker": identity(os.getpid()),
        "user": grant.user,
        "label": grant.label,
        **facts,
    }
    if grant.until_ms is not None:
        record["until_ms"] = grant.until_ms
    for spot in grant.spots:
        room = spot.place.device.memory_total_mib
        own = {**record, "declares": spot.declares, "room": room} if spot.declares else record
        spot.write(own, f'"lease": "{grant.token}", "fence": {grant.fence}')


def release(bindings: Bindings, grant: Grant) -> Steps[None]:
    """Tell the server that a lease is over.

    Raises:
        ServerUnavailable: it may not know.
    """
    yield Ask((release_call(bindings, grant),))


def release_call(bindings: Bindings, grant: Grant) -> Call:
    """Bind the script that gives a lease back."""
    devices = [spot.place.uuid for spot in grant.spots]
    return bindings.lease_release_call(grant.token, str(grant.fence), devices)


@lru_cache(1)
def identity(pid: int) -> dict[str, Any] | None:
    """Who this process is, for a record. Its number is the argument because a forked one is another."""
    me = ProcessId.of(pid)
    return me.to_dict() if me else None
