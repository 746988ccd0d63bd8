"""Reported faults of locks, for leases without a job: lost ones, killed holders, hiccups of the server, forks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lease_holders import Process, environ_of, in_line, register
from nvml_stub import Answered
from servers import RealServer
from wait import until

from foxqueue import Client
from foxqueue.listening import look
from foxqueue.processes import ProcessId

TTL_MS = 1000
KEPT_MS = 2 * TTL_MS  # a lease key lives so long without a beat
SLOW_START = ("--key-load-delay", "160")  # us a command of the append-only file


class Place:
    """Two simulated devices of one home on a server of its own; processes that lease them."""

    def __init__(self, server: RealServer, root: Path) -> None:
        self.server = server
        self.home = root / "home"
        self.fox = Client(server.url, "test", self.home)
        self.fox.broker.configure(TTL_MS)
        self.devices = register(self.fox)
        self.redis: Any = self.fox.redis
        self.keys = self.fox.broker.keys
        self._started: list[Process] = []

    def start(self) -> Process:
        self._started.append(Process(self.server.url, environ_of(self.home)))
        return self._started[-1]

    def grant(self, index: int = 0) -> str:
        return str((self.redis.hget(self.keys.granted, self.devices[index]) or b"").decode())

    def key(self, index: int = 0) -> str:
        return str(self.keys.lease(self.devices[index]))

    def is_free(self, index: int = 0) -> bool:
        return self.grant(index).partition(" ")[2][:1] == "-" and not self.redis.exists(self.key(index))

    def beats_again(self, index: int = 0) -> None:
        """Wait until the lease has been renewed once more, after a moment in which it was known."""
        left = KEPT_MS

        def renewed() -> bool:
            nonlocal left
            before, left = left, self.redis.pttl(self.key(index))
            return bool(left > before + 100)

        until(renewed, 10, "a renewal", every=0.01)

    def end(self) -> None:
        for process in self._started:
            process.close()
        self.fox.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with RealServer(None, tmp_path / "server").start() as server:
        made = Place(server, tmp_path)
        yield made
        made.end()


def refusal(process: Process, index: int = 0, timeout: float = 0.0) -> str:
    """The kind of error that a process gets when it asks for a device."""
    with pytest.raises(Answered) as caught:
        process.ask(f"leases.acquire('sim:{index}', timeout={timeout})")
    return caught.value.kind


def lost(process: Process, seconds: float = 5.0) -> str:
    """Wait until a process was told that its lease is lost; why."""
    until(lambda: process.ask("len(losses)"), seconds, "the loss")
    with pytest.raises(Answered) as caught:
        process.run("lease.check()")
    assert caught.value.kind == "LeaseLost"
    assert process.ask("[str(loss) for loss in losses]") == [caught.value.text]
    return caught.value.text


# --- C1: lease lost, process keeps using the GPU ----------------------------------------------------------------


def test_a_deleted_lease_key_heals_at_the_next_beat(place: Place) -> None:
    holder, other = place.start(), place.start()
    fence = holder.acquire("sim:0")["fence"]
    grant = place.grant()
    for _ in range(2):
        place.redis.delete(place.key())
        assert refusal(other) == "GpuAlreadyLeased"  # whoever has the file lock is believed meanwhile
        until(lambda: place.redis.get(place.key()) == str(fence).encode(), 3, "the lease key again", every=0.01)
    holder.run("lease.check()")
    assert place.grant() == grant and holder.ask("losses") == []
    holder.run("lease.release()")
    assert place.is_free()
    assert other.acquire("sim:0")["fence"] > fence


@pytest.mark.parametrize("how", ["lease", pytest.param("grant", marks=pytest.mark.soak)])
def test_a_lease_that_is_anothers_is_lost_and_stays_anothers(place: Place, how: str) -> None:
    """The holder is told; the device is nobody's on this machine until it lets go, and is the other's in Redis."""
    holder, other = place.start(), place.start()
    fence = holder.acquire("sim:0")["fence"]
    foreign = str(fence + 1)
    if how == "grant":
        place.redis.hset(place.keys.granted, place.devices[0], f"{foreign} lease:{'f' * 16}")
    place.redis.set(place.key(), foreign)
    began = time.monotonic()
    lost(holder)
    assert time.monotonic() - began < KEPT_MS / 1000  # before the key could have lapsed
    assert refusal(other) == "GpuAlreadyLeased"
    holder.run("lease.release()")  # takes nothing from the other
    assert place.redis.get(place.key()) == foreign.encode()
    assert how == "lease" or place.grant() == f"{foreign} lease:{'f' * 16}"
    assert refusal(other) == "GpuAlreadyLeased"
    place.redis.delete(place.key())  # its owner lets go, or is not heard of any more
    if how == "lease":
        assert other.acquire("sim:0")["fence"] > fence
    else:
        assert other.acquire("sim:0", timeout=5)["fence"] > fence + 1


def test_a_forced_release_is_told_and_frees_the_device_when_the_holder_has_let_go(place: Place) -> None:
    holder, other = place.start(), place.start()
    holder.acquire("sim:0")
    taken = other.ask("leases.force_release('sim:0', by='ann')")
    assert f"pid={holder.pid}" in str(taken) or taken["pid"] == holder.pid
    assert "ann" in lost(holder)
    for _ in range(2):
        assert refusal(other) == "GpuAlreadyLeased"
    assert " released_lease:" in place.grant()
    holder.run("lease.release()")
    assert place.is_free()
    other.acquire("sim:0")
    trail = [
        {name.decode(): value.decode() for name, value in fields.items()}
        for _, fields in place.redis.xrange(place.keys.events)
    ]
    forced = [event for event in trail if event["event"] == "force_release"]
    assert len(forced) == 1 and forced[0]["by"] == "ann" and forced[0]["device"] == place.devices[0]


@pytest.mark.soak
def test_a_device_taken_from_a_stopped_holder_is_free_when_it_is_not_heard_of(place: Place) -> None:
    """It is stopped and cannot let go: its lock keeps others of this machine out for as long as it lives."""
    holder, other = place.start(), place.start()
    holder.acquire("sim:0")
    helper = holder.helper()
    stopped = ProcessId.of(holder.pid)
    assert stopped is not None
    stopped.send(signal.SIGSTOP)
    other.ask("leases.force_release('sim:0', by='ann')")
    until(lambda: not place.redis.exists(place.key()), 3 * KEPT_MS / 1000, "the end of the key")
    assert refusal(other) == "GpuAlreadyLeased"
    stopped.send(signal.SIGCONT)
    assert "ann" in lost(holder)
    holder.process.kill()
    holder.process.wait()
    other.acquire("sim:0", timeout=10)
    until(lambda: not helper.alive(), 5, "the end of the helper")


# --- C3: kill -9 keeps the GPU reserved --------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["holder", "helper", pytest.param("holder and helper", marks=pytest.mark.soak)])
def test_kill_9_reserves_nothing_for_long(place: Place, whom: str) -> None:
    holder, other = place.start(), place.start()
    fence = holder.acquire("sim:0")["fence"]
    helper = holder.helper()
    if whom == "holder and helper":
        helper.send(signal.SIGSTOP)  # so that it does not act between the two kills
    if whom != "helper":
        holder.process.kill()
        holder.process.wait()
    if whom != "holder":
        helper.send(signal.SIGKILL)
    began = time.monotonic()
    if whom == "helper":
        until(lambda: not helper.alive(), 5, "its end")
        place.beats_again()  # another one goes on with the same lease
        holder.run("lease.check()")
        assert holder.helper() != helper and holder.told()["fence"] == fence and holder.ask("losses") == []
        assert refusal(other) == "GpuAlreadyLeased"
        holder.run("lease.release()")
    lease = other.acquire("sim:0", timeout=5)
    assert lease["fence"] > fence and (whom == "helper" or time.monotonic() - began < 1.0)
    assert place.grant() == f"{lease['fence']} lease:{other.ask('lease.token')}"


@pytest.mark.soak
def test_a_machine_that_died_reserves_its_device_for_a_lease_and_no_longer(place: Place) -> None:
    """Holder and helper are gone and nobody of that machine asks: other machines have the device after the lease."""
    holder = place.start()
    holder.acquire("sim:0")
    helper = holder.helper()
    helper.send(signal.SIGSTOP)
    holder.process.kill()
    holder.process.wait()
    helper.send(signal.SIGKILL)
    began = time.monotonic()
    broker, version, answers = place.fox.broker, "?", []

    def given() -> bool:
        nonlocal version
        reply = broker.send(
            broker.lease_acquire_call("a" * 16, place.devices[:1], "bob\tbox\t1\t\tx", version=version)
        )[0]
        if reply.word == "shapes":  # a worker is said to serve the device
            version = reply.rest[0].decode()
        else:
            answers.append(reply.word)
        return reply.word == "ok"

    until(given, 10, "the device")
    assert set(answers[:-1]) == {"taken"}
    assert time.monotonic() - began < KEPT_MS / 1000 + 0.5


# --- C4: one hiccup of Redis kills the heartbeat -----------------------------------------------------------------


def test_hiccups_of_the_server_lose_no_lease(place: Place) -> None:
    """Connections killed, a second of silence, a crash and LOADING; a waiter beside it gets nothing meanwhile."""
    holder, waiter = place.start(), place.start()
    fence = holder.acquire("sim:0")["fence"]
    waiter.run("import threading\ngot = []")
    waiter.run("thread = threading.Thread(target=lambda: got.append(leases.acquire('sim:0', timeout=60)))")
    waiter.run("thread.start()")
    until(lambda: in_line(place.fox, place.devices[0]), 5, "the waiter in line")
    with place.redis.pipeline(transaction=False) as pipeline:  # what takes its time to be loaded
        for number in range(5000):
            pipeline.set(f"ballast:{number}", number)
        pipeline.execute()
    for _ in range(3):
        place.redis.client_kill_filter(_type="normal", skipme=True)
    place.beats_again()
    place.server.freeze()
    frozen = time.monotonic()
    until(lambda: time.monotonic() - frozen > 1.0, 5, "a second of silence")
    place.server.thaw()
    place.beats_again()
    place.server.kill()
    place.server.flags = SLOW_START
    place.server.start(wait=False)
    until(lambda: look(place.server.socket) == "loading", 10, "LOADING")
    until(lambda: look(place.server.socket) != "loading", 20, "the server")
    place.beats_again()
    holder.run("lease.check()")
    assert holder.ask("losses") == [] and waiter.ask("got") == []
    assert place.grant() == f"{fence} lease:{holder.ask('lease.token')}"
    until(lambda: in_line(place.fox, place.devices[0]) == 1, 5, "the waiter in line again")
    holder.run("lease.release()")
    until(lambda: waiter.ask("bool(got)"), 5, "its turn")
    assert waiter.ask("got[0].fence") > fence


# --- C6: lock by process, GPU still held by a grandchild ---------------------------------------------------------


@pytest.mark.parametrize("session", ["", pytest.param("os.setsid(); ", marks=pytest.mark.soak)])
def test_a_grandchild_keeps_the_device_until_it_is_gone(place: Place, tmp_path: Path, session: str) -> None:
    """The holder is killed, what it forked goes on: renewed for it, given to nobody, free when it ends."""
    holder, other = place.start(), place.start()
    fence = holder.acquire("sim:0")["fence"]
    pid = tmp_path / "pid"
    holder.run(
        f"pid = {str(pid)!r}\nif not os.fork():\n    if os.fork(): os._exit(0)\n    {session}pass\n"
        "    with open(pid + '.new', 'w') as file: file.write(str(os.getpid()))\n"
        "    os.rename(pid + '.new', pid)\n    time.sleep(300)\n"
    )
    until(pid.exists, 10, "the grandchild")
    grandchild = ProcessId.of(int(pid.read_text()))
    assert grandchild is not None
    try:
        holder.process.kill()
        holder.process.wait()
        killed = time.monotonic()
        refusals = []

        def beyond_the_lease() -> bool:
            refusals.append(refusal(other))
            assert place.redis.get(place.key()) == str(fence).encode()
            return time.monotonic() - killed > KEPT_MS / 1000 + 0.5

        until(beyond_the_lease, 30, "more than a lease", every=0.2)
        assert set(refusals) == {"GpuAlreadyLeased"}
    finally:
        grandchild.send(signal.SIGKILL)
    began = time.monotonic()
    assert other.acquire("sim:0", timeout=10)["fence"] > fence
    assert time.monotonic() - began < 1.0


def test_a_forked_child_is_no_holder(place: Place) -> None:
    """It can neither release nor use the lease; its end gives nothing back."""
    holder, other = place.start(), place.start()
    holder.acquire("sim:0")
    holder.run(
        "r, w = os.pipe()\npid = os.fork()\nif not pid:\n"
        "    try: lease.release()\n    except BaseException as error: os.write(w, type(error).__name__.encode())\n"
        "    leases.close()\n    os._exit(0)\n"
        "os.close(w)\nsaid = os.read(r, 100).decode()\nended = os.waitpid(pid, 0)[1]"
    )
    assert (holder.ask("said"), holder.ask("ended")) == ("LeaseForked", 0)
    assert refusal(other) == "GpuAlreadyLeased"
    place.beats_again()
    holder.run("lease.check()\nlease.release()")
    other.acquire("sim:0")
