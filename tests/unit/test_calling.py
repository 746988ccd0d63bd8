"""A call's specification and its report are read without trust: both were written by somebody else's code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from foxqueue import Fail, Retry
from foxqueue.codec import pack, unpack
from foxqueue.plan import BadPayload, read_plan
from foxqueue.rundirs import files_dir, make_run_dir, put_config, put_script, script_path
from workers.call import described
from workers.calling import command, put_down, take_report

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


def test_a_plan_has_what_few_jobs_have() -> None:
    plain = read_plan(pack(SPEC))
    assert (plain.retry_on, plain.retry_cap_s, plain.config, plain.script) == (None, 3600.0, None, None)
    more = {"retry_on": ["exit_code", "3"], "retry_cap_s": 60, "config": '{"lr": 1}', "script": b"#!/bin/sh\n"}
    plan = read_plan(pack({**SPEC, **more}))
    assert (plan.retry_on, plan.retry_cap_s) == (("exit_code", "3"), 60.0)
    assert (plan.config, plan.script) == ('{"lr": 1}', b"#!/bin/sh\n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry_on": "exit_code"},
        {"retry_on": [3]},
        {"retry_on": {}},
        {"retry_cap_s": "1h"},
        {"retry_cap_s": True},
        {"config": {"lr": 1}},
        {"config": b"{}"},
        {"script": "text"},
    ],
)
def test_a_malformed_plan_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadPayload):
        read_plan(pack({**SPEC, **wrong}))


class Slotted(Exception):
    __slots__ = ("delay",)


def _wish(kind: str, **attributes: Any) -> Exception:
    error = type(kind.title(), (Exception,), {"__foxqueue__": kind})("not yet")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def test_what_a_function_wishes_is_told_whatever_foxqueue_its_class_is_of() -> None:
    assert "wish" not in described(ValueError("no"))
    for error, wish, delay in (
        (Retry(2.5, "no data yet"), "retry", "2.5"),
        (Retry(), "retry", None),
        (Fail("no such file"), "fail", None),
        (_wish("retry", delay=3), "retry", "3.0"),
        (_wish("retry"), "retry", None),
        (_wish("fail", delay=3), "fail", None),
    ):
        found = described(error)
        assert (found["wish"], found.get("delay")) == (wish, delay)
        assert all(isinstance(text, str) for text in found.values())


@pytest.mark.parametrize("error", [_wish("retry", delay="soon"), _wish("retry", delay=[]), _wish("stay"), Slotted()])
def test_a_wish_that_cannot_be_read_is_none(error: Exception) -> None:
    assert "wish" not in described(error)


def test_a_class_that_raises_when_it_is_looked_at_wishes_nothing() -> None:
    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            raise RuntimeError(name)

    class Odd(Exception, metaclass=Meta):
        pass

    assert "wish" not in described(Odd())


def test_a_configuration_replaces_what_an_earlier_run_left(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path, "a", 1, 2, 3)
    place = files_dir(run_dir)
    put_config(run_dir, '{"lr": 1}')
    assert (place / "config.json").stat().st_mode & 0o777 == 0o600
    with (place / "config.json").open() as reader:
        put_config(run_dir, '{"lr": 2}')
        assert (reader.read(), (place / "config.json").read_text()) == ('{"lr": 1}', '{"lr": 2}')
    (place / "config.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (place / "config.json").symlink_to(elsewhere)
    (place / ".config.json.tmp").symlink_to(elsewhere)
    put_config(run_dir, '{"lr": 3}')
    assert ((place / "config.json").read_text(), elsewhere.read_text()) == ('{"lr": 3}', "kept")
    assert [path.name for path in place.iterdir()] == ["config.json"]


def test_a_kept_script_is_for_its_user_to_execute(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path, "a", 1, 2, 3)
    put_script(run_dir, b"#!/bin/sh\necho \xff\n")
    assert script_path(run_dir).read_bytes() == b"#!/bin/sh\necho \xff\n"
    assert script_path(run_dir).stat().st_mode & 0o777 == 0o700


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
        ({"exception": {**EXCEPTION, "wish": "fail"}}, {"exception": EXCEPTION, "wish": "fail"}),
        ({"exception": {**EXCEPTION, "wish": "retry"}}, {"exception": EXCEPTION, "wish": "retry"}),
        (
            {"exception": {**EXCEPTION, "wish": "retry", "delay": "2.5"}},
            {"exception": EXCEPTION, "wish": "retry", "delay_s": 2.5},
        ),
        (
            {"exception": {**EXCEPTION, "wish": "retry", "delay": "1e300"}},
            {"exception": EXCEPTION, "wish": "retry", "delay_s": 365 * 86400.0},
        ),
        *(
            ({"exception": {**EXCEPTION, "wish": "retry", "delay": odd}}, {"exception": EXCEPTION, "wish": "retry"})
            for odd in ("nan", "-1", "soon", "", [], {}, None)
        ),
        *(({"exception": {**EXCEPTION, "wish": odd}}, {"exception": EXCEPTION}) for odd in ("stay", "", 1, [], None)),
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
