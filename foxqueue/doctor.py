"""Looks at what foxqueue stands on and says what to do about what is wrong."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from foxqueue import gpu
from foxqueue.broker import Broker, server_url
from foxqueue.config import Config, hide_password
from foxqueue.errors import FoxqueueError, ServerError
from foxqueue.inspector import Inspector
from foxqueue.listening import neighbour
from foxqueue.locks import lock_places

SLOW_MS = 20.0
CLOCKS_APART_MS = 5000
PINGS = 20
_DURABLE = "switch it on: CONFIG SET appendonly yes, and the same in its configuration file"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``cure`` says what to do when it is not ok."""

    name: str
    ok: bool
    detail: str
    cure: str | None = None
    required: bool = False


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        url: of the server, the password hidden; None when there is none.
        server: ``redis`` or ``valkey``; None when it does not answer.
    """

    url: str | None
    server: str | None
    version: str | None
    checks: list[Check]

    @property
    def healthy(self) -> bool:
        """Whether every required check is ok."""
        return all(check.ok for check in self.checks if check.required)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        checks = [{key: value for key, value in asdict(check).items() if key != "required"} for check in self.checks]
        return {"url": self.url, "server": self.server, "version": self.version, "checks": checks}


def examine(config: Config) -> Report:
    """Look at server, settings, clock and devices. Changes nothing."""
    url = hide_password(config.url) if config.url else None
    try:
        url = hide_password(server_url(config))
        broker = Broker.open(config, patience_s=1.0)
    except ServerError as error:
        return Report(url, None, None, [_no_server(config, error), *_machine(config)])
    with_server: list[Check] = [Check("server", True, "answers", required=True)]
    product, version = None, None
    try:
        product, version = _identity(broker)
        with_server += _of_server(broker)
    except FoxqueueError as error:
        cure = "allow this user to run INFO, CONFIG GET and EVALSHA"
        with_server.append(Check("server", False, str(error), cure, required=True))
    finally:
        broker.close()
    return Report(url, product, version, [*with_server, *_machine(config)])


def server_warnings(broker: Broker) -> list[str]:
    """Sentences about a server that may lose jobs: without persistence, or one that evicts keys."""
    return [f"{check.detail}: {check.cure}" for check in (_persistence(broker), _eviction(broker)) if not check.ok]


def _no_server(config: Config, error: ServerError) -> Check:
    if config.url:
        where = config.sources.get("url", "--url")
        return Check("server", False, str(error), f"start that server, or change {where}", required=True)
    cure = "run foxqueue up, or set FOXQUEUE_URL"
    other = neighbour()
    return Check("server", False, str(error), f"{cure} ({other})" if other else cure, required=True)


def _identity(broker: Broker) -> tuple[str, str]:
    info = _info(broker, "server")
    if info.get("valkey_version"):
        return "valkey", str(info["valkey_version"])
    return "redis", str(info.get("redis_version", "unknown"))


def _of_server(broker: Broker) -> Iterator[Check]:
    settings = broker.settings()
    lease = f"schema {settings.schema}, lease {settings.ttl_ms / 1000:g} s, beat {settings.beat_ms / 1000:g} s"
    yield Check("settings", True, lease, required=True)
    yield _persistence(broker)
    yield _eviction(broker)
    yield _clock(broker)
    yield _latency(broker)
    yield _workers(broker)


def _persistence(broker: Broker) -> Check:
    info = _info(broker, "persistence")
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            cure = "free space on the server's disk, and see its log"
            return Check("persistence", False, "the last write to the append-only file failed", cure)
        return Check("persistence", True, "append-only file")
    detail = "no append-only file: accepted jobs are lost when the server ends"
    return Check("persistence", False, detail, _DURABLE)


def _eviction(broker: Broker) -> Check:
    policy = str(_info(broker, "memory").get("maxmemory_policy", "unknown"))
    if policy in ("noeviction", "unknown"):
        return Check("eviction", True, policy)
    detail = f"maxmemory-policy is {policy}: the server may throw jobs away"
    return Check("eviction", False, detail, "CONFIG SET maxmemory-policy noeviction")


def _clock(broker: Broker) -> Check:
    apart = int(time.time() * 1000) - broker.server_time_ms()
    ok = abs(apart) < CLOCKS_APART_MS
    detail = f"{abs(apart) / 1000:.3f} s {'ahead of' if apart >= 0 else 'behind'} the server's"
    return Check("clock", ok, detail, None if ok else "set both clocks by NTP; the queue goes by the server's")


def _latency(broker: Broker) -> Check:
    taken = []
    with broker.connection.errors("ping"):
        for _ in range(PINGS):
            begin = time.perf_counter()
            broker.redis.ping()
            taken.append((time.perf_counter() - begin) * 1000)
    median = statistics.median(taken)
    ok = median < SLOW_MS
    return Check("latency", ok, f"{median:.2f} ms a round trip", None if ok else "use a server that is nearer")


def _workers(broker: Broker) -> Check:
    devices = Inspector(broker).devices()
    live = sum(device.live for device in devices)
    detail = f"{live} of {len(devices)} registered devices have a live worker"
    ok = live > 0
    return Check("workers", ok, detail, None if ok else "run foxqueue up on a machine with a GPU")


def _machine(config: Config) -> Iterator[Check]:
    """What concerns this machine and no server."""
    try:
        found = gpu.survey(None, 0, "doctor", socket.gethostname(), os.environ)
    except FoxqueueError as error:
        yield Check("devices", False, str(error), "correct CUDA_VISIBLE_DEVICES")
        return
    real = [device for device in found.devices if device.kind == "nvml"]
    if not real:
        cure = "none needed on a machine that only submits; else --simulate 2x24G or --cpu 2"
        yield Check("devices", False, found.no_gpu or "no GPU", cure)
    else:
        names = ", ".join(f"{device.name} ({device.uuid})" for device in real)
        yield Check("devices", True, names)
        yield _guarded("locks", lambda: ", ".join(map(str, lock_places("nvml", config.machine_dir, os.environ))))
    for note in found.notes:
        yield Check("devices", False, note, "see the text")


def _guarded(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except FoxqueueError as error:
        return Check(name, False, str(error), "set FOXQUEUE_LOCK_DIR to a directory that all users may write")


def _info(broker: Broker, section: str) -> dict[str, Any]:
    with broker.connection.errors("info"):
        found: dict[str, Any] = broker.redis.info(section)
    return found
