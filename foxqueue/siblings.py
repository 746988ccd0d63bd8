"""Slots: GPUs that several jobs share, each with memory of its own to count on; and what runs beside one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foxqueue.errors import InvalidInput
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId, descendants, session_of

FEWEST: Final = 2
MOST: Final = 16
MOST_IN_ALL: Final = 256  # workers of one machine


def in_slots(devices: Sequence[Device], count: int) -> list[Device]:
    """The devices with each GPU in so many slots in its place; CPU slots stay as they are.

    Args:
        devices: of this machine.
        count: slots of each GPU; 0 leaves all GPUs whole.

    Raises:
        InvalidInput: another count than 2 to 16, no GPU to share, one whose memory is unknown, or too many slots.
    """
    if count == 0:
        return [*devices]
    if not FEWEST <= count <= MOST:
        raise InvalidInput(f"{count} slots are not possible: give {FEWEST} to {MOST}, or leave --slots out")
    gpus = [device for device in devices if device.kind != "cpu"]
    if not gpus:
        raise InvalidInput("--slots shares GPUs, and there is none here: leave it out, or give --simulate 1x24G too")
    for device in gpus:
        if device.memory_total_mib is None:
            raise InvalidInput(
                f"--slots: {device.ref} ({device.name}) does not tell how much memory it has, so it cannot be shared"
            )
    if len(gpus) * count > MOST_IN_ALL:
        raise InvalidInput(f"--slots: {len(gpus)} GPUs in {count} slots each are over {MOST_IN_ALL}: give fewer")
    return [part for device in devices for part in _parts(device, count)]


def _parts(device: Device, count: int) -> Iterator[Device]:
    if device.kind == "cpu":
        yield device
    else:
        yield from (device.as_slot(number) for number in range(count))


@dataclass(frozen=True)
class Siblings:
    """Runs and leases on the other slots of a device.

    Attributes:
        roots: processes from which all of theirs descend, as far as they can be seen from here.
        declared_mib: memory that they may use.
        count: how many they are.
    """

    roots: frozenset[int] = frozenset()
    declared_mib: int = 0
    count: int = 0

    @property
    def pids(self) -> frozenset[int]:
        """Their processes now: no strangers on the device."""
        return self.roots.union(*map(descendants, self.roots))


def siblings(lock: DeviceLock) -> Siblings:
    """What runs beside a slot, by what the locks of the other slots say.

    Args:
        lock: the ``.gpu`` lock of the slot, held or not. Nothing runs beside a whole device.
    """
    roots: set[int] = set()
    declared = count = 0
    for record in lock.others():
        found = roots_of(record)
        if found:
            roots.update(found)
            count += 1
            mib = record.get("declares")
            declared += mib if isinstance(mib, int) and not isinstance(mib, bool) else 0
    return Siblings(frozenset(roots), declared, count)


def foreign_seat(seat: DeviceLock, ours: Callable[[Mapping[str, Any]], bool]) -> str:
    """Who of another queue serves another slot of the same device: declared memory adds up within one queue only.

    Args:
        seat: the ``.worker`` lock of a slot, held, its record written: of two that look at once, one at least sees the
            other.
        ours: whether a record is of this home and namespace.

    Returns:
        The worker, for people; "" when there is none.
    """
    for record in seat.others():
        process = ProcessId.named(record, "process") or ProcessId.named(record, "claimer")
        if process is not None and process.alive() and not ours(record):
            user, namespace, home = (record.get(key, "unknown") for key in ("user", "namespace", "home"))
            return f"pid {process.pid} of user {user}, namespace {namespace}, home {home}"
    return ""


def roots_of(record: Mapping[str, Any]) -> Sequence[int]:
    """The first processes of the run or lease that a record names; none when nothing of it lives."""
    if not isinstance(record.get("fence"), int):
        return ()
    # A lease's command may outlive who took the lease, as a run may its worker.
    runner = ProcessId.named(record, "runner")
    names = ("runner",) if runner else ("worker", "command")
    living = [one.pid for name in names if (one := ProcessId.named(record, name)) is not None and one.alive()]
    # Where the runner is dead, what it leaves is about to be killed.
    leader = ProcessId.named(record, "leader")
    return living or ([] if leader is None else session_of(leader))
