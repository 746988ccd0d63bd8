"""Figures of the queue, and whether its counters are what the jobs say."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Any

from foxqueue.fleet import Seen
from foxqueue.lines import Lines
from foxqueue.paging import BATCH, Reader, chunks
from foxqueue.replies import fields, pairs, text, whole
from foxqueue.requirement import group_of
from foxqueue.trail import Trail

OLDEST_LOOKED_AT = 10_000  # pending jobs among which the oldest is looked for


def figures(reader: Reader, trail: Trail, seen: Seen, waiting_for_leases: int) -> dict[str, Any]:
    """The JSON object of the queue's figures; ages are seconds, None where there is nothing to measure.

    Args:
        reader, trail: of the namespace.
        seen: the devices.
        waiting_for_leases: how many stand in line for one.
    """
    lines, now_ms = Lines.read(reader), seen.now_ms
    counts = lines.counts()
    gpus = [device for device in seen.devices if device.is_gpu and device.live]
    unfinished, leases = reader.ask([("HVALS", reader.keys.unfinished), ("HGETALL", reader.keys.lease_stats)])
    counted = fields(leases)
    return {
        "queued_jobs": counts["pending"] + counts["scheduled"] + counts["blocked"],
        "processing_jobs": counts["running"],
        "total_gpu_slots": len(gpus),
        "available_gpu_slots": sum(device.state == "free" for device in gpus),
        "finished": counts["finished"],
        "failed": counts["failed"],
        "oldest_pending_s": _age(now_ms, _oldest_pending_ms(reader, lines)),
        "last_claim_s": _age(now_ms, trail.last_claim_ms()),
        "scheduled": counts["scheduled"],
        "blocked": counts["blocked"],
        "unfinished": sum(map(whole, unfinished or [])),
        "paused": seen.paused.get("*"),
        "withheld": sum(device.withheld is not None for device in seen.devices),
        "leased": len(seen.leased),
        "waiting_for_leases": waiting_for_leases,
        **{f"leases_{name}": whole(counted.get(name, "0")) for name in ("acquired", "contended", "lost", "released")},
        **{f"leases_{name}_s": whole(counted.get(f"{name}_ms", "0")) / 1000 for name in ("wait", "hold")},
    }


def _oldest_pending_ms(reader: Reader, lines: Lines) -> int | None:
    # Numbers grow with submission, ranks with priority too: the oldest job has a small number, though one that was
    # queued again by hand is younger than its number says.
    keys = [reader.keys.pending(line.shape) for line in lines.waiting()]
    share = max(OLDEST_LOOKED_AT // max(len(keys), 1), 1)
    heads = reader.ask([("ZRANGE", key, 0, share - 1) for key in keys])
    numbers = heapq.nsmallest(BATCH, (whole(number) for head in heads for number in head or []))
    ticks = map(whole, reader.ask([("HGET", reader.keys.job(number), "tick") for number in numbers]))
    return min((tick // 1000 for tick in ticks if tick), default=None)


def _age(now_ms: int, then_ms: int | None) -> float | None:
    return None if then_ms is None else round(max(now_ms - then_ms, 0) / 1000, 3)


def recount(reader: Reader) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Counters beside what they count, all jobs read for it: for tests, in a queue that stands still.

    Returns:
        ``unfinished`` and, by group, ``@name``: what is written, and what is right.
    """
    keys, right = reader.keys, Counter[str]()
    groups: dict[str, Counter[str]] = {}
    for number in _all_jobs(reader):
        found = reader.ask([("HMGET", keys.job(number), "state", "user", "shape")])[0]
        state, user, shape = (text(value or b"") for value in found)
        waits = state in ("scheduled", "blocked", "pending")
        if user and (waits or state == "running"):
            right[user] += 1
        group = group_of(shape)
        if group:
            counted = groups.setdefault(group, Counter())
            counted["total"] += 1
            counted[state] += not waits
    written = reader.ask([("HGETALL", keys.unfinished)])[0]
    answer = {"unfinished": (_numbers(written), dict(right))}
    for group, counted in groups.items():
        written = reader.ask([("HGETALL", keys.group(group))])[0]
        names = ("total", "running", "succeeded", "failed", "cancelled")
        kept = {name: count for name, count in _numbers(written).items() if name in names and count}
        answer[f"@{group}"] = (kept, dict(+counted))
    return answer


def _numbers(written: Any) -> dict[str, int]:
    return {text(name): int(value) for name, value in pairs(written) if text(value).lstrip("-").isdigit()}


def _all_jobs(reader: Reader) -> Iterator[int]:
    """Every job that stands in a set of its state."""
    keys = reader.keys
    shapes = [text(shape) for shape in reader.ask([("HKEYS", keys.shapes)])[0] or []]
    ended = (keys.finished, keys.dropped, keys.failed)
    for key in (keys.scheduled, keys.blocked, keys.running, *ended, *map(keys.pending, shapes)):
        for some in chunks(reader.numbers(key), BATCH):
            yield from some
