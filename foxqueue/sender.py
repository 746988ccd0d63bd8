"""Sends bound scripts of one namespace: once, or until there is an answer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from foxqueue.bindings import Bindings
from foxqueue.connection import Connection
from foxqueue.errors import OutcomeUnknown, ServerUnavailable
from foxqueue.messages import Reply
from foxqueue.scripts import Call

RESEND_S = 60.0  # a user's command is sent again for this long; answers are kept for longer
PIPELINED = 100  # calls of one round trip at most
# While scripts run the server answers nobody, heartbeats neither: calls are sent by fewer where a round trip of them
# takes long, and by more where it does not. What the way itself takes, as a trip of one call does, is no reason.
SLOW_S = 0.1
QUICK_S = 0.02


class Sender(Bindings):
    """The scripts of one namespace on one server.

    Args:
        connection: where to send.
        namespace: name of the queue.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        super().__init__(namespace)
        self.connection = connection
        self._at_once: dict[str, int] = {}  # calls of the next pipeline, for each script
        self._nearest_s = RESEND_S  # the quickest round trip of one

    def send(self, *calls: Call) -> list[Reply]:
        """Send scripts in one round trip and read their answers, once.

        Raises:
            ServerUnavailable: no answer, or an answer that means that Redis is away for now.
            ServerError: a script failed in a way that must not happen.
        """
        return [Reply.of(answer) for answer in self.connection.evalsha(calls)]

    def resend(self, call: Call, token: str) -> Reply:
        """Send a user's command, again while no answer comes, for at most a minute.

        Raises:
            OutcomeUnknown: no answer came; it may or may not have been done.
            ServerUnavailable: the server answers that it cannot do it now; it was not done.
        """
        deadline = time.monotonic() + RESEND_S
        pause, unanswered = 0.02, False
        while True:
            try:
                return self.send(call)[0]
            except ServerUnavailable as error:
                unanswered = unanswered or not error.definite
                if error.definite and not error.passing and not unanswered:
                    raise
                if time.monotonic() + pause > deadline:
                    if not unanswered:
                        raise
                    raise OutcomeUnknown(
                        token,
                        f"{call.script.name}: no answer for {RESEND_S:g} s, so it may or may not have been "
                        f"done: look with foxqueue ls ({error})",
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def resend_all(self, calls: Sequence[tuple[Call, str]]) -> list[Reply]:
        """Send many users' commands, each with its token, as many in a round trip as the server does soon; else as
        :meth:`resend`.

        Returns:
            Their answers, in order.

        Raises:
            OutcomeUnknown, ServerUnavailable: of one of them. Those before it were answered, others may have been done.
        """
        replies: list[Reply] = []
        while len(replies) < len(calls):
            script = calls[len(replies)][0].script.name
            some = calls[len(replies) : len(replies) + self._at_once.get(script, 1)]
            begin = time.monotonic()
            try:
                replies += self.send(*(call for call, _ in some))
            except ServerUnavailable:  # each again, which changes nothing where it was done
                replies += [self.resend(call, token) for call, token in some]
            self._learn(script, len(some), time.monotonic() - begin)
        return replies

    def _learn(self, script: str, calls: int, took_s: float) -> None:
        """Choose how many calls of a script go at once, after a round trip of so many."""
        self._nearest_s = min(self._nearest_s, took_s)
        busy_s = took_s - self._nearest_s
        if busy_s > SLOW_S:
            self._at_once[script] = max(min(calls // 2, int(calls * SLOW_S / busy_s)), 1)
        elif busy_s < QUICK_S and calls >= self._at_once.get(script, 1):
            self._at_once[script] = min(calls * 2, PIPELINED)
