"""The states of a job, the transitions between them, and the closed lists of reasons.

Pure data: the Lua files name a transition in their title line, and a test holds both against this page.
"""

from __future__ import annotations

from typing import Final

SCHEDULED: Final = "scheduled"
BLOCKED: Final = "blocked"
PENDING: Final = "pending"
RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

STATES: Final = (SCHEDULED, BLOCKED, PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED)
WAITING: Final = frozenset({SCHEDULED, BLOCKED, PENDING})
ENDED: Final = frozenset({SUCCEEDED, FAILED, CANCELLED})

# verb -> (states it starts from, states it leads to); "-" is "no job yet".
TRANSITIONS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "enqueue": (frozenset({"-"}), frozenset({PENDING, SCHEDULED, BLOCKED, CANCELLED})),
    "promote": (frozenset({SCHEDULED}), frozenset({PENDING, FAILED})),
    "expire": (WAITING, frozenset({CANCELLED})),
    "settle": (frozenset({BLOCKED}), frozenset({PENDING, SCHEDULED, CANCELLED})),
    "hold": (WAITING, frozenset({BLOCKED})),
    "unhold": (frozenset({BLOCKED}), WAITING),
    "reprioritize": (WAITING | {RUNNING}, WAITING | {RUNNING}),
    "claim": (frozenset({PENDING}), frozenset({RUNNING, FAILED})),
    "heartbeat": (frozenset({RUNNING}), frozenset({RUNNING})),
    "complete": (frozenset({RUNNING}), frozenset({SUCCEEDED, CANCELLED})),
    "fail": (frozenset({RUNNING}), frozenset({FAILED, SCHEDULED, CANCELLED})),
    "release": (frozenset({RUNNING}), frozenset({PENDING, SCHEDULED, FAILED, CANCELLED})),
    "lose": (frozenset({RUNNING}), frozenset({PENDING, FAILED, CANCELLED})),
    "reap": (frozenset({RUNNING}), frozenset({PENDING, FAILED, CANCELLED})),
    "requeue": (frozenset({FAILED, CANCELLED}), frozenset({PENDING, BLOCKED})),
    "purge": (ENDED, frozenset({"-"})),
    "cancel": (WAITING | {RUNNING}, frozenset({RUNNING, CANCELLED})),
    "dissolve": (WAITING, frozenset({"-", CANCELLED})),
}

# Scripts that change no job's state.
OTHER_SCRIPTS: Final = frozenset(
    {
        "configure",
        "register",
        "log",
        "sweep",
        "force_release",
        "open",
        "pause",
        "resume",
        "notice",
        "told",
        "import",
        "lease_acquire",
        "lease_wait",
        "lease_renew",
        "lease_release",
        "withhold",
        "clear",
        "forget",
    }
)

# Why a job ended.
END_REASONS: Final = frozenset(
    {
        "exit_code",
        "signal",
        "exception",
        "gpu_oom",
        "host_oom",
        "timeout",
        "worker_lost",
        "lease_lost",
        "launch_error",
        "bad_payload",
        "bad_result",
        "unsatisfiable",
        "expired",
        "dependency_failed",
        "cancelled_by_user",
        "shutdown",
        "poison",
    }
)

# Why a run was given back: its job waits again, the attempt not counted.
RELEASED: Final = frozenset({"worker_lost", "shutdown", "paused", "later", "quarantined"})

# What a waiting job waits for.
WAIT_REASONS: Final = frozenset(
    {
        "no_worker",
        "devices_busy",
        "no_matching_device",
        "memory",
        "occupied",
        "quarantined",
        "behind",
        "held",
        "held_for",
        "dependencies",
        "scheduled",
        "backoff",
        "paused",
        "limit",
        "share",
        "unsatisfiable",
    }
)

DEVICE_STATES: Final = ("free", "leased", "held", "occupied", "dirty", "quarantined", "paused", "unavailable")
WORKER_STATES: Final = ("starting", "idle", "busy", "draining", "lost")

# Ends that a retry may answer. The others are the user's wish, the queue's own judgement, or malformed.
RETRIED: Final = frozenset({"exit_code", "signal", "exception", "gpu_oom", "host_oom", "timeout"})
