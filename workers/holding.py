"""A worker's hold on its device: it takes the seat for its life, and tells what a predecessor left behind."""

from __future__ import annotations

import time
from collections.abc import Callable

from foxqueue.config import Config
from foxqueue.errors import DeviceHeld
from foxqueue.gpu import Device
from foxqueue.holding import Hold, names_a_run
from workers.recovery import LeftRun, clean_up, take_over

JUST_KILLED_S = 2.0  # a predecessor that was just killed may still hold its lock for a moment


class Holding(Hold):
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
        super().__init__(config, device, host)
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
        return self.sit_down(self._worker, "process")

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

    def _clean_up(self) -> str:
        if names_a_run(self.gpu):
            left = clean_up(self.gpu, self.is_ours)
            if left is None or self._tell(left):
                self.done()
        return ""
