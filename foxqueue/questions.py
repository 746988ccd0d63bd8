"""The claims of one worker: which shapes it asks for, and the question that has no answer yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from foxqueue.broker import Broker, Reply
from foxqueue.devices import Told, seen_device
from foxqueue.errors import ServerError
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.processes import short_boot_id
from foxqueue.replies import pairs, whole
from foxqueue.requirement import fits, parse_shape
from foxqueue.scripts import Call

SETTLED_S: Final = 3.0  # that a CPU slot waits for GPUs whose workers start together with its own
LOOK_KEPT_S: Final = 1.0


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
        self._began = time.monotonic()
        self._served: tuple[float, bool] | None = None

    def ask(self, seen: Observation) -> Call:
        """Bind the next question, for what the device can take now."""
        now = [shape for shape in self._shapes if self._fits(shape, seen)]
        if self._device.slot is None:
            return self._ask(now)
        # What fits as soon as the other slots' runs end is named too, so that others do not overtake it for ever.
        free, beside = seen.memory_free_mib, seen.ours_mib or 0
        empty = replace(seen, memory_free_mib=None if free is None else free + beside)
        later = [shape for shape in self._shapes if shape not in now and self._fits(shape, empty)]
        return self._ask([*now, *later], [*(self.declared(shape) or 0 for shape in now), *(0 for _ in later)])

    def stand_by(self) -> Call:
        """Bind the next question for nothing: the worker is woken when the device, which somebody else has, is free."""
        return self._ask([])

    def _ask(self, fitting: Sequence[str], declares: Sequence[int] = ()) -> Call:
        self.unanswered = self._call(fitting, declares, waits=True)
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

    def declared(self, shape: str) -> int | None:
        """MiB that a job of a shape may use, all of the device where it does not say; None where that is unknown."""
        need = parse_shape(shape)
        return (need.memory_mib if need else 0) or self._device.memory_total_mib

    def _call(self, fitting: Sequence[str], declares: Sequence[int] = (), *, waits: bool) -> Call:
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
            declares=declares,
            room=(self._device.memory_total_mib or 0) if self._device.slot is not None else 0,
        )

    def _fits(self, shape: str, seen: Observation) -> bool:
        need, kind = parse_shape(shape), self._device.kind
        if need is None:
            return False
        if kind == "cpu":
            return fits(need, kind, None, gpu_served=need.no_gpu_ok and self._gpu_served())
        return fits(need, kind, seen.memory_total_mib) and fits(need, kind, seen.memory_free_mib)

    def _gpu_served(self) -> bool:
        """Whether a live worker serves a GPU, from a look that is at most a second old; true while that is unknown."""
        now = time.monotonic()
        if self._served is None or now - self._served[0] > LOOK_KEPT_S:
            try:
                served = gpu_served(self._broker)
            except ServerError:
                served = True
            self._served = (now, served)
        return self._served[1] or now - self._began < SETTLED_S


def gpu_served(broker: Broker) -> bool:
    """Whether a live worker of the namespace serves a GPU.

    Raises:
        ServerError: the server cannot be asked.
    """
    settings, keys = broker.settings(), broker.keys
    gpus, workers, clock = broker.connection.answers(
        [("HGETALL", keys.gpus), ("ZRANGE", keys.workers, 0, -1, "WITHSCORES"), ("TIME",)], "gpus"
    )
    since = whole(clock[0]) * 1000 - max(3 * settings.beat_ms, settings.ttl_ms)
    heard = {name.decode("utf-8", "replace"): int(float(score)) for name, score in pairs(workers)}
    found = (seen_device(uuid.decode("utf-8", "replace"), record, Told(), heard, since) for uuid, record in pairs(gpus))
    return any(device.live and device.is_gpu for device in found if device is not None)
