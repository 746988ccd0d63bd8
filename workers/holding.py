"""A worker's hold on its device: it takes the seat for its life, and tells what a predecessor left behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from foxqueue.broker import Broker
from foxqueue.config import Config
from foxqueue.errors import DeviceHeld
from foxqueue.gpu import Device
from foxqueue.holding import Hold, names_a_run
from foxqueue.locks import DeviceLock
from foxqueue.siblings import Siblings, foreign_seat, roots_of, siblings
from workers.recovery import LeftRun, clean_up, take_over

JUST_KILLED_S = 2.0  # a predecessor that was just killed may still hold its lock for a moment

_log = logging.getLogger(__name__)


class Holding(Hold):
    """The ``.worker`` lock, for the worker's life, and the ``.gpu`` lock, while the device is used or asked for.

    Args:
        config: whose home and namespace it is.
        device: what is held.
        worker: name of the worker.
        host: name of the machine.
        broker: of the queue.
        tell: tells the queue how a run ended that a dead worker left; false when it could not.

    Raises:
        NoDevice, InvalidInput: there is no place for lock files.
    """

    def __init__(
        self,
        config: Config,
        device: Device,
        worker: str,
        host: str,
        broker: Broker,
        tell: Callable[[LeftRun], bool],
    ) -> None:
        super().__init__(config, device, host, broker)
        self._worker = worker
        self._tell = tell

    def take_seat(self) -> str | None:
        """Become the device's worker.

        Returns:
            Name of the worker of this queue that had it before, None when there was none.

        Raises:
            DeviceHeld: another worker is; the text names it.
        """
        deadline = time.monotonic() + JUST_KILLED_S
        while not self.seat.acquire():
            if time.monotonic() > deadline:
                raise DeviceHeld(self.refusal())
            time.sleep(0.02)
        before = self.sit_down(self._worker, "process")
        foreign = foreign_seat(self.seat, self.is_ours)
        if foreign:
            self.seat.release()
            raise DeviceHeld(f"{self.device.ref} ({self.device.uuid}): other slots of it are served for {foreign}")
        return before

    def recover(self, wait: Callable[[], bool]) -> None:
        """End what a predecessor left, and tell its outcome. Does nothing while somebody else has the device.

        What cannot be killed keeps the device from being used: each look before a claim tries again.

        Args:
            wait: waits a moment; false when the worker is to stop.
        """
        if take_over(self.gpu, self.is_ours, wait):
            obstacle = self.settle()
            if obstacle:
                _log.warning("%s: %s", self.device.ref, obstacle)
            self.gpu.release()

    def is_used(self) -> bool:
        """Whether the locks' records name a run or a lease; else who holds the device is about to let it go."""
        return any("job" in record or "lease" in record for record in self.gpu.records())

    def siblings(self) -> Siblings:
        """What runs on the other slots of the device, and what has a lease of it. Any thread may ask."""
        beside = siblings(self.gpu)
        if self.gpu.held:
            return beside
        lessee = roots_of(self.gpu.read() or {})
        return replace(beside, roots=beside.roots.union(lessee))

    def _clean_up(self, lock: DeviceLock) -> str:
        if names_a_run(lock):
            left = clean_up(lock, self.is_ours)
            if left is None or self._tell(left):
                self.done(lock)
        return ""
