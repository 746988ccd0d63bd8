"""Drives the scripts of a namespace the way clients and workers do, without processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from foxqueue.broker import Broker, Claimed, Environment, NewJob, Reply
from foxqueue.codec import pack
from foxqueue.scripts import Call

ENVIRONMENT = Environment.of({"A": "1"})


@dataclass
class Worker:
    """What a worker remembers between its calls."""

    queue: Queue
    name: str
    device: str
    shapes: tuple[str, ...] = ("g1",)
    question: int = 0
    version: str = "?"
    woken: list[str] = field(default_factory=list)
    boot: str = ""
    declares: tuple[int, ...] = ()  # of a slot, MiB of each shape
    room: int = 0

    def claim_call(self, waits: bool = True) -> Call:
        """The next question, not yet sent. What the worker was woken for goes along, once."""
        self.question += 1
        woken, self.woken = self.woken, []
        return self.queue.broker.claim_call(
            self.name,
            self.question,
            self.device,
            "host",
            self.version,
            woken,
            self.shapes if waits else (),
            waits=waits,
            boot=self.boot,
            declares=self.declares if waits else (),
            room=self.room,
        )

    def ask_once(self, waits: bool = True) -> Reply:
        """Send the next question; learn new shapes if that is the answer."""
        reply = self.queue.broker.send(self.claim_call(waits))[0]
        if reply.word == "shapes":
            self.version = reply.rest[0].decode()
        return reply

    def ask(self) -> Reply:
        """Send the next question, and again when there are new shapes."""
        reply = self.ask_once()
        return self.ask_once() if reply.word == "shapes" else reply

    def claim(self) -> Claimed:
        """Claim a job that must be there."""
        reply = self.ask()
        assert reply.word == "ok", reply
        return Claimed.of(reply)

    def tokens(self) -> list[str]:
        """Take the wake-up tokens that came, oldest first."""
        key = self.queue.broker.keys.wake(self.name)
        found = []
        while (token := self.queue.broker.redis.rpop(key)) is not None:
            found.append(bytes(token).decode())
        self.woken += found
        return found


class Queue:
    """A broker with short words for tests."""

    def __init__(self, url: str, namespace: str, timeout_s: float = 5.0) -> None:
        self.broker = Broker.connect(url, namespace, timeout_s=timeout_s)

    def worker(self, name: str = "w1", device: str = "GPU-1", shapes: tuple[str, ...] = ("g1",)) -> Worker:
        return Worker(self, name, device, shapes)

    def enqueue(
        self,
        name: str = "job",
        shape: str = "g1",
        priority: int = 5,
        retries: int = 0,
        token: str | None = None,
        more: str = "",
        user: str = "",
    ) -> int:
        """Enqueue a job and return its number."""
        return self.enqueue_born(name, shape, priority, retries, token, more, user)[0]

    def enqueue_born(
        self,
        name: str = "job",
        shape: str = "g1",
        priority: int = 5,
        retries: int = 0,
        token: str | None = None,
        more: str = "",
        user: str = "",
    ) -> tuple[int, str]:
        """Enqueue a job and return its number and tick."""
        spec = pack({"v": 1, "argv": ["true"]})
        return self.broker.enqueue(
            NewJob(name, shape, priority, retries, 1000, spec, more), ENVIRONMENT, token, user=user
        )

    def job(self, number: int) -> dict[str, str]:
        """The hash of a job."""
        raw = self.broker.redis.hgetall(self.broker.keys.job(number))
        return {key.decode(): value.decode() for key, value in raw.items()}

    def state(self, number: int) -> str:
        """The state of a job; empty when it is gone."""
        return self.job(number).get("state", "")

    def sweep(self, limit: int = 100) -> list[int]:
        """Sweep now; how many were promoted, reaped, purged, expired, settled, and how many notices are due."""
        return [int(part) for part in self.reap(limit).rest]

    def send(self, call: Call) -> str:
        """Send one call and return its word."""
        return self.broker.send(call)[0].word

    def complete(self, run: Claimed) -> str:
        return self.send(self.broker.complete_call(run.number, run.fence, pack({})))

    def fail(self, run: Claimed, reason: str = "exit_code", delay_ms: int | None = 0) -> str:
        return self.send(self.broker.fail_call(run.number, run.fence, reason, "exited with 1", 1, pack({}), delay_ms))

    def beat(self, run: Claimed) -> str:
        return self.send(self.broker.heartbeat_call(run.number, run.fence))

    def release(self, run: Claimed) -> str:
        return self.send(self.broker.release_call(run.number, run.fence, "shutdown", "worker stops"))

    def lose(self, run: Claimed) -> str:
        return self.send(self.broker.lose_call(run.number, run.fence))

    def worker_with_job(self) -> Claimed:
        """Enqueue one job and claim it."""
        self.enqueue()
        return self.worker().claim()

    def snapshot(self, deadlines: bool = True) -> dict[bytes, object]:
        """All data of the namespace but what time alone changes: two equal snapshots are the same queue.

        Args:
            deadlines: with those of the running jobs, which every beat renews.
        """
        redis, keys = self.broker.redis, self.broker.keys
        passing = {key.encode() for key in (keys.looked, keys.swept, keys.grace_until)}
        pattern = keys.prefix.replace("{", "[{]").replace("}", "[}]") + "*"
        names = sorted(key for key in redis.keys(pattern) if key not in passing)
        kinds = redis.pipeline(transaction=False)
        for key in names:
            kinds.type(key)
        values = redis.pipeline(transaction=False)
        for key, kind in zip(names, kinds.execute(), strict=True):
            match kind:
                case b"string":
                    values.get(key)
                case b"hash":
                    values.hgetall(key)
                case b"zset":
                    values.zrange(key, 0, -1, withscores=deadlines or key != keys.running.encode())
                case b"set":
                    values.smembers(key)
                case b"list":
                    values.lrange(key, 0, -1)
                case b"stream":
                    values.xrange(key)
        found = dict(zip(names, values.execute(), strict=True))
        if not deadlines and keys.running.encode() in found:
            found[keys.running.encode()] = set(found[keys.running.encode()])
        return found

    def overdue(self, number: int) -> None:
        """Let the lease of a running job run out, as if its worker had been silent for long."""
        redis, keys = self.broker.redis, self.broker.keys
        redis.zadd(keys.running, {str(number): 1}, xx=True)
        redis.delete(keys.lease(self.job(number)["gpus"]))

    def been_looking(self) -> None:
        """As if somebody had been sweeping all along: the next sweep may reap."""
        redis, keys = self.broker.redis, self.broker.keys
        redis.set(keys.looked, self.broker.server_time_ms())
        redis.delete(keys.grace_until, keys.swept)

    def reap(self, limit: int = 100) -> Reply:
        """Sweep as somebody who has been looking all along."""
        self.been_looking()
        return self.broker.send(self.broker.sweep_call(limit))[0]


def lua_folder() -> Path:
    """Where the scripts lie."""
    import foxqueue

    return Path(foxqueue.__file__).with_name("lua")
