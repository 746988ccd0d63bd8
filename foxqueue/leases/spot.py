"""One device as an acquisition tries it: its file lock, who has it if not we, and a look at it. Nothing here waits,
but :meth:`Spot.settle` and :meth:`Spot.look`, which take a while.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from foxqueue.broker import NamespaceSettings
from foxqueue.holders import Holder
from foxqueue.holding import left_lease
from foxqueue.leases.places import Place
from foxqueue.probing import Observation, Probe
from foxqueue.processes import ProcessId, descendants
from foxqueue.seat import ClaimHold
from foxqueue.siblings import siblings
from foxqueue.units import format_memory

LOOKS_APART_S: Final = 0.1  # between the looks at a GPU's free memory that all must show enough

Kind = Literal["held", "memory", "device", "queue", "line", "untried"]


@dataclass(frozen=True)
class Refusal:
    """Why a device cannot be had now.

    Attributes:
        kind: ``held`` by somebody; ``memory``: too little is free; ``device``: it is occupied, sick, or cannot be
            cleaned up; ``queue``: paused, withheld; ``line``: somebody ranks before.
        text: for people.
        holder: who has it, where that is known.
        free_mib: what is free of it, for ``memory``.
        momentary: it may be over in a moment: somebody looks at it.
        local: what keeps it from us is on this machine.
        foreign: it is of another home or namespace, so that our server knows nothing of it.
    """

    kind: Kind
    text: str
    holder: Holder | None = None
    free_mib: int | None = None
    momentary: bool = False
    local: bool = False
    foreign: bool = False


class Spot:
    """A device, for one acquisition or lease at a time.

    Args:
        place: which.
        hold: its locks; None for a device of another machine.

    Attributes:
        seen: the last look.
        declares: MiB that a lease of a slot may use; 0 for what is no slot.
    """

    def __init__(self, place: Place, hold: ClaimHold | None) -> None:
        self.place = place
        self.hold = hold
        self.declares = 0
        self.seen = _unseen(place)
        self._probe: Probe | None = None
        self._packed: tuple[dict[str, Any], str] = ({}, "")  # what was written last
        self._ours = {} if hold is None else {**hold.whose(), "server": hold.config.shown_url}

    # --- the lock --------------------------------------------------------------------------------------

    def lock(self) -> bool:
        """Take the file lock, not waiting; True for a device of another machine, which has none here."""
        return self.hold is None or self.hold.gpu.acquire()

    def unlock(self) -> None:
        """Give the lock up, for all processes that were forked meanwhile too."""
        if self.hold is not None and self.hold.gpu.held:
            self.hold.gpu.unlock()

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to settle; the lock is held."""
        return self.hold is None or self.hold.is_clean()

    @property
    def names_a_lease(self) -> bool:
        """Whether the lock's record names a lease; the lock is held, so it is one whose holder is gone."""
        return self.hold is not None and left_lease(self.hold.gpu.read() or {}, self.place.uuid) is not None

    def settle(self) -> Refusal | None:
        """Deal with what somebody left on it. Takes a while, and asks the server."""
        assert self.hold is not None
        obstacle = self.hold.settle()
        return Refusal("device", obstacle, local=True) if obstacle else None

    def write(self, record: Mapping[str, Any], grant: str) -> None:
        """Say in the lock who has the device.

        Args:
            record: what is the same for every lease of this holder.
            grant: what is this lease's alone, JSON too, without its outer braces.

        Raises:
            OSError: it cannot be written.
        """
        if self.hold is None:
            return
        if record != self._packed[0]:
            self._packed = dict(record), json.dumps({**self._ours, **record})[:-1]
        self.hold.gpu.write_packed(f"{self._packed[1]}, {grant}}}".encode("ascii"))

    def blank(self) -> None:
        """Nobody has to look after the last holder any more."""
        if self.hold is not None and self.hold.gpu.held:
            self.hold.done()

    def in_use(self) -> Refusal:
        """Who has the lock that could not be taken."""
        assert self.hold is not None
        for record in self.hold.gpu.records():
            holder = _holder(record, self.place.host)
            if holder is not None:
                foreign = not self.hold.is_ours(record)
                return Refusal("held", f"in use by {holder.shown}", holder, local=True, foreign=foreign)
        return Refusal("held", "another process of this machine looks at it or uses it", momentary=True, local=True)

    # --- looks -----------------------------------------------------------------------------------------

    @property
    def looks_quick(self) -> bool:
        """Whether a look needs no driver."""
        return self.hold is None or self.place.device.kind != "nvml"

    def look(self, need_mib: int, settings: NamespaceSettings) -> Refusal | None:
        """See whether the device is free, with so much memory. Of a GPU whose memory counts that takes several looks.

        Args:
            need_mib: MiB that must be free; 0 for any.
            settings: of the namespace.
        """
        if self.hold is None:
            return self._published(need_mib)
        looks = settings.admission_samples if need_mib and self.place.device.kind == "nvml" else 1
        for turn in range(looks):
            if turn:
                time.sleep(LOOKS_APART_S)
            refusal = self._judge(self._look(settings), need_mib)
            if refusal is not None:
                return refusal
        return None

    def _look(self, settings: NamespaceSettings) -> Observation:
        if self.place.device.kind != "nvml":
            self.seen = _unseen(self.place)
            return self.seen
        self._probe = self._probe or Probe(self.place.device)
        ours, allowed = {os.getpid(), *descendants(os.getpid())}, 0
        if self.place.device.slot is not None and self.hold is not None:
            beside = siblings(self.hold.gpu)
            ours, allowed = ours | beside.pids, beside.declared_mib
        self.seen = self._probe.look(ours, settings.ignored, settings.occupied_over_mib, allowed)
        return self.seen

    def _judge(self, seen: Observation, need_mib: int) -> Refusal | None:
        if seen.state != "free":
            return Refusal("device", f"{seen.state}: {seen.detail}", local=True)
        return _memory(seen.memory_free_mib, need_mib)

    def _published(self, need_mib: int) -> Refusal | None:
        """What its worker last saw of a device of another machine."""
        seen = self.place.seen
        if seen is None:
            return None
        if seen.state in ("occupied", "unavailable", "held"):
            return Refusal("device", f"{seen.state}: {seen.detail}")
        return _memory(seen.memory_free_mib, need_mib)

    def close(self) -> None:
        """Nobody needs it any more."""
        self.unlock()
        if self._probe is not None:
            self._probe.close()
            self._probe = None


def _memory(free_mib: int | None, need_mib: int) -> Refusal | None:
    if not need_mib or (free_mib is not None and free_mib >= need_mib):
        return None
    there = "how much of its memory is free cannot be told" if free_mib is None else f"{format_memory(free_mib)} free"
    return Refusal("memory", f"{there}, {format_memory(need_mib)} asked for", free_mib=free_mib, local=True)


def _unseen(place: Place) -> Observation:
    total = place.device.memory_total_mib
    return Observation(total, total if place.device.kind == "simulated" else None, None, "free")


def _holder(record: Mapping[str, Any], host: str) -> Holder | None:
    """The living holder that a lock's record names."""
    fence = record.get("fence")
    process = ProcessId.named(record, "worker")
    if not isinstance(fence, int) or isinstance(fence, bool):
        return None
    if isinstance(record.get("lease"), str):
        if process is None or not process.alive():
            return None
        until = record.get("until_ms")
        label, user = str(record.get("label") or ""), str(record.get("user") or "")
        return Holder(
            user, host, process.pid, label, None, fence // 1000, until if isinstance(until, int) else None, fence
        )
    job, runner = record.get("job"), ProcessId.named(record, "runner")
    if isinstance(job, int) and any(one is not None and one.alive() for one in (process, runner)):
        return Holder("", host, None, "", job, fence // 1000, None, fence)
    return None
