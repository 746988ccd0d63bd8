"""Looks at the server and at the namespace on it. All of them read, and none begins a namespace."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from foxqueue.broker import Broker
from foxqueue.devices import SeenDevice
from foxqueue.doctor.check import Check, size
from foxqueue.inspector import Inspector
from foxqueue.keys import Keys
from foxqueue.replies import memory_of
from foxqueue.scripts import load, names

SLOW_MS = 20.0
CLOCKS_APART_MS = 5000
ROUND_TRIPS = 20
NEARLY_FULL = 0.8
VALKEY_LEAST = (7, 2)
REDIS_LEAST = (7, 0)
_DURABLE = "switch it on: CONFIG SET appendonly yes, and the same in its configuration file"
# What answers like Redis and is neither Redis nor Valkey gives its own version in INFO.
_OTHERS = {"dragonfly_version": "Dragonfly", "kvrocks_version": "Kvrocks", "garnet_version": "Garnet"}


def info(broker: Broker, section: str) -> dict[str, Any]:
    """One section of INFO."""
    with broker.connection.errors("info"):
        found: dict[str, Any] = broker.redis.info(section)
    return found


def identity(broker: Broker) -> tuple[str, str]:
    """Product and version: ``valkey`` or ``redis``, and what it says of itself."""
    told = info(broker, "server")
    if told.get("valkey_version"):
        return "valkey", str(told["valkey_version"])
    return "redis", str(told.get("redis_version", "unknown"))


def devices(broker: Broker) -> list[SeenDevice]:
    """The registered devices; none where nobody has used the namespace yet."""
    return Inspector(broker).devices() if _in_use(broker) else []


def _in_use(broker: Broker) -> bool:
    """Whether the namespace has begun: asking a script about it would begin it."""
    with broker.connection.errors("exists"):
        return bool(broker.redis.exists(broker.keys.instance))


def version(broker: Broker) -> Check:
    """Whether the server is one that foxqueue is tested with."""
    told = info(broker, "server")
    for key, product in _OTHERS.items():
        if told.get(key):
            detail = f"{product} {told[key]} is not supported: its scripts may behave otherwise"
            return Check("version", False, detail, "use Redis 7.0 or Valkey 7.2, or a newer one of these")
    product, text = identity(broker)
    least = VALKEY_LEAST if product == "valkey" else REDIS_LEAST
    numbers = tuple(int(part) for part in re.findall(r"[0-9]+", text)[:2])
    shown = f"{product.capitalize()} {text}"
    if numbers < least:
        detail = f"{shown} is not supported: Redis 7.0 or Valkey 7.2 is the oldest that is"
        return Check("version", False, detail, "upgrade that server, or use another", required=True)
    return Check("version", True, shown, required=True)


def settings(broker: Broker) -> Check:
    """The namespace's settings, which a newer foxqueue may have written."""
    if not _in_use(broker):
        return Check("settings", True, "nobody has used this namespace yet", required=True)
    found = broker.settings()
    lease = f"schema {found.schema}, lease {found.ttl_ms / 1000:g} s, beat {found.beat_ms / 1000:g} s"
    return Check("settings", True, lease, required=True)


def keys(broker: Broker) -> Check:
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


def _types(keys: Keys) -> dict[str, str]:
    """The keys that belong to the namespace itself, each with its type: the first word of what its property says."""
    said = {name: kind.__doc__ or "" for name, kind in vars(Keys).items() if isinstance(kind, property)}
    words = {name: re.split(r"[:,]", text, maxsplit=1)[0] for name, text in said.items()}
    return {str(getattr(keys, name)): word.lower() for name, word in words.items() if word.isupper()}


def scripts(broker: Broker) -> Check:
    """Whether this user may load and run scripts that write; what they write here is nothing."""
    role = info(broker, "replication")
    if role.get("role") != "master":
        master = f"{role.get('master_host')}:{role.get('master_port')}"
        detail = f"this server is a replica of {master}, and no job can be written to it"
        return Check("scripts", False, detail, f"give the URL of {master}", required=True)
    with broker.connection.errors("script load"):
        for name in names():
            broker.redis.script_load(load(name).text)
        # A write that changes nothing, which a replica, a full disk or an access list refuses.
        digest = broker.redis.script_load("return redis.call('DEL', KEYS[1])")
        broker.redis.evalsha(digest, 1, broker.keys.wake("doctor"))
    return Check("scripts", True, f"all {len(names())} load and may write", required=True)


def cluster(broker: Broker) -> Check:
    """Whether this server holds the keys: a namespace lies in one slot of a cluster."""
    if not info(broker, "cluster").get("cluster_enabled"):
        return Check("cluster", True, "no cluster", required=True)
    _in_use(broker)  # a node of another slot refuses this, and says who has it
    with broker.connection.errors("cluster"):
        slot: Any = broker.redis.cluster("KEYSLOT", broker.keys.instance)
    return Check("cluster", True, f"a node that owns slot {int(slot)}, where this namespace lies", required=True)


def persistence(broker: Broker) -> Check:
    """Whether what the server accepts is written down."""
    told = info(broker, "persistence")
    if not told.get("aof_enabled"):
        detail = "no append-only file: accepted jobs are lost when the server ends"
        return Check("persistence", False, detail, _DURABLE)
    if told.get("aof_last_write_status", "ok") != "ok":
        detail = "the last write to the append-only file failed: the server accepts nothing until one succeeds"
        return Check("persistence", False, detail, "free space on the server's disk, and see its log", required=True)
    return Check("persistence", True, "append-only file")


def rewrite(broker: Broker) -> Check | None:
    """Whether the append-only file can be kept short."""
    told = info(broker, "persistence")
    if not told.get("aof_enabled"):
        return None
    if told.get("aof_last_bgrewrite_status", "ok") != "ok":
        cure = "see the server's log: it wants free disk and memory for a copy (vm.overcommit_memory=1)"
        return Check("rewrite", False, "the last rewrite of the append-only file failed, so it grows", cure)
    grown = told.get("aof_current_size")
    return Check("rewrite", True, "ok" if grown is None else f"the file has {size(int(grown))}")


def fsync(broker: Broker) -> Check | None:
    """How much a power cut may cost."""
    if not info(broker, "persistence").get("aof_enabled"):
        return None
    with broker.connection.errors("config get"):
        found = broker.redis.config_get("appendfsync")
    how = next((_plain(value) for value in found.values()), "unknown")
    if how == "no":
        detail = "appendfsync is no: a power cut may cost half a minute of accepted jobs"
        return Check("fsync", False, detail, "CONFIG SET appendfsync everysec, and the same in its configuration file")
    costs = {
        "always": "a power cut costs nothing",
        "everysec": "a power cut may cost the last second, more on a slow disk",
    }
    return Check("fsync", True, f"{how}: {costs.get(how, 'not told')}")


def _plain(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def eviction(broker: Broker) -> Check:
    """Whether the server throws keys away when its memory is full."""
    policy = str(info(broker, "memory").get("maxmemory_policy", "unknown"))
    if policy in ("noeviction", "unknown"):
        return Check("eviction", True, policy)
    detail = f"maxmemory-policy is {policy}: the server may throw jobs away"
    cure = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file"
    return Check("eviction", False, detail, cure)


def memory(broker: Broker) -> Check:
    """How full the server is. A full one takes no new jobs; those that it has go on and leave."""
    told = info(broker, "memory")
    used, limit = memory_of(told)
    total = int(told.get("total_system_memory") or 0)
    if not limit:
        machine = f", its machine has {size(total)}" if total else ""
        return Check("memory", True, f"{size(used)} used, no limit{machine}")
    detail = f"{size(used)} of {size(limit)} used ({used * 100 // limit}%)"
    if used <= limit * NEARLY_FULL:
        return Check("memory", True, detail)
    cure = "raise the limit (CONFIG SET maxmemory, and its configuration file), or keep ended jobs for less long"
    if used < limit:
        return Check("memory", False, f"{detail}: when it is full, no new jobs are accepted", cure)
    return Check("memory", False, f"{detail}: it is full, and no new jobs are accepted", cure, required=True)


def clients(broker: Broker) -> Check:
    """How many connections the server has left."""
    told = info(broker, "clients")
    limit = int(told.get("maxclients") or 0)
    if not limit:  # Redis tells it here only since 7.2
        with broker.connection.errors("config get"):
            told_by_config: Any = broker.redis.config_get("maxclients")
        limit = next((int(value) for value in told_by_config.values()), 0)
    count = int(told.get("connected_clients") or 0)
    detail = f"{count} of {limit} connected"
    if not limit or count <= limit * NEARLY_FULL:
        return Check("clients", True, detail)
    cure = "CONFIG SET maxclients with a higher number (each needs a file descriptor), or find who leaves them open"
    return Check("clients", False, f"{detail}: soon new ones are refused", cure)


def clock(broker: Broker) -> Check:
    """How far this machine's clock is from the server's, which the queue goes by."""
    with broker.connection.errors("time"):
        apart = int(time.time() * 1000) - broker.server_time_ms()
    ok = abs(apart) < CLOCKS_APART_MS
    detail = f"{abs(apart) / 1000:.3f} s {'ahead of' if apart >= 0 else 'behind'} the server's"
    return Check("clock", ok, detail, None if ok else "set both clocks by NTP; the queue goes by the server's")


def latency(broker: Broker) -> Check:
    """How long a round trip takes."""
    taken = []
    with broker.connection.errors("echo"):
        for _ in range(ROUND_TRIPS):
            begin = time.perf_counter()
            broker.redis.echo("")  # a server whose disk is full refuses PING
            taken.append((time.perf_counter() - begin) * 1000)
    median = statistics.median(taken)
    ok = median < SLOW_MS
    return Check("latency", ok, f"{median:.2f} ms a round trip", None if ok else "use a server that is nearer")


def workers(broker: Broker) -> Check:
    """Whether anybody serves the queue."""
    found = devices(broker)
    live = sum(device.live for device in found)
    detail = f"{live} of {len(found)} registered devices have a live worker"
    ok = live > 0
    return Check("workers", ok, detail, None if ok else "run foxqueue up on a machine with a GPU")


Asked = Callable[[Broker], Check | None]

# In the order of the report. Those of REQUIRED fail the report when they cannot be made.
LOOKS: dict[str, Asked] = {
    "version": version,
    "cluster": cluster,
    "scripts": scripts,
    "settings": settings,
    "keys": keys,
    "persistence": persistence,
    "rewrite": rewrite,
    "fsync": fsync,
    "eviction": eviction,
    "memory": memory,
    "clients": clients,
    "clock": clock,
    "latency": latency,
    "workers": workers,
}
REQUIRED = frozenset({"scripts", "cluster", "settings", "keys"})


def risks(broker: Broker) -> Iterator[Check]:
    """What may lose accepted jobs."""
    for look in (persistence, eviction):
        check = look(broker)
        if not check.ok:
            yield check
