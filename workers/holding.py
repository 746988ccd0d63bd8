"""A worker's hold on its device: the two file locks, what they say, and what a predecessor left behind."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from foxqueue.config import Config
from foxqueue.errors import DeviceHeld, LeftoverProcesses
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, lock_places
from foxqueue.processes import ProcessId
from workers.recovery import LeftRun, clean_up, names_a_run, take_over

_log = logging.getLogger(__name__)
JUST_KILLED_S = 2.0  # a predecessor that was just killed may still hold its lock for a moment


class Holding:
    """The ``.worker`` lock, for the worker's life, and the ``.gpu`` lock, while the device is used or asked for.

    Args:
        config: whose home and namespace it is.
        device: what is held.
        worker: name of the worker.
        host: name of the machine.
        tell: tells the queue how a run ended that a dead worker left; false when it could not.

    Raises:
        NoDevice, InvalidInput: there is no place for lock files.
    """

    def __init__(self, config: Config, device: Device, worker: str, host: str, tell: Callable[[LeftRun], bool]) -> None:
        places = lock_places(device.kind, config.machine_dir, os.environ)
        self._config = config
        self._device = device
        self._worker = worker
        self._host = host
        self._tell = tell
        self._seat = DeviceLock(device.uuid, "worker", places)
        self.gpu = DeviceLock(device.uuid, "gpu", places)

    def whose(self) -> dict[str, Any]:
        """What every record of this queue on this machine says."""
        return {"home": str(self._config.home), "namespace": self._config.namespace}

    def is_ours(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of this queue."""
        return {key: record.get(key) for key in ("home", "namespace")} == self.whose()

    def take_seat(self) -> str | None:
        """Become the device's worker.

        Returns:
            Name of the worker of this queue that had it before, None when there was none.

        Raises:
            DeviceHeld: another worker is; the text names it.
        """
        deadline = time.monotonic() + JUST_KILLED_S
        while not self._seat.acquire():
            if time.monotonic() > deadline:
                raise DeviceHeld(self._refusal(self._seat.read() or {}))
            time.sleep(0.02)
        before = self._seat.read() or {}
        me = ProcessId.of()
        self._seat.write(
            {
                "process": me.to_dict() if me else None,
                **self.whose(),
                "server": self._config.shown_url,
                "worker": self._worker,
                "host": self._host,
                "user": os.environ.get("USER") or str(os.getuid()),
            }
        )
        return str(before["worker"]) if self.is_ours(before) and before.get("worker") else None

    def _refusal(self, record: Mapping[str, Any]) -> str:
        process = record.get("process") or {}
        return (
            f"device {self._device.ref} ({self._device.uuid}) is served by worker {record.get('worker', 'unknown')} "
            f"(pid {process.get('pid', 'unknown')} of user {record.get('user', 'unknown')}, namespace "
            f"{record.get('namespace', 'unknown')}, home {record.get('home', 'unknown')}): stop that one first"
        )

    def recover(self, wait: Callable[[], bool]) -> None:
        """End what a predecessor left, and tell its outcome. Does nothing while another queue has the device.

        Args:
            wait: waits a moment; false when the worker is to stop.

        Raises:
            LeftoverProcesses: something of it cannot be killed.
        """
        if take_over(self.gpu, self.is_ours, wait):
            self._clean_up()
            self.gpu.release()

    def _clean_up(self) -> None:
        if names_a_run(self.gpu):
            left = clean_up(self.gpu, self.is_ours)
            if left is None or self._tell(left):
                self.done()

    def try_use(self) -> str:
        """Take the ``.gpu`` lock: no claim without it. Returns why not, empty when it is held now."""
        if not self.gpu.acquire():
            holder = self.gpu.read() or {}
            return f"job {holder.get('job')} of home {holder.get('home')} uses it"
        try:
            self._clean_up()
        except LeftoverProcesses as error:
            self.gpu.release()
            return str(error)
        return ""

    def done(self) -> None:
        """The last run is over and told: nobody has to look for it any more."""
        try:
            self.gpu.write(self.whose())
        except OSError as error:  # the next taker looks once more for what is gone
            _log.warning("the lock record of %s cannot be written: %s", self._device.ref, error)
