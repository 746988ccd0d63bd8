"""How a worker stands aside: it claims nothing for now, passes on what it was woken for, and waits for its device."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from foxqueue.broker import Broker, Reply
from foxqueue.errors import ServerError
from foxqueue.presence import Presence
from foxqueue.questions import Questions
from workers.readiness import Readiness
from workers.teller import Teller

TURN_S: Final = 0.25  # somebody who waits for a lease and lives has taken the device by then
HASTY_S: Final = 0.2  # in place of the poll where a device is held whose lease is not yet, or no longer, in Redis,
HASTY: Final = 5  # so many times


class Aside:
    """For the main thread.

    Args:
        broker: of the queue.
        questions: of the worker.
        presence: tells the queue why.
        readiness: says why, and for how long.
        teller: waits where Redis is away.
        hear: takes the answer of each sweep, and returns the seconds until the next.
    """

    def __init__(
        self,
        broker: Broker,
        questions: Questions,
        presence: Presence,
        readiness: Readiness,
        teller: Teller,
        hear: Callable[[Reply], float],
    ) -> None:
        self._broker = broker
        self._questions = questions
        self._presence = presence
        self._readiness = readiness
        self._teller = teller
        self._hear = hear
        self._until = 0.0
        self._hasty = 0

    def hurry(self) -> None:
        """Something has happened: the next :meth:`stand` tells."""
        self._until = 0.0

    def stand(self) -> float:
        """Pass on what the worker was woken for, and look after what time brings, once a poll.

        Where somebody has the device whose release is told in Redis, it stands in line for that.

        Returns:
            Seconds to wait before the device is looked at again.
        """
        now = time.monotonic()
        if now >= self._until:
            self._presence.register()
            try:
                waits = self._readiness.waits_for_device
                question = self._questions.stand_by() if waits else self._questions.decline()
                reply, swept = self._broker.send(question, self._broker.sweep_call())
            except ServerError as error:
                self._teller.away(error)
                return 0.0
            self._questions.unanswered = None
            self._teller.back()
            self._until = now + min(self._hear(swept) * random.uniform(0.8, 1.0), self._pause_after(reply))
        again_s = self._readiness.again_s
        until = self._until if again_s is None else min(self._until, now + again_s)
        return max(0.0, until - time.monotonic())

    def _pause_after(self, reply: Reply) -> float:
        """At most so long, seconds, it stands aside after this answer."""
        waits = self._readiness.waits_for_device
        self._hasty = self._hasty + 1 if reply.word == "empty" and waits else 0
        if reply.word == "shapes":
            self._questions.learn(reply)
            return 0.0 if waits else float("inf")  # it stands in line only after an answer that says `taken`
        if reply.word == "yield":
            return TURN_S
        return HASTY_S if 0 < self._hasty <= HASTY else float("inf")
