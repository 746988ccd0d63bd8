"""A job as it is shown: built from what Redis holds, tolerant of what it should not hold.

Pure: no server is asked. A malformed hash or spec gives a view with gaps, never an error, because one bad
record must not take the listing away.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from foxqueue import codec
from foxqueue.requirement import Requirement, parse_shape
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
    "exit_code",
)


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
    gpu_uuids: tuple[str, ...] = ()
    worker: str | None = None
    host: str | None = None
    attempts: int = 0
    losses: int = 0
    retries: int = 0
    shape: str | None = None
    rank: int | None = None
    fence: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    submitted_ms: int | None = None
    queued_ms: int | None = None
    due_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    cancel_requested: str | None = None
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
    text = {name: _text(value) for name, value in values.items()}
    ask, out = _map(spec), _map(result)
    state = text.get("state") or "unknown"
    need = parse_shape(text["shape"] or "") if text.get("shape") else None
    seen = JobView(
        number=number,
        born=text.get("born") or "",
        state=state,
        reason=text.get("reason"),
        name=_string(ask.get("name")) or text.get("name"),
        user=_string(ask.get("user")),
        submit_host=_string(ask.get("submit_host")),
        priority=_int(text.get("priority")),
        model_type=_string(ask.get("model_type")),
        gpus_wanted=need.gpus if need else None,
        gpu_memory_mib=(need.memory_mib or None) if need else None,
        gpu_uuids=tuple(part for part in (text.get("gpus") or "").split(",") if part),
        worker=text.get("worker"),
        host=text.get("host"),
        attempts=_int(text.get("attempts")) or 0,
        losses=_int(text.get("losses")) or 0,
        retries=_int(text.get("retries")) or 0,
        shape=text.get("shape"),
        rank=_int(text.get("rank")),
        fence=text.get("fence"),
        exit_code=_int(text.get("exit_code")),
        signal=_whole(out.get("signal")),
        submitted_ms=_ms_of_tick(text.get("born")),
        queued_ms=_ms_of_tick(text.get("tick")),
        due_ms=_int(text.get("due_at")),
        started_ms=_int(text.get("started_at")),
        finished_ms=_int(text.get("finished_at")),
        cancel_requested=text.get("cancel_requested"),
        command=_strings(ask.get("argv")),
        tags=_tags(ask.get("tags")),
        description=_string(ask.get("description")),
        spec=ask,
        result=out,
        detail=text.get("detail"),
    )
    return _explained(seen)


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


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "surrogateescape") if value else None


def _int(text: str | None) -> int | None:
    # at most 18 digits: longer ones are no number of ours, and int() would take long over megabytes of them
    if not text or len(text) > 19 or not text.lstrip("-").isascii() or not text.lstrip("-").isdigit():
        return None
    return int(text) if text.count("-") <= 1 else None


def _ms_of_tick(text: str | None) -> int | None:
    """A tick is the server's clock in us, or a little later."""
    return (_int(text) or 0) // 1000 or None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _map(data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        found = codec.unpack(data)
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str)} if isinstance(found, dict) else {}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(part if isinstance(part, str) else repr(part) for part in value) if isinstance(value, list) else ()


def _tags(value: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, dict) else {}
