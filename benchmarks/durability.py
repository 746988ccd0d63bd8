"""Part ``durability``: what a killed server and a power cut lose under each ``appendfsync``, and what each costs.

A server runs under load and is killed just after an acknowledgement. Started on its files it shows what the kill lost.
Started on a copy cut back to what syncs had covered at some moment, it shows what a power cut would have lost then at
the worst: the kernel may have written more by itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from benchmarks.disk import Sync, Syncs, cut_copy, sync_ms, unwritten
from benchmarks.driver import Driver
from benchmarks.measure import Figure, Operation, Scale, Target, at_most, in_turn, two_cores
from benchmarks.servers import BenchServer, pid_of
from foxqueue.broker import Broker
from foxqueue.config import Config, load_config
from foxqueue.places import private_dir
from foxqueue.server import ensure_server, stop_server

SETTINGS = ("always", "everysec", "no")
NAMESPACE = "durability"
BACKLOG = 6000  # jobs that wait, so that those which end were accepted long before
PACE_S = 0.002  # a job is enqueued and one completed: a thousand acknowledgements a second
POSTPONED_S = 2.0  # under everysec writes wait so long for a sync that runs
KERNEL_S = 37.0  # Linux writes by itself what is 30 s old, and looks every 5 s


def durability(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """What is lost, and what it costs not to lose it."""
    seconds = 2.0 if scale.quick else 3.0
    with contextlib.ExitStack() as stack:
        lazily = stack.enter_context(_killed("no", _for(seconds)))
        kernel = _Kernel(lazily)
        yield from _lost(lazily)
        for setting in ("everysec", "always"):
            with _killed(setting, _for(seconds)) as killed:
                yield from _lost(killed)
        yield from _slow_disk(1.5 if scale.quick else 3.0)
        yield from _costs(server, scale)
        yield from _costs_where_slow(scale)
        yield from kernel.figures(0 if scale.quick else KERNEL_S)


# --- a server that is killed under load -------------------------------------------------------------------------


@dataclass(frozen=True)
class Ack:
    """Something the server has confirmed: a job accepted, or its end."""

    at: float
    number: int
    born: str
    ended: bool


@dataclass(frozen=True)
class Killed:
    """What is left of a server that was killed under load.

    Attributes:
        setting: of ``appendfsync``.
        files: its append-only files.
        acks: what it had confirmed.
        syncs: what it had synced.
        moment: when it was killed.
        delayed: how often a write did not wait any longer for a slow sync.
    """

    setting: str
    files: Path
    acks: Sequence[Ack]
    syncs: list[Sync]
    moment: float
    delayed: int

    def worst(self) -> float:
        """The moment under load at which most was not yet synced."""
        first, unsynced_s, worst = self.acks[0].at, 0.0, self.moment
        covered = first
        for sync in self.syncs:
            if sync.path.name.endswith(".incr.aof") and sync.done > first:
                if sync.done - covered > unsynced_s:
                    unsynced_s, worst = sync.done - covered, sync.done - 1e-6
                covered = sync.began
        return self.moment if self.moment - covered > unsynced_s else worst


@dataclass(frozen=True)
class Loss:
    """What was confirmed and is not there any more.

    Attributes:
        jobs: accepted ones.
        ends: of jobs that are there; they run again.
        seconds: age of the newest confirmation that is there, if any is not.
    """

    jobs: int
    ends: int
    seconds: float


@contextlib.contextmanager
def started(
    setting: str, environ: Mapping[str, str], fill: Callable[[Path], object] | None = None
) -> Iterator[tuple[Config, Broker]]:
    """A server in a temporary home, under our own redis.conf but for that setting and rewrites, which are off.

    Args:
        setting: of ``appendfsync``.
        environ: of the server.
        fill: makes its append-only files, in the directory given, before it starts.
    """
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as home:
        config = load_config(home=Path(home), environ={})
        if fill is not None:
            private_dir(config.machine_dir)
            fill(files_of(config, made=True))
        broker = Broker.connect(ensure_server(config, environ=environ).url, NAMESPACE)
        try:
            broker.redis.config_set("auto-aof-rewrite-percentage", 0)
            broker.redis.config_set("appendfsync", setting)
            yield config, broker
        finally:
            broker.close()
            stop_server(config)


def files_of(config: Config, made: bool = False) -> Path:
    """Where the append-only files of a home's server lie; ``made`` makes the directory above."""
    data = config.machine_dir / "server"
    return (private_dir(data) if made else data) / "appendonlydir"


@contextlib.contextmanager
def _killed(setting: str, when: Callable[[Syncs], bool], slow_s: float = 0.0) -> Iterator[Killed]:
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as folder:
        syncs = Syncs(Path(folder))
        with started(setting, syncs.environ(os.environ)) as (config, broker):
            acks: list[Ack] = []
            driver = Driver(broker)
            driver.fill(BACKLOG)
            driver.learn_shapes()
            driver.claim()
            if slow_s:
                syncs.slow_down(slow_s)
            pid = pid_of(broker.redis)
            while not when(syncs):
                _acknowledge(driver, acks)
            delayed = int(broker.redis.info("persistence")["aof_delayed_fsync"])
            _acknowledge(driver, acks)
            os.kill(pid, signal.SIGKILL)
            moment = time.monotonic()
            yield Killed(setting, files_of(config), acks, syncs.done(), moment, delayed)


def _acknowledge(driver: Driver, acks: list[Ack]) -> None:
    began = time.monotonic()
    driver.enqueue()
    number, born = driver.queued[-1]
    acks.append(Ack(time.monotonic(), number, born, False))
    assert driver.run is not None
    ended = driver.run
    driver.complete_and_claim()
    acks.append(Ack(time.monotonic(), ended.number, ended.born, True))
    time.sleep(max(began + PACE_S - time.monotonic(), 0))


def _for(seconds: float) -> Callable[[Syncs], bool]:
    began: list[float] = []

    def over(_: Syncs) -> bool:
        if not began:
            began.append(time.monotonic())
        return time.monotonic() - began[0] > seconds

    return over


# --- what it lost -----------------------------------------------------------------------------------------------


def by_kill(killed: Killed) -> Loss:
    """What is missing when a server starts on the files as they are."""
    return _missing(killed, killed.moment, lambda to: shutil.copytree(killed.files, to))


def by_power_cut(killed: Killed, moment: float) -> Loss:
    """What is missing when a server starts on what was synced at a moment."""
    return _missing(killed, moment, lambda to: cut_copy(killed.files, to, killed.syncs, moment))


def _missing(killed: Killed, moment: float, fill: Callable[[Path], object]) -> Loss:
    acks = [ack for ack in killed.acks if ack.at <= moment]
    with started(killed.setting, os.environ, fill) as (_, broker):
        accepted, kept = _there(broker, acks)
    newest = max((ack.at for ack in kept), default=acks[0].at)
    jobs = sum(not ack.ended for ack in acks if ack not in accepted)
    ends = sum(ack.ended for ack in accepted if ack not in kept)
    return Loss(jobs, ends, moment - newest if jobs or ends else 0.0)


def _there(broker: Broker, acks: Sequence[Ack]) -> tuple[set[Ack], set[Ack]]:
    """Those whose job is there, and those of them that are still true."""
    with broker.redis.pipeline(transaction=False) as pipeline:
        for ack in acks:
            pipeline.hmget(broker.keys.job(ack.number), "born", "state")
        found = list(zip(acks, pipeline.execute(), strict=True))
    accepted = {ack for ack, (born, _) in found if born == ack.born.encode()}
    return accepted, {ack for ack, (_, state) in found if ack in accepted and (not ack.ended or state == b"succeeded")}


def _told(name: str, loss: Loss, most: Target | None, seconds: Target | None = None) -> Iterator[Figure]:
    yield _figure(f"{name}, accepted jobs lost", loss.jobs, "", most)
    yield _figure(f"{name}, ends lost", loss.ends, "", most)
    if loss.seconds:
        yield _figure(f"{name}, lost", loss.seconds, "s", seconds)


def _lost(killed: Killed, where: str = "") -> Iterator[Figure]:
    name = f"{killed.setting}{where}"
    yield _figure(f"{name}: confirmed a second", len(killed.acks) / (killed.moment - killed.acks[0].at), "per second")
    nothing, safe = at_most(0), killed.setting == "always"
    yield from _told(f"{name}: server killed", by_kill(killed), None if where else nothing, at_most(POSTPONED_S))
    healthy = at_most(2) if killed.setting == "everysec" and not where else None
    cut = by_power_cut(killed, killed.worst())
    yield from _told(f"{name}: power cut", cut, nothing if safe else None, healthy)


def _slow_disk(sync_s: float) -> Iterator[Figure]:
    """Killed while writes wait for the third slow sync: of 3 s, shortly before they would wait no longer."""
    waited = 0.63 * sync_s

    def third(syncs: Syncs) -> bool:
        slow = [sync.done for sync in syncs.done() if sync.done - sync.began >= sync_s]
        return len(slow) >= 2 and time.monotonic() > slow[1] + waited

    where = f", syncs of {sync_s:g} s"
    with _killed("everysec", third, sync_s) as killed:
        yield from _lost(killed, where)
        yield _figure(f"everysec{where}: writes that waited no longer", killed.delayed, "")


class _Kernel:
    """Looks when the kernel has written by itself what nobody syncs."""

    def __init__(self, killed: Killed) -> None:
        self._file = next(killed.files.glob("*.incr.aof"))
        self._began = killed.acks[0].at
        self._tells = unwritten(self._file)
        self._written: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if self._tells:
            self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            if not unwritten(self._file):
                self._written = time.monotonic()
                return

    def figures(self, patience_s: float) -> Iterator[Figure]:
        """Wait until so many seconds after the first write."""
        if not self._tells:
            return
        self._thread.join(max(self._began + patience_s - time.monotonic(), 0))
        self._stop.set()
        if self._written is not None:
            yield _figure("no: until the kernel wrote it by itself", self._written - self._began, "s")


# --- what it costs ----------------------------------------------------------------------------------------------


def _costs(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """Enqueues one after the other, under each setting in turn."""
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as folder:
        yield _figure("a sync of this disk", sync_ms(Path(folder)), "ms")
    broker = server.broker(NAMESPACE)
    broker.redis.config_set("auto-aof-rewrite-percentage", 0)
    try:
        yield from _rates(broker, "", scale.of(9, 2), scale.of(200, 60))
    finally:
        broker.redis.config_set("appendfsync", "everysec")
        broker.redis.config_set("auto-aof-rewrite-percentage", 100)
        broker.close()


def _costs_where_slow(scale: Scale) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as folder:
        syncs = Syncs(Path(folder))
        with started("everysec", syncs.environ(os.environ)) as (_, broker):
            syncs.slow_down(0.005)
            yield from _rates(broker, ", syncs of 5 ms", scale.of(5, 2), scale.of(60, 20))


def _rates(broker: Broker, where: str, rounds: int, count: int) -> Iterator[Figure]:
    driver = Driver(broker)
    operations = [Operation(setting, driver.enqueue, _setter(broker.redis, setting)) for setting in SETTINGS]
    with two_cores(pid_of(broker.redis)):
        found = in_turn(operations, rounds, count)
    base = found["everysec"]
    yield _figure(f"everysec{where}: enqueues", base.rate, "per second")
    for setting in ("always", "no"):
        yield _figure(f"{setting}{where}: enqueues, of everysec", found[setting].rate_to(base), "x")


def _setter(redis: Redis, setting: str) -> Callable[[int], object]:
    return lambda _: redis.config_set("appendfsync", setting)


def _figure(name: str, value: float, unit: str, target: Target | None = None) -> Figure:
    return Figure("durability", name, value, unit, target)
