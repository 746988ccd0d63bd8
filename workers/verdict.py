"""What a run's exit record means for the queue: which script ends the run, and with which reason. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from foxqueue.ending import Verdict
from foxqueue.retry import LATER
from foxqueue.units import format_duration

STOPPED = "its worker was stopped"
OVER = "it had more GPU memory than it declared"
PAUSED = "the queue, its group or its device was paused"


def judge(
    record: Mapping[str, Any] | None,
    time_limit_s: float | None = None,
    report: Mapping[str, Any] | None = None,
    paused: str = "",
    over_memory: str = "",
) -> Verdict:
    """Judge a run.

    Args:
        record: the exit record, None when the runner left none: then the run was lost.
        time_limit_s: of the job, for the text.
        report: what a Python call left, empty when it left nothing; None for a command.
        paused: by whom and why the run was asked back, when it was.
        over_memory: how much more GPU memory it had than it declared, when it was ended for that.
    """
    if record is None:
        # A call that has returned is over: it is not lost with its runner.
        returned = report is not None and ("value" in report or "exception" in report)
        return _of_call(report, None) if report is not None and returned else Verdict("lose")
    if record.get("no_room"):
        return Verdict("release", "shutdown", str(record.get("error")), no_room=True)
    if record.get("error"):
        return Verdict("fail", "launch_error", str(record["error"]))
    code = record.get("exit_code")
    match record.get("why"):
        case "worker_lost" | "takeover":
            return Verdict("lose")
        case "stale":
            return Verdict("nothing")
        case "shutdown":
            return Verdict("release", "shutdown", STOPPED)
        case "paused":
            return Verdict("release", "paused", paused or PAUSED)
        case "lease_lost":
            taken = "its device was taken from it: by an operator, or by another owner of the lease"
            return Verdict("fail", "lease_lost", taken, code)
        case "cancel":
            return Verdict("fail", "cancelled_by_user", _ending(record), code)
        case "over_memory":
            return Verdict("fail", "gpu_oom", f"ended by --enforce-memory: {over_memory or OVER}", code)
        case "timeout":
            limit = f" of {format_duration(time_limit_s)}" if time_limit_s else ""
            return Verdict("fail", "timeout", f"stopped at its time limit{limit}", code)
    if report is not None and (report or code == 0):
        return _of_call(report, code)
    if record.get("signal") is not None:
        return Verdict("fail", "signal", f"{_ending(record)}, not by the queue")
    if code == 0:
        return Verdict("complete", "exit_code", exit_code=0)
    if code == LATER:
        return Verdict("release", "later", f"exited with {LATER}: later", code)
    return Verdict("fail", "exit_code", _ending(record), code)


def _of_call(report: Mapping[str, Any], code: int | None) -> Verdict:
    """What a call says itself; it counts although its interpreter may have crashed on its way out."""
    if "value" in report:
        return Verdict("complete", "exit_code", exit_code=0, value=report["value"])
    if "exception" in report:
        exception = report["exception"]
        text = f"{exception['type']}: {' '.join(exception['message'].split())}"
        wish, delay_s = report.get("wish", ""), report.get("delay_s")
        return Verdict("fail", "exception", text, code, exception=exception, wish=wish, delay_s=delay_s)
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
