"""What a worker publishes of itself and its device."""

from __future__ import annotations

import logging
import os
import time
from typing import Literal

from foxqueue import codec
from foxqueue.broker import Broker
from foxqueue.errors import ServerError
from foxqueue.gpu import Device, Observation
from foxqueue.processes import short_boot_id
from foxqueue.scripts import Call

_log = logging.getLogger(__name__)


class Presence:
    """One worker's entry in ``gpus`` and ``workers``.

    Attributes:
        seen: the last look at the device.
        state: of the worker: starting, idle, busy, draining or lost.
    """

    def __init__(self, broker: Broker, device: Device, worker: str, host: str) -> None:
        self.seen = Observation(device.memory_total_mib, None, None, "unavailable", "not looked at yet")
        self.state = "starting"
        self._broker = broker
        self._device = device
        self._worker = worker
        self._host = host
        self._job: int | None = None
        self._since_ms = time.time_ns() // 1_000_000
        self._sequence = 0
        self._told_at = 0.0
        self._overlay: tuple[str, str] | None = None

    def look(self, seen: Observation) -> Observation:
        """Take a new look at the device."""
        self.seen, self._overlay = seen, None
        return seen

    def overlay(self, state: Literal["held", "leased", "unavailable"], detail: str) -> None:
        """Say what the look itself cannot see, until the next look."""
        self._overlay = (state, detail)

    def busy(self, job: int) -> None:
        """The device has a job; to be published soon."""
        self.state, self._job, self._told_at = "busy", job, 0.0
        self.overlay("leased", "")

    def idle(self) -> None:
        """The job is over."""
        self.state, self._job, self._overlay = "idle", None, None

    def silent_s(self) -> float:
        """Seconds since the last register."""
        return time.monotonic() - self._told_at

    def register_call(self) -> Call:
        """Publish all of it."""
        self._sequence += 1
        device, seen = self._device, self.seen
        state, detail = self._overlay or (seen.state, seen.detail)
        packed = codec.pack(
            {
                "uuid": device.uuid,
                "index": device.index,
                "name": device.name,
                "kind": device.kind,
                "memory_total_mib": seen.memory_total_mib,
                "memory_free_mib": seen.memory_free_mib,
                "utilization": seen.utilization,
                "state": state,
                "detail": detail,
                "job": self._job,
                "worker_state": self.state,
                "host": self._host,
                "pid": os.getpid(),
                "since_ms": self._since_ms,
            }
        )
        return self._broker.register_call(
            self._worker, device.uuid, self._sequence, packed, host=self._host, boot=short_boot_id()
        )

    def register(self) -> None:
        """Publish now; while Redis is away there is nobody to tell."""
        self._told_at = time.monotonic()
        try:
            self._broker.send(self.register_call())
        except ServerError as error:
            _log.debug("not registered: %s", error)
