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


RAISED = {"exception": {"type": "ValueError", "message": "no\n way", "traceback": "…"}}


@pytest.mark.parametrize(
    ("given", "report", "verb", "reason"),
    [
        (record(exit_code=0), {"value": b"1"}, "complete", "exit_code"),
        (record(signal=signal.SIGSEGV), {"value": b"1"}, "complete", "exit_code"),
        (record(exit_code=120), {"value": b"1"}, "complete", "exit_code"),
        (record(exit_code=1), RAISED, "fail", "exception"),
        (record(signal=signal.SIGABRT), RAISED, "fail", "exception"),
        (record(exit_code=1), {"bad_result": "too large"}, "fail", "bad_result"),
        (record(exit_code=1), {"bad_payload": "no arguments"}, "fail", "bad_payload"),
        (record(exit_code=1), {"launch_error": "no msgpack"}, "fail", "launch_error"),
        (record(exit_code=0), {}, "fail", "bad_result"),
        (record(exit_code=2), {}, "fail", "exit_code"),
        (record(signal=signal.SIGKILL), {}, "fail", "signal"),
        (record(error="no such command"), {}, "fail", "launch_error"),
        (None, {"value": b"1"}, "complete", "exit_code"),
        (None, RAISED, "fail", "exception"),
        (None, {"bad_result": "too large"}, "lose", ""),
        (None, {}, "lose", ""),
        (record(exit_code=0, why="cancel"), {"value": b"1"}, "fail", "cancelled_by_user"),
        (record(exit_code=1, why="timeout"), RAISED, "fail", "timeout"),
        (record(exit_code=0, why="lease_lost"), {"value": b"1"}, "fail", "lease_lost"),
        (record(exit_code=0, why="shutdown"), {"value": b"1"}, "release", ""),
        (record(exit_code=1, why="takeover"), RAISED, "lose", ""),
        (record(exit_code=0, why="stale"), {"value": b"1"}, "nothing", ""),
    ],
)
def test_verdicts_of_calls(given: dict[str, Any] | None, report: dict[str, Any], verb: str, reason: str) -> None:
    verdict = judge(given, 2.0, report)
    assert (verdict.verb, verdict.reason) == (verb, reason)
    assert verdict.value == (b"1" if verb == "complete" else b"")
    assert verdict.exception == (RAISED["exception"] if reason == "exception" else None)


def test_what_a_call_raised_is_the_detail_and_is_retried() -> None:
    verdict = judge(record(exit_code=1), None, RAISED)
    assert (verdict.detail, verdict.exit_code, verdict.retried) == ("ValueError: no way", 1, True)
    assert not judge(record(exit_code=1), None, {"bad_result": "x"}).retried


def test_a_full_disk_is_no_failure_of_the_job() -> None:
    verdict = judge(record(error="no space", no_room=True))
    assert (verdict.verb, verdict.detail, verdict.no_room) == ("release", "no space", True)


@pytest.mark.parametrize("reason_given", [record(exit_code=1), record(signal=9), record(exit_code=0, why="timeout")])
def test_the_jobs_own_failures_are_retried(reason_given: dict[str, Any]) -> None:
    assert judge(reason_given).retried


@pytest.mark.parametrize(
    "reason_given", [record(exit_code=0), record(error="x"), record(why="cancel"), record(why="lease_lost"), None]
)
def test_nothing_else_is(reason_given: dict[str, Any] | None) -> None:
    assert not judge(reason_given).retried
