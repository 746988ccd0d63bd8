"""The worker of one device: claims jobs, has them run, and tells how they ended."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence

from foxqueue import codec
from foxqueue.bindings import SWEEP_LIMIT
from foxqueue.broker import Broker, Claimed, NamespaceSettings, Reply
from foxqueue.config import Config
from foxqueue.ending import Verdict, ending_call
from foxqueue.errors import ServerError, ServerUnavailable
from foxqueue.gpu import Device, discover, find
from foxqueue.heartbeat import Heart
from foxqueue.listener import Listener
from foxqueue.places import home_id
from foxqueue.presence import Presence
from foxqueue.processes import ProcessId, become_subreaper, short_boot_id
from foxqueue.questions import Questions
from foxqueue.retry import Retries
from foxqueue.scripts import Call
from workers.brood import Brood
from workers.holding import Holding
from workers.inbox import Event, Inbox
from workers.notifier import Notifier
from workers.output import BoundedOutput
from workers.purged import PurgedFiles
from workers.readiness import Readiness
from workers.recovery import LeftRun, tail_of
from workers.room import Room
from workers.run import Run
from workers.runs import output_path
from workers.verdict import STOPPED

POLL_S = 5.0  # an idle worker asks at least this often, whatever wake-ups say
BACKLOG_S = 0.1  # in place of the poll while there is more to be done than one sweep may
AWAY_S = 1.0  # between tries while Redis is away
ANSWER_S = 3.0  # a silent connection deafens an idle worker for a poll and this
DUE_S = 0.005  # on top of the time until a job is due, so that it is due when asked for
GIVE_UP_S = 10.0  # that an outcome is still tried to be told when the worker is to stop

_log = logging.getLogger(__name__)


class Worker:
    """Serves one device until it is told to stop.

    Args:
        config: home, server and namespace.
        device: what it is pinned to.
        broker: connected.
        broker_for_beats: another connection, with a short time-out.
        settings: of the namespace.
    """

    def __init__(
        self, config: Config, device: Device, broker: Broker, broker_for_beats: Broker, settings: NamespaceSettings
    ) -> None:
        self._config = config
        self._device = device
        self._broker = broker
        self._settings = settings
        self.host = socket.gethostname()
        self.name = f"{self.host[:24]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._holding = Holding(config, device, self.name, self.host, self._tell_left)
        self._inbox = Inbox()
        self._notifier = Notifier(config, self.name)
        self._heart = Heart(broker_for_beats, settings, self._inbox.put, self._notifier.hear)
        self._listener = Listener(broker, self.name, self._inbox.put)
        self._presence = Presence(broker, device, self.name, self.host)
        self._room = Room(config.jobs_dir)
        self._readiness = Readiness(device, self._presence, self._holding, self._room)
        self._purged = PurgedFiles(config, broker)
        self._poll_s = min(POLL_S, settings.beat_ms / 1000)
        self._idle_s = self._poll_s
        self._brood = Brood(self._notifier.children)
        self._questions = Questions(broker, self.name, device, self.host)
        self._answered: Reply | None = None
        self._is_away = False

    # --- life ------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Work until SIGTERM.

        Raises:
            DeviceHeld: another worker serves the device.
            LeftoverProcesses: what a dead one left on it cannot be killed.
        """
        predecessor = self._holding.take_seat()
        become_subreaper()
        self._inbox.catch_signals()
        self._heart.start()
        self._listener.start()
        self._notifier.start()
        self._brood.prepare()
        self._holding.recover(self._wait_a_little)
        self._lose_claim_of(predecessor)
        _log.info("worker %s serves %s (%s, %s)", self.name, self._device.ref, self._device.name, self._device.uuid)
        self._presence.idle()
        self._presence.register()
        while not self._inbox.stops or self._answered is not None:
            self._turn()
        self._leave()

    def _wait_a_little(self) -> bool:
        self._inbox.wait(0.05)
        return not self._inbox.stops

    def _tell_left(self, left: LeftRun) -> bool:
        call = ending_call(self._broker, left.number, left.fence, left.verdict, left.outcome, left.retries)
        instance = self._instance()
        if instance is None:
            return False
        if call is None or left.instance != instance:
            return True  # in another life of Redis there is nobody to tell
        word = self._insist(call, tail_of(self._broker, left).pump)
        BoundedOutput(output_path(left.run_dir)).trim(0)
        _log.warning("job %d, left by a dead worker: %s -> %s", left.number, left.verdict.verb, word)
        return word is not None

    def _lose_claim_of(self, predecessor: str | None) -> None:
        """Give back what a dead worker of this device claimed and died before it could even write it down."""
        while predecessor is not None and not self._inbox.stops:
            try:
                left = self._broker.claimed_by(predecessor, self._device.uuid)
                if left is not None:
                    number, fence = left
                    word = self._broker.send(self._broker.lose_call(number, fence, short_boot_id()))[0].word
                    _log.warning("job %d, claimed by a dead worker and not begun: %s", number, word)
                return
            except ServerError as error:
                self._away(error)

    def _instance(self) -> str | None:
        """The namespace's life, None when we are to stop before Redis says."""
        while not self._inbox.stops:
            try:
                return self._broker.settings().instance
            except ServerError as error:
                self._away(error)
        return None

    def _leave(self) -> None:
        """Leave no trace of an idle worker: what it was woken for, another takes."""
        self._presence.state = "lost"
        self._presence.overlay("unavailable", "its worker was stopped")
        try:
            if self._questions.unanswered is not None:
                self._give_back(self._broker.send(self._questions.unanswered)[0])
            self._broker.send(self._questions.decline(), self._presence.register_call())
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
        if self._questions.unanswered is None and not self._readiness.usable():
            self._presence.register()
            self._stand_aside()
            self._wait(self._idle_s)
            return
        question = self._questions.unanswered or self._questions.ask(self._presence.seen)
        try:
            reply, swept = self._broker.send(question, self._broker.sweep_call())
        except ServerError as error:
            self._away(error)  # the same question is asked again: an answer that was lost may have been a job
            return
        self._questions.unanswered = None
        self._back()
        self._hear(swept)
        self._answer(reply)

    def _hear(self, swept: Reply) -> None:
        """Take a sweep's answer: how much it did, and how many ends are to be told."""
        done = map(int, swept.rest[:5]) if swept.word == "ok" else ()
        self._idle_s = self._poll_s if max(done, default=0) < SWEEP_LIMIT else BACKLOG_S
        self._notifier.hear(swept)

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
        self._presence.register()
        pause = self._idle_s * random.uniform(0.8, 1.0)
        if reply.rest and reply.rest[0]:
            pause = min(pause, int(reply.rest[0]) / 1000 + DUE_S)  # a retry becomes due before that
        self._wait(pause)

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
        self._questions.woken_for([event.text for event in events if event.kind == "token"])

    # --- a job -----------------------------------------------------------------------------------------

    def _run(self, claimed: Claimed, sent_at: float) -> None:
        self._presence.busy(claimed.number)
        run = Run(
            self._broker, self._settings, claimed, self._device, self._holding.gpu, sent_at, self._config.jobs_dir
        )
        me = ProcessId.of()
        facts = {**self._holding.whose(), "worker": me.to_dict() if me else None}
        verdict = run.start(self._brood.take(), self._heart, facts)
        if verdict is None:
            _log.info("job %d runs on %s (attempt %d)", claimed.number, self._device.ref, claimed.attempt)
            run.watch(self._inbox, self._heart, self._while_running, self._brood.pids)
            verdict = run.verdict()
        self._brood.give(run.close())
        if verdict.no_room:
            self._room.refuse(verdict.detail)
        self._end(claimed, verdict, run)

    def _while_running(self) -> None:
        self._brood.prepare()
        self._purged.look()
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
        word = self._insist(call, tail_in, claims=not self._inbox.stops) if call is not None else "nothing written"
        self._heart.end()
        level = logging.INFO if verdict.verb == "complete" else logging.WARNING
        _log.log(level, "job %d: %s %s %s -> %s", claimed.number, verdict.verb, verdict.reason, verdict.detail, word)
        if word is not None:
            self._holding.done()
            if run is not None and run.notifies:
                self._notifier.wake()  # sooner than the next sweep says so
        if self._answered is None and self._questions.unanswered is None:
            self._holding.gpu.release()

    def _insist(self, call: Call, tail_in: Callable[[], bool], *, claims: bool = False) -> str | None:
        """Send until there is a word. None when we are to stop first: the exit record stays for the successor.

        Args:
            call: ends a run.
            tail_in: sends the last of its output, which has to be in before; false while Redis is away.
            claims: whether the next claim may ride along.
        """
        gave_up_at = None
        if claims and self._readiness.at_once():
            self._questions.ask(self._presence.seen)
        while True:
            self._heart.moved = time.monotonic()
            try:
                if not tail_in():
                    raise ServerUnavailable("the last output is not sent yet")
                return self._send_ending(call)
            except ServerError as error:
                if self._inbox.stops and gave_up_at is None:
                    gave_up_at = time.monotonic() + GIVE_UP_S
                if gave_up_at is not None and time.monotonic() > gave_up_at:
                    _log.error("the outcome stays on disk, Redis is away: %s", error)
                    return None
                self._away(error)

    def _send_ending(self, call: Call) -> str:
        if self._questions.unanswered is None:
            (ended,) = self._broker.send(call)
        else:
            ended, self._answered = self._broker.send(call, self._questions.unanswered)
            self._questions.unanswered = None
        self._back()
        return ended.word

    # --- waiting and telling ---------------------------------------------------------------------------

    def _stand_aside(self) -> None:
        """Claim nothing: pass on what this worker was woken for, and still look after what time brings."""
        try:
            self._hear(self._broker.send(self._questions.decline(), self._broker.sweep_call())[1])
        except ServerError as error:
            self._away(error)

    def _away(self, error: ServerError) -> None:
        if not self._is_away:
            _log.warning("Redis is away: %s", error)
            self._is_away = True
        self._note(self._inbox.wait(AWAY_S * random.uniform(0.2, 1.0)))

    def _back(self) -> None:
        if self._is_away:
            _log.info("Redis answers again")
            self._is_away = False


def main(config: Config, gpu_ref: str, simulate: str | None = None, cpu: int = 0) -> int:
    """Run the worker of one device until SIGTERM.

    Args:
        config: home, server and namespace.
        gpu_ref: index, UUID, ``gpu:0``, ``sim:0`` or ``cpu:0``.
        simulate: as `up` was given it.
        cpu: as `up` was given it.

    Returns:
        0 after a signal.

    Raises:
        DeviceHeld: another worker serves the device.
        NoDevice, InvalidInput: there is no such device.
        ServerError: the server cannot be used.
    """
    devices = discover(simulate, cpu, home_id(config), socket.gethostname(), os.environ)
    device = find(devices, gpu_ref)
    broker = Broker.open(config, patience_s=30.0, timeout_s=ANSWER_S)
    settings = broker.settings()
    beats = Broker.open(config, patience_s=30.0, timeout_s=min(2.0, settings.beat_ms / 1000))
    Worker(config, device, broker, beats, settings).serve()
    return 0
