"""What becomes of a job that is put back from a file: where it stands, and whether it can be understood. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from foxqueue.archive import StoredJob
from foxqueue.states import BLOCKED, CANCELLED, ENDED, FAILED, PENDING, RUNNING, SCHEDULED, STATES

MOST: Final = 9_000_000_000_000_000  # of ticks, ranks and times: whole numbers of Lua end at 2^53
_MOST_FIELDS = 100
_MOST_EDGES = 1000
_MOST_RUNS = 20
_WHOLE = re.compile(rb"-?[0-9]{1,16}\Z")
_SHAPE = re.compile(rb"[!-?A-~]{1,200}(@[A-Za-z0-9._-]{1,64})?\Z")
_EDGE = re.compile(rb"(met:)?[a-z]{1,16}:[0-9]{0,16}\Z")
_END = b"ended:"
_NEEDED = (b"priority", b"tick", b"rank", b"attempts", b"losses", b"retries", b"retry_delay_ms")  # to start it
# What is kept of a record that cannot be understood, as far as it is a number or a short text.
_KEPT: tuple[bytes, ...] = (
    b"name",
    b"shape",
    b"priority",
    b"born",
    b"tick",
    b"rank",
    b"fence",
    b"attempts",
    b"losses",
    b"retries",
)
_KEPT += (b"retry_delay_ms", b"env", b"user", b"started_at", b"worker", b"host", b"gpus", b"exit_code", b"dependents")
_OF_THE_RUN = (b"cancel_requested", b"release_requested", b"exit_code")


def put_back(job: StoredJob, last_tick: int, exported_ms: int, now_ms: int) -> tuple[StoredJob, str]:
    """The job as it is to be written; its record then has a known state and all that the state needs.

    Args:
        job: as it was found.
        last_tick: of the namespace it comes from, in us; no tick that was given out is later.
        exported_ms: when it was read.
        now_ms: now.

    Returns:
        The job, and why it could not be understood, "" when it could. Then it is put aside as failed.
    """
    job = _without_runs(replace(job, edges=_edges(job), history=job.history[-_MOST_RUNS:]))
    why = _misunderstood(job, last_tick)
    if why:
        return replace(job, fields=_aside(job, why, last_tick, now_ms), notice=None), why
    if job.fields and job.fields[b"state"] == RUNNING.encode():
        job = _given_back(job, job.fields, exported_ms)
    return job, ""


def place(job: StoredJob, now_ms: int) -> tuple[str, int | str]:
    """State of a job as :func:`put_back` left it, and its score in the set of that state: ms when it is due, was
    blocked or ended."""
    fields = job.fields or {}
    state = fields[b"state"].decode()
    if state == PENDING:
        return state, ""
    if state == BLOCKED:
        return state, now_ms if job.since is None else job.since
    return state, int(fields[b"due_at" if state == SCHEDULED else b"finished_at"])


def _misunderstood(job: StoredJob, last_tick: int) -> str:
    """Why a record cannot be understood; "" when it can."""
    fields = job.fields
    if not fields or len(fields) > _MOST_FIELDS:
        return "it is none"
    state = fields.get(b"state", b"").decode("utf-8", "replace")
    if state not in STATES:
        return "its state is none" if state else "it has no state"
    wanted: list[bytes] = [b"born"]
    if state in ENDED:
        wanted += [b"finished_at"]
    else:
        wanted += _NEEDED
        wanted += [b"due_at"] if state == SCHEDULED else []
        wanted += [b"expires_at"] if b"expires_at" in fields else []
    for name in wanted:
        if _number(fields, name) is None:
            return f"its {name.decode()} is no number"
    for name in (b"born", b"fence", b"settled"):
        number = _number(fields, name)
        if fields.get(name) and (number is None or not 0 <= number <= last_tick):
            return f"its {name.decode()} is no tick of that queue"
    if not _SHAPE.match(fields.get(b"shape", b"")) and state not in ENDED:
        return "its shape is none"
    if not job.spec and state not in ENDED:
        return "what it is to run is gone"
    return _waits_for_nothing(job, fields) if state == BLOCKED else ""


def _waits_for_nothing(job: StoredJob, fields: dict[bytes, bytes]) -> str:
    open_ = sum(not edge.startswith(b"met:") for edge in job.edges.values())
    if (_number(fields, b"parents") or 0) != open_:
        return "the jobs that it waits for are not those it counts"
    return "" if open_ or fields.get(b"held") else "it waits for nothing"


def _aside(job: StoredJob, why: str, last_tick: int, now_ms: int) -> dict[bytes, bytes]:
    found = job.fields or {}
    kept = {name: found[name] for name in _KEPT if len(found.get(name, bytes(300))) < 256}
    for name in (b"born", b"fence"):
        number = _number(kept, name)
        if name in kept and (number is None or not 0 <= number <= last_tick):
            del kept[name]
    if not _SHAPE.match(kept.get(b"shape", b"")):
        kept.pop(b"shape", None)
    return kept | {
        b"state": FAILED.encode(),
        b"reason": b"bad_payload",
        b"detail": f"its record could not be read when it was imported: {why}".encode(),
        b"finished_at": b"%d" % now_ms,
    }


def _given_back(job: StoredJob, found: dict[bytes, bytes], exported_ms: int) -> StoredJob:
    """A job that ran, as if its worker had given it back; one that was to be cancelled is."""
    where = found.get(b"host", b"")
    detail = b"it ran" + (b" on " + where if where else b"") + b" when the queue was exported"
    fields = {name: value for name, value in found.items() if name not in _OF_THE_RUN}
    fields[b"attempts"] = b"%d" % max((_number(found, b"attempts") or 0) - 1, 0)
    asked = found.get(b"cancel_requested")
    if asked is None:
        fields |= {b"state": PENDING.encode(), b"reason": b"shutdown", b"detail": detail}
    else:
        fields |= {b"state": CANCELLED.encode(), b"reason": b"cancelled_by_user", b"cancel_requested": asked}
        fields |= {b"detail": b"cancelled by " + asked + b"; " + detail, b"finished_at": b"%d" % exported_ms}
    names = (b"attempts", b"fence", b"started_at", b"host", b"gpus")
    attempt, fence, started, host, device = (found.get(name, b"") for name in names)
    run = (attempt, fence, started, b"%d" % exported_ms, host, device, b"release", b"shutdown", b"", detail)
    return replace(job, fields=fields, history=[*job.history, b"\n".join(run)][-_MOST_RUNS:])


def _edges(job: StoredJob) -> dict[bytes, bytes]:
    sound = [
        (parent, edge)
        for parent, edge in job.edges.items()
        if _WHOLE.match(parent) and _EDGE.match(edge) and (0 < int(parent) < job.number or _END in edge)
    ]
    return dict(sound[:_MOST_EDGES])


def _without_runs(job: StoredJob) -> StoredJob:
    """A job that waits for processes of an earlier one with its unique key: no process comes along."""
    waits = [parent for parent, edge in job.edges.items() if edge.startswith(_END)]
    fields = job.fields
    if not waits or not fields or fields.get(b"state") != BLOCKED.encode():
        return job
    left = (_number(fields, b"parents") or 0) - len(waits)
    fields = {**fields, b"parents": b"%d" % left}
    if not left and not fields.get(b"held"):
        fields[b"state"] = (SCHEDULED if fields.get(b"due_at") else PENDING).encode()
    return replace(job, fields=fields, edges=job.edges | {parent: b"met:" + job.edges[parent] for parent in waits})


def _number(fields: dict[bytes, bytes], name: bytes) -> int | None:
    value = fields.get(name, b"")
    return int(value) if _WHOLE.match(value) and abs(int(value)) <= MOST else None
