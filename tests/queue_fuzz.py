"""Random workers, users and accidents against the real scripts; after each step the queue must make sense.

What goes wrong on purpose: calls come twice, late, or only after their worker died; lease keys vanish; leases
run out; the reaper's own time is lost or jumps; the tick clock runs ahead; workers die.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from queue_driver import Queue, Worker
from queue_oracles import DEVICES, SHAPES, Oracles, fits

from foxqueue.broker import Claimed, Environment, NewJob, Reply
from foxqueue.codec import pack
from foxqueue.scripts import Call

END_WORDS = {"succeeded", "failed", "cancelled", "released", "lost"}
MAX_WAITING = 8
GROUPED = (*SHAPES, "g1@a", "g1.m1024@a")


@dataclass
class Sent:
    """A call that was answered: sent once more, it must change nothing."""

    verb: str
    call: Call
    run: Claimed | None = None


@dataclass
class Seat:
    """A worker's place: when the worker dies, another takes it under a new name."""

    worker: Worker
    run: Claimed | None = None
    registered: int = 0


@dataclass
class Fuzz:
    """One run.

    Args:
        queue: an empty namespace.
        seed: of everything random.
    """

    queue: Queue
    seed: int
    lives: int = 0
    seats: list[Seat] = field(default_factory=list)
    late: list[Sent] = field(default_factory=list)
    delayed: list[Call] = field(default_factory=list)
    left: list[Claimed] = field(default_factory=list)
    words: dict[tuple[int, str], str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.broker = self.queue.broker
        self.redis, self.keys = self.broker.redis, self.broker.keys
        self.oracles = Oracles(self.queue, self.done)
        self.broker.settings()
        self.seats = [Seat(self._worker(device)) for device in (*DEVICES, *DEVICES)]

    def _worker(self, device: str) -> Worker:
        self.lives += 1
        shapes = tuple(shape for shape in GROUPED if fits(device, shape))
        return self.queue.worker(f"w{self.lives}", device, shapes)

    def run(self, steps: int) -> Counter[str]:
        """Walk; return how often each thing happened, so that a test can see that it did."""
        ways = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        weights = [getattr(way, "weight", 2) for way in ways]
        for number in range(steps):
            way = self.chance.choices(ways, weights)[0]
            try:
                way()
                self.oracles.check()
            except AssertionError as error:
                raise AssertionError(f"seed {self.seed}, step {number}, {way.__name__}: {error}") from error
        return self.done

    # --- sending ---------------------------------------------------------------------------------------

    def send(self, verb: str, call: Call, run: Claimed | None = None) -> Reply:
        """Send a call, sometimes twice, and sometimes keep a copy for later."""
        reply = self.broker.send(call)[0]
        self.done[f"{verb} {reply.word}"] += 1
        if run is not None and reply.word in END_WORDS:
            known = self.words.setdefault((run.number, run.fence), reply.word)
            assert known == reply.word, f"the end of job {run.number} was {known}, and is {reply.word} now"
        if self.chance.random() < 0.3:
            before = self.oracles.picture()
            again = self.broker.send(call)[0]
            self._same(verb, reply, again)
            self.oracles.unchanged(before, f"the same {verb} again, answered {again.word}")
        if self.chance.random() < 0.2 and (verb != "enqueue" or reply.word == "ok"):
            self.late.append(Sent(verb, call, run))
        return reply

    def _same(self, verb: str, first: Reply, again: Reply) -> None:
        if verb == "register" or (verb == "claim" and first.word != "ok"):
            assert again.word == "stale", f"{verb}: {first.word}, sent again: {again.word}"
        else:
            assert again == first, f"{verb} answered {first}, sent again {again}"

    # --- users -----------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        waiting = [self.keys.pending(shape) for shape in GROUPED] + [self.keys.blocked, self.keys.scheduled]
        return sum(map(self.redis.zcard, waiting)) >= MAX_WAITING

    def do_enqueue(self) -> None:
        if not self._is_full():
            jobs = [self._new_job() for _ in range(self.chance.choice((1, 1, 1, 3)))]
            user, env = self.chance.choice(("", "ann")), Environment("d", b"env")
            self.send("enqueue", self.broker.enqueue_call(jobs, env, self._token(), with_env=True, user=user))

    def _new_job(self) -> NewJob:
        shape, priority, retries = (self.chance.choice(of) for of in (GROUPED, (2, 5, 8), (0, 0, 2)))
        condition = self.chance.choice(("succeeded", "any", "failed", "ended"))
        after = f"after={self._number()}::{condition}\n"
        more = self.chance.choice(
            ("", "", "", after, after, "held=me\n", "delay_ms=1\n", "expires_ms=1\n", "notify=1\n")
        )
        return NewJob("job", shape, priority, retries, 0, pack({"v": 1}), more)

    do_enqueue.weight = 4  # type: ignore[attr-defined]

    def _token(self) -> str:
        return f"{self.chance.getrandbits(128):032x}"

    def _number(self) -> int:
        return self.chance.randint(1, 1 + int(self.redis.get(self.keys.next) or 0))

    def do_cancel(self) -> None:
        self.send("cancel", self.broker.cancel_call(self._number(), "", "me", self._token()))

    do_cancel.weight = 1  # type: ignore[attr-defined]

    def do_hold(self) -> None:
        call = self.chance.choice((self.broker.hold_call, self.broker.unhold_call, self.broker.unhold_call))
        self.send("hold", call(self._number(), "", "me", self._token()))

    def do_pause(self) -> None:
        """One that stays is made up for by two that end it."""
        scope, token = self.chance.choice(("*", "@a", *DEVICES)), self._token()
        if self.chance.random() < 0.3:
            self.send("pause", self.broker.pause_call(scope, "", "me", token, requeue_running=True))
        else:
            self.send("resume", self.broker.resume_call(scope, "me", token))

    do_pause.weight = 1  # type: ignore[attr-defined]

    def do_requeue(self) -> None:
        if not self._is_full():
            self.send("requeue", self.broker.requeue_call(self._number(), "", "me", self._token()))

    do_requeue.weight = 1  # type: ignore[attr-defined]

    def do_force_release(self) -> None:
        device = self.chance.choice(list(DEVICES))
        self.send("force_release", self.broker.force_release_call(device, "me", self._token()))

    do_force_release.weight = 1  # type: ignore[attr-defined]

    def do_settings(self) -> None:
        change = {
            "max_losses": self.chance.choice(("", "1")),
            "retain_failed_count": self.chance.choice(("", "1", "5")),
            "retain_finished_count": self.chance.choice(("", "5", "20")),
        }
        self.send("configure", self.broker.configure_call(None, change, "me", self._token()))

    do_settings.weight = 1  # type: ignore[attr-defined]

    # --- workers ---------------------------------------------------------------------------------------

    def do_claim(self) -> None:
        seat = self.chance.choice(self.seats)
        if seat.run is not None:
            return
        reply = self.send("claim", seat.worker.claim_call())
        if reply.word == "shapes":
            seat.worker.version = reply.rest[0].decode()
            reply = self.send("claim", seat.worker.claim_call())
        if reply.word == "ok":
            seat.run = Claimed.of(reply)
            device, fence = seat.worker.device, int(seat.run.fence)
            assert fence > self.oracles.highest.get(device, 0), f"the fence of {device} fell to {fence}"
            self.oracles.highest[device] = fence

    do_claim.weight = 8  # type: ignore[attr-defined]

    def _busy(self) -> Seat | None:
        busy = [seat for seat in self.seats if seat.run is not None]
        return self.chance.choice(busy) if busy else None

    def do_beat(self) -> None:
        seat = self._busy()
        if seat and seat.run:
            call = self.broker.heartbeat_call(seat.run.number, seat.run.fence)
            if self.send("heartbeat", call, seat.run).word != "ok":
                self._drop(seat)

    do_beat.weight = 4  # type: ignore[attr-defined]

    def do_log(self) -> None:
        seat = self._busy()
        if seat and seat.run:
            offset = self.chance.randrange(1000)
            self.send("log", self.broker.log_call(seat.run.number, seat.run.fence, offset, offset // 2, b"x"), seat.run)

    def _end_call(self, run: Claimed) -> tuple[str, Call]:
        outcome = pack({"fence": run.fence})
        delay, value = self.chance.choice((None, 0)), self.chance.choice((b"", b"v"))
        return self.chance.choice(
            (
                (
                    "complete",
                    self.broker.complete_call(run.number, run.fence, outcome, value),
                ),
                ("fail", self.broker.fail_call(run.number, run.fence, "exit_code", "", 1, outcome, delay)),
                ("release", self.broker.release_call(run.number, run.fence, "shutdown", "")),
                ("lose", self.broker.lose_call(run.number, run.fence)),
            )
        )

    def do_end(self) -> None:
        seat = self._busy()
        if seat and seat.run:
            verb, call = self._end_call(seat.run)
            self.send(verb, call, seat.run)
            self._drop(seat)

    do_end.weight = 4  # type: ignore[attr-defined]

    def do_end_and_claim(self) -> None:
        """In one round trip, as a busy worker does."""
        seat = self._busy()
        if seat and seat.run:
            calls = [self._end_call(seat.run)[1], seat.worker.claim_call()]
            replies = self.broker.send(*calls)
            before = self.oracles.picture()
            again = self.broker.send(*calls)
            self._same("end", replies[0], again[0])
            self._same("claim", replies[1], again[1])
            self.oracles.unchanged(before, "the same round trip again")
            self._drop(seat)
            if replies[1].word == "ok":
                seat.run = Claimed.of(replies[1])

    def _drop(self, seat: Seat) -> None:
        if seat.run is not None:
            self.left.append(seat.run)
        seat.run = None

    def do_register(self) -> None:
        seat = self.chance.choice(self.seats)
        seat.registered += 1
        worker = seat.worker
        self.send("register", self.broker.register_call(worker.name, worker.device, seat.registered, b"seen"))

    def do_crash(self) -> None:
        """The worker dies; what it had just sent may arrive much later, and for the first time."""
        seat = self.chance.choice(self.seats)
        if self.chance.random() < 0.5:
            self.delayed.append(self._end_call(seat.run)[1] if seat.run else seat.worker.claim_call())
        self._drop(seat)
        seat.worker, seat.registered = self._worker(seat.worker.device), 0
        self.done["crash"] += 1

    do_crash.weight = 1  # type: ignore[attr-defined]

    # --- accidents -------------------------------------------------------------------------------------

    def do_late_copy(self) -> None:
        if not self.late:
            return
        sent = self.chance.choice(self.late)
        job = self.queue.job(sent.run.number) if sent.run else {}
        if sent.verb == "heartbeat" and sent.run and job.get("fence") == sent.run.fence and job["state"] == "running":
            self.broker.send(sent.call)  # of the current run: it may heal the lease key
            return
        before = self.oracles.picture()
        word = self.broker.send(sent.call)[0].word
        self.oracles.unchanged(before, f"a late copy of {sent.verb}, answered {word},")
        self.done["late copy"] += 1

    do_late_copy.weight = 4  # type: ignore[attr-defined]

    def do_late_end_of_an_old_run(self) -> None:
        """A call that was never sent before, about a run that its worker has given up."""
        if self.left:
            run = self.chance.choice(self.left)
            verb, call = self._end_call(run)
            if self.chance.random() < 0.3:
                verb, call = "log", self.broker.log_call(run.number, run.fence, self.chance.randrange(9999), 0, b"old")
            job = self.queue.job(run.number)
            if job.get("state") == "running" and job["fence"] == run.fence:
                self.send(verb, call, run)  # its worker died: this is what a successor does
                return
            before = self.oracles.picture()
            word = self.broker.send(call)[0].word
            self.oracles.unchanged(before, f"{verb} of an old run, answered {word},")

    do_late_end_of_an_old_run.weight = 4  # type: ignore[attr-defined]

    def do_deliver_delayed(self) -> None:
        if self.delayed:
            self.broker.send(self.delayed.pop(self.chance.randrange(len(self.delayed))))
            self.done["delivered late"] += 1

    def do_vanish(self) -> None:
        self.redis.delete(self.keys.lease(self.chance.choice(list(DEVICES))))

    def do_overdue(self) -> None:
        for number in self.redis.zrange(self.keys.running, 0, -1)[:1]:
            self.redis.zadd(self.keys.running, {number: 1}, xx=True)

    def do_deadline_ahead(self) -> None:
        for number in self.redis.zrange(self.keys.running, 0, -1)[-1:]:
            self.redis.zadd(self.keys.running, {number: 10**15}, xx=True)

    def do_clock_ahead(self) -> None:
        if self.chance.random() < 0.3 and self.redis.exists(self.keys.clock):
            self.redis.incrby(self.keys.clock, self.chance.choice((1, 10**6, 60 * 10**6)))

    def do_sweep(self) -> None:
        now = self.broker.server_time_ms()
        looked = self.chance.choice((now, now, now, now - 8_000, now + 60_000, 0))
        self.redis.set(self.keys.looked, looked)
        self.redis.delete(self.keys.grace_until, self.keys.swept)
        due = [] if looked != now else self.redis.zrangebyscore(self.keys.running, "-inf", f"({now}")
        limit = self.chance.choice((1, 100))
        reply = self.broker.send(self.broker.sweep_call(limit))[0]
        reaped = int(reply.rest[1])
        assert reaped == min(len(due), limit), f"{reaped} taken, {len(due)} overdue, limit {limit}, looked {looked}"
        self.done["reaped"] += reaped
        self.done["purged"] += int(reply.rest[2])
        ahead = self.redis.zcount(self.keys.running, now + 70_000, "+inf")
        assert not ahead or limit == 1, "a deadline far ahead was left"

    do_sweep.weight = 3  # type: ignore[attr-defined]
