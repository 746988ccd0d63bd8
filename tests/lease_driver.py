"""Drives the scripts of leases the way holders do, without processes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from queue_driver import Queue

from foxqueue.broker import Reply
from foxqueue.scripts import Call

HOLDER = "ann\tbox\t4711\t\tnotebook"
LEASE_MS = 30_000


@dataclass
class Holder:
    """A process that wants devices, or has them.

    Attributes:
        devices: that it asks for, all at once.
        fence: of its lease.
        called: devices for which it was called, oldest first.
    """

    queue: Queue
    devices: tuple[str, ...] = ("GPU-1",)
    priority: int = 5
    needs: int = 0
    declares: int = 0
    room: int = 0
    version: str = "?"
    fitting: tuple[str, ...] = ("g1",)
    text: str = HOLDER
    token: str = field(default_factory=lambda: os.urandom(8).hex())
    fence: str = ""

    def acquire_call(self, *devices: str, waited_ms: int = 0, contended: int = 0) -> Call:
        return self.queue.broker.lease_acquire_call(
            self.token,
            devices or self.devices,
            self.text,
            priority=self.priority,
            version=self.version,
            fitting=self.fitting,
            declares=self.declares,
            room=self.room,
            waited_ms=waited_ms,
            contended=contended,
        )

    def ask(self, *devices: str) -> Reply:
        """Ask for the devices, and again when there are new shapes; remembers the fence."""
        reply = self.queue.broker.send(self.acquire_call(*devices))[0]
        if reply.word == "shapes":
            self.version = reply.rest[0].decode()
            reply = self.queue.broker.send(self.acquire_call(*devices))[0]
        if reply.word == "ok":
            self.fence = reply.rest[0].decode()
        return reply

    def acquire(self, *devices: str) -> Holder:
        """Get the devices, which must be free."""
        reply = self.ask(*devices)
        assert reply.word == "ok", reply
        return self

    def wait_call(self, *devices: str, needs: int | None = None) -> Call:
        needs = needs if needs is not None else self.needs or 1
        return self.queue.broker.lease_wait_call(self.token, devices, self.text, priority=self.priority, needs=needs)

    def wait(self, *devices: str) -> Holder:
        """Stand in the lines of its devices, or of these."""
        reply = self.queue.broker.send(self.wait_call(*(devices or self.devices)))[0]
        assert reply.word == "ok", reply
        return self

    def leave(self) -> str:
        """Wait no more."""
        return self.queue.send(self.wait_call(needs=0))

    def renew_call(self) -> Call:
        return self.queue.broker.lease_renew_call(self.token, self.fence, self.devices, self.room)

    def renew(self) -> Reply:
        return self.queue.broker.send(self.renew_call())[0]

    def release_call(self, *devices: str) -> Call:
        return self.queue.broker.lease_release_call(self.token, self.fence, devices or self.devices)

    def release(self, *devices: str) -> str:
        return self.queue.send(self.release_call(*devices))

    def called(self) -> list[str]:
        """Take the calls that came, oldest first."""
        key, found = self.queue.broker.keys.wake(self.token), []
        while (device := self.queue.broker.redis.rpop(key)) is not None:
            found.append(bytes(device).decode())
        return found

    def fall_silent(self) -> None:
        """As if a minute had passed without a word of it."""
        self.queue.broker.redis.delete(self.queue.broker.keys.waiter(self.token))


def lapse(queue: Queue, *devices: str) -> None:
    """As if the holders had not renewed in time."""
    for device in devices:
        queue.broker.redis.delete(queue.broker.keys.lease(device))


def turn_over(queue: Queue, device: str) -> None:
    """As if a second had passed since somebody was called."""
    redis, key = queue.broker.redis, queue.broker.keys.turn(device)
    who, since = redis.get(key).decode().split(" ")
    redis.set(key, f"{who} {int(since) - 1_000}", keepttl=True)


def grant(queue: Queue, device: str) -> str:
    """The last grant of a device."""
    value = queue.broker.redis.hget(queue.broker.keys.granted, device)
    return value.decode() if value else ""


def lease(queue: Queue, device: str) -> str:
    """The value of a lease key; empty for none."""
    value = queue.broker.redis.get(queue.broker.keys.lease(device))
    return value.decode() if value else ""


def stats(queue: Queue) -> dict[str, int]:
    """The counters of leases."""
    raw = queue.broker.redis.hgetall(queue.broker.keys.lease_stats)
    return {name.decode(): int(value) for name, value in raw.items()}


def events(queue: Queue, *names: str) -> list[dict[str, str]]:
    """Entries of the trail with one of these names."""
    entries = [fields for _, fields in queue.broker.redis.xrange(queue.broker.keys.events)]
    read = [{key.decode(): value.decode() for key, value in fields.items()} for fields in entries]
    return [fields for fields in read if not names or fields["event"] in names]


def served(queue: Queue, device: str = "GPU-1", worker: str = "w1") -> None:
    """A live worker is there for the device."""
    assert queue.send(queue.broker.register_call(worker, device, 1, b"seen")) == "ok"
