"""Telling Redis how runs end, until there is a word, however long it is away."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence

from foxqueue.broker import Broker, Reply
from foxqueue.errors import ServerError, ServerUnavailable
from foxqueue.heartbeat import Heart
from foxqueue.questions import Questions
from foxqueue.scripts import Call
from workers.inbox import Event, Inbox
from workers.withholding import Withholding

AWAY_S = 1.0  # between tries while Redis is away
GIVE_UP_S = 10.0  # that an outcome is still tried to be told when the worker is to stop

_log = logging.getLogger(__name__)


class Teller:
    """The main thread's way to Redis where an answer must come.

    Args:
        broker: of the queue.
        inbox: of the worker: signals end it.
        heart: told that the main thread moves.
        questions: a claim that is to follow an end goes along with it.
        withholding: what it has to say goes before anything that frees the device.
        note: takes the events that came while Redis was waited for.
    """

    def __init__(
        self,
        broker: Broker,
        inbox: Inbox,
        heart: Heart,
        questions: Questions,
        withholding: Withholding,
        note: Callable[[Sequence[Event]], None],
    ) -> None:
        self._broker = broker
        self._inbox = inbox
        self._heart = heart
        self._questions = questions
        self._withholding = withholding
        self._note = note
        self._is_away = False

    def instance(self) -> str | None:
        """The namespace's life, None when we are to stop before Redis says."""
        while not self._inbox.stops:
            try:
                return self._broker.settings().instance
            except ServerError as error:
                self.away(error)
        return None

    def insist(self, call: Call, tail_in: Callable[[], bool]) -> tuple[str | None, Reply | None]:
        """Send the end of a run until there is a word, and the claim that has no answer yet along with it.

        Args:
            call: ends the run.
            tail_in: sends the last of its output, which has to be in before; false while Redis is away.

        Returns:
            The word, None when we are to stop first: the exit record stays for the successor. And the claim's answer,
            None when there was no claim.
        """
        gave_up_at = None
        while True:
            self._heart.moved = time.monotonic()
            try:
                if not tail_in():
                    raise ServerUnavailable("the last output is not sent yet")
                return self._send(call)
            except ServerError as error:
                if self._inbox.stops and gave_up_at is None:
                    gave_up_at = time.monotonic() + GIVE_UP_S
                if gave_up_at is not None and time.monotonic() > gave_up_at:
                    _log.error("the outcome stays on disk, Redis is away: %s", error)
                    return None, None
                self.away(error)

    def _send(self, call: Call) -> tuple[str, Reply | None]:
        before, question = self._withholding.calls(), self._questions.unanswered
        replies = self._broker.send(*before, call, *filter(None, [question]))
        self._withholding.sent(before)
        self._questions.unanswered = None
        self.back()
        return replies[len(before)].word, replies[-1] if question is not None else None

    def away(self, error: ServerError) -> None:
        """Redis gave this in place of an answer: wait a little."""
        if not self._is_away:
            _log.warning("Redis is away: %s", error)
            self._is_away = True
        self._note(self._inbox.wait(AWAY_S * random.uniform(0.2, 1.0)))

    def back(self) -> None:
        """It has answered."""
        if self._is_away:
            _log.info("Redis answers again")
            self._is_away = False
