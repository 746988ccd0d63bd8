"""The worker of one device: claims jobs, has them run, and tells how they ended."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any

from foxqueue import codec
from foxqueue.bindings import SWEEP_LIMIT
from foxqueue.broker import Broker, Claimed, NamespaceSettings, Reply
from foxqueue.config import Config
from foxqueue.ending import Verdict, ending_call
from foxqueue.errors import ServerError
from foxqueue.gpu import Device, find
from foxqueue.heartbeat import Heart
from foxqueue.listener import Listener
from foxqueue.presence import Presence
from foxqueue.processes import ProcessId, become_subreaper
from foxqueue.questions import Questions
from foxqueue.retry import Retries
from foxqueue.units import format_memory
from workers.aside import TURN_S, Aside
from workers.brood import Brood
from workers.enforcing import MemoryLimit
from workers.holding import Holding
from workers.inbox import Event, Inbox
from workers.notifier import Notifier
from workers.offered import OFF, Offered
from workers.purged import PurgedFiles
from workers.readiness import Readiness
from workers.room import Room
from workers.run import Run
from workers.succession import Succession
from workers.teller import Teller
from workers.verdict import STOPPED
from workers.withholding import Withholding

POLL_S = 5.0  # an idle worker asks at least this often, whatever wake-ups say
BACKLOG_S = 0.1  # in place of the poll while there is more to be done than one sweep may
ANSWER_S = 3.0  # a silent connection deafens an idle worker for a poll and this
DUE_S = 0.005  # on top of the time until a job is due, so that it is due when asked for
ANY = "*"  # the token for: look at everything anew
SETTINGS_S = 10.0  # between looks at what the namespace says now

_log = logging.getLogger(__name__)


class Worker:
    """Serves one device until it is told to stop.

    Args:
        config: home, server and namespace.
        device: what it is pinned to.
        broker: connected.
        broker_for_beats: another connection, with a short time-out.
        settings: of the namespace.
        enforce: what is done about runs that use more memory than they declared: off, warn or kill.
    """

    def __init__(
        self,
        config: Config,
        device: Device,
        broker: Broker,
        broker_for_beats: Broker,
        settings: NamespaceSettings,
        enforce: str = OFF,
    ) -> None:
        self._config = config
        self._device = device
        self._broker = broker
        self._settings = settings
        self._enforce = enforce
        self.host = socket.gethostname()
        self.name = f"{self.host[:24]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._inbox = Inbox()
        self._notifier = Notifier(config, self.name)
        self._heart = Heart(broker_for_beats, settings, self._inbox.put, self._notifier.hear)
        self._listener = Listener(broker, self.name, self._inbox.put)
        self._presence = Presence(broker, device, self.name, self.host)
        self._questions = Questions(broker, self.name, device, self.host)
        self._withholding = Withholding(broker, device, self.name)
        self._teller = Teller(broker, self._inbox, self._heart, self._questions, self._withholding, self._note)
        self._succession = Succession(broker, self._teller, self._inbox)
        self._holding = Holding(config, device, self.name, self.host, broker, self._succession.tell)
        self._room = Room(config.jobs_dir)
        self._readiness = Readiness(
            device, settings, self._presence, self._holding, self._room, self._withholding, self._changed
        )
        self._aside = Aside(broker, self._questions, self._presence, self._readiness, self._teller, self._hear)
        self._purged = PurgedFiles(config, broker)
        self._poll_s = min(POLL_S, settings.beat_ms / 1000)
        self._idle_s = self._poll_s
        self._brood = Brood(self._notifier.children)
        self._answered: Reply | None = None
        self._freed = False  # somebody said that the device is free
        self._obeyed_at = time.monotonic()

    # --- life ------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Work until SIGTERM.

        Raises:
            DeviceHeld: another worker serves the device.
        """
        predecessor = self._holding.take_seat()
        become_subreaper()
        self._inbox.catch_signals()
        self._heart.start()
        self._listener.start()
        self._notifier.start()
        self._brood.prepare()
        self._holding.recover(self._wait_a_little)
        self._succession.lose_claim_of(predecessor, self._device.uuid)
        _log.info("worker %s serves %s (%s, %s)", self.name, self._device.ref, self._device.name, self._device.uuid)
        self._presence.idle()
        self._readiness.begin(self._settings)  # only now is nothing of a predecessor on the device
        self._readiness.wait(self._wait_a_little)
        while not self._inbox.stops or self._answered is not None:
            self._turn()
        self._leave()

    def _wait_a_little(self) -> bool:
        self._inbox.wait(0.05)
        return not self._inbox.stops

    def _changed(self) -> None:
        """Called by the sampler: the device is not what it was."""
        self._inbox.put("changed")

    def _leave(self) -> None:
        """Leave no trace of an idle worker: what it was woken for, another takes."""
        self._presence.state = "lost"
        self._presence.overlay("unavailable", "its worker was stopped")
        try:
            if self._questions.unanswered is not None:
                self._give_back(self._broker.send(self._questions.unanswered)[0])
            notes = self._withholding.calls()
            self._broker.send(*notes, self._questions.decline(), self._presence.register_call())
        except ServerError as error:
            _log.warning("leaving without a word: %s", error)
        self._notifier.close()
        self._brood.close()
        self._readiness.close()
        _log.info("worker %s stopped", self.name)

    def _give_back(self, reply: Reply) -> None:
        if reply.word == "ok":
            claimed = Claimed.of(reply)
            self._broker.send(self._broker.release_call(claimed.number, claimed.fence, "shutdown", STOPPED))

    # --- one turn --------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Look, claim, run; or wait."""
        self._brood.reap()
        self._purged.look()
        if self._answered is not None:
            reply, self._answered = self._answered, None
            self._answer(reply)
            return
        freed, self._freed = self._freed, False
        if self._questions.unanswered is None and not self._readiness.usable(freed=freed):
            self._wait(self._aside.stand())
            self._obey_settings()
            return
        question = self._questions.unanswered or self._questions.ask(self._presence.seen)
        try:
            reply, swept = self._broker.send(question, self._broker.sweep_call())
        except ServerError as error:
            self._teller.away(error)  # the same question is asked again: an answer that was lost may have been a job
            return
        self._questions.unanswered = None
        self._teller.back()
        self._hear(swept)
        self._answer(reply)
        self._obey_settings()

    def _obey_settings(self) -> None:
        """Take what the namespace says now about devices, once in a while."""
        if self._device.kind == "nvml" and time.monotonic() - self._obeyed_at >= SETTINGS_S:
            self._obeyed_at = time.monotonic()
            try:
                self._readiness.obey(self._broker.settings())
            except ServerError as error:
                _log.debug("not asked for the settings: %s", error)

    def _hear(self, swept: Reply) -> float:
        """Take a sweep's answer: how much it did, and how many ends are to be told. Returns seconds until the next."""
        done = map(int, swept.rest[:5]) if swept.word == "ok" else ()
        self._idle_s = self._poll_s if max(done, default=0) < SWEEP_LIMIT else BACKLOG_S
        self._notifier.hear(swept)
        return self._idle_s

    def _answer(self, reply: Reply) -> None:
        if reply.word == "ok":
            claimed = Claimed.of(reply)
            if self._inbox.stops:
                self._end(claimed, Verdict("release", "shutdown", STOPPED))
            elif self._is_ours(claimed):
                self._run(claimed, self._questions.asked_at)
            return
        self._holding.gpu.release()
        if reply.word == "shapes":
            self._questions.learn(reply)
            return
        if reply.word == "newer":
            _log.error("a newer foxqueue has changed the queue's data: restart this worker with that version")
        if reply.word == "stale":
            return  # that question was answered before; the next one is new
        if reply.word in ("taken", "yield"):
            self._readiness.refused(reply.word)
        self._presence.register()
        self._wait(self._pause_after(reply))

    def _pause_after(self, reply: Reply) -> float:
        """Seconds to wait after an answer that brought no job."""
        pause = self._idle_s * random.uniform(0.8, 1.0)
        if reply.word == "yield":
            return min(pause, TURN_S)
        if reply.word == "empty" and reply.rest and reply.rest[0]:
            pause = min(pause, int(reply.rest[0]) / 1000 + DUE_S)  # a retry becomes due before that
        return pause

    def _is_ours(self, claimed: Claimed) -> bool:
        """Whether a job may be begun. One whose claim was answered late is asked about: its lease may have run out."""
        if self._questions.age_s() <= self._settings.beat_ms / 1000:
            return True
        beat_at = time.monotonic()
        try:
            word = self._broker.send(self._broker.heartbeat_call(claimed.number, claimed.fence))[0].word
        except ServerError as error:
            _log.warning("job %d: claimed late, and Redis is away again: %s", claimed.number, error)
            return True  # the runner's timer counts from the claim: if that is too long ago, nothing is started
        if word == "ok":
            self._questions.asked_at = beat_at
            return True
        _log.warning("job %d: claimed late, and lost by now (%s)", claimed.number, word)
        self._holding.gpu.release()
        return False

    def _wait(self, seconds: float) -> None:
        self._note(self._inbox.wait(seconds))

    def _note(self, events: Sequence[Event]) -> None:
        tokens = [event.text for event in events if event.kind == "token"]
        self._questions.woken_for(tokens)
        self._freed = self._freed or self._device.uuid in tokens or ANY in tokens
        if tokens or any(event.kind == "changed" for event in events):
            self._aside.hurry()

    # --- a job -----------------------------------------------------------------------------------------

    def _run(self, claimed: Claimed, sent_at: float) -> None:
        self._presence.busy(claimed.number)
        run = Run(
            self._broker, self._settings, claimed, self._device, self._holding.gpu, sent_at, self._config.jobs_dir
        )
        runner = self._brood.take()
        limit = MemoryLimit(self._enforce, self._questions.declared(claimed.shape))
        self._readiness.watch.begin(claimed.number, runner.pid, limit, run.end_over_memory)
        free = format_memory(self._presence.seen.memory_free_mib)
        verdict = run.start(runner, self._heart, self._facts(claimed))
        if verdict is None:
            text = "job %d runs on %s (attempt %d, %s of its memory free)"
            _log.info(text, claimed.number, self._device.ref, claimed.attempt, free)
            run.watch(self._inbox, self._heart, self._while_running, self._brood.pids)
            verdict = run.verdict()
        self._brood.give(run.close())
        if verdict.no_room:
            self._room.refuse(verdict.detail)
        self._end(claimed, self._readiness.ended(run, verdict, lambda: self._inbox.stops > 0), run)

    def _facts(self, claimed: Claimed) -> dict[str, Any]:
        """What the lock's record says of who uses the device."""
        me = ProcessId.of()
        facts = {**self._holding.whose(), "worker": me.to_dict() if me else None}
        return facts if self._device.slot is None else facts | {"declares": self._questions.declared(claimed.shape)}

    def _while_running(self) -> None:
        self._brood.prepare()
        self._purged.look()
        self._readiness.watch.take()
        self._withholding.say()
        state = "draining" if self._inbox.stops else "busy"
        if state != self._presence.state or self._presence.silent_s() >= self._settings.beat_ms / 1000:
            self._presence.state = state
            self._presence.register()

    def _end(self, claimed: Claimed, verdict: Verdict, run: Run | None = None) -> None:
        """Tell how the run ended until there is a word; where the device is clean, claim in the same round trip.

        Args:
            claimed: the job.
            verdict: how it ended.
            run: None when it was not even begun.
        """
        self._presence.idle()
        outcome, retries = (run.outcome(verdict), run.retries) if run else (codec.pack({}), Retries())
        call = ending_call(self._broker, claimed.number, claimed.fence, verdict, outcome, retries)
        tail_in = run.tail_in if run else lambda: True
        word: str | None = "nothing written"
        if call is not None:
            if not self._inbox.stops and self._readiness.at_once():
                self._questions.ask(self._presence.seen)
            word, self._answered = self._teller.insist(call, tail_in)
        self._heart.end()
        level = logging.INFO if verdict.verb == "complete" else logging.WARNING
        _log.log(level, "job %d: %s %s %s -> %s", claimed.number, verdict.verb, verdict.reason, verdict.detail, word)
        if word is not None:
            self._holding.done()
            if run is not None and run.notifies:
                self._notifier.wake()  # sooner than the next sweep says so
        if self._answered is None and self._questions.unanswered is None:
            self._holding.gpu.release()


def main(config: Config, gpu_ref: str, offered: Offered = Offered()) -> int:  # noqa: B008 - frozen
    """Run the worker of one device until SIGTERM.

    Args:
        config: home, server and namespace.
        gpu_ref: index, UUID, ``gpu:0``, ``sim:0`` or ``cpu:0``.
        offered: the devices of this machine, as `up` was told.

    Returns:
        0 after a signal.

    Raises:
        DeviceHeld: another worker serves the device.
        NoDevice, InvalidInput: there is no such device.
        ServerError: the server cannot be used.
    """
    device = find(offered.devices(config), gpu_ref)
    broker = Broker.open(config, patience_s=30.0, timeout_s=ANSWER_S)
    settings = broker.settings()
    beats = Broker.open(config, patience_s=30.0, timeout_s=min(2.0, settings.beat_ms / 1000))
    Worker(config, device, broker, beats, settings, offered.enforce).serve()
    return 0
