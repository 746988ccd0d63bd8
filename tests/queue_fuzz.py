"""Random workers, users and accidents against the real scripts; after each step the queue must make sense.

What goes wrong on purpose: calls come twice, late, or only after their worker died; lease keys vanish; leases
run out; the reaper's own time is lost or jumps; the tick clock runs ahead; workers die.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from queue_driver import Queue, Worker

from foxqueue.broker import Claimed, Reply
from foxqueue.codec import pack, unpack
from foxqueue.scripts import Call

DEVICES = {"GPU-1": ("g1", "g1.m1024"), "GPU-2": ("g1",)}
SHAPES = ("g1", "g1.m1024")
FIELDS = ("state", "fence", "gpus", "shape", "rank", "settled", "settled_as", "attempts", "losses", "finished_at")
END_WORDS = {"succeeded", "failed", "cancelled", "released", "lost"}
ENDED = {"succeeded", "failed", "cancelled"}
MAX_WAITING = 8

# Everything the oracles look at, in one round trip.
LOOK = """
local prefix, jobs = ARGV[1], {}
for n = 1, tonumber(redis.call('GET', prefix .. 'next') or '0') do
  jobs[n] = redis.call('HMGET', prefix .. 'job:' .. n, unpack(ARGV, 4))
end
local pending = {}
for i, shape in ipairs({ 'g1', 'g1.m1024' }) do
  pending[i] = redis.call('ZRANGE', prefix .. 'pending:' .. shape, 0, -1, 'WITHSCORES')
end
local sets = {}
for i, name in ipairs({ 'scheduled', 'running', 'finished', 'failed' }) do
  sets[i] = redis.call('ZRANGE', prefix .. name, 0, -1)
end
local devices = {}
for i, name in ipairs({ 'GPU-1', 'GPU-2' }) do
  devices[i] = { redis.call('HGET', prefix .. 'granted', name), redis.call('GET', prefix .. 'lease:' .. name) }
end
return { jobs, pending, sets, devices, redis.call('XRANGE', prefix .. 'events', ARGV[2], '+') }
"""

# All data of the namespace, deadlines and the reaper's own time left out.
PICTURE = """
local prefix, found = ARGV[1], {}
local passing = { [prefix .. 'looked'] = 1, [prefix .. 'swept'] = 1, [prefix .. 'grace_until'] = 1 }
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if passing[key] then
  elseif key == prefix .. 'running' then found[#found + 1] = { key, redis.call('ZRANGE', key, 0, -1) }
  elseif kind == 'string' then found[#found + 1] = { key, redis.call('GET', key) }
  elseif kind == 'hash' then found[#found + 1] = { key, redis.call('HGETALL', key) }
  elseif kind == 'zset' then found[#found + 1] = { key, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') }
  elseif kind == 'set' then found[#found + 1] = { key, redis.call('SMEMBERS', key) }
  elseif kind == 'list' then found[#found + 1] = { key, redis.call('LRANGE', key, 0, -1) }
  elseif kind == 'stream' then
    found[#found + 1] = { key, redis.call('XLEN', key), redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1) }
  end
end
return found
"""


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
    highest: dict[str, int] = field(default_factory=dict)
    words: dict[tuple[int, str], str] = field(default_factory=dict)
    ended: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    events: dict[int, Counter[str]] = field(default_factory=dict)
    last_of: dict[int, str] = field(default_factory=dict)
    last_event: str = "0"
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.broker = self.queue.broker
        self.redis, self.keys = self.broker.redis, self.broker.keys
        self.look = self.redis.register_script(LOOK)
        self.picture = self.redis.register_script(PICTURE)
        self.broker.settings()
        self.seats = [Seat(self._worker(device)) for device in (*DEVICES, *DEVICES)]

    def _worker(self, device: str) -> Worker:
        self.lives += 1
        return self.queue.worker(f"w{self.lives}", device, DEVICES[device])

    def run(self, steps: int) -> Counter[str]:
        """Walk; return how often each thing happened, so that a test can see that it did."""
        ways = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        weights = [getattr(way, "weight", 2) for way in ways]
        for number in range(steps):
            way = self.chance.choices(ways, weights)[0]
            try:
                way()
                self.check()
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
            before = self._picture()
            again = self.broker.send(call)[0]
            self._same(verb, reply, again)
            self._unchanged(before, f"the same {verb} again, answered {again.word}")
        if self.chance.random() < 0.2:
            self.late.append(Sent(verb, call, run))
        return reply

    def _same(self, verb: str, first: Reply, again: Reply) -> None:
        if verb == "register" or (verb == "claim" and first.word != "ok"):
            assert again.word == "stale", f"{verb}: {first.word}, sent again: {again.word}"
        else:
            assert again == first, f"{verb} answered {first}, sent again {again}"

    def _picture(self) -> dict[bytes, Any]:
        return {key: value for key, *value in self.picture(args=[self.keys.prefix])}

    def _unchanged(self, before: dict[bytes, Any], what: str) -> None:
        after = self._picture()
        changed = [key.decode() for key in {*before, *after} if before.get(key) != after.get(key)]
        assert not changed, f"{what} changed {changed}"

    # --- users -----------------------------------------------------------------------------------------

    def do_enqueue(self) -> None:
        waiting = sum(self.redis.zcard(self.keys.pending(shape)) for shape in SHAPES)
        if waiting >= MAX_WAITING:
            return
        call = self.broker.scripts.call(
            "enqueue",
            env_blob=self.keys.env("d"),
            token=f"{self.chance.getrandbits(128):032x}",
            candidate="aa",
            name="job",
            shape=self.chance.choice(SHAPES),
            priority=self.chance.choice((2, 5, 8)),
            retries=self.chance.choice((0, 0, 2)),
            retry_delay_ms=0,
            env_digest="d",
            env=b"",
            spec=pack({"v": 1}),
        )
        self.send("enqueue", call)

    do_enqueue.weight = 4  # type: ignore[attr-defined]

    def do_cancel(self) -> None:
        number = self.chance.randint(1, 1 + int(self.redis.get(self.keys.next) or 0))
        token = f"{self.chance.getrandbits(128):032x}"
        self.send("cancel", self.broker.scripts.call("cancel", token=token, number=number, born="", by="me"))

    do_cancel.weight = 1  # type: ignore[attr-defined]

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
            assert fence > self.highest.get(device, 0), f"the fence of {device} fell to {fence}"
            self.highest[device] = fence

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
        delay = self.chance.choice((None, 0))
        return self.chance.choice(
            (
                ("complete", self.broker.complete_call(run.number, run.fence, outcome)),
                ("fail", self.broker.fail_call(run.number, run.fence, "exit_code", "", 1, outcome, delay)),
                ("release", self.broker.release_call(run.number, run.fence, "")),
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
            before = self._picture()
            again = self.broker.send(*calls)
            self._same("end", replies[0], again[0])
            self._same("claim", replies[1], again[1])
            self._unchanged(before, "the same round trip again")
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
        before = self._picture()
        word = self.broker.send(sent.call)[0].word
        self._unchanged(before, f"a late copy of {sent.verb}, answered {word},")
        self.done["late copy"] += 1

    do_late_copy.weight = 4  # type: ignore[attr-defined]

    def do_late_end_of_an_old_run(self) -> None:
        """A call that was never sent before, about a run that its worker has given up."""
        if self.left:
            run = self.chance.choice(self.left)
            verb, call = self._end_call(run)
            job = self.queue.job(run.number)
            if job["state"] == "running" and job["fence"] == run.fence:
                self.send(verb, call, run)  # its worker died: this is what a successor does
                return
            before = self._picture()
            word = self.broker.send(call)[0].word
            self._unchanged(before, f"{verb} of an old run, answered {word},")

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
        ahead = self.redis.zcount(self.keys.running, now + 70_000, "+inf")
        assert not ahead or limit == 1, "a deadline far ahead was left"

    do_sweep.weight = 3  # type: ignore[attr-defined]

    # --- oracles ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """The queue makes sense."""
        jobs, pending, sets, devices, events = self.look(
            args=[self.keys.prefix, f"({self.last_event}", "", *FIELDS], client=self.redis
        )
        table = {n: dict(zip(FIELDS, map(_text, values), strict=True)) for n, values in enumerate(jobs, 1)}
        self._one_set(table, pending, sets)
        self._devices(table, devices)
        self._once(table)
        self._counters(table, events)

    def _one_set(self, table: dict[int, dict[str, str]], pending: list[Any], sets: list[Any]) -> None:
        where: dict[int, list[str]] = {number: [] for number in table}
        for shape, members in zip(SHAPES, pending, strict=True):
            for member, score in zip(members[::2], members[1::2], strict=True):
                job = table[int(member)]
                where[int(member)].append("pending")
                assert job["shape"] == shape, f"job {int(member)} of {job['shape']} stands in {shape}"
                assert float(job["rank"]) == float(score), f"job {int(member)} stands at {score}: {job}"
        for name, members in zip(("scheduled", "running", "finished", "failed"), sets, strict=True):
            for member in members:
                where[int(member)].append(name)
        for number, job in table.items():
            expected = "finished" if job["state"] in ("succeeded", "cancelled") else job["state"]
            assert where[number] == [expected], f"job {number} stands in {where[number]}: {job}"

    def _devices(self, table: dict[int, dict[str, str]], devices: list[Any]) -> None:
        running = {number: job for number, job in table.items() if job["state"] == "running"}
        owners: dict[str, int] = {}
        for number, job in running.items():
            other = owners.setdefault(job["gpus"], number)
            assert other == number, f"jobs {other} and {number} both run on {job['gpus']}"
        for device, (grant, lease) in zip(DEVICES, devices, strict=True):
            given = _text(grant).split(" ")
            if device in owners:
                job = running[owners[device]]
                assert given == [job["fence"], f"job:{owners[device]}"], f"{device} is granted to {given}: {job}"
            assert lease is None or _text(lease) == given[0], f"{device}: lease {lease!r}, granted {given}"
            fence = int(given[0] or 0)
            assert fence >= self.highest.get(device, 0), f"the fence of {device} fell to {fence}"
            self.highest[device] = fence

    def _once(self, table: dict[int, dict[str, str]]) -> None:
        """An end is for ever, and its result is the accepted run's."""
        for number, job in table.items():
            if job["state"] not in ENDED:
                assert number not in self.ended, f"job {number} had ended: {self.ended[number]}, is {job}"
                continue
            end = tuple(job.values())
            if self.ended.setdefault(number, end) is end and job["settled_as"] == "succeeded":
                outcome = unpack(self.redis.get(self.keys.result(number)))
                assert outcome == {"fence": job["settled"]}, f"job {number}: result of {outcome}, {job}"
                self.done["accepted"] += 1
            assert self.ended[number] == end, f"job {number} had ended as {self.ended[number]}, is {end}"

    def _counters(self, table: dict[int, dict[str, str]], events: list[Any]) -> None:
        for entry, fields in events:
            self.last_event = entry.decode()
            pairs = dict(zip(fields[::2], fields[1::2], strict=True))
            number, name = int(pairs[b"job"]), pairs[b"event"].decode()
            self.events.setdefault(number, Counter())[name] += 1
            self.last_of[number] = name
        for number, job in table.items():
            seen = self.events.get(number, Counter())
            lost = seen["lose"] + seen["reap"]
            assert int(job["losses"]) == lost, f"job {number}: {job}, {dict(seen)}"
            kept = (
                job["settled_as"] == "cancelled" and self.last_of[number] == "release"
            )  # a cancelled run keeps its own
            attempts = seen["claim"] - seen["release"] - lost + kept
            assert int(job["attempts"]) == attempts, f"job {number}: {job}, {dict(seen)}"
            assert seen["complete"] <= 1, f"job {number} completed more than once"


def _text(value: Any) -> str:
    return "" if value is None else value.decode()
