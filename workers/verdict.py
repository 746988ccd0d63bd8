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
    """How a run ends.

    Attributes:
        reason: of the closed list.
        exit_code: the command's own, when it has one.
        value: what a call returned, packed.
        exception: what a call raised: type, message, traceback.
        no_room: the machine had no disk space to run it: no other is to be tried for a while.
    """

    verb: Verb
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    value: bytes = b""
    exception: Mapping[str, str] | None = None
    no_room: bool = False

    @property
    def retried(self) -> bool:
        """Whether another attempt may follow."""
        return self.verb == "fail" and self.reason in RETRIED


def judge(
    record: Mapping[str, Any] | None, time_limit_s: float | None = None, report: Mapping[str, Any] | None = None
) -> Verdict:
    """Judge a run.

    Args:
        record: the exit record, None when the runner left none: then the run was lost.
        time_limit_s: of the job, for the text.
        report: what a Python call left, empty when it left nothing; None for a command.
    """
    if record is None:
        # A call that has returned is over: it is not lost with its runner.
        returned = report is not None and ("value" in report or "exception" in report)
        return _of_call(report, None) if report is not None and returned else Verdict("lose")
    if record.get("no_room"):
        return Verdict("release", detail=str(record.get("error")), no_room=True)
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
            taken = "its device was taken from it: by an operator, or by another owner of the lease"
            return Verdict("fail", "lease_lost", taken, code)
        case "cancel":
            return Verdict("fail", "cancelled_by_user", _ending(record), code)
        case "timeout":
            limit = f" of {format_duration(time_limit_s)}" if time_limit_s else ""
            return Verdict("fail", "timeout", f"stopped at its time limit{limit}", code)
    if report is not None and (report or code == 0):
        return _of_call(report, code)
    if record.get("signal") is not None:
        return Verdict("fail", "signal", f"{_ending(record)}, not by the queue")
    if code == 0:
        return Verdict("complete", "exit_code", exit_code=0)
    return Verdict("fail", "exit_code", _ending(record), code)


def _of_call(report: Mapping[str, Any], code: int | None) -> Verdict:
    """What a call says itself; it counts although its interpreter may have crashed on its way out."""
    if "value" in report:
        return Verdict("complete", "exit_code", exit_code=0, value=report["value"])
    if "exception" in report:
        exception = report["exception"]
        message = " ".join(exception["message"].split())
        return Verdict("fail", "exception", f"{exception['type']}: {message}", code, exception=exception)
    for reason, text in report.items():
        return Verdict("fail", reason, text, code)
    return Verdict("fail", "bad_result", "it ended without returning: by os._exit, or as another program", code)


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
