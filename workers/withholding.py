"""A worker's device that must not be given out: said in Redis, where it stays until it is well again."""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from foxqueue.broker import Broker
from foxqueue.errors import ServerError
from foxqueue.gpu import Device
from foxqueue.processes import short_boot_id
from foxqueue.scripts import Call
from foxqueue.withheld import Kind, Withheld, Word, read_withheld

REFRESH_S: Final = 2.0  # between questions whether an operator has cleared it
AGAIN_S: Final = 1.0  # between tries while Redis is away

_log = logging.getLogger(__name__)


class Withholding:
    """What keeps one device from being given out. For the main thread.

    Args:
        broker: of the queue.
        device: which; a slot stands for the whole of it.
        worker: name of the worker.

    Attributes:
        current: why it is withheld, as far as this worker knows; None when it is not.
    """

    def __init__(self, broker: Broker, device: Device, worker: str) -> None:
        self.current: Withheld | None = None
        self._broker = broker
        self._uuid = device.whole
        self._ref = device.ref
        self._worker = worker
        self._unsent: list[Call] = []
        self._asked_at = 0.0
        self._tried_at = 0.0

    def withhold(self, word: Word, kind: Kind, text: str, job: int = 0) -> None:
        """Say that the device must not be given out, unless that is said already.

        Args:
            word: ``dirty`` or ``quarantined``.
            kind: of the closed list.
            text: for people, with the cure.
            job: whose run it was noticed at or after; 0 for none.
        """
        now = self.current
        if now is not None and (now.word == "quarantined" or now.kind == kind):
            return
        _log.error("%s is %s: %s", self._ref, word, text)
        self.current = Withheld(word, time.time_ns() // 1_000_000, short_boot_id(), kind, text)
        self._unsent.append(
            self._broker.withhold_call(self._uuid, word, kind, text, short_boot_id(), self._worker, job)
        )

    def clear(self, kind: str) -> None:
        """Say that it is well again, as far as it was withheld for this."""
        if self.current is not None and self.current.kind == kind:
            _log.warning("%s is given out again; it was %s: %s", self._ref, self.current.word, self.current.text)
            self.current = None
            token = os.urandom(16).hex()
            self._unsent.append(self._broker.clear_call(self._uuid, f"worker {self._worker}", token, kind))

    def calls(self) -> list[Call]:
        """What is still to be said, to be sent before anything that frees the device."""
        return [*self._unsent]

    def sent(self, calls: list[Call]) -> None:
        """These were answered."""
        self._unsent = [call for call in self._unsent if call not in calls]

    def say(self) -> bool:
        """Send what is to be said. False while Redis is away."""
        calls = self.calls()
        if not calls:
            return True
        if time.monotonic() - self._tried_at < AGAIN_S:
            return False
        try:
            self._broker.send(*calls)
            self.sent(calls)
            self._tried_at = 0.0
        except ServerError as error:
            self._tried_at = time.monotonic()
            _log.debug("not yet withheld or cleared: %s", error)
            return False
        return True

    def look(self, *, soon: bool = False) -> bool:
        """Whether it is withheld, by whomever. While it is, Redis is asked now and then whether it still is.

        Args:
            soon: ask now.
        """
        now = time.monotonic()
        if not soon and (self.current is None or now - self._asked_at < REFRESH_S):
            return self.current is not None
        self._asked_at = now
        try:
            if self.say():
                self.current = read_withheld(self._broker.withheld(self._uuid))
        except ServerError as error:
            _log.debug("not asked whether it is withheld: %s", error)
        return self.current is not None

    def begin(self, healthy: bool) -> None:
        """What a restart may have cured is cleared, when this worker's first looks found nothing.

        Args:
            healthy: whether they did.

        Raises:
            ServerError: Redis is away.
        """
        self.current = found = read_withheld(self._broker.withheld(self._uuid))
        if found is None or not healthy:
            return
        rebooted = bool(found.boot and short_boot_id()) and found.boot != short_boot_id()
        if rebooted or found.kind == "fault":
            self.clear(found.kind)
