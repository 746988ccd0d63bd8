"""The claims of one worker: which shapes it asks for, and the question that has no answer yet."""

from __future__ import annotations

import time
from collections.abc import Sequence

from foxqueue.broker import Broker, Reply
from foxqueue.gpu import Device, Observation
from foxqueue.processes import short_boot_id
from foxqueue.requirement import fits, parse_shape
from foxqueue.scripts import Call


class Questions:
    """Numbers a worker's claims. A question stays the same until it is answered: its answer may be a job.

    Args:
        broker: binds the calls.
        worker: its name.
        device: what it asks for.
        host: name of its machine.

    Attributes:
        unanswered: the question that waits for an answer, None when there is none.
        asked_at: time.monotonic() when that one, or the last, was first sent: from then on a job may be ours.
    """

    def __init__(self, broker: Broker, worker: str, device: Device, host: str) -> None:
        self.unanswered: Call | None = None
        self.asked_at = 0.0
        self._broker = broker
        self._worker = worker
        self._device = device
        self._host = host
        self._count = 0
        self._version = "?"
        self._shapes: list[str] = []
        self._woken: list[str] = []

    def ask(self, seen: Observation) -> Call:
        """Bind the next question, for what the device can take now."""
        self.unanswered = self._call([shape for shape in self._shapes if self._fits(shape, seen)], waits=True)
        self.asked_at = time.monotonic()
        return self.unanswered

    def decline(self) -> Call:
        """A question for nothing: passes on what the worker was woken for, and takes it off the idle lists."""
        return self._call([], waits=False)

    def age_s(self) -> float:
        """Seconds since the last question was first sent."""
        return time.monotonic() - self.asked_at

    def learn(self, reply: Reply) -> None:
        """Take the shapes that an answer ``shapes`` brought."""
        self._version = reply.rest[0].decode()
        self._shapes = [shape.decode() for shape in reply.rest[1:]]

    def woken_for(self, shapes: Sequence[str]) -> None:
        """Note tokens, for the next question to pass on what it leaves."""
        self._woken += shapes

    def _call(self, fitting: Sequence[str], *, waits: bool) -> Call:
        self._count += 1
        woken, self._woken = self._woken, []
        return self._broker.claim_call(
            self._worker,
            self._count,
            self._device.uuid,
            self._host,
            self._version,
            woken,
            fitting,
            waits=waits,
            boot=short_boot_id(),
        )

    def _fits(self, shape: str, seen: Observation) -> bool:
        need, kind = parse_shape(shape), self._device.kind
        return need is not None and fits(need, kind, seen.memory_total_mib) and fits(need, kind, seen.memory_free_mib)
