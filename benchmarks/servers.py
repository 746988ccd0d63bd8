"""A server of the bench's own, and what it says of the scripts it ran."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from foxqueue.broker import Broker
from foxqueue.client import Client
from foxqueue.config import Config, load_config
from foxqueue.server import ensure_server, stop_server

SLOW_US = 500  # scripts over this are written down by the server


@dataclass
class BenchServer:
    """Our own server under our own redis.conf, in a temporary home."""

    config: Config
    url: str

    def client(self, namespace: str) -> Client:
        """A client of one namespace."""
        return Client(self.url, namespace, self.config.home)

    def broker(self, namespace: str) -> Broker:
        """A broker of one namespace."""
        return Broker.connect(self.url, namespace)


@contextlib.contextmanager
def bench_server() -> Iterator[BenchServer]:
    """Start a server, and end it with all its data."""
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as home:
        config = load_config(home=Path(home), environ={})
        server = BenchServer(config, ensure_server(config).url)
        try:
            yield server
        finally:
            stop_server(config)


def pid_of(redis: Redis) -> int:
    """The server's process."""
    return int(_info(redis, "server")["process_id"])


def product(redis: Redis) -> str:
    """What serves, like ``Valkey 9.1.2``."""
    info = _info(redis, "server")
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"


def used_memory(redis: Redis) -> int:
    """Bytes that the server's data take."""
    return int(_info(redis, "memory")["used_memory"])


def forget_all(redis: Redis) -> None:
    """Delete everything, and come back when its memory is free again."""
    client: Any = redis  # its methods for commands without a name of their own have no types
    client.execute_command("FLUSHALL", "SYNC")


def rewriting(redis: Redis) -> bool:
    """Whether it rewrites its file, which slows everything for a while."""
    return bool(_info(redis, "persistence")["aof_rewrite_in_progress"])


def watch_scripts(redis: Redis) -> None:
    """Begin to count what scripts take."""
    redis.config_set("slowlog-log-slower-than", SLOW_US)
    redis.config_set("slowlog-max-len", 10_000)
    redis.slowlog_reset()
    redis.config_resetstat()


@dataclass(frozen=True)
class ScriptTimes:
    """What the server says of the scripts since, in ms of the clock on the wall.

    Attributes:
        p99: 99th percentile of all.
        longest: of ours.
        longest_empty: of the empty one, which is what the machine adds when others use its cores.
    """

    p99: float
    longest: float
    longest_empty: float


def script_times(redis: Redis, empty: str = "") -> ScriptTimes:
    """Read what was counted since :func:`watch_scripts`.

    Args:
        redis: the server.
        empty: sha of the empty script.
    """
    p99 = float(_info(redis, "latencystats")["latency_percentiles_usec_evalsha"]["p99"]) / 1000
    slow: Any = redis.slowlog_get(10_000)
    ours, theirs = [SLOW_US / 1000], [SLOW_US / 1000]
    for entry in slow:
        words = entry["command"].split(b" ", 2)
        if words[0].upper() in (b"EVALSHA", b"EVAL"):
            (theirs if words[1].decode() == empty else ours).append(entry["duration"] / 1000)
    return ScriptTimes(p99, max(ours), max(theirs))


def _info(redis: Redis, section: str) -> dict[str, Any]:
    found: Any = redis.info(section)
    return dict(found)


def memory_available() -> int:
    """Bytes that this machine can still give."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
