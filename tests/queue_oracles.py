"""What must hold in a queue at every moment, whatever was sent to it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from queue_driver import Queue

from foxqueue.codec import unpack

DEVICES = {"GPU-1": ("g1", "g1.m1024"), "GPU-2": ("g1",)}
SLOTS = ("GPU-3/0", "GPU-3/1")  # of a device of ROOM MiB; each can take what GPU-1 can
WHOLE = "GPU-3"
ROOM = 2048
SHAPES = ("g1", "g1.m1024")
GROUPS = ("a", "b")
FIELDS = (
    "state", "fence", "gpus", "shape", "rank", "settled", "settled_as", "attempts", "losses", "finished_at",
    "born", "user", "unique", "cancel_requested", "started_at",
)  # fmt: skip
ENDED = {"succeeded", "failed", "cancelled"}
STRANGER = b"stranger"  # in a lease key: somebody else's

# Everything the oracles look at, in one round trip.
LOOK = """
local prefix, jobs, parents = ARGV[1], {}, {}
for n = 1, tonumber(redis.call('GET', prefix .. 'next') or '0') do
  jobs[n] = redis.call('HMGET', prefix .. 'job:' .. n, unpack(ARGV, 3))
end
for i, n in ipairs(redis.call('ZRANGE', prefix .. 'running', 0, -1)) do
  parents[i] = { n, redis.call('HGETALL', prefix .. 'blocked_by:' .. n) }
end
local pending = {}
for i, shape in ipairs(redis.call('HKEYS', prefix .. 'shapes')) do
  pending[i] = { shape, redis.call('ZRANGE', prefix .. 'pending:' .. shape, 0, -1, 'WITHSCORES') }
end
local sets = {}
for i, name in ipairs({ 'scheduled', 'blocked', 'running', 'finished', 'dropped', 'failed', 'expiry' }) do
  sets[i] = { name, redis.call('ZRANGE', prefix .. name, 0, -1) }
end
local devices = {}
for i, name in ipairs({ 'GPU-1', 'GPU-2', 'GPU-3', 'GPU-3/0', 'GPU-3/1' }) do
  devices[i] = { redis.call('HGET', prefix .. 'granted', name), redis.call('GET', prefix .. 'lease:' .. name),
    name, redis.call('HGET', prefix .. 'declared:GPU-3', string.match(name, '/(.)$') or '') }
end
local groups = {}
for i, name in ipairs(redis.call('ZRANGE', prefix .. 'groups', 0, -1)) do
  local members = redis.call('ZRANGE', prefix .. 'members:' .. name, 0, -1)
  groups[i] = { name, redis.call('HGETALL', prefix .. 'group:' .. name), members }
end
local events = redis.call('XRANGE', prefix .. 'events', ARGV[2], '+')
return { jobs, pending, sets, devices, events, redis.call('GET', prefix .. 'clock'), parents, groups,
  redis.call('HGETALL', prefix .. 'unfinished') }
"""

# All data of the namespace, deadlines and the reaper's own time left out.
PICTURE = """
local prefix, found = ARGV[1], {}
local passing = { [prefix .. 'looked'] = 1, [prefix .. 'swept'] = 1, [prefix .. 'grace_until'] = 1 }
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if passing[key] then
  elseif key == prefix .. 'running' then
    local members = redis.call('ZRANGE', key, 0, -1)
    table.sort(members)
    found[#found + 1] = { key, members }
  elseif kind == 'string' then found[#found + 1] = { key, redis.call('GET', key) }
  elseif kind == 'hash' then found[#found + 1] = { key, 'hash', redis.call('HGETALL', key) }
  elseif kind == 'zset' then found[#found + 1] = { key, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') }
  elseif kind == 'set' then found[#found + 1] = { key, 'set', redis.call('SMEMBERS', key) }
  elseif kind == 'list' then found[#found + 1] = { key, redis.call('LRANGE', key, 0, -1) }
  elseif kind == 'stream' then
    found[#found + 1] = { key, redis.call('XLEN', key), redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1) }
  end
end
return found
"""


def fits(device: str, shape: str) -> bool:
    """Whether a device can take jobs of a shape, of whatever group."""
    return shape.partition("@")[0] in (DEVICES.get(device) or DEVICES["GPU-1"])


def declares(shape: str) -> int:
    """What a job of a shape declares on a slot, MiB."""
    memory = shape.partition("@")[0].partition(".m")[2]
    return int(memory or ROOM)


class Oracles:
    """Watches one namespace from its beginning.

    Args:
        queue: the namespace; its jobs have the outcome ``{"fence": fence of the run}``.
        done: where accepted results are counted.
    """

    def __init__(self, queue: Queue, done: Counter[str]) -> None:
        self.keys, self.redis, self.done = queue.broker.keys, queue.broker.redis, done
        self.highest: dict[str, int] = {}  # device -> its last fence
        self.ended: dict[int, tuple[Any, ...]] = {}
        self.ends: dict[tuple[int, str], set[str]] = {}  # how each job, by number and born, has ever ended
        self.events: dict[int, Counter[str]] = {}
        self.last_event = "0"
        self.clock = 0
        self._look = self.redis.register_script(LOOK)
        self._picture = self.redis.register_script(PICTURE)

    def picture(self) -> dict[bytes, Any]:
        """All data, to be compared with later."""
        found: dict[bytes, Any] = {key: value for key, *value in self._picture(args=[self.keys.prefix])}
        for key, value in found.items():  # without the order of a hash table, which changes by itself
            if value[0] == b"hash":
                found[key] = dict(zip(value[1][::2], value[1][1::2], strict=True))
            elif value[0] == b"set":
                found[key] = set(value[1])
        return found

    def unchanged(self, before: dict[bytes, Any], what: str) -> None:
        """All data are as in the picture."""
        after = self.picture()
        changed = {key.decode() for key in {*before, *after} if before.get(key) != after.get(key)}
        # What has a time to live may reach its end between two pictures of a long run.
        mortal = {
            key.decode() for key in {*before} - {*after} if re.search(rb":(wake|idle|idle_shapes|requests):", key)
        }
        changed -= mortal
        assert not changed, f"{what} changed {changed}"

    def check(self) -> None:
        """The queue makes sense."""
        jobs, pending, sets, devices, events, clock, parents, groups, users = self._look(
            args=[self.keys.prefix, f"({self.last_event}", *FIELDS], client=self.redis
        )
        table = {n: dict(zip(FIELDS, map(_text, values), strict=True)) for n, values in enumerate(jobs, 1)}
        assert int(clock or 0) >= self.clock, f"the clock fell from {self.clock} to {clock}"
        self.clock = int(clock or 0)
        self._counters(table, events)
        self._one_set(table, pending, sets)
        self._devices(table, devices)
        self._once(table)
        self._parents(parents)
        self._recount(table, groups, users)

    def _one_set(self, table: dict[int, dict[str, str]], pending: list[Any], sets: list[Any]) -> None:
        where: dict[int, list[str]] = {number: [] for number in table}
        for name, members in pending:
            shape = _text(name)
            for member, score in zip(members[::2], members[1::2], strict=True):
                job = table[int(member)]
                where[int(member)].append("pending")
                assert job["shape"] == shape, f"job {int(member)} of {job['shape']} stands in {shape}"
                assert float(job["rank"]) == float(score), f"job {int(member)} stands at {score}: {job}"
        for name, members in sets:
            for member in members:
                where[int(member)].append(_text(name))
        for number, job in table.items():
            expected = "finished" if job["state"] == "succeeded" else job["state"]
            if job["state"] == "cancelled":
                expected = "finished" if job["started_at"] else "dropped"  # never started
            right = [expected] if expected else []  # purged
            if job["state"] in ("pending", "scheduled", "blocked") and "expiry" in where[number]:
                right.append("expiry")
            assert where[number] == right, f"job {number} stands in {where[number]}: {job}"

    def _parents(self, running: list[Any]) -> None:
        """A job never runs before what it waits for has ended as it should."""
        for number, edges in running:
            for parent, edge in zip(map(_text, edges[::2]), map(_text, edges[1::2]), strict=True):
                condition, born = edge.removeprefix("met:").split(":")
                ways = {"any": {"succeeded", "failed"}, "ended": ENDED}.get(condition, {condition})
                ends = self.ends.get((int(parent), born), set())
                assert edge.startswith("met:") and ends & ways, f"{number} runs: {parent} is {edge}, ended as {ends}"

    def _recount(self, table: dict[int, dict[str, str]], groups: list[Any], users: list[Any]) -> None:
        """Counters are what counting all jobs says."""
        there = {number: job for number, job in table.items() if job["state"]}
        unfinished = Counter(job["user"] for job in there.values() if job["user"] and job["state"] not in ENDED)
        said = dict(zip(map(_text, users[::2]), map(int, users[1::2]), strict=True))
        assert said == unfinished, f"unfinished jobs of users: {said}, counted {dict(unfinished)}"
        of_groups: dict[str, set[int]] = {}
        for number, job in there.items():
            if "@" in job["shape"]:
                of_groups.setdefault(job["shape"].partition("@")[2], set()).add(number)
        assert set(of_groups) <= {_text(name) for name, *_ in groups}, f"groups {groups}, jobs {of_groups}"
        for name, fields, members in groups:
            numbers = of_groups.get(_text(name), set())
            assert set(map(int, members)) == numbers, f"group {name}: {members}, counted {numbers}"
            group = dict(zip(map(_text, fields[::2]), map(_text, fields[1::2]), strict=True))
            counted = Counter(table[number]["state"] for number in numbers) + Counter(total=len(numbers))
            for what in ("total", "running", *ENDED):
                assert int(group.get(what, 0)) == counted[what], f"group {name}: {group}, counted {dict(counted)}"
        keys = Counter(job["unique"] for job in there.values() if job["unique"] and self._counts(job))
        assert max(keys.values(), default=0) <= 1, f"unique keys of several unfinished jobs: {keys}"

    def _counts(self, job: dict[str, str]) -> bool:
        """Whether a job holds its unique key: one that is cancelled while it runs has been replaced."""
        return job["state"] not in ENDED and not (job["state"] == "running" and job["cancel_requested"])

    def _devices(self, table: dict[int, dict[str, str]], devices: list[Any]) -> None:
        running = {number: job for number, job in table.items() if job["state"] == "running"}
        owners: dict[str, int] = {}
        for number, job in running.items():
            other = owners.setdefault(job["gpus"], number)
            assert other == number, f"jobs {other} and {number} both run on {job['gpus']}"
        held: dict[str, int] = {}
        for grant, lease, name, declared in devices:
            device, given = _text(name), _text(grant).split(" ")
            if device in owners:
                job, number = running[owners[device]], owners[device]
                right = ([job["fence"], f"{word}:{number}"] for word in ("job", "released"))
                assert given in right, f"{device} is granted to {given}: {job}"
            if lease != STRANGER:
                assert lease is None or _text(lease) == given[0], f"{device}: lease {lease!r}, granted {given}"
                assert lease is None or given[1] != "-", f"{device}: lease {lease!r} of a grant that ended"
            if device in owners or (lease is not None and lease != STRANGER):
                held[device] = int(_text(declared) or 0)
            fence = int(given[0] or 0)
            assert not grant or fence >= self.highest.get(device, 0), f"the fence of {device} fell to {fence}"
            self.highest[device] = max(fence, self.highest.get(device, 0))  # one that is forgotten has none
        slots = [declared for device, declared in held.items() if device in SLOTS]
        assert not (WHOLE in held and slots), f"{WHOLE} and a slot of it have holders: {held}"
        assert sum(slots) <= ROOM, f"slots of {WHOLE} declare {slots}"

    def _once(self, table: dict[int, dict[str, str]]) -> None:
        """An end is for ever, unless the job is requeued or purged, and its result is the accepted run's."""
        for number, job in table.items():
            if not job["state"]:
                self.ended.pop(number, None)  # purged
                continue
            if job["state"] in ENDED:
                self.ends.setdefault((number, job["born"]), set()).add(job["state"])
            assert not (job["state"] == "succeeded" and job["cancel_requested"]), f"job {number} was cancelled: {job}"
            if job["state"] not in ENDED:
                assert number not in self.ended, f"job {number} had ended: {self.ended[number]}, is {job}"
                continue
            # A group that is dissolved leaves its ended jobs behind.
            end = tuple((job | {"shape": job["shape"].partition("@")[0]}).values())
            if self.ended.setdefault(number, end) is end and job["settled_as"] == "succeeded":
                outcome = unpack(self.redis.get(self.keys.result(number)))
                assert outcome == {"fence": job["settled"]}, f"job {number}: result of {outcome}, {job}"
                self.done["accepted"] += 1
            assert self.ended[number] == end, f"job {number} had ended as {self.ended[number]}, is {end}"

    def _counters(self, table: dict[int, dict[str, str]], events: list[Any]) -> None:
        for entry, fields in events:
            self.last_event = entry.decode()
            pairs = dict(zip(fields[::2], fields[1::2], strict=True))
            number, name = int(pairs[b"job"] or 0), pairs[b"event"].decode()
            if name == "requeue":  # a new life
                self.events[number] = Counter()
                self.ended.pop(number, None)
            if name == "release" and pairs[b"to"] in (b"failed", b"cancelled"):
                name = "end"  # keeps its attempt
            self.events.setdefault(number, Counter())[name] += 1
        for number, job in table.items():
            if not job["state"]:
                continue
            seen = self.events.get(number, Counter())
            lost = seen["lose"] + seen["reap"]
            assert int(job["losses"]) == lost, f"job {number}: {job}, {dict(seen)}"
            attempts = seen["claim"] - seen["release"] - lost
            assert int(job["attempts"]) == attempts, f"job {number}: {job}, {dict(seen)}"
            assert seen["complete"] <= 1, f"job {number} completed more than once"


def _text(value: Any) -> str:
    return "" if value is None else value.decode()
