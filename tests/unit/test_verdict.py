"""Every way a run can end has one reason of the closed list."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from foxqueue.states import END_REASONS
from workers.verdict import judge


def record(**fields: Any) -> dict[str, Any]:
    return {"exit_code": None, "signal": None, "core": False, "why": None, "error": None, **fields}


@pytest.mark.parametrize(
    ("given", "verb", "reason"),
    [
        (record(exit_code=0), "complete", "exit_code"),
        (record(exit_code=3), "fail", "exit_code"),
        (record(exit_code=255), "fail", "exit_code"),
        (record(signal=signal.SIGSEGV, core=True), "fail", "signal"),
        (record(signal=signal.SIGKILL), "fail", "signal"),
        (record(error="no such command"), "fail", "launch_error"),
        (record(signal=signal.SIGTERM, why="timeout"), "fail", "timeout"),
        (record(exit_code=0, why="timeout"), "fail", "timeout"),
        (record(exit_code=0, why="cancel"), "fail", "cancelled_by_user"),
        (record(signal=signal.SIGKILL, why="lease_lost"), "fail", "lease_lost"),
        (record(exit_code=0, why="shutdown"), "release", ""),
        (record(signal=signal.SIGTERM, why="worker_lost"), "lose", ""),
        (record(signal=signal.SIGTERM, why="takeover"), "lose", ""),
        (record(signal=signal.SIGTERM, why="stale"), "nothing", ""),
        (None, "lose", ""),
    ],
)
def test_verdicts(given: dict[str, Any] | None, verb: str, reason: str) -> None:
    verdict = judge(given, 2.0)
    assert (verdict.verb, verdict.reason) == (verb, reason)
    assert not reason or reason in END_REASONS


def test_an_exit_code_is_the_commands_own() -> None:
    assert judge(record(exit_code=7)).exit_code == 7
    assert judge(record(signal=9)).exit_code is None
    assert judge(record(signal=9)).detail == "killed by SIGKILL, not by the queue"
    assert judge(record(signal=11, core=True)).detail.startswith("killed by SIGSEGV (core dumped)")
    assert judge(record(signal=15, why="timeout"), 1800).detail == "stopped at its time limit of 30m00s"


@pytest.mark.parametrize("reason_given", [record(exit_code=1), record(signal=9), record(exit_code=0, why="timeout")])
def test_the_jobs_own_failures_are_retried(reason_given: dict[str, Any]) -> None:
    assert judge(reason_given).retried


@pytest.mark.parametrize(
    "reason_given", [record(exit_code=0), record(error="x"), record(why="cancel"), record(why="lease_lost"), None]
)
def test_nothing_else_is(reason_given: dict[str, Any] | None) -> None:
    assert not judge(reason_given).retried
