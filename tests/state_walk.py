"""What every walk of the state machine does: send, compare with the model and all data, and come to rest."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine
from key_owners import unexplained
from queue_driver import Queue, Worker
from queue_oracles import DEVICES, ROOM, SLOTS, Oracles, declares, fits
from state_accidents import Accidents
from state_image import Camera, Image
from state_model import Model

from foxqueue.broker import Claimed, Reply
from foxqueue.replies import text
from foxqueue.scripts import Call

YOUNG_S = 8.0  # longer than this a walk may not last: idle workers grow old after twelve seconds
# Calls of these may do something when they are sent once more, much later, and of those also at once.
NEVER_LATE = ("heartbeat", "sweep", "notice", "lease_wait", "lease_renew")
NEVER_AGAIN = ("heartbeat", "sweep", "notice")
ANEW = ("sweep", "claim", "register", "notice", "told", "lease_wait")  # may have another answer then


@dataclass
class Seat:
    """A worker's place: when the worker dies, another takes it under a new name."""

    worker: Worker
    run: Claimed | None = None
    registered: int = 0


def step(action: Callable[..., Any]) -> Callable[..., None]:
    """A rule that counts as a step unless it says False; the oracles look after it."""

    @functools.wraps(action)
    def run(self: Walk, **given: Any) -> None:
        if not self.sound or time.monotonic() - self.began > YOUNG_S:
            return
        self.sound = False
        if action(self, **given) is not False:
            self.done[action.__name__] += 1
            self.done["steps"] += 1
            self.oracles.check()
        self.sound = True

    return run


class Walk(RuleBasedStateMachine):
    """One walk.

    Attributes:
        queue: the namespace, set by a subclass.
        done: counts what happened, over all walks of the subclass.
    """

    queue: ClassVar[Queue]
    done: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()
        self.sound = True  # no step has failed
        self.broker, self.redis, self.keys = self.queue.broker, self.queue.broker.redis, self.queue.broker.keys
        self.redis.flushall()
        self.model, self.camera = Model(), Camera(self.queue)
        self.oracles = Oracles(self.queue, self.done)
        self.image: Image = self.camera.take()
        self.sent: list[tuple[Call, str]] = []  # answered calls and their words
        self.delayed: list[Call] = []  # sent, and not arrived
        self.left: list[Claimed] = []  # runs that their workers have given up
        self.hint_lost = False  # a wake-up went to somebody who will not come
        self.lives = self.requests = self.boots = 0
        self.seats = [Seat(self.new_worker(device)) for device in (*DEVICES, *DEVICES, *SLOTS)]
        self.accidents = Accidents(self.redis, self.keys, self.model)

    def new_worker(self, device: str) -> Worker:
        """A worker's name is new for each process."""
        self.lives += 1
        worker = self.queue.worker(f"w{self.lives}", device, ())
        worker.boot = f"boot{self.boots}" if self.boots else ""
        worker.room = ROOM if device in SLOTS else 0
        return worker

    def token(self) -> str:
        """Of a new request."""
        self.requests += 1
        return f"{self.requests:032x}"

    # --- sending ---------------------------------------------------------------------------------------

    def send(self, *calls: Call, lost: bool = False) -> list[Reply]:
        """Send calls in one round trip and compare. A lost reply: the same again, which must change nothing."""
        replies = self.exchange(*calls)
        if lost:
            before = self.image
            again = self.exchange(*calls)
            for call, first, second in zip(calls, replies, again, strict=True):
                name = call.script.name
                if name not in ANEW or (name == "claim" and first.word == "ok"):
                    assert _timeless(second) == _timeless(first), f"{name} answered {first}, sent again {second}"
            self.unchanged(calls, before, NEVER_AGAIN)
            replies = again
            self.done["reply lost"] += 1
        for call, reply in zip(calls, replies, strict=True):
            refused = call.script.name in ("enqueue", "lease_acquire") and reply.word != "ok"
            if not refused and reply.word not in ("missing", "full"):
                self.sent.append((call, reply.word))
        return replies

    def exchange(self, *calls: Call) -> list[Reply]:
        """Send calls in one round trip; each answer, and all data after the last, must be what the model says."""
        earlier = self.image.now
        replies = self.broker.send(*calls)
        self.image = self.camera.take()
        for call, reply in zip(calls, replies, strict=True):
            got = [reply.word, reply.instance, *map(text, reply.rest)]
            right = self.model.apply(call, got, self.image, earlier)
            assert _plain(call, got) == _plain(call, right), f"{call.script.name} answered {got}, should be {right}"
            self.done[f"{call.script.name} {reply.word}"] += 1
        self.done.update(f"{event['event']} -> {event.get('to', '')}" for event in self.image.events)
        self.compare(earlier, " and ".join(call.script.name for call in calls))
        return replies

    def compare(self, earlier: int, what: str) -> None:
        """All data are what the model says; ``earlier`` is a time before they were changed, ms."""
        wrong = self.model.wrong(self.image, earlier)
        assert not wrong, f"after {what}: " + "; ".join(wrong)

    def unchanged(self, calls: tuple[Call, ...], before: Image, but: tuple[str, ...] = NEVER_LATE) -> None:
        """These calls, sent again, did nothing."""
        if any(call.script.name in but for call in calls):
            return
        changed = {key for key in {*before.keys, *self.image.keys} if before.keys.get(key) != self.image.keys.get(key)}
        assert not changed and not self.image.events, f"{calls[0].script.name} sent again changed {changed}"

    def ask(self, seat: Seat, waits: bool = True, pops: bool = True, lost: bool = False) -> None:
        """A worker's question, and again when there are new shapes."""
        worker = seat.worker
        if pops:
            worker.tokens()
            self.model.wake.pop(worker.name, None)
        for _ in range(2):
            reply = self.send(worker.claim_call(waits), lost=lost)[0]
            if reply.word == "shapes":
                self.learn(worker, reply)
                continue
            self.take(seat, reply)
            return

    def learn(self, worker: Worker, reply: Reply) -> None:
        """Which shapes there are, of which the worker asks for those that its device can take."""
        worker.version, *shapes = map(bytes.decode, reply.rest)
        worker.shapes = tuple(sorted(shape for shape in shapes if fits(worker.device, shape)))
        worker.declares = tuple(map(declares, worker.shapes)) if worker.device in SLOTS else ()

    def take(self, seat: Seat, reply: Reply) -> None:
        """What a claim got is this seat's run."""
        if reply.word == "ok":
            seat.run = Claimed.of(reply)
            assert int(seat.run.fence) >= self.oracles.highest.get(seat.worker.device, 0)

    # --- at rest ----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """At rest no pending job has a fitting idle worker, and no key is without an owner."""
        if not self.sound:
            return
        if time.monotonic() - self.began < YOUNG_S:
            self._answer_wakes()
            if not self.hint_lost:
                self._nobody_waits_beside_what_is_free()
            self._poll()
            self._answer_wakes()
            self._nobody_waits_beside_what_is_free()
        ownerless = unexplained(self.redis, self.keys)
        assert not ownerless, f"keys without an owner: {ownerless}"

    def _poll(self) -> None:
        """Lost hints are bounded: whoever waits asks once more."""
        for seat in self.seats:
            if seat.run is None:
                self.ask(seat)

    def _answer_wakes(self) -> None:
        for _ in range(100):
            woken = [seat for seat in self.seats if seat.run is None and self.model.wake.get(seat.worker.name)]
            if not woken:
                return
            for seat in woken:
                self.ask(seat)
        raise AssertionError("workers wake each other for ever")

    def _nobody_waits_beside_what_is_free(self) -> None:
        for seat in self.seats:
            worker = seat.worker
            if worker.name not in self.model.idle:
                continue
            for shape, waiting in self.model.pending.items():
                assert not (fits(worker.device, shape) and self.model.may_take(worker.device, shape)), (
                    f"{worker.name} is idle on the free {worker.device}, and {shape} has {waiting}"
                )


def _plain(call: Call, words: list[str]) -> Any:
    """An answer without the order that means nothing."""
    if call.script.name == "configure":
        return words[:2], dict(zip(words[2::2], words[3::2], strict=True))
    return [*words[:3], *sorted(words[3:])] if words[0] == "shapes" else words


def _timeless(reply: Reply) -> Reply:
    """An answer without the time that is left of another's lease."""
    return reply._replace(rest=reply.rest[:3]) if reply.word == "taken" else reply
