"""Whether jobs are really served: one answer for probes, within seconds whatever hangs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foxqueue.bounded import BoundedCaller
from foxqueue.broker import Broker
from foxqueue.config import Config
from foxqueue.devices import SeenDevice
from foxqueue.errors import FoxqueueError, ServerRefused, ServerUnavailable
from foxqueue.inspector import Inspector
from foxqueue.lines import Line, Lines
from foxqueue.replies import memory_of, pairs, text, whole
from foxqueue.requirement import Requirement, fits
from foxqueue.units import format_duration
from foxqueue.waiting import declared_mib, gpu_served, of_its_kind, why_held_back
from foxqueue.withheld import WORDS

BOUND_S = 5.0
TIMEOUT_S = 2.0  # of each answer, so that a server which hangs is named as such before the time is over
AGAIN_S = 2.0  # between two looks: a device between two jobs is no idle one
HEADS = 200  # jobs of a shape among which the one that has waited longest is looked for
_BROKEN = frozenset({"unavailable", *WORDS})


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``server``, ``writes``, ``workers`` or ``queue``."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Health:
    """What was found.

    Attributes:
        oldest_pending_s: how long the oldest pending job has waited; None when none waits.
        last_claim_s: how long ago a worker last took a job; None when that is not known any more.
        devices: those that are registered.
    """

    findings: tuple[Finding, ...]
    oldest_pending_s: float | None = None
    last_claim_s: float | None = None
    devices: tuple[SeenDevice, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether every finding is ok."""
        return all(finding.ok for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "healthy": self.healthy,
            "checks": [{"name": found.name, "ok": found.ok, "detail": found.detail} for found in self.findings],
            "oldest_pending_s": self.oldest_pending_s,
            "last_claim_s": self.last_claim_s,
            "devices": [
                {
                    "uuid": device.uuid,
                    "device": device.label,
                    "state": device.state,
                    "detail": device.detail or None,
                    "job": device.job,
                    "leased_to": None if device.holder is None else device.holder.shown,
                    "live": device.live,
                }
                for device in self.devices
            ],
        }


def look(config: Callable[[], Config], max_age_s: float, bound_s: float = BOUND_S) -> Health:
    """See whether jobs are served. It reads, and sweeps once as every client does.

    Args:
        config: gives the configuration; an error in it is a finding, too.
        max_age_s: how long a job may wait while a device that it fits stands idle.
        bound_s: seconds after which it gives up, whatever does not come back.

    Returns:
        What was found. Nothing is raised for a server that cannot be used.
    """
    caller = BoundedCaller("health", lambda silent: ServerUnavailable(f"no answer within {silent:.0f} s"))
    try:
        known = config()
        return caller.call(lambda: _look(known, max_age_s), bound_s)
    except FoxqueueError as error:
        return Health((Finding("server", False, str(error)),))
    finally:
        caller.close()


def _look(config: Config, max_age_s: float) -> Health:
    broker = Broker.open(config, patience_s=0.5, timeout_s=TIMEOUT_S)
    try:
        findings = [Finding("server", True, "answers"), _writes(broker)]
        if not findings[-1].ok:  # what asks a script would be refused, too
            return Health(tuple(findings))
        inspector = Inspector(broker)
        devices = inspector.devices()
        findings += [_workers(devices), _queue(broker, inspector, max_age_s * 1000)]
        stats = inspector.stats()
        return Health(tuple(findings), stats["oldest_pending_s"], stats["last_claim_s"], tuple(devices))
    finally:
        broker.close()


def _writes(broker: Broker) -> Finding:
    """Whether the server takes new jobs."""
    try:
        broker.sweep()
    except FoxqueueError as error:
        return Finding("writes", False, str(error))
    try:
        with broker.connection.errors("info"):
            persistence: dict[str, Any] = broker.redis.info("persistence")
            memory: dict[str, Any] = broker.redis.info("memory")
    except ServerRefused:
        return Finding("writes", True, "scripts may write; INFO, which would tell of a full memory, is not permitted")
    if persistence.get("aof_enabled") and persistence.get("aof_last_write_status", "ok") != "ok":
        return Finding("writes", False, "the last write to the append-only file failed")
    used, limit = memory_of(memory)
    if limit and used >= limit and memory.get("maxmemory_policy") == "noeviction":
        return Finding("writes", False, "the server's memory is full: it takes no new jobs")
    return Finding("writes", True, "new jobs are taken")


def _workers(devices: Sequence[SeenDevice]) -> Finding:
    live = [device for device in devices if device.live]
    taking = [device for device in live if device.worker_state != "draining"]
    states = Counter(device.state for device in taking)
    detail = f"{len(taking)} of {len(devices)} registered devices have a live worker that takes jobs"
    if live and not taking:
        detail = "all live workers are ending and take no more jobs"
    more = ", ".join(f"{states[state]} of them {state}" for state in ("paused", *WORDS) if states[state])
    return Finding("workers", bool(taking), detail + (f"; {more}" if more else ""))


@dataclass(frozen=True)
class _Stuck:
    """A job that waits beside a device: two looks that find the same one mean that it stays so."""

    job: int
    device: str
    grant: str
    detail: str

    @property
    def key(self) -> tuple[int, str, str]:
        return self.job, self.device, self.grant


def _queue(broker: Broker, inspector: Inspector, max_age_ms: float) -> Finding:
    paused = inspector.paused().get("*")
    if paused is not None:
        return Finding("queue", True, f"the queue is paused by {paused}")
    lines = inspector.lines()
    first = {stuck.key for stuck in _stuck(broker, inspector, lines, max_age_ms)}
    if not first:
        age = format_duration(max_age_ms / 1000)
        return Finding("queue", True, f"no job has waited over {age} beside an idle device{_held_back(lines)}")
    time.sleep(AGAIN_S)
    still = [stuck for stuck in _stuck(broker, inspector, inspector.lines(), max_age_ms) if stuck.key in first]
    if not still:
        return Finding("queue", True, "a job waited beside an idle device, and one was served since")
    return Finding("queue", False, "; ".join(stuck.detail for stuck in still[:3]))


def _held_back(lines: Lines) -> str:
    """Groups whose jobs wait because they are to wait."""
    groups = {line.group.name: line.group for line in lines.waiting() if line.group is not None}
    held = [group for group in groups.values() if group.held_back and group.waiting]
    told = ", ".join((why_held_back(None, group) or ("", ""))[1] for group in held[:3])
    more = f" and {len(held) - 3} more" if len(held) > 3 else ""
    return f"; held back: {told}{more}" if held else ""


def _stuck(broker: Broker, inspector: Inspector, lines: Lines, max_age_ms: float) -> Iterator[_Stuck]:
    """Of each shape the job that has waited longest, when it has waited too long for what its devices are doing."""
    now = broker.server_time_ms()
    late = [(job, line, age) for job, line, age in _oldest(broker, lines, now) if age > max_age_ms]
    if not late:
        return
    devices = inspector.devices()
    grants = dict(pairs(broker.connection.answer(("HGETALL", broker.keys.granted), "read")))
    for job, line, age in late:
        if line.need is None:
            continue
        waits = f"job {job} has waited {format_duration(age / 1000)}"
        found = _unserved(line.need, devices)
        if found:
            device, state, why = found
            grant = text(grants.get(device.encode())) if state == "free" else state
            yield _Stuck(job, device, grant or line.shape, waits + why)


def _unserved(need: Requirement, devices: Sequence[SeenDevice]) -> tuple[str, str, str] | None:
    """A device, its state, and why a job that waits for such a one should not; None when it may."""
    served = gpu_served(devices)
    fitting = [one for one in devices if one.live and fits(need, one.kind, one.memory_total_mib, gpu_served=served)]
    idle = [
        device
        for device in fitting
        if device.state == "free"
        and device.worker_state != "draining"
        and fits(need, device.kind, device.memory_free_mib, gpu_served=served)
        and not declared_mib(device, devices)  # beside others it may have to wait for room
    ]
    if idle:
        return idle[0].uuid, "free", f" while {idle[0].label} stands idle"
    if not any(device.live for device in of_its_kind(need, devices)):
        return "", "", ", and no live worker serves such a device"
    if fitting and all(device.state in _BROKEN for device in fitting):
        why = f"{fitting[0].label} is {fitting[0].state}" + (f": {fitting[0].detail}" if fitting[0].detail else "")
        return fitting[0].uuid, fitting[0].state, f", and no device for it can be used ({why})"
    return None


def _oldest(broker: Broker, lines: Lines, now_ms: int) -> Iterator[tuple[int, Line, int]]:
    """Of each line whose jobs may start, the job that has waited longest: number, line, ms."""
    keys, ask = broker.keys, broker.connection.answers
    free = [line for line in lines.waiting() if not line.held_back]
    heads = ask([("ZRANGE", keys.pending(line.shape), 0, HEADS - 1) for line in free], "read")
    oldest = [(min(map(whole, head)), line) for line, head in zip(free, heads, strict=True) if head]
    ticks = ask([("HGET", keys.job(number), "tick") for number, _ in oldest], "read")
    for (number, line), tick in zip(oldest, map(whole, ticks), strict=True):
        if tick:
            yield number, line, now_ms - tick // 1000
