"""The view of a job, from good and from bad records."""

from __future__ import annotations

import json

import pytest

from foxqueue.codec import pack
from foxqueue.job import EndedRun, JobView, ended_runs, open_parents, rfc3339, view

HASH = {
    "state": b"failed",
    "reason": b"exit_code",
    "detail": b"",
    "name": b"sweep",
    "shape": b"g1.m8192@lr-sweep",
    "priority": b"8",
    "born": b"1796056706600611",
    "fence": b"1796056706600612",
    "attempts": b"2",
    "losses": b"1",
    "retries": b"1",
    "started_at": b"1796056706600",
    "finished_at": b"1796056707630",
    "worker": b"w",
    "host": b"h",
    "gpus": b"GPU-1,GPU-2",
    "exit_code": b"3",
}
SPEC = pack(
    {
        "v": 1,
        "argv": ["python", "train.py", "", "a b", "\udcff"],
        "cwd": "/w",
        "tags": {"model": "dqn"},
        "user": "alice",
        "submit_host": "desk",
        "description": "a sweep",
        "model_type": "dqn",
        "name": "sweep of a long name",
    }
)
FIELDS = [
    "number",
    "name",
    "user",
    "submit_host",
    "state",
    "reason",
    "detail",
    "waiting_for",
    "priority",
    "model_type",
    "gpus_wanted",
    "gpu_memory_mib",
    "no_gpu_ok",
    "gpu_uuids",
    "worker",
    "host",
    "attempts",
    "losses",
    "fence",
    "exit_code",
    "submitted_at",
    "started_at",
    "finished_at",
    "command",
    "tags",
    "description",
    "group",
    "unique",
    "held",
    "parents",
    "due_at",
    "expires_at",
    "git",
]


def test_the_json_object_has_its_fields_in_order() -> None:
    found = view(7, HASH, SPEC, None).to_dict()
    assert list(found) == FIELDS
    assert found["number"] == 7
    assert found["name"] == "sweep of a long name"
    assert found["detail"] == "exited with code 3"
    assert (found["gpus_wanted"], found["gpu_memory_mib"]) == (1, 8192)
    assert found["gpu_uuids"] == ["GPU-1", "GPU-2"]
    assert found["command"] == ["python", "train.py", "", "a b", "\udcff"]
    assert found["submitted_at"] == "2026-11-30T16:38:26.600Z"
    assert found["finished_at"] == "2026-11-30T16:38:27.630Z"
    json.dumps(found)


@pytest.mark.parametrize(
    ("values", "spec", "result"),
    [
        ({}, None, None),
        ({"state": b"\xff\xfe", "priority": b"x", "attempts": b"1.5", "born": b"9" * 400}, b"\xc1", b"\x81"),
        ({**HASH, "born": b"999999999999999999", "shape": b"g9.z1", "priority": b"--1"}, pack([1, 2]), pack(3)),
        (HASH, pack({"argv": "text", "tags": [1], "user": 5, 7: 8}), pack({"signal": "nine"})),
        (HASH, pack({"after": [1], "git": "x"}), None),
        ({"parents": b"many", "due_at": b"soon"}, pack({"after": {"x": 1, "-3": "any", "8": 5}, "git": {1: 2}}), None),
    ],
)
def test_a_malformed_record_gives_a_view_with_gaps(
    values: dict[str, bytes | None], spec: bytes | None, result: bytes | None
) -> None:
    found = view(1, values, spec, result)
    assert list(found.to_dict()) == FIELDS
    json.dumps(found.to_dict())
    found.exit_status()


@pytest.mark.parametrize(
    ("state", "reason", "code", "signal", "status"),
    [
        ("succeeded", "exit_code", 0, None, 0),
        ("failed", "exit_code", 3, None, 3),
        ("failed", "signal", None, 9, 137),
        ("failed", "timeout", None, 15, 1),
        ("failed", "worker_lost", None, None, 1),
        ("failed", "launch_error", None, None, 1),
        ("cancelled", "cancelled_by_user", 0, None, 1),
        ("failed", "host_oom", 77, None, 77),
    ],
)
def test_the_exit_status_is_what_a_shell_would_see(
    state: str, reason: str, code: int | None, signal: int | None, status: int
) -> None:
    assert JobView(1, "1", state, reason=reason, exit_code=code, signal=signal).exit_status() == status


def test_times_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1796056706007) == "2026-11-30T16:38:26.007Z"
    assert rfc3339(None) is None
    assert rfc3339(10**18) is None


def test_what_a_job_waits_for_and_belongs_to_is_shown() -> None:
    values = {
        "state": b"blocked",
        "shape": b"g1.m8192@lr-sweep",
        "user": b"ann",
        "parents": b"1",
        "held": b"bob",
        "due_at": b"1796056706600",
        "expires_at": b"1796056707600",
        "unique": b"nightly",
        "release_requested": b"paused",
    }
    git = {"commit": "0d8b73fe", "dirty": True, "branch": "main", "more": 1}
    spec = {"user": "alice", "after": {"42": "any", "7": "succeeded"}, "git": git}
    found = view(9, values, pack(spec), None)
    assert (found.shape, found.group, found.user, found.release_requested) == ("g1.m8192", "lr-sweep", "ann", "paused")
    assert found.waiting and found.need is not None and found.need.memory_mib == 8192
    assert list(found.after.items()) == [(7, "succeeded"), (42, "any")] and found.parents_open == 1
    shown = found.to_dict()
    assert (shown["group"], shown["unique"], shown["held"]) == ("lr-sweep", "nightly", "bob")
    assert shown["parents"] == {"7": "succeeded", "42": "any"}
    assert (shown["due_at"], shown["expires_at"]) == ("2026-11-30T16:38:26.600Z", "2026-11-30T16:38:27.600Z")
    assert shown["git"] == {"commit": "0d8b73fe", "dirty": True, "branch": "main"}


def test_only_parents_that_still_count_block() -> None:
    edges = {"41": "succeeded:1796056706600611", "9": "any:1", "40": "met:succeeded:2", "x": "any:3", "8": ""}
    assert open_parents(edges) == {8: "succeeded", 9: "any", 41: "succeeded"}


def test_the_history_of_a_job_is_read_as_far_as_it_can_be() -> None:
    first = b"1\n77\n1000\n2000\nbox\nGPU-1\nfail\nexit_code\n3\nexited with code 3"
    second = b"x\n78\n\n\n\n\nreap\nworker_lost\n\ntwo\nlines \xff"
    assert ended_runs([first, b"broken", second]) == (
        EndedRun(1, "77", 1000, 2000, "box", "GPU-1", "fail", "exit_code", 3, "exited with code 3"),
        EndedRun(None, "78", None, None, "", "", "reap", "worker_lost", None, "two\nlines \udcff"),
    )
