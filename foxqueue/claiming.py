"""Claims of custom workers: a job for a device, in the process of the caller."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from functools import lru_cache
from types import TracebackType

from foxqueue.broker import Broker
from foxqueue.claimed import ClaimedRun
from foxqueue.config import Config
from foxqueue.errors import InvalidInput
from foxqueue.gpu import Device, find
from foxqueue.places import home_id
from foxqueue.serving import Serving
from foxqueue.survey import discover
from foxqueue.when import seconds

TURN_S = 3600.0  # that is waited for a thread at a time: a lock takes no endless time-out


class Claims:
    """The claims of one client. What one leaves behind, like its name and its connections, serves the next.

    Args:
        broker: of the queue.
        config: home and namespace.
    """

    def __init__(self, broker: Broker, config: Config) -> None:
        self._broker = broker
        self._config = config
        self._lock = threading.Lock()
        self._served: dict[str, Serving] = {}
        self._pid = os.getpid()

    def claim(
        self,
        device: str | int | Device,
        *,
        simulate: str | None = None,
        cpu: int = 0,
        timeout: float | str | None = None,
    ) -> Claim:
        """A claim, to be entered by ``with``; see :class:`Claim`.

        Args:
            device: ``gpu:0``, ``sim:0``, ``cpu:0``, an index, a UUID, or a device itself.
            simulate: simulated GPUs in place of real ones, like ``1x24G``.
            cpu: how many CPU slots this machine has.
            timeout: seconds, or text like ``30m``, to wait for a job; None for as long as it takes.

        Raises:
            InvalidInput: one of them is malformed.
            NoDevice: there is no such device.
        """
        patience = None if timeout is None else seconds(timeout, "timeout")
        return Claim(self._serving(self._device(device, simulate, cpu)), patience)

    def _device(self, device: str | int | Device, simulate: str | None, cpu: int) -> Device:
        if isinstance(device, Device):
            return device
        if isinstance(device, bool) or not isinstance(device, str | int):
            raise InvalidInput(f"device {device!r:.60} is not understood: give an index, a UUID, gpu:0, sim:0 or cpu:0")
        if isinstance(cpu, bool) or not isinstance(cpu, int):
            raise InvalidInput(f"cpu {cpu!r:.60} is not a number of CPU slots: give a whole number")
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
        return find(_discovered(simulate, cpu, home_id(self._config), visible), str(device))

    def _serving(self, device: Device) -> Serving:
        with self._lock:
            if self._pid != os.getpid():  # after a fork the parent goes on under its names
                self._served, self._pid = {}, os.getpid()
            if device.uuid not in self._served:
                self._served[device.uuid] = Serving(self._broker, self._config, device)
            return self._served[device.uuid]


@lru_cache(16)
def _discovered(
    simulate: str | None, cpu: int, identity: str, _visible: tuple[str | None, str | None]
) -> tuple[Device, ...]:
    return tuple(discover(simulate, cpu, identity, socket.gethostname(), os.environ))


class Claim:
    """Waits for a job for a device and has it until the block is left.

    ``with`` gives the run, or None when the time is over. Leaving the block completes it, if nothing was said before;
    an exception fails it, and goes on. KeyboardInterrupt and SystemExit give the job back.

    The device is held from the claim on: other claims, of this process and others, wait for it. It is looked at first,
    and not given while others use it.

    Raises:
        DeviceHeld: at the entrance: a foxqueue worker serves the device.
        ServerRefused: the server refuses us. While it is away it is waited for.
        LeaseLost: on leaving: the job was another's before it was completed.
    """

    def __init__(self, serving: Serving, timeout: float | None) -> None:
        self._serving = serving
        self._timeout = timeout
        self._entered_in: int | None = None  # the process

    def __enter__(self) -> ClaimedRun | None:
        deadline = math.inf if self._timeout is None else time.monotonic() + self._timeout
        if not self._take_turn(deadline):
            return None
        try:
            run = self._wait(deadline)
        except BaseException as error:
            self._leave(error)
            raise
        if run is None:
            self._leave(None)
        else:
            self._entered_in = os.getpid()
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered_in = self._entered_in, None
        if entered == os.getpid():  # a process forked in the block comes by here too
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        try:
            self._serving.leave(error)
        finally:
            self._serving.thread = None
            self._serving.turn.release()

    def _take_turn(self, deadline: float) -> bool:
        """Wait for other claims of this client for the same device."""
        if self._serving.thread == threading.get_ident():
            raise InvalidInput(f"this thread has {self._serving.device.ref} already: leave that block first")
        while True:
            left = deadline - time.monotonic()
            if self._serving.turn.acquire(timeout=min(max(left, 0.0), TURN_S)):
                self._serving.thread = threading.get_ident()
                return True
            if left <= TURN_S:
                return False

    def _wait(self, deadline: float) -> ClaimedRun | None:
        serving = self._serving
        while True:
            why, pause = serving.obstacle()
            if why:
                serving.stand_aside(why)
            else:
                run, pause = serving.ask()
                if run is not None:
                    return run
            left = deadline - time.monotonic()
            if pause > 0 and left <= 0:
                return None
            if pause > 0:
                serving.wait(min(pause, left))
