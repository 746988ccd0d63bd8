"""A device as one process of one queue holds it: its two file locks, what they say, and what must be gone before."""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from foxqueue.broker import Broker
from foxqueue.config import Config
from foxqueue.errors import LeftoverProcesses, ServerError
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, lock_places
from foxqueue.processes import ProcessId, kill_marked
from foxqueue.rundirs import MARK

SWEEP_UP_S: Final = 20.0
DEVICE_MARK: Final = "FOXQUEUE_GPUS"

_slots: dict[str, tuple[int, bool]] = {}  # directory -> when it last changed, and whether slots have files in it
_log = logging.getLogger(__name__)


class LeftLease(NamedTuple):
    """A lease without a job whose holder is gone, as the lock of its device tells."""

    token: str
    fence: str
    device: str


class Hold(ABC):
    """The ``.worker`` lock of a device, its seat, and the ``.gpu`` lock, for while it is used or asked for.

    Args:
        config: whose home and namespace it is.
        device: what is held.
        host: name of the machine.
        broker: of the queue, to give back leases whose holders are gone; without it they are left to run out.
        places: of the lock files, where they are known.

    Raises:
        NoDevice, InvalidInput: there is no place for lock files.
    """

    def __init__(
        self,
        config: Config,
        device: Device,
        host: str,
        broker: Broker | None = None,
        places: Sequence[Path] | None = None,
    ) -> None:
        places = places or lock_places(device.kind, config.machine_dir, os.environ)
        self.config = config
        self.device = device
        self.host = host
        self._whose = {"home": str(config.home), "namespace": config.namespace}
        self._blank = json.dumps(self._whose).encode() + b"\n"
        self.broker = broker
        self.seat = DeviceLock(device.uuid, "worker", places)
        self.gpu = DeviceLock(device.uuid, "gpu", places)
        self._places = [str(place) for place in places]

    def whose(self) -> dict[str, Any]:
        """What every record of this queue on this machine says."""
        return dict(self._whose)

    def is_ours(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of this queue."""
        return {key: record.get(key) for key in self._whose} == self._whose

    def sit_down(self, worker: str, role: str) -> str | None:
        """Write into the seat's lock, just taken, who has it.

        Args:
            worker: name of the worker.
            role: under which this process stands there: ``process`` of a worker, which may be told to end, or
                ``claimer`` of an application, which may not.

        Returns:
            Name of the worker of this queue that had it before, None when there was none.
        """
        before = self.seat.read() or {}
        me = ProcessId.of()
        self.seat.write(
            {
                role: me.to_dict() if me else None,
                **self.whose(),
                "server": self.config.shown_url,
                "worker": worker,
                "host": self.host,
                "user": os.environ.get("USER") or str(os.getuid()),
            }
        )
        return str(before["worker"]) if self.is_ours(before) and before.get("worker") else None

    def refusal(self) -> str:
        """Who has the seat, for people."""
        record = self._seated()
        process = ProcessId.named(record, "process") or ProcessId.named(record, "claimer")
        return (
            f"device {self.device.ref} ({self.device.uuid}) is served by worker {record.get('worker', 'unknown')} "
            f"(pid {process.pid if process else 'unknown'} of user {record.get('user', 'unknown')}, namespace "
            f"{record.get('namespace', 'unknown')}, home {record.get('home', 'unknown')}): stop that one first"
        )

    def _seated(self) -> dict[str, Any]:
        """What the seat's lock says of who keeps us from it; of a slot it may be the worker of the whole device."""
        records = self.seat.records()
        for record in records:
            process = ProcessId.named(record, "process") or ProcessId.named(record, "claimer")
            if process is not None and process.alive():
                return record
        return records[0] if records else {}

    def try_use(self) -> str:
        """Take the ``.gpu`` lock: no claim without it. Returns why not, empty when it is held now."""
        if not self.gpu.acquire():
            return in_use(self.gpu)
        obstacle = self.settle()
        if obstacle:
            self.gpu.release()
        return obstacle

    def is_leased(self) -> bool:
        """Whether a lease of this queue holds the device, or a slot of it, as far as the locks' records tell."""
        return any("lease" in record and self.is_ours(record) for record in self.gpu.records())

    def is_clean(self) -> bool:
        """Whether the records tell that nobody left anything: then there is nothing to :meth:`settle`."""
        if not self._is_blank():
            record = self.gpu.read()
            if record is None or _names_something(record):
                return False
        if self.gpu.slot is None and not any(map(_has_slots, self._places)):
            return True
        return not any(map(_names_something, self.gpu.records()))

    def _is_blank(self) -> bool:
        """Whether the held lock says what we write when all is over: the usual case, which needs no reading."""
        own = self.gpu.fds[-len(self.gpu.paths) :]
        return all(os.pread(descriptor, len(self._blank) + 1, 0) == self._blank for descriptor in own)

    def settle(self) -> str:
        """Deal with what those left behind who had the device before, whole or in slots; its lock is held.

        Returns:
            Why the device cannot be used yet, "" when it can.
        """
        beside = self.gpu.relatives()
        try:
            for lock in (self.gpu, *(other for other in beside if other.held)):
                record = lock.read() or {}
                obstacle = self._clean_up(lock) or self._give_back(lock, record)
                if obstacle:
                    return obstacle
        except LeftoverProcesses as error:
            return str(error)
        finally:
            for lock in beside:
                lock.release()
        return ""

    @abstractmethod
    def _clean_up(self, lock: DeviceLock) -> str:
        """Deal with the run that a held lock's record may name. Returns why the device cannot be used yet.

        Raises:
            LeftoverProcesses: something of it cannot be killed.
        """

    def _give_back(self, lock: DeviceLock, record: Mapping[str, Any]) -> str:
        """Give back the lease that a held lock's record may name: who has the lock knows that its holder is gone.

        Returns:
            Why the device cannot be used yet: nobody could be told.
        """
        left = left_lease(record, lock.device)
        if left is None or self.broker is None:
            return ""
        if self.is_ours(record):
            try:
                word = self.broker.send(self.broker.lease_release_call(left.token, left.fence, [left.device]))[0].word
            except ServerError as error:
                with suppress(OSError):
                    lock.write(record)  # the clean-up may have taken it away
                return f"a lease whose holder is gone cannot be given back yet: {error}"
            _log.warning("lease %s of %s, left by a dead process: %s", left.token, left.device, word)
        self.done(lock)
        return ""

    def done(self, lock: DeviceLock | None = None) -> None:
        """The last run or lease is over and told: nobody has to look for it any more.

        Args:
            lock: whose record named it, the ``.gpu`` lock by default.
        """
        try:
            (lock or self.gpu).write(self.whose())
        except OSError as error:  # the next taker looks once more for what is gone
            _log.warning("the lock record of %s cannot be written: %s", self.device.ref, error)


def _names_something(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("mark"), str) or "lease" in record


def _has_slots(place: str) -> bool:
    """Whether slots of any device have lock files in a directory. One that has not changed is not read again."""
    changed = os.stat(place).st_mtime_ns  # noqa: PTH116 - at every lease
    known = _slots.get(place)
    if known is None or known[0] != changed:
        found = any("~" in name for name in os.listdir(place))  # noqa: PTH208
        # Times of files are coarse: a directory that has just changed may change once more unseen.
        settled = time.time_ns() - changed > 200_000_000
        known = _slots[place] = (changed if settled else -1, found)
    return known[1]


def in_use(lock: DeviceLock) -> str:
    """Who holds a ``.gpu`` lock that could not be taken, for people."""
    for record in lock.records():
        if "job" in record or "lease" in record:
            return f"{_what(record)} of home {record.get('home')} uses it"
    return "another process of this machine looks at it or uses it"


def _what(record: Mapping[str, Any]) -> str:
    return f"a lease of {record.get('user', 'somebody')}" if "lease" in record else f"job {record.get('job')}"


def left_lease(record: Mapping[str, Any], device: str) -> LeftLease | None:
    """The lease that the record of a device's lock names; None when it names none."""
    token, fence = record.get("lease"), record.get("fence")
    if not isinstance(token, str) or not token.isalnum() or isinstance(fence, bool) or not isinstance(fence, int):
        return None
    return LeftLease(token, str(fence), device)


def names_a_run(lock: DeviceLock) -> bool:
    """Whether the lock's record names a run that nobody has cleaned up after, or cannot be read."""
    record = lock.read()
    return record is None or isinstance(record.get("mark"), str)


def end_named(lock: DeviceLock) -> dict[str, Any]:
    """Make sure that nothing is left of the run that the held lock's record names.

    Found are processes by the mark and by the session that the job began. When the record cannot be read, every
    process that was given this device counts.

    Args:
        lock: the ``.gpu`` lock, held.

    Returns:
        The record; empty when it names none.

    Raises:
        LeftoverProcesses: something of it lives on and cannot be killed.
    """
    record = lock.read()
    if record is None:
        name, value, leader, record = DEVICE_MARK, lock.device, None, {}
    elif isinstance(record.get("mark"), str):
        name, value, leader = MARK, record["mark"], ProcessId.named(record, "leader")
    else:
        return {}
    if not kill_marked(name, value, 0.0, SWEEP_UP_S, leader):
        raise LeftoverProcesses(
            f"processes of {_what(record)} (marked {name}={value}) still use device {lock.device} and cannot be "
            "killed: end them by hand"
        )
    return record
