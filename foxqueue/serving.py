"""One device as a process serves it that claims jobs itself: locks, looks, questions and wake-ups."""

from __future__ import annotations

import logging
import os
import queue
import random
import secrets
import socket
import threading
import time
from typing import Final

from foxqueue.bindings import SWEEP_LIMIT
from foxqueue.broker import Broker, Claimed, NamespaceSettings, Reply
from foxqueue.claimed import ClaimedRun
from foxqueue.config import Config
from foxqueue.ending import Verdict, ending_call, outcome_of
from foxqueue.errors import FoxqueueError, ServerError, ServerRefused, ServerUnavailable
from foxqueue.gpu import Device
from foxqueue.heartbeat import Heart
from foxqueue.listener import Listener
from foxqueue.looking import Looks
from foxqueue.plan import BadPayload, read_plan
from foxqueue.presence import Presence
from foxqueue.processes import ProcessId
from foxqueue.questions import Questions
from foxqueue.retry import Retries
from foxqueue.scripts import Call
from foxqueue.seat import ClaimHold
from foxqueue.withheld import read_withheld

POLL_S: Final = 5.0  # it asks at least this often, whatever wake-ups say
BACKLOG_S: Final = 0.1  # in place of the poll while there is more for sweeps to do than one may
STEP_S: Final = 0.003  # between tries to lock a device that another process of this machine has,
LONG_STEP_S: Final = 0.01  # and after the first second: each takes some 60 us
LOOK_S: Final = 0.2  # between looks at a device that others use
AWAY_S: Final = 1.0  # between tries while Redis is away, at most
TURN_S: Final = 1.05  # somebody who waits for a lease has so long to take the device
DUE_S: Final = 0.005  # on top of the time until a job is due, so that it is due when asked for
BEAT_TIMEOUT_S: Final = 2.0

_log = logging.getLogger(__name__)


class Serving:
    """A device, for one claim of this process at a time.

    Args:
        broker: of the queue.
        config: home and namespace.
        device: which.

    Raises:
        NoDevice, InvalidInput: there is no place for lock files.

    Attributes:
        turn: the lock that the claim holds that is using this.
        thread: in which it does.
        run: the job it has got.
    """

    def __init__(self, broker: Broker, config: Config, device: Device) -> None:
        self.device = device
        self.turn = threading.Lock()
        self.thread: int | None = None
        self.run: ClaimedRun | None = None
        self._broker = broker
        self._beats: Broker | None = None
        self._jobs_dir = config.jobs_dir
        self._hold = ClaimHold(config, device, socket.gethostname(), broker)
        self._inbox: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._settings: NamespaceSettings | None = None
        self._looks = Looks(device)
        self._listener: Listener | None = None
        self._predecessor: str | None = None
        self._aside_until = 0.0
        self._stepping_since: float | None = None
        self._stands = False  # on the idle lists, perhaps
        self._leased = False  # somebody has the device by a lease, at the last look
        self._away_s = 0.0
        self._presenting = threading.Lock()
        self._take_name()

    def _take_name(self) -> None:
        """A worker's name is new where another one had the device since: what is said under the old one counts less."""
        self._name = f"{self._hold.host[:24]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._questions = Questions(self._broker, self._name, self.device, self._hold.host)
        self._presence = Presence(self._broker, self.device, self._name, self._hold.host)
        if self._listener is not None:
            self._listener.rest()
            self._listener = None

    @property
    def _poll_s(self) -> float:
        return POLL_S if self._settings is None else min(POLL_S, self._settings.beat_ms / 1000)

    # --- the device ------------------------------------------------------------------------------------

    def obstacle(self) -> tuple[str, float]:
        """Take the device's locks and look at it.

        Returns:
            Why no job can be asked for now, and the seconds after which to try again; "" when one can.

        Raises:
            DeviceHeld: a foxqueue worker serves it.
        """
        if not self._take_seat():
            return "another claim has it", self._step_s()
        if self._questions.unanswered is not None and self._hold.gpu.held:
            return "", 0.0  # its answer may be a job already
        locked = self._hold.gpu.acquire()
        held = self._hold.try_use()
        self._leased = bool(held) and self._hold.is_leased()
        if held:
            self._presence.overlay("held", held)
            return held, LOOK_S if locked or self._leased else self._step_s()
        self._stepping_since = None
        seen, again_s = self._looks.look()
        self._presence.look(seen)
        if seen.state == "free" and not again_s:
            return "", 0.0
        self._hold.gpu.release()
        if again_s:
            return "it is looked at for the first time", again_s
        return f"it is {seen.state}: {seen.detail}", LOOK_S

    def _step_s(self) -> float:
        now = time.monotonic()
        self._stepping_since = self._stepping_since or now
        return STEP_S if now - self._stepping_since < 1 else LONG_STEP_S

    def _take_seat(self) -> bool:
        if not self._hold.seat.held:
            if not self._hold.take_seat():
                return False
            before = self._hold.sit_down(self._name, "claimer")
            if before is not None and before != self._name:
                self._predecessor = before
                self._take_name()
                self._hold.sit_down(self._name, "claimer")
        if self._listener is None or not self._listener.resume():
            self._listener = Listener(self._broker, self._name, self._tell)
            self._listener.start()
        return True

    def _tell(self, kind: str, text: str) -> None:
        """Called by the listener."""
        run = self.run
        if kind == "asked" and run is not None:
            run.hurry()
        elif kind != "asked":
            self._inbox.put((kind, text))

    def wait(self, seconds: float) -> None:
        """Until somebody wakes this worker, so long at most."""
        try:
            kind, text = self._inbox.get(timeout=seconds)
            while True:
                if kind == "token":
                    self._questions.woken_for([text])
                kind, text = self._inbox.get_nowait()
        except queue.Empty:
            return

    # --- asking ----------------------------------------------------------------------------------------

    def stand_aside(self, why: str) -> None:
        """Ask for nothing: pass on what this worker was woken for, and look after what time brings; once a poll."""
        now = time.monotonic()
        if now < self._aside_until:
            return
        self._aside_until = now + self._poll_s
        _log.info("%s cannot be claimed for now: %s", self.device.ref, why)
        try:
            self._settings = self._looks.refresh(self._broker)
            calls = [self._broker.sweep_call()]
            if self._hold.seat.held:
                self._settle_question()
                # Where a lease has the device, its release wakes this worker.
                calls += [
                    self._questions.stand_by() if self._leased else self._questions.decline(),
                    *self._still_here(),
                ]
            self._stands = self._stands or self._leased
            replies = self._broker.send(*calls)
            if self._leased and len(replies) > 1 and replies[1].word == "shapes":
                self._questions.learn(replies[1])
                self._aside_until = 0.0
            self._questions.unanswered = None
        except ServerUnavailable as error:
            self._away(error)

    def ask(self) -> tuple[ClaimedRun | None, float]:
        """Ask for a job; the device is locked and free.

        Returns:
            The run, or None and the seconds after which to ask again; 0 for at once.

        Raises:
            ServerRefused: the server refuses us, or its data are of a newer foxqueue.
            ServerError: a script failed in a way that must not happen.
        """
        self._aside_until = 0.0
        try:
            self._settings = self._looks.refresh(self._broker)
            self._lose_claim_of_predecessor()
            question = self._questions.unanswered or self._questions.ask(self._presence.seen)
            reply, swept = self._broker.send(question, self._broker.sweep_call())
            if reply.word == "ok":
                self._take(Claimed.of(reply), self._settings)
        except ServerUnavailable as error:
            return None, self._away(error)  # the same question is asked again: an answer that was lost may be a job
        self._back()
        self._questions.unanswered = None
        if reply.word in ("ok", "stale"):
            return self.run, 0.0
        if reply.word == "shapes":
            self._questions.learn(reply)
            return None, 0.0
        return None, self._stand_idle(reply, swept)

    def _stand_idle(self, reply: Reply, swept: Reply) -> float:
        self._hold.gpu.release()
        if reply.word == "newer":
            self._broker.settings()  # says so
            raise ServerRefused("a newer foxqueue has changed the queue's data: upgrade this machine")
        self._stands = True
        if self._presence.state != "idle" or self._presence.silent_s() >= self._poll_s:
            self._presence.idle()
            self._presence.register()
        if reply.word == "taken":
            self._show_withheld()
        if reply.word == "yield":
            _log.info("%s is left to somebody who waits for it", self.device.ref)
            return TURN_S
        done = map(int, swept.rest[:5]) if swept.word == "ok" else ()
        pause = BACKLOG_S if max(done, default=0) >= SWEEP_LIMIT else self._poll_s * random.uniform(0.8, 1.0)
        return min(pause, int(reply.rest[0]) / 1000 + DUE_S) if reply.rest and reply.rest[0] else pause

    def _show_withheld(self) -> None:
        """The queue says that the device is not free: perhaps because it is dirty or sick."""
        why = read_withheld(self._broker.withheld(self.device.whole))
        if why is not None:
            self._presence.overlay(why.word, why.text)
            _log.warning("%s is %s: %s", self.device.ref, why.word, why.text)

    def _lose_claim_of_predecessor(self) -> None:
        """Give back what the device's last worker claimed and died before it could even write it down."""
        if self._predecessor is not None:
            left = self._broker.claimed_by(self._predecessor, self.device.uuid)
            if left is not None:
                word = self._broker.send(self._broker.lose_call(*left))[0].word
                _log.warning("job %d, claimed by a dead worker and not begun: %s", left[0], word)
            self._predecessor = None

    def _away(self, error: ServerError) -> float:
        if not self._away_s:
            _log.warning("Redis is away: %s; still waiting", error)
        self._away_s = min(max(self._away_s * 2, 0.05), AWAY_S)
        return self._away_s * random.uniform(0.5, 1.0)

    def _back(self) -> None:
        if self._away_s:
            _log.info("Redis answers again")
        self._away_s = 0.0

    # --- a job -----------------------------------------------------------------------------------------

    def _take(self, claimed: Claimed, settings: NamespaceSettings) -> None:
        """Begin the run, unless it is lost by now or cannot be read."""
        if claimed.instance != settings.instance:
            settings = self._settings = self._broker.settings()  # the data are others now
        if self._is_ours(claimed, settings):
            try:
                plan = read_plan(claimed.spec)
                run = ClaimedRun(self._broker, settings, claimed, plan, self.device, self._jobs_dir)
                self._write_down(run, claimed)
            except BadPayload as error:
                self._refuse(claimed, Verdict("fail", "bad_payload", str(error)))
            except OSError as error:
                text = f"the lock record of {self.device.ref} cannot be written: {error}"
                self._refuse(claimed, Verdict("release", "shutdown", text))
                raise FoxqueueError(text) from error
            else:
                self.run = run
                self._presence.busy(run.number)
                self._presence.register()
                run.begin(self._heart_of(run, settings), self._questions.asked_at)
                return
        self._hold.gpu.release()

    def _heart_of(self, run: ClaimedRun, settings: NamespaceSettings) -> Heart:
        if self._beats is None:
            self._beats = self._broker.another(min(BEAT_TIMEOUT_S, settings.beat_ms / 1000))
        return Heart(self._beats, settings, run.hear, also=self._still_here)

    def _still_here(self) -> list[Call]:
        """Called by the heartbeat."""
        with self._presenting:
            return [self._presence.register_call()]

    def _is_ours(self, claimed: Claimed, settings: NamespaceSettings) -> bool:
        """Whether a job may be begun. One whose claim was answered late is asked about: its lease may have run out."""
        if self._questions.age_s() <= settings.beat_ms / 1000:
            return True
        beat_at = time.monotonic()
        word = self._broker.send(self._broker.heartbeat_call(claimed.number, claimed.fence))[0].word
        self._questions.asked_at = beat_at
        if word != "ok":
            _log.warning("job %d: claimed late, and lost by now (%s)", claimed.number, word)
        return word == "ok"

    def _write_down(self, run: ClaimedRun, claimed: Claimed) -> None:
        """What is about to run: a successor finds what is left of it."""
        me = ProcessId.of()
        self._hold.gpu.write(
            {
                **self._hold.whose(),
                "worker": me.to_dict() if me else None,
                "runner": None,
                "instance": claimed.instance,
                "job": claimed.number,
                "born": int(claimed.born),
                "fence": int(claimed.fence),
                "run_dir": str(self._jobs_dir / run.mark),
                "mark": run.mark,
                "retries": run.retries.to_dict(),
            }
        )

    def _refuse(self, claimed: Claimed, verdict: Verdict) -> None:
        call = ending_call(
            self._broker, claimed.number, claimed.fence, verdict, outcome_of(None, verdict), Retries(claimed.attempt)
        )
        _log.warning("job %d: %s", claimed.number, verdict.detail)
        self._broker.send(*filter(None, [call]))

    # --- the end ---------------------------------------------------------------------------------------

    def leave(self, error: BaseException | None = None) -> None:
        """The claim is over: leave no trace of an idle worker, and the device to others.

        Args:
            error: what ends it before its time, None in good order.

        Raises:
            LeaseLost, ServerRefused: see :meth:`foxqueue.claimed.ClaimedRun.close`.
        """
        run, self.run = self.run, None
        try:
            if run is not None:
                run.close(error)
        finally:
            try:
                self._say_goodbye()
            finally:
                self._let_go(run)

    def _say_goodbye(self) -> None:
        if not self._hold.seat.held or self._away_s:
            return
        self.wait(0)
        with self._presenting:
            self._presence.idle()
            self._presence.state = "lost"
            self._presence.overlay("unavailable", "nobody claims a job for it now")
        try:
            self._settle_question()
            calls = [self._questions.decline()] if self._stands else []
            self._broker.send(*calls, *self._still_here())
        except ServerError as fault:
            _log.debug("leaving without a word: %s", fault)

    def _settle_question(self) -> None:
        """Have the answer of a question that has none yet; a job that it brings is given back."""
        if self._questions.unanswered is not None:
            reply = self._broker.send(self._questions.unanswered)[0]
            if reply.word == "ok":
                self._refuse(Claimed.of(reply), Verdict("release", "shutdown", "its worker could not begin it"))
            self._questions.unanswered = None

    def _let_go(self, run: ClaimedRun | None) -> None:
        if self._hold.gpu.held:
            if run is not None and run.told:
                self._hold.done()
            self._hold.gpu.unlock()
        if self._hold.seat.held:
            self._hold.stand_up(self._name)
        self._looks.close()
        if self._listener is not None:
            self._listener.rest()
        self._stands, self._aside_until, self._stepping_since = False, 0.0, None
