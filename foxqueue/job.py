"""A job as it is shown: built from what Redis holds, tolerant of what it should not hold.

Pure: no server is asked. A malformed hash or spec gives a view with gaps, never an error, because one bad
record must not take the listing away.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from foxqueue import read
from foxqueue.requirement import Requirement, group_of, parse_shape
from foxqueue.states import ENDED, RUNNING, SUCCEEDED, WAITING

# The fields of the hash that a view reads, in the order of HMGET.
FIELDS: Final = (
    "state",
    "reason",
    "detail",
    "name",
    "shape",
    "priority",
    "born",
    "tick",
    "rank",
    "fence",
    "attempts",
    "losses",
    "retries",
    "due_at",
    "started_at",
    "finished_at",
    "worker",
    "host",
    "gpus",
    "cancel_requested",
    "release_requested",
    "exit_code",
    "user",
    "parents",
    "held",
    "expires_at",
    "unique",
)


@dataclass(frozen=True)
class EndedRun:
    """How an earlier run of a job ended.

    Attributes:
        how: fail, release, lose or reap.
        reason: a word of END_REASONS, or what the run was given back for.
    """

    attempt: int | None
    fence: str
    started_ms: int | None
    ended_ms: int | None
    host: str
    device: str
    how: str
    reason: str
    exit_code: int | None
    detail: str


@dataclass(frozen=True)
class JobView:
    """One job at one moment. Times are epoch milliseconds, memory is MiB.

    Attributes:
        reason: why it ended, or why its last run did when it waits again: a word of END_REASONS, or None.
        waiting_for: what it waits for, a word of WAIT_REASONS, or None; filled in by the inspector.
        detail: a sentence that says more about ``reason`` or ``waiting_for``.
        queued_ms: when it took its place in the queue: at its submission, or when it was queued again by hand.
        attempts: runs counted, lost and released ones not.
        losses: runs lost through no fault of the job.
        shape: what it asks of a device, without its group.
        held: by whom it is held back, None when it is not.
        due_ms: when it may start at the earliest, or its next attempt is due.
        expires_ms: when it is cancelled if it has not started.
        after: jobs it was submitted to wait for -> the condition: succeeded, any, failed or ended.
        parents_open: how many of them it still waits for.
        blocked_by: those -> the condition; filled in by the inspector for one job alone.
        history: its earlier runs, the newest last; filled in by the inspector for one job alone.
        release_requested: why its worker is to give it back, None when it is not.
        git: commit, dirty and branch of the directory it was submitted from.
        command: argv as submitted; empty when the spec cannot be read.
        signal: number of the signal that ended the last run, or None.
        spec: everything that was submitted.
        result: what the last run left behind.
    """

    number: int
    born: str
    state: str
    reason: str | None = None
    detail: str | None = None
    waiting_for: str | None = None
    name: str | None = None
    user: str | None = None
    submit_host: str | None = None
    priority: int | None = None
    model_type: str | None = None
    gpus_wanted: int | None = None
    gpu_memory_mib: int | None = None
    no_gpu_ok: bool = False
    gpu_uuids: tuple[str, ...] = ()
    worker: str | None = None
    host: str | None = None
    attempts: int = 0
    losses: int = 0
    retries: int = 0
    shape: str | None = None
    group: str | None = None
    held: str | None = None
    unique: str | None = None
    rank: int | None = None
    fence: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    submitted_ms: int | None = None
    queued_ms: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    cancel_requested: str | None = None
    release_requested: str | None = None
    after: Mapping[int, str] = field(default_factory=dict)
    parents_open: int = 0
    blocked_by: Mapping[int, str] = field(default_factory=dict)
    history: tuple[EndedRun, ...] = ()
    git: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether it has still to start."""
        return self.state in WAITING

    @property
    def running(self) -> bool:
        """Whether a worker has it."""
        return self.state == RUNNING

    @property
    def ended(self) -> bool:
        """Whether it will not change any more by itself."""
        return self.state in ENDED

    @property
    def succeeded(self) -> bool:
        """Whether its command exited with 0 and that was accepted."""
        return self.state == SUCCEEDED

    @property
    def need(self) -> Requirement | None:
        """What it asks of a device; None when its shape cannot be read."""
        return parse_shape(self.shape) if self.shape else None

    @property
    def submitted_at(self) -> str | None:
        """When it was submitted, RFC 3339 in UTC."""
        return rfc3339(self.submitted_ms)

    @property
    def started_at(self) -> str | None:
        """When its last run began, RFC 3339 in UTC."""
        return rfc3339(self.started_ms)

    @property
    def finished_at(self) -> str | None:
        """When it ended, RFC 3339 in UTC."""
        return rfc3339(self.finished_ms)

    def exit_status(self) -> int:
        """What a shell would see had it run the command itself: its code, 128 + signal, else 1; 0 for success.

        A time limit, a lost worker, a cancel and the like are 1: the code of a killed process says nothing there.
        """
        if self.succeeded:
            return 0
        if self.reason == "signal" and self.signal:
            return 128 + self.signal
        if self.reason in {"exit_code", "exception", "gpu_oom", "host_oom"} and self.exit_code:
            return self.exit_code
        return 1

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of a job."""
        return {
            "number": self.number,
            "name": self.name,
            "user": self.user,
            "submit_host": self.submit_host,
            "state": self.state,
            "reason": self.reason,
            "detail": self.detail,
            "waiting_for": self.waiting_for,
            "priority": self.priority,
            "model_type": self.model_type,
            "gpus_wanted": self.gpus_wanted,
            "gpu_memory_mib": self.gpu_memory_mib,
            "no_gpu_ok": self.no_gpu_ok,
            "gpu_uuids": list(self.gpu_uuids),
            "worker": self.worker,
            "host": self.host,
            "attempts": self.attempts,
            "losses": self.losses,
            "fence": self.fence,
            "exit_code": self.exit_code,
            "submitted_at": self.submitted_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "command": list(self.command),
            "tags": dict(self.tags),
            "description": self.description,
            "group": self.group,
            "unique": self.unique,
            "held": self.held,
            "parents": {str(parent): condition for parent, condition in self.after.items()},
            "due_at": rfc3339(self.due_ms),
            "expires_at": rfc3339(self.expires_ms),
            "git": dict(self.git) or None,
        }


def rfc3339(ms: int | None) -> str | None:
    """Epoch milliseconds as ``2026-11-30T16:25:01.123Z``; None stays None, and so does what no calendar has."""
    if ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def view(number: int, values: Mapping[str, bytes | None], spec: bytes | None, result: bytes | None) -> JobView:
    """Build the view of a job.

    Args:
        number: of the job.
        values: its hash; fields that are missing or empty count as unknown.
        spec: msgpack of what to run, None when gone.
        result: msgpack of what came out, None when there is none.
    """
    text = {name: read.text(value) for name, value in values.items()}
    ask, out = read.mapping(spec), read.mapping(result)
    seen = JobView(
        number=number,
        born=text.get("born") or "",
        state=text.get("state") or "unknown",
        signal=read.whole(out.get("signal")),
        spec=ask,
        result=out,
        name=read.string(ask.get("name")) or text.get("name"),
        user=text.get("user") or read.string(ask.get("user")),
        **_of_hash(text),
        **_of_spec(ask),
    )
    return _explained(seen)


def _of_hash(text: Mapping[str, str | None]) -> dict[str, Any]:
    words = ("reason", "detail", "worker", "host", "fence", "held", "unique", "cancel_requested", "release_requested")
    numbers = ("priority", "rank", "exit_code")
    counts = {"attempts": "attempts", "losses": "losses", "retries": "retries", "parents_open": "parents"}
    times = {"due_ms": "due_at", "expires_ms": "expires_at", "started_ms": "started_at", "finished_ms": "finished_at"}
    shape = text.get("shape") or ""
    need = parse_shape(shape) if shape else None
    found: dict[str, Any] = {name: text.get(name) for name in words}
    found |= {name: read.number(text.get(name)) for name in numbers}
    found |= {name: read.number(text.get(field)) or 0 for name, field in counts.items()}
    found |= {name: read.number(text.get(field)) for name, field in times.items()}
    return found | {
        "shape": shape.partition("@")[0] or None,
        "group": group_of(shape),
        "gpus_wanted": need.gpus if need else None,
        "gpu_memory_mib": (need.memory_mib or None) if need else None,
        "no_gpu_ok": need.no_gpu_ok if need else False,
        "gpu_uuids": tuple(part for part in (text.get("gpus") or "").split(",") if part),
        "submitted_ms": read.ms_of_tick(text.get("born")),
        "queued_ms": read.ms_of_tick(text.get("tick")),
    }


def _of_spec(ask: Mapping[str, Any]) -> dict[str, Any]:
    words = ("submit_host", "model_type", "description")
    found: dict[str, Any] = {name: read.string(ask.get(name)) for name in words}
    return found | {
        "command": read.strings(ask.get("argv")),
        "tags": read.texts(ask.get("tags")),
        "after": _parents(ask.get("after")),
        "git": _git(ask.get("git")),
    }


def ended_runs(entries: Iterable[bytes]) -> tuple[EndedRun, ...]:
    """Read the history of a job; what cannot be read is left out."""
    found = []
    for entry in entries:
        parts = entry.decode("utf-8", "surrogateescape").split("\n", 9)
        if len(parts) == 10:
            attempt, fence, started, ended, host, device, how, reason, code, detail = parts
            numbers = read.number(attempt), read.number(started), read.number(ended), read.number(code)
            found.append(
                EndedRun(numbers[0], fence, numbers[1], numbers[2], host, device, how, reason, numbers[3], detail)
            )
    return tuple(found)


def open_parents(edges: Mapping[str, str]) -> dict[int, str]:
    """Of the edges of a job, ``<condition>:<born>`` or ``met:…`` by parent, those it still waits for."""
    conditions = {parent: edge.partition(":")[0] for parent, edge in edges.items()}
    return _parents({parent: condition for parent, condition in conditions.items() if condition != "met"})


def _explained(job: JobView) -> JobView:
    """With a sentence for its end when the record has none."""
    if job.detail or not job.ended:
        return job
    if job.reason == "signal" and job.signal:
        detail = f"killed by {signal_name(job.signal)}"
    elif job.reason == "exit_code" and job.exit_code is not None:
        detail = f"exited with code {job.exit_code}"
    elif job.reason == "cancelled_by_user" and job.cancel_requested:
        detail = f"cancelled by {job.cancel_requested}"
    else:
        return job
    return JobView(**{**job.__dict__, "detail": detail})


def signal_name(number: int) -> str:
    """``SIGKILL (9)``."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def _parents(value: Any) -> dict[int, str]:
    """Conditions by number of the parent, in the order of the numbers."""
    if not isinstance(value, dict):
        return {}
    found = {read.number(str(parent)): read.string(condition) for parent, condition in value.items()}
    return {parent: found[parent] or "succeeded" for parent in sorted(number for number in found if number)}


def _git(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {name: value[name] for name in ("commit", "dirty", "branch") if isinstance(value.get(name), str | bool)}
