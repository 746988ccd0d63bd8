"""The thread that renews the lease of the run and feeds the runner's dead man's timer.

It shares nothing with slow work: its own connection with a short time-out, no retries, no logging, no files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foxqueue.broker import Broker, NamespaceSettings, Reply
from foxqueue.errors import ServerError, ServerUnavailable
from foxqueue.scripts import Call

STUCK_S = 60.0  # a main thread that has not moved for so long after its runner went will never send the outcome


@dataclass(frozen=True)
class Beating:
    """The run to beat for. ``feed`` lets the job live until the given second of CLOCK_MONOTONIC."""

    number: int
    fence: str
    instance: str
    feed: Callable[[float], None]


class Heart(threading.Thread):
    """Beats while there is a run.

    Args:
        broker: on a connection that nobody else uses.
        settings: lease and beat lengths.
        tell: called with a kind, a text and the run's fence: ``cancel`` (who asks), ``give back`` (who paused, and
            why), ``lost`` (the word that refused us), ``away``, ``again``.
        swept: called with the answer of the sweep that each beat sends along; it must not wait.
        also: gives calls that each beat sends along too.
    """

    def __init__(
        self,
        broker: Broker,
        settings: NamespaceSettings,
        tell: Callable[[str, str, str], None],
        swept: Callable[[Reply], None] = lambda _reply: None,
        also: Callable[[], Sequence[Call]] = tuple,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._broker = broker
        self._ttl_s = settings.ttl_ms / 1000
        self._beat_s = settings.beat_ms / 1000
        self._tell = tell
        self._swept = swept
        self._also = also
        self._changed = threading.Condition()
        self._run: Beating | None = None
        self._due = 0.0
        self._away = False
        self._over = False
        self.moved = time.monotonic()
        self.runner_gone = False

    def begin(self, run: Beating, claimed_at: float) -> None:
        """Beat for this run from now on; ``claimed_at``, when the claim was sent, counts as its first beat."""
        with self._changed:
            self._run = run
            self._due = claimed_at + self._beat_s
            self.runner_gone = False
            self._changed.notify()

    def end(self) -> None:
        """The run is over."""
        with self._changed:
            self._run = None

    def stop(self) -> None:
        """The thread ends, at the latest with the answer to its last beat."""
        with self._changed:
            self._run, self._over = None, True
            self._changed.notify()

    def hurry(self) -> None:
        """Beat at once: somebody says that something changed."""
        with self._changed:
            self._due = 0.0
            self._changed.notify()

    def run(self) -> None:
        """The thread."""
        while True:
            with self._changed:
                while self._run is None:
                    if self._over:
                        return
                    self._changed.wait()
                wait = self._due - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                run = self._run
            if self.runner_gone and time.monotonic() - self.moved > STUCK_S:
                self.end()
                continue
            pause = self._beat(run)
            with self._changed:
                if run is self._run:
                    self._due = time.monotonic() + pause

    def _beat(self, run: Beating) -> float:
        """One beat. Returns the seconds until the next."""
        sent = time.monotonic()
        try:
            beat, swept, *_ = self._broker.send(
                self._broker.heartbeat_call(run.number, run.fence), self._broker.sweep_call(), *self._also()
            )
        except ServerError as error:
            # Redis is away: the file lock keeps the device ours, so the job lives on.
            run.feed(time.monotonic() + self._ttl_s)
            if not self._away:
                self._away = True
                self._tell("away", str(error), run.fence)
            passing = isinstance(error, ServerUnavailable)
            return min(self._beat_s / 4, 1.0) if passing else self._beat_s
        if self._away:
            self._away = False
            self._tell("again", "", run.fence)
        self._swept(swept)
        left = max(self._beat_s - (time.monotonic() - sent), 0.01)
        if beat.instance != run.instance:
            # Another life of the namespace knows nothing of our run: as good as away, and no reason to kill it.
            run.feed(time.monotonic() + self._ttl_s)
            return left
        if beat.word == "ok":
            run.feed(sent + self._ttl_s)
            for kind, text in zip(("cancel", "give back"), beat.rest, strict=False):
                if text:
                    self._tell(kind, text.decode("utf-8", "replace"), run.fence)
            return left
        self._tell("lost", beat.word, run.fence)
        return left
