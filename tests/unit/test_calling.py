"""A call's specification and its report are read without trust: both were written by somebody else's code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from foxqueue.codec import pack, unpack
from workers.calling import command, put_down, take_report
from workers.plan import BadPayload, read_plan

CALL: dict[str, Any] = {"module": "m", "script": None, "qualname": "f", "python": "/usr/bin/python3", "data": b"\x90"}
SPEC = {"v": 1, "argv": ["m:f()"], "cwd": "/", "umask": 0o022, "env": {}, "time_limit_s": None, "visible": "index"}


def test_a_plan_has_the_call() -> None:
    assert read_plan(pack(SPEC)).call is None
    assert read_plan(pack({**SPEC, "call": CALL})).call == {**CALL, "beside": None}
    script = {**CALL, "module": None, "script": "/a/\udcff.py", "python": None}
    assert read_plan(pack({**SPEC, "call": {**script, "more": 1}})).call == {**script, "beside": None}


@pytest.mark.parametrize(
    "wrong",
    [
        {"module": None},
        {"script": "/a.py"},
        {"module": 5},
        {"qualname": None},
        {"data": "text"},
        {"python": 1},
        {"module": ["m"]},
    ],
)
def test_a_malformed_call_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadPayload):
        read_plan(pack({**SPEC, "call": {**CALL, **wrong}}))
    with pytest.raises(BadPayload):
        read_plan(pack({**SPEC, "call": list(wrong)}))


def test_what_is_put_down(tmp_path: Path) -> None:
    put_down(CALL, tmp_path)
    assert unpack((tmp_path / "call.msgpack").read_bytes()) == CALL
    assert (tmp_path / ".return.msgpack.tmp").stat().st_blocks * 512 >= 32 * 1024
    assert take_report(tmp_path, 100) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["call.msgpack"]


@pytest.mark.parametrize("python", [None, "", "python3", "/no/such", "/", "/etc/passwd", "/bad\0name"])
def test_an_interpreter_that_cannot_be_run_is_not_taken(python: str | None) -> None:
    argv = command({**CALL, "python": python}, Path("/run"), 5)
    assert (Path(argv[0]).is_absolute(), Path(argv[0]).name.startswith("python")) == (True, True)
    assert (Path(argv[1]).name, argv[2:]) == ("call.py", ["/run", "5"])


EXCEPTION = {"type": "E", "message": "m", "traceback": "t"}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"value": b"12345"}, {"value": b"12345"}),
        ({"exception": EXCEPTION}, {"exception": EXCEPTION}),
        ({"exception": {**EXCEPTION, "more": 1}}, {"exception": EXCEPTION}),
        ({"bad_payload": "text"}, {"bad_payload": "text"}),
        ({"launch_error": "text"}, {"launch_error": "text"}),
    ],
)
def test_a_report(tmp_path: Path, report: dict[str, Any], expected: dict[str, Any]) -> None:
    (tmp_path / "return.msgpack").write_bytes(pack(report))
    assert take_report(tmp_path, 5) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([]),
        pack({}),
        pack({"value": "text"}),
        pack({"value": b"123456"}),
        pack({"exception": {"type": "E"}}),
        pack({"succeeded": "yes"}),
        pack({"value": bytes(100_000)}),
    ],
)
def test_a_malformed_report_is_a_bad_result(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "return.msgpack").write_bytes(data)
    assert list(take_report(tmp_path, 5)) == ["bad_result"]


def test_what_is_no_file_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "return.msgpack")
    assert "no regular file" in take_report(tmp_path, 5)["bad_result"]
    (tmp_path / "return.msgpack").unlink()
    (tmp_path / "return.msgpack").symlink_to("/dev/zero")
    assert list(take_report(tmp_path, 5)) == ["bad_result"]
    (tmp_path / "return.msgpack").unlink()
    (tmp_path / "return.msgpack").mkdir()
    assert list(take_report(tmp_path, 5)) == ["bad_result"]
