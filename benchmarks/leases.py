"""Part ``leases``: devices without jobs: what taking one and giving it back costs, and what waiting in line does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.driver import EMPTY, empty_call
from benchmarks.looks import looks
from benchmarks.measure import (
    Figure,
    Operation,
    Scale,
    Timed,
    at_least,
    at_most,
    in_turn,
    one_core,
    percentile,
    two_cores,
)
from benchmarks.servers import BenchServer, pid_of, used_memory
from foxqueue.broker import Broker
from foxqueue.client import Client
from foxqueue.gpu import Device
from foxqueue.holders import holder_text
from foxqueue.leases import GpuLeases, Lease
from foxqueue.places import home_id
from foxqueue.presence import Presence
from foxqueue.probing import Observation
from foxqueue.survey import discover

SIMULATE = "8x24G"
WAITERS = 100
STANDING_S = 27.0  # each waiter stands again after 25 s: all of them have by then
MEASURED = 100  # leases whose memory is measured

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__])  # imported once, and not by each of a hundred


def leases(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """A lease from its grant to its end, and those who wait for one."""
    with server.client("leases") as fox:
        devices = register(fox)
        yield from _rates(server, fox, devices, scale)
        yield from _round_trips(server, fox, devices[0], scale.of(500, 50))
        yield from _bytes(server, scale)
        yield from _handing_over(server, fox, devices[0], scale.of(400, 20))
        yield from _standing(server, fox, devices[0], scale)
    yield from looks(scale)


def register(fox: Client) -> list[Device]:
    """Make simulated devices known, as their workers would."""
    host = socket.gethostname()
    devices = discover(SIMULATE, 0, home_id(fox.config), host, {})
    for device in devices:
        presence = Presence(fox.broker, device, f"bench-{device.index}", host)
        presence.look(Observation(24576, 24576, 0, "free", ""))
        presence.idle()
        presence.register()
    return devices


def leasing(server: BenchServer, devices: Sequence[Device] = ()) -> GpuLeases:
    """Leases of this bench's namespace."""
    return GpuLeases(
        server.url, namespace="leases", gpus=[device.uuid for device in devices] or None, home=server.config.home
    )


# --- what a pair costs ------------------------------------------------------------------------------------------


class Taken:
    """One device, taken and given back as a program does.

    Args:
        leases: of the namespace.
        device: its UUID.
    """

    def __init__(self, leases: GpuLeases, device: str) -> None:
        self._leases = leases
        self._device = device
        self._lease: Lease | None = None

    def acquire(self) -> None:
        """It must be free."""
        self._lease = self._leases.acquire(self._device, timeout=0)

    def release(self) -> None:
        """It must be ours."""
        assert self._lease is not None
        self._lease.release()
        self._lease = None

    def hold(self, _: int) -> None:
        """Have it now."""
        if self._lease is None:
            self.acquire()

    def leave(self, _: int) -> None:
        """Do not have it now."""
        if self._lease is not None:
            self.release()


class Scripted:
    """The same by the scripts alone."""

    def __init__(self, broker: Broker, device: str) -> None:
        self._broker = broker
        self._devices = [device]
        self._holder = holder_text("ann", "box", 4711, None, "notebook")
        self._token = ""
        self._fence = ""

    def acquire(self) -> None:
        """It must be free."""
        self._token = os.urandom(8).hex()
        reply = self._broker.send(self._broker.lease_acquire_call(self._token, self._devices, self._holder))[0]
        assert reply.word == "ok", reply
        self._fence = reply.rest[0].decode()

    def release(self) -> None:
        """It must be ours."""
        word = self._broker.send(self._broker.lease_release_call(self._token, self._fence, self._devices))[0].word
        assert word == "ok", word
        self._fence = ""

    def hold(self, _: int) -> None:
        """Have it now."""
        if not self._fence:
            self.acquire()

    def leave(self, _: int) -> None:
        """Do not have it now."""
        if self._fence:
            self.release()


def _rates(server: BenchServer, fox: Client, devices: Sequence[Device], scale: Scale) -> Iterator[Figure]:
    sha: Any = fox.redis.script_load(EMPTY)
    nothing = empty_call()
    broker = server.broker("scripted-leases")
    scripted = Scripted(broker, "SIM-bench")
    with leasing(server) as leases:
        taken = Taken(leases, devices[0].uuid)
        _pair(taken)  # what only the first one does is no part of it
        operations = [
            Operation("empty", lambda: fox.redis.evalsha(sha, 0)),
            Operation("empty, our connection", lambda: fox.broker.send(nothing)),
            *_halves("script", scripted),
            *_halves("GpuLeases", taken),
        ]
        with two_cores(pid_of(fox.redis)):
            found = in_turn(operations, scale.of(21, 3), scale.of(200, 60))
        with one_core(pid_of(fox.redis)):
            strictly = in_turn(operations, scale.of(15, 2), scale.of(200, 60))
    broker.close()
    yield from _compared(found, "", at_least(0.45))
    yield from _compared(strictly, "on one core: ", None)


def _pair(taken: Taken) -> None:
    taken.acquire()
    taken.release()


def _halves(name: str, taken: Scripted | Taken) -> Iterator[Operation]:
    """Each half of a pair timed, and the other one beside it not."""
    yield Operation(f"acquire by {name}", taken.acquire, before=taken.leave, after=taken.release)
    yield Operation(f"release by {name}", taken.release, before=taken.hold, after=taken.acquire)


def _compared(found: Any, where: str, target: Any) -> Iterator[Figure]:
    base: Timed = found["empty"]
    for name, timed in found.items():
        if name != "empty":
            judged = None if name.startswith("empty") else target
            yield Figure("leases", f"{where}{name}, of empty", timed.rate_to(base), "x", judged)


def _round_trips(server: BenchServer, fox: Client, device: Device, pairs: int) -> Iterator[Figure]:
    """Commands that clients send, those of scripts not counted, for each pair of a program that goes on."""
    with leasing(server) as leases:
        taken = Taken(leases, device.uuid)
        _pair(taken)
        with sent(fox) as count:
            for _ in range(pairs):
                _pair(taken)
            told = count() / pairs
    yield Figure("leases", "acquire + release by GpuLeases: round trips", told, "commands", at_most(2.1))


@contextlib.contextmanager
def sent(fox: Client) -> Iterator[Callable[[], int]]:
    """Watch a server; the block gets a function that gives the number of commands that clients have sent."""
    link: Any = fox.broker.blocking(60).connection_pool.get_connection()
    seen = 0

    def count() -> int:
        nonlocal seen
        fox.redis.echo("the end")
        while True:
            line = bytes(link.read_response())
            if b'"ECHO" "the end"' in line:
                return seen
            seen += b" lua] " not in line

    try:
        link.send_command("MONITOR")
        link.read_response()
        yield count
    finally:
        link.disconnect()


def _bytes(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """What the server keeps of a lease, beside devices that are known and free.

    Its entry in the trail, of which some 10,000 are kept, and the answer that is remembered for six minutes are left
    out. Beyond 128 devices the hashes are tables.
    """
    for devices in (8, 100, scale.of(1000, 200)):
        broker = server.broker(f"bytes-{devices}")
        held = [Scripted(broker, f"GPU-{number:08x}-2222-3333-4444-555555555555") for number in range(devices)]
        for one in held:
            one.acquire()
            one.release()
        before = _kept(broker)
        for one in held:
            one.acquire()
        each = (_kept(broker) - before) / devices
        yield Figure("leases", f"memory of a lease, {devices:,} of them", each, "bytes", at_most(300))
        broker.close()


def _kept(broker: Broker) -> int:
    client: Any = broker.redis
    client.delete(broker.keys.events, *client.keys(broker.keys.prefix + "requests:*"))
    return used_memory(client)


# --- waiting in line --------------------------------------------------------------------------------------------


def _handing_over(server: BenchServer, fox: Client, device: Device, count: int) -> Iterator[Figure]:
    """From the moment of a release to the moment at which another process, which waited, has the device."""
    ours, theirs = _forking.Pipe()
    waiter = _forking.Process(
        target=_take_often, args=(theirs, server.url, str(server.config.home), device.uuid, count)
    )
    waiter.start()
    took = []
    with leasing(server) as leases:
        for _ in range(count):
            lease = leases.acquire(device.uuid, timeout=60)
            ours.send("wait")
            _in_line(fox, device.uuid)
            released = time.monotonic_ns()
            lease.release()
            took.append((ours.recv() - released) / 1e6)
    waiter.join()
    yield Figure("leases", "from a release until a waiter has it: p50", percentile(took, 50), "ms")
    yield Figure("leases", "from a release until a waiter has it: p99", percentile(took, 99), "ms", at_most(20))


def _take_often(pipe: Connection, url: str, home: str, device: str, count: int) -> None:
    with GpuLeases(url, namespace="leases", home=home) as leases:
        for _ in range(count):
            pipe.recv()
            with leases.acquire(device, timeout=60):
                pipe.send(time.monotonic_ns())


def _in_line(fox: Client, device: str, count: int = 1) -> None:
    """Wait until so many wait for the device, blocked."""
    deadline = time.monotonic() + 60
    while (
        fox.redis.zcard(fox.broker.keys.lease_waiting(device)) < count
        or _info(fox, "clients", "blocked_clients") < count
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} did not come to wait for {device}")
        time.sleep(0.001)


def _info(fox: Client, section: str, name: str) -> int:
    found: Any = fox.redis.info(section)
    return int(found[name])


def _standing(server: BenchServer, fox: Client, device: Device, scale: Scale) -> Iterator[Figure]:
    """A hundred processes wait for one device: commands that this costs, those inside of scripts too."""
    count, seconds = scale.of(WAITERS, 5), scale.of(round(STANDING_S), 2)
    with leasing(server) as leases, leases.acquire(device.uuid):
        waiters = [
            _forking.Process(target=_stand, args=(server.url, str(server.config.home), device.uuid), daemon=True)
            for _ in range(count)
        ]
        for waiter in waiters:
            waiter.start()
        _in_line(fox, device.uuid, count)
        every, top = _commands(fox, seconds)
        for waiter in waiters:
            waiter.kill()
            waiter.join()
    yield Figure("leases", f"{count} waiters: commands a second", top, "per second", at_most(20))
    yield Figure(
        "leases", f"{count} waiters: commands a second, those in scripts too", every, "per second", at_most(20)
    )


def _commands(fox: Client, seconds: float) -> tuple[float, float]:
    """Commands a second: all that the server counts, and those that clients sent."""
    with sent(fox) as count:
        before, began = _info(fox, "stats", "total_commands_processed"), time.monotonic()
        time.sleep(seconds)
        took, every = time.monotonic() - began, _info(fox, "stats", "total_commands_processed") - before
        return every / took, count() / took


def _stand(url: str, home: str, device: str) -> None:
    with GpuLeases(url, namespace="leases", home=home) as leases:
        leases.acquire(device, timeout=None)
