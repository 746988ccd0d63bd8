"""The thread that waits in Redis for wake-ups: of an idle worker, and of a busy one whose job is cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from foxqueue.broker import Broker
from foxqueue.errors import ServerError

BLOCK_S = 5  # bounds how long a half-open connection can deafen us, with the client's time-out on top
BRIEFLY_S = 0.01  # the first block after an error: that the server answers again must be told at once


class Listener(threading.Thread):
    """Takes wake-up tokens as they come.

    Args:
        broker: for its server; the blocking client is made here.
        worker: whose tokens.
        tell: called with ``token`` and a shape (or ``*``), ``asked`` and the number of a job that is to be
            cancelled or given back, or ``again`` when the server answers again.
    """

    def __init__(self, broker: Broker, worker: str, tell: Callable[[str, str], None]) -> None:
        super().__init__(name="listener", daemon=True)
        self._connection = broker.connection
        self._client = broker.blocking(BLOCK_S)
        self._key = broker.keys.wake(worker)
        self._tell = tell
        self._lock = threading.Lock()
        self._resting = False
        self._over = False

    def rest(self) -> None:
        """Nobody needs it for now: it ends after the block that is under way, unless :meth:`resume` is sooner."""
        with self._lock:
            self._resting = True

    def resume(self) -> bool:
        """It is needed again. Returns whether it goes on; false when it has ended."""
        with self._lock:
            self._resting = False
            return not self._over

    def run(self) -> None:
        """The thread."""
        pause = 0.0
        while not self._ends():
            block_s = BRIEFLY_S if pause else BLOCK_S
            try:
                with self._connection.errors("listening"):
                    found: Any = self._client.blpop([self._key], timeout=block_s)
            except ServerError:
                pause = min(max(pause * 2, 0.05), 1.0)
                time.sleep(pause)
                continue
            if pause:
                pause = 0.0
                self._tell("again", "")
            if found:
                kind, _, number = bytes(found[1]).decode().partition(":")
                if kind == "cancel":
                    self._tell("asked", number)
                else:
                    self._tell("token", kind)
        self._client.close()

    def _ends(self) -> bool:
        with self._lock:
            self._over = self._resting
            return self._over
