"""What a worker publishes of itself and its device."""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from foxqueue import codec
from foxqueue.broker import Broker
from foxqueue.errors import ServerError
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.processes import short_boot_id
from foxqueue.scripts import Call

MAX_STRANGERS: Final = 8  # that are published
MAX_NOTES: Final = 20  # kept while Redis is away, the newest

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
        self._notes: list[tuple[str, int | str, str]] = []
        self._noting: Call | None = None  # a register with notes that has no answer yet

    def look(self, seen: Observation) -> Observation:
        """Take a new look at the device."""
        self.seen, self._overlay = seen, None
        return seen

    def overlay(self, state: str, detail: str) -> None:
        """Say what the look itself cannot see, until the next look: a state of ``states.DEVICE_STATES``."""
        self._overlay = (state, detail)

    def note(self, event: str, job: int | None, text: str) -> None:
        """Have an event put into the trail, by the next register that is published."""
        self._notes = [*self._notes, (event, job or "", text)][-MAX_NOTES:]
        self._told_at = 0.0

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
        """Publish all of it but the notes."""
        return self._bind([])

    def _bind(self, notes: list[tuple[str, int | str, str]]) -> Call:
        self._sequence += 1
        return self._broker.register_call(
            self._worker,
            self._device.uuid,
            self._sequence,
            self._packed(),
            host=self._host,
            boot=short_boot_id(),
            noted=notes,
        )

    def _packed(self) -> bytes:
        device, seen = self._device, self.seen
        state, detail = self._overlay or (seen.state, seen.detail)
        strangers = [[one.pid, one.mib, one.user, one.command] for one in seen.strangers[:MAX_STRANGERS]]
        return codec.pack(
            {
                "uuid": device.uuid,
                "ref": device.ref,
                "slot": device.slot,
                "index": device.index,
                "name": device.name,
                "kind": device.kind,
                "memory_total_mib": seen.memory_total_mib,
                "memory_free_mib": seen.memory_free_mib,
                "used_mib": seen.memory_used_mib,
                "strangers": strangers,
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

    def register(self) -> None:
        """Publish now; while Redis is away there is nobody to tell."""
        self._told_at = time.monotonic()
        try:
            calls = [] if self._noting is None else [self._noting]  # as it was: each event comes once
            if self._noting is None and self._notes:
                self._noting, self._notes = self._bind(self._notes), []
                calls = [self._noting]
            else:
                calls.append(self.register_call())
            self._broker.send(*calls)
            self._noting = None
        except ServerError as error:
            _log.debug("not registered: %s", error)
