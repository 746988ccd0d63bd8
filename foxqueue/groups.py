"""Groups of jobs as the queue sees them: what they may do, and what has become of their jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foxqueue import read

# The fields of a group's hash that a view reads, in the order of HMGET.
FIELDS: Final = (
    "created_at",
    "by",
    "filling",
    "paused",
    "max_concurrent",
    "max_fails",
    "total",
    "running",
    "succeeded",
    "failed",
    "cancelled",
)


@dataclass(frozen=True)
class GroupView:
    """A group of jobs at one moment. Times are epoch milliseconds.

    Attributes:
        by: who began it.
        filling: whether its jobs are still being enqueued: until all are, nobody sees them and none runs.
        paused: by whom and why it was paused; None when it was not.
        max_concurrent: how many of its jobs may run at once; 0 for any number.
        max_fails: how many failures in a row, of one reason, pause it; 0 for any number.
        total: its jobs, those that have ended too.
    """

    name: str
    created_ms: int | None = None
    by: str = ""
    filling: bool = False
    paused: str | None = None
    max_concurrent: int = 0
    max_fails: int = 0
    total: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def waiting(self) -> int:
        """How many of its jobs have still to start."""
        return max(self.total - self.running - self.succeeded - self.failed - self.cancelled, 0)

    @property
    def full(self) -> bool:
        """Whether as many of its jobs run as may run at once."""
        return 0 < self.max_concurrent <= self.running

    @property
    def held_back(self) -> bool:
        """Whether none of its jobs may start now."""
        return self.filling or self.full or self.paused is not None

    @property
    def state(self) -> str:
        """``open``, ``paused``, or ``filling`` while its jobs are still being enqueued."""
        if self.filling:
            return "filling"
        return "paused" if self.paused is not None else "open"


def group_view(name: str, values: Mapping[str, bytes | None]) -> GroupView | None:
    """Build the view of a group.

    Args:
        name: of the group.
        values: its hash; fields that are missing or empty count as unknown.

    Returns:
        The view; None where there is no such group.
    """
    if not any(values.values()):
        return None
    text = {field: read.text(value) for field, value in values.items()}
    numbers = ("max_concurrent", "max_fails", "total", "running", "succeeded", "failed", "cancelled")
    counts = {field: max(read.number(text.get(field)) or 0, 0) for field in numbers}
    return GroupView(
        name,
        created_ms=read.number(text.get("created_at")),
        by=text.get("by") or "",
        filling=bool(text.get("filling")),
        paused=text.get("paused"),
        **counts,
    )


def group_dict(group: GroupView, created_at: str | None) -> dict[str, Any]:
    """The JSON object of a group."""
    return {
        "name": group.name,
        "created_at": created_at,
        "by": group.by or None,
        "state": group.state,
        "paused": group.paused,
        "max_concurrent": group.max_concurrent or None,
        "max_fails": group.max_fails or None,
        "total": group.total,
        "waiting": group.waiting,
        "running": group.running,
        "succeeded": group.succeeded,
        "failed": group.failed,
        "cancelled": group.cancelled,
    }
