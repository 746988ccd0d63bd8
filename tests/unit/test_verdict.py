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
        (record(exit_code=75), "release", "later"),
        (record(exit_code=75, why="timeout"), "fail", "timeout"),
        (record(exit_code=75, why="cancel"), "fail", "cancelled_by_user"),
        (record(exit_code=75, why="shutdown"), "release", "shutdown"),
        (record(exit_code=0, why="shutdown"), "release", "shutdown"),
        (record(signal=signal.SIGTERM, why="paused"), "release", "paused"),
        (record(signal=signal.SIGTERM, why="worker_lost"), "lose", ""),
        (record(signal=signal.SIGTERM, why="takeover"), "lose", ""),
        (record(signal=signal.SIGTERM, why="stale"), "nothing", ""),
        (None, "lose", ""),
    ],
)
def test_verdicts(given: dict[str, Any] | None, verb: str, reason: str) -> None:
    verdict = judge(given, 2.0)
    assert (verdict.verb, verdict.reason) == (verb, reason)
    assert not reason or verb == "release" or reason in END_REASONS


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
        (record(exit_code=75), {}, "release", "later"),
        (record(exit_code=75), {"value": b"1"}, "complete", "exit_code"),
        (record(exit_code=75), RAISED, "fail", "exception"),
        (record(exit_code=0, why="shutdown"), {"value": b"1"}, "release", "shutdown"),
        (record(exit_code=0, why="paused"), {"value": b"1"}, "release", "paused"),
        (record(exit_code=1, why="takeover"), RAISED, "lose", ""),
        (record(exit_code=0, why="stale"), {"value": b"1"}, "nothing", ""),
    ],
)
def test_verdicts_of_calls(given: dict[str, Any] | None, report: dict[str, Any], verb: str, reason: str) -> None:
    verdict = judge(given, 2.0, report)
    assert (verdict.verb, verdict.reason) == (verb, reason)
    assert verdict.value == (b"1" if verb == "complete" else b"")
    assert verdict.exception == (RAISED["exception"] if reason == "exception" else None)


def test_what_a_call_raised_is_the_detail_and_what_it_wishes_goes_along() -> None:
    verdict = judge(record(exit_code=1), None, RAISED)
    assert (verdict.detail, verdict.exit_code) == ("ValueError: no way", 1)
    assert (verdict.wish, verdict.delay_s) == ("", None)
    for wish in ({"wish": "retry", "delay_s": 5.0}, {"wish": "retry", "delay_s": None}, {"wish": "fail"}):
        verdict = judge(record(exit_code=1), None, {**RAISED, **wish})
        assert (verdict.wish, verdict.delay_s) == (wish["wish"], wish.get("delay_s"))
        assert verdict.exception == RAISED["exception"]
    assert judge(None, None, {**RAISED, "wish": "fail"}).wish == "fail"
    assert judge(record(exit_code=1, why="timeout"), None, {**RAISED, "wish": "fail"}).wish == ""


def test_a_full_disk_is_no_failure_of_the_job() -> None:
    verdict = judge(record(error="no space", no_room=True))
    assert (verdict.verb, verdict.detail, verdict.no_room) == ("release", "no space", True)


def test_a_run_that_was_asked_back_says_why() -> None:
    assert judge(record(signal=15, why="paused"), paused="paused by ada: update").detail == "paused by ada: update"
    assert judge(record(signal=15, why="paused")).detail == "the queue, its group or its device was paused"
    assert judge(record(exit_code=75)).detail == "exited with 75: later"
