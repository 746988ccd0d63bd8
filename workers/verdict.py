"""What a run's exit record means for the queue: which script ends the run, and with which reason. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foxqueue.states import RETRIED
from foxqueue.units import format_duration

Verb = Literal["complete", "fail", "release", "lose", "nothing"]


@dataclass(frozen=True)
class Verdict:
    """How a run ends. ``reason`` is of the closed list; ``exit_code`` is the command's own, when it has one."""

    verb: Verb
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None

    @property
    def retried(self) -> bool:
        """Whether another attempt may follow."""
        return self.verb == "fail" and self.reason in RETRIED


def judge(record: Mapping[str, Any] | None, time_limit_s: float | None = None) -> Verdict:
    """Judge a run.

    Args:
        record: the exit record, None when the runner left none: then the run was lost.
        time_limit_s: of the job, for the text.
    """
    if record is None:
        return Verdict("lose")
    if record.get("error"):
        return Verdict("fail", "launch_error", str(record["error"]))
    code = record.get("exit_code")
    match record.get("why"):
        case "worker_lost" | "takeover":
            return Verdict("lose")
        case "stale":
            return Verdict("nothing")
        case "shutdown":
            return Verdict("release", detail="its worker was stopped")
        case "lease_lost":
            return Verdict("fail", "lease_lost", "the device's lease went to another owner", code)
        case "cancel":
            return Verdict("fail", "cancelled_by_user", _ending(record), code)
        case "timeout":
            limit = f" of {format_duration(time_limit_s)}" if time_limit_s else ""
            return Verdict("fail", "timeout", f"stopped at its time limit{limit}", code)
    if record.get("signal") is not None:
        return Verdict("fail", "signal", f"{_ending(record)}, not by the queue")
    if code == 0:
        return Verdict("complete", "exit_code", exit_code=0)
    return Verdict("fail", "exit_code", _ending(record), code)


def _ending(record: Mapping[str, Any]) -> str:
    number = record.get("signal")
    if number is None and record.get("exit_code") is None:
        return "ended before it started"
    if number is None:
        return f"exited with {record.get('exit_code')}"
    try:
        name = signal.Signals(int(number)).name
    except ValueError:
        name = f"signal {number}"
    return f"killed by {name}" + (" (core dumped)" if record.get("core") else "")
