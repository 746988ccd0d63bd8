"""Looks at what foxqueue stands on and says what to do about what is wrong."""

from __future__ import annotations

import os
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from foxqueue import gpu
from foxqueue.broker import Broker, server_url
from foxqueue.config import Config
from foxqueue.devices import SeenDevice
from foxqueue.errors import FoxqueueError, NoServer, ServerError, ServerUnavailable
from foxqueue.inspector import Inspector
from foxqueue.keys import Keys
from foxqueue.listening import neighbour
from foxqueue.locks import lock_places
from foxqueue.urls import hide_password

SLOW_MS = 20.0
CLOCKS_APART_MS = 5000
PINGS = 20
_KINDS = {"simulated": "simulated devices", "cpu": "CPU slots"}
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
    """Look at server, settings, keys, clock and devices. Changes nothing."""
    url = hide_password(config.url) if config.url else None
    try:
        url = hide_password(server_url(config))
        broker = Broker.open(config, patience_s=1.0)
    except ServerError as error:
        return Report(url, None, None, [_no_server(config, error), *_machine(config, [])])
    with_server: list[Check] = [Check("server", True, "answers", required=True)]
    product, version = None, None
    devices: list[SeenDevice] = []
    try:
        try:
            product, version = _identity(broker)
        except FoxqueueError as error:
            with_server = [_failed("server", error)]
        for name, look in _OF_SERVER.items():
            try:
                with_server.append(look(broker))
            except ServerUnavailable as error:
                with_server.append(_failed("server", error))
                break
            except FoxqueueError as error:
                with_server.append(_failed(name, error))
        with suppress(FoxqueueError):  # the check of the workers has told it
            devices = Inspector(broker).devices()
    finally:
        broker.close()
    return Report(url, product, version, [*with_server, *_machine(config, devices)])


def _failed(name: str, error: FoxqueueError) -> Check:
    """A check that could not be made."""
    cure = error.cure if isinstance(error, ServerError) else None
    required = name in ("server", "settings", "keys")
    return Check(name, False, str(error), cure or "see that the server runs, and its log", required)


def server_warnings(broker: Broker) -> list[str]:
    """Sentences about a server that may lose jobs: without persistence, or one that evicts keys."""
    return [f"{check.detail}: {check.cure}" for check in (_persistence(broker), _eviction(broker)) if not check.ok]


def _no_server(config: Config, error: ServerError) -> Check:
    if config.url or error.cure:
        where = config.sources.get("url", "--url")
        return Check("server", False, str(error), error.cure or f"start that server, or change {where}", required=True)
    if not isinstance(error, NoServer):
        return Check("server", False, str(error), "set another FOXQUEUE_HOME, or FOXQUEUE_URL", required=True)
    cure = "run foxqueue up, or set FOXQUEUE_URL"
    other = neighbour()
    return Check("server", False, str(error), f"{cure} ({other})" if other else cure, required=True)


def _identity(broker: Broker) -> tuple[str, str]:
    info = _info(broker, "server")
    if info.get("valkey_version"):
        return "valkey", str(info["valkey_version"])
    return "redis", str(info.get("redis_version", "unknown"))


def _settings(broker: Broker) -> Check:
    settings = broker.settings()
    lease = f"schema {settings.schema}, lease {settings.ttl_ms / 1000:g} s, beat {settings.beat_ms / 1000:g} s"
    return Check("settings", True, lease, required=True)


def _keys(broker: Broker) -> Check:
    """Whether the namespace's own keys are of the types that foxqueue gives them: scripts fail over another one."""
    wanted = _types(broker.keys)
    pipeline = broker.redis.pipeline(transaction=False)
    for key in wanted:
        pipeline.type(key)
    with broker.connection.errors("type"):
        found = [bytes(kind).decode() for kind in pipeline.execute()]
    wrong = [
        f"{key} is a {kind}, not a {wanted[key]}"
        for key, kind in zip(wanted, found, strict=True)
        if kind not in ("none", wanted[key])
    ]
    if not wrong:
        return Check("keys", True, "of the right types", required=True)
    cure = "foxqueue did not write them: RENAME them away, and find out what did; or use another namespace"
    return Check("keys", False, "; ".join(wrong), cure, required=True)


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
    with broker.connection.errors("time"):
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


def _types(keys: Keys) -> dict[str, str]:
    """The keys that belong to the namespace itself, each with its type: the first word of what its property says."""
    said = {name: kind.__doc__ or "" for name, kind in vars(Keys).items() if isinstance(kind, property)}
    words = {name: re.split(r"[:,]", text, maxsplit=1)[0] for name, text in said.items()}
    return {str(getattr(keys, name)): word.lower() for name, word in words.items() if word.isupper()}


_OF_SERVER: dict[str, Callable[[Broker], Check]] = {
    "settings": _settings,
    "keys": _keys,
    "persistence": _persistence,
    "eviction": _eviction,
    "clock": _clock,
    "latency": _latency,
    "workers": _workers,
}


def _machine(config: Config, registered: Sequence[SeenDevice]) -> Iterator[Check]:
    """What concerns this machine and no server, except that devices served here need no NVIDIA driver."""
    host = socket.gethostname()
    try:
        found = gpu.survey(None, 0, "doctor", host, os.environ)
    except FoxqueueError as error:
        yield Check("devices", False, str(error), "correct CUDA_VISIBLE_DEVICES")
        return
    real = [device for device in found.devices if device.kind == "nvml"]
    here = [device for device in registered if device.live and device.host == host]
    served = sorted({_KINDS[device.kind] for device in here if device.kind in _KINDS})
    if real:
        names = ", ".join(f"{device.name} ({device.uuid})" for device in real)
        yield Check("devices", True, names)
        yield _guarded("locks", lambda: ", ".join(map(str, lock_places("nvml", config.machine_dir, os.environ))))
    elif served and all(device.kind in _KINDS for device in here):
        yield Check("devices", True, f"{' and '.join(served)} are served here; {found.no_gpu or 'no GPU'}: not needed")
    else:
        cure = "none needed on a machine that only submits; else --simulate 2x24G or --cpu 2"
        yield Check("devices", False, found.no_gpu or "no GPU", cure)
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
