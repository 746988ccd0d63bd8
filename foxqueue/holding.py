"""A device as one process of one queue holds it: its two file locks, what they say, and what must be gone before."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from foxqueue.config import Config
from foxqueue.errors import LeftoverProcesses
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, lock_places
from foxqueue.processes import ProcessId, kill_marked
from foxqueue.rundirs import MARK

SWEEP_UP_S: Final = 20.0
DEVICE_MARK: Final = "FOXQUEUE_GPUS"

_log = logging.getLogger(__name__)


class Hold(ABC):
    """The ``.worker`` lock of a device, its seat, and the ``.gpu`` lock, for while it is used or asked for.

    Args:
        config: whose home and namespace it is.
        device: what is held.
        host: name of the machine.

    Raises:
        NoDevice, InvalidInput: there is no place for lock files.
    """

    def __init__(self, config: Config, device: Device, host: str) -> None:
        places = lock_places(device.kind, config.machine_dir, os.environ)
        self.config = config
        self.device = device
        self.host = host
        self.seat = DeviceLock(device.uuid, "worker", places)
        self.gpu = DeviceLock(device.uuid, "gpu", places)

    def whose(self) -> dict[str, Any]:
        """What every record of this queue on this machine says."""
        return {"home": str(self.config.home), "namespace": self.config.namespace}

    def is_ours(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of this queue."""
        return {key: record.get(key) for key in ("home", "namespace")} == self.whose()

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
        record = self.seat.read() or {}
        process = ProcessId.named(record, "process") or ProcessId.named(record, "claimer")
        return (
            f"device {self.device.ref} ({self.device.uuid}) is served by worker {record.get('worker', 'unknown')} "
            f"(pid {process.pid if process else 'unknown'} of user {record.get('user', 'unknown')}, namespace "
            f"{record.get('namespace', 'unknown')}, home {record.get('home', 'unknown')}): stop that one first"
        )

    def try_use(self) -> str:
        """Take the ``.gpu`` lock: no claim without it. Returns why not, empty when it is held now."""
        if not self.gpu.acquire():
            holder = self.gpu.read() or {}
            return f"job {holder.get('job')} of home {holder.get('home')} uses it"
        try:
            obstacle = self._clean_up()
        except LeftoverProcesses as error:
            obstacle = str(error)
        if obstacle:
            self.gpu.release()
        return obstacle

    @abstractmethod
    def _clean_up(self) -> str:
        """Deal with the run that the held lock's record may name. Returns why the device cannot be used yet.

        Raises:
            LeftoverProcesses: something of it cannot be killed.
        """

    def done(self) -> None:
        """The last run is over and told: nobody has to look for it any more."""
        try:
            self.gpu.write(self.whose())
        except OSError as error:  # the next taker looks once more for what is gone
            _log.warning("the lock record of %s cannot be written: %s", self.device.ref, error)


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
            f"processes of job {record.get('job')} (marked {name}={value}) still use device {lock.device} and cannot "
            "be killed: end them by hand"
        )
    return record
