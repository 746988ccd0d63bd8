"""What must hold in a queue at every moment, whatever was sent to it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from queue_driver import Queue

from foxqueue.codec import unpack

DEVICES = {"GPU-1": ("g1", "g1.m1024"), "GPU-2": ("g1",)}
SHAPES = ("g1", "g1.m1024")
FIELDS = ("state", "fence", "gpus", "shape", "rank", "settled", "settled_as", "attempts", "losses", "finished_at")
ENDED = {"succeeded", "failed", "cancelled"}
STRANGER = b"stranger"  # in a lease key: somebody else's

# Everything the oracles look at, in one round trip.
LOOK = """
local prefix, jobs = ARGV[1], {}
for n = 1, tonumber(redis.call('GET', prefix .. 'next') or '0') do
  jobs[n] = redis.call('HMGET', prefix .. 'job:' .. n, unpack(ARGV, 3))
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
local events = redis.call('XRANGE', prefix .. 'events', ARGV[2], '+')
return { jobs, pending, sets, devices, events, redis.call('GET', prefix .. 'clock') }
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
        self.events: dict[int, Counter[str]] = {}
        self.last_of: dict[int, str] = {}
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
        jobs, pending, sets, devices, events, clock = self._look(
            args=[self.keys.prefix, f"({self.last_event}", *FIELDS], client=self.redis
        )
        table = {n: dict(zip(FIELDS, map(_text, values), strict=True)) for n, values in enumerate(jobs, 1)}
        assert int(clock or 0) >= self.clock, f"the clock fell from {self.clock} to {clock}"
        self.clock = int(clock or 0)
        self._counters(table, events)
        self._one_set(table, pending, sets)
        self._devices(table, devices)
        self._once(table)

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
            right = [expected] if expected else []  # purged
            assert where[number] == right, f"job {number} stands in {where[number]}: {job}"

    def _devices(self, table: dict[int, dict[str, str]], devices: list[Any]) -> None:
        running = {number: job for number, job in table.items() if job["state"] == "running"}
        owners: dict[str, int] = {}
        for number, job in running.items():
            other = owners.setdefault(job["gpus"], number)
            assert other == number, f"jobs {other} and {number} both run on {job['gpus']}"
        for device, (grant, lease) in zip(DEVICES, devices, strict=True):
            given = _text(grant).split(" ")
            if device in owners:
                job, number = running[owners[device]], owners[device]
                right = ([job["fence"], f"{word}:{number}"] for word in ("job", "released"))
                assert given in right, f"{device} is granted to {given}: {job}"
            if lease != STRANGER:
                assert lease is None or _text(lease) == given[0], f"{device}: lease {lease!r}, granted {given}"
                assert lease is None or given[1] != "-", f"{device}: lease {lease!r} of a grant that ended"
            fence = int(given[0] or 0)
            assert fence >= self.highest.get(device, 0), f"the fence of {device} fell to {fence}"
            self.highest[device] = fence

    def _once(self, table: dict[int, dict[str, str]]) -> None:
        """An end is for ever, unless the job is requeued or purged, and its result is the accepted run's."""
        for number, job in table.items():
            if not job["state"]:
                self.ended.pop(number, None)  # purged
                continue
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
            number, name = int(pairs[b"job"] or 0), pairs[b"event"].decode()
            if name == "requeue":  # a new life
                self.events[number] = Counter()
                self.ended.pop(number, None)
            self.events.setdefault(number, Counter())[name] += 1
            self.last_of[number] = name
        for number, job in table.items():
            if not job["state"]:
                continue
            seen = self.events.get(number, Counter())
            lost = seen["lose"] + seen["reap"]
            assert int(job["losses"]) == lost, f"job {number}: {job}, {dict(seen)}"
            kept = (
                job["settled_as"] in ("cancelled", "failed") and self.last_of[number] == "release"
            )  # a cancelled run keeps its own
            attempts = seen["claim"] - seen["release"] - lost + kept
            assert int(job["attempts"]) == attempts, f"job {number}: {job}, {dict(seen)}"
            assert seen["complete"] <= 1, f"job {number} completed more than once"


def _text(value: Any) -> str:
    return "" if value is None else value.decode()
