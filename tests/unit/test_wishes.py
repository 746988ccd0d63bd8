"""What can be asked for besides a command: parents, times, keys, groups, retries, notices, configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foxqueue.codec import unpack
from foxqueue.errors import InvalidInput
from foxqueue.job_config import MAX_BYTES, as_json, read
from foxqueue.parents import MAX_PARENTS
from foxqueue.states import RETRIED
from foxqueue.submission import Submission, prepare, user
from foxqueue.wishes import is_url


def submitted(**options: Any) -> Submission:
    return prepare(["true"], {"cwd": "/", **options}, {})


def spec_of(**options: Any) -> Any:
    return unpack(submitted(**options).spec)


def handle(number: object, born: object = "1796056706600000") -> Any:
    return SimpleNamespace(number=number, born=born)


# What is asked for


def test_a_plain_job_says_nothing_more() -> None:
    found = submitted()
    assert found.job(5) == ("", "g1", 5, 0, 10_000, found.spec, "")
    assert set(unpack(found.spec)) == {"v", "argv", "cwd", "umask", "submit_host", "user"}
    assert found.user == user()


def test_all_that_a_job_can_ask_for_reaches_the_queue() -> None:
    found = submitted(
        after=[41, handle(42), 41],
        after_any=43,
        after_failed=handle(44, ""),
        delay="10m",
        expires="6h",
        unique="nightly = 1",
        if_exists="replace",
        group="sweep-lr",
        gpu_memory="8G",
        hold=True,
        notify="mail -s done ann",
    )
    assert submitted(after="41,43-45").more == submitted(after=[41, 43, 44, 45]).more
    job = found.job(5)
    assert job.shape == "g1.m8192@sweep-lr"
    assert sorted(job.more.splitlines()) == sorted(
        [
            "after=41::succeeded",
            "after=42:1796056706600000:succeeded",
            "after=43::any",
            "after=44::failed",
            "delay_ms=600000",
            "expires_ms=21600000",
            "unique=nightly = 1",
            "exists=replace",
            f"held={user()}",
            "notify=1",
        ]
    )
    assert job.more.endswith("\n")
    spec = unpack(found.spec)
    assert spec["after"] == {"41": "succeeded", "42": "succeeded", "43": "any", "44": "failed"}
    assert spec["notify"] == "mail -s done ann"


def test_a_key_is_refused_a_second_time_unless_told_otherwise() -> None:
    assert submitted(unique="ü" * 32).more == f"unique={'ü' * 32}\nexists=refuse\n"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("exit_code, 3,signal,3", ["exit_code", "3", "signal"]),
        ([3, "timeout", "007"], ["3", "timeout", "7"]),
        ((255,), ["255"]),
        (sorted(RETRIED), None),
        ([*RETRIED, 3], None),
    ],
)
def test_reasons_for_a_retry_are_kept_unless_they_are_all(given: object, kept: object) -> None:
    assert spec_of(retries=1, retry_on=given).get("retry_on") == kept


def test_the_cap_of_retries_is_kept_where_it_is_another() -> None:
    assert "retry_cap_s" not in spec_of(retry_cap="1h", retry_delay="1h")
    assert spec_of(retry_cap=90.5)["retry_cap_s"] == 90.5
    assert "retry_cap_s" not in spec_of(retry_delay="2h")  # a delay above the default cap is its own cap


def test_options_that_are_none_are_not_given() -> None:
    names = ("after", "after_any", "after_failed", "delay", "at", "expires", "unique", "if_exists", "group", "notify",
             "config", "retry_on")  # fmt: skip
    assert submitted(**dict.fromkeys(names)).more == ""
    assert submitted(after=[]).more == ""


# What is refused


BAD: list[tuple[dict[str, Any], str]] = [
    ({"after": 41, "after_any": [41]}, "job 41 is named under two conditions, succeeded and any"),
    ({"after_any": handle(7), "after_failed": 7}, "job 7 is named under two conditions"),
    ({"after": [handle(7, "1"), handle(7, "2")]}, "two jobs with the number 7"),
    ({"after": range(1, MAX_PARENTS + 2)}, "more than 1,000 jobs"),
    ({"after": range(1, MAX_PARENTS + 1), "after_any": [MAX_PARENTS + 1]}, "more than 1,000 jobs"),
    ({"after": "last"}, "after 'last' names no jobs: .* after='41,43-45'"),
    ({"after": ""}, "after '' names no jobs"),
    ({"after": "5-3"}, "after '5-3' names no jobs"),
    ({"after": "1,٣"}, "names no jobs"),
    ({"after": "1-100000"}, "more than 1,000 jobs"),
    ({"after": b"41"}, r"names no jobs: .* after=\[41, 42\]"),
    ({"after": ["41"]}, "after '41' is no job"),
    ({"after": 0}, "after 0 is no job"),
    ({"after": True}, "after True is no job"),
    ({"after_any": -1}, "after_any -1"),
    ({"after": 10**15}, "is no job"),
    ({"after": {41: 1}}, "names no jobs"),
    ({"after": 1.5}, "names no jobs"),
    ({"after": [None]}, "after None is no job"),
    ({"after": handle(1, "2\nheld=x")}, "its born is"),
    ({"after": handle("1")}, "is no job"),
    ({"delay": "1h", "expires": "30m"}, "expire before"),
    ({"delay": "1h", "at": "2026-12-01T08:00:00Z"}, "give the one or the other"),
    ({"at": "2026-12-01"}, "RFC 3339"),
    ({"unique": ""}, "1 to 64 bytes"),
    ({"unique": " "}, "1 to 64 bytes"),
    ({"unique": "x" * 65}, "1 to 64 bytes"),
    ({"unique": "ü" * 33}, "1 to 64 bytes"),
    ({"unique": "a\nheld=x"}, "1 to 64 bytes"),
    ({"unique": "\udcff"}, "1 to 64 bytes"),
    ({"unique": 3}, "1 to 64 bytes"),
    ({"if_exists": "return"}, "there is none: give --unique KEY"),
    ({"unique": "a", "if_exists": "skip"}, "give refuse, return, replace"),
    ({"unique": "a", "if_exists": ["return"]}, "give refuse, return, replace"),
    ({"group": "a b"}, "1 to 64 letters"),
    ({"group": "a@b"}, "1 to 64 letters"),
    ({"group": "x" * 65}, "1 to 64 letters"),
    ({"group": "a\n"}, "1 to 64 letters"),
    ({"group": ""}, "empty text"),
    ({"group": 3}, "must be text"),
    ({"hold": 1}, "hold 1 is not understood"),
    ({"hold": "yes"}, "give True or False"),
    ({"retry_on": [3]}, "there are no retries"),
    ({"retries": 1, "retry_on": []}, "retry_on is empty"),
    ({"retries": 1, "retry_on": "lost"}, "give exit codes 1 to 255, or of exception, exit_code"),
    ({"retries": 1, "retry_on": "worker_lost"}, "give exit codes"),
    ({"retries": 1, "retry_on": [0]}, "give exit codes"),
    ({"retries": 1, "retry_on": [256]}, "give exit codes"),
    ({"retries": 1, "retry_on": ["1" * 30]}, "give exit codes"),
    ({"retries": 1, "retry_on": [True]}, "give exit codes"),
    ({"retries": 1, "retry_on": [None]}, "give exit codes"),
    ({"retries": 1, "retry_on": ["٣"]}, "give exit codes"),
    ({"retries": 1, "retry_on": ",3"}, "give exit codes"),
    ({"retries": 1, "retry_on": 3}, "give a list"),
    ({"retries": 1, "retry_on": ["75"]}, "retry_on 75 is not possible: .* always runs again later"),
    ({"retries": 1, "retry_on": "signal,75"}, "retry_on 75 is not possible"),
    ({"retry_cap": "5s"}, "cap of 5 s is below the retry delay of 10 s"),
    ({"retry_cap": "x"}, "30m or 1h30m"),
    ({"retry_cap": -1}, "retry cap -1"),
    ({"notify": ""}, "empty text"),
    ({"notify": " "}, "is no command"),
    ({"notify": "a\0"}, "is no command"),
    ({"notify": 3}, "must be text"),
    ({"notify": "x" * 2001}, "at most 2,000"),
    ({"notify": "ftp://host/x"}, "http://"),
    ({"notify": "file:///etc/passwd"}, "http://"),
    ({"notify": "http://"}, "http://"),
    ({"notify": "https://a b"}, "blank"),
    ({"notify": "https://ann:sesame@host/x"}, "^(?!.*sesame).*holds a user or a password"),
    ({"notify": "http://sesame@host/x"}, "^(?!.*sesame).*holds a user"),
    ({"notify": "http://ann:se/same@host/x"}, "^(?!.*same).*cannot be read"),
    ({"notify": "http:///x"}, "names no host"),
    ({"notify": "http://:80/x"}, "names no host"),
    ({"notify": "http://host:0/x"}, "no port 0"),
    ({"notify": "http://host:65536/x"}, r"1 to 65535"),
    ({"notify": "http://host:x/x"}, r"1 to 65535"),
    ({"notify": "http://[::1/x"}, "cannot be read"),
    ({"config": [1]}, "must map names to values"),
    ({"config": {1: 2}}, "config: the name 1 is not text"),
    ({"config": {"a": [{"b": math.nan}]}}, r"config\['a'\]\[0\]\['b'\] is nan"),
    ({"config": {"a": math.inf}}, "is inf"),
    ({"config": {"a": {1, 2}}}, "is of type set"),
    ({"config": {"a": b"x"}}, "is of type bytes"),
    ({"config": {"a": "x" * MAX_BYTES}}, "at most 1 MiB"),
    ({"config": {"a": "\ud800"}}, "not text"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), BAD, ids=[str(given)[:50] for given, _ in BAD])
def test_malformed_and_contradictory_wishes_are_refused_with_the_cure(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        submitted(**given)


def test_a_command_may_speak_of_urls_and_a_url_is_known_by_its_beginning() -> None:
    commands = ("curl -d @- https://example.org", "echo a://b", "/bin/x", "://x", "my_tool://x")
    assert not any(map(is_url, commands))
    assert all(spec_of(notify=command)["notify"] == command for command in commands)
    assert spec_of(notify="HTTPS://example.org:8443/hook?a=b")["notify"].endswith("a=b")
    assert is_url("http://x")
    assert is_url("ftp://x")


# Configurations


def test_a_configuration_travels_as_json() -> None:
    given: Mapping[str, Any] = {"lr": 1e-3, "layers": (64, 32), "opt": {"name": "adäm", "x": None}, "on": True}
    found = spec_of(config=given)["config"]
    assert json.loads(found) == {**given, "layers": [64, 32]}
    assert spec_of(config={})["config"] == "{}"


def test_a_configuration_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    with pytest.raises(InvalidInput, match="holds itself"):
        as_json(endless)


def test_configurations_are_read_from_json_and_toml(tmp_path: Path) -> None:
    expected = {"lr": 0.001, "net": {"layers": [64, 32]}}
    (tmp_path / "a.JSON").write_text("\ufeff" + json.dumps(expected))
    (tmp_path / "a.toml").write_text("lr = 1e-3\n[net]\nlayers = [64, 32]\n")
    assert read(str(tmp_path / "a.JSON")) == read(str(tmp_path / "a.toml")) == expected


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.yaml", b"", "ends in .json or .toml"),
        ("a.json", b'{"a": NaN}', "NaN is not JSON"),
        ("a.json", b"[1]", "holds no object"),
        ("a.json", b"{", "is no JSON that can be read"),
        ("a.json", b'"\xff"', "is no JSON"),
        ("a.json", b"[" * 100_000, "is no JSON|too deeply"),
        ("a.json", b" " * (MAX_BYTES + 1), "over 1 MiB"),
        ("a.toml", b"a = ", "is no TOML"),
        ("absent.json", None, "No such file"),
        ("directory.json", None, "Is a directory"),
    ],
)
def test_a_file_that_holds_no_configuration_is_refused(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    (tmp_path / "directory.json").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=text):
        read(str(tmp_path / name))


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '{"b": [{"a": 1, "a": 2}]}'])
def test_a_name_that_stands_twice_in_a_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InvalidInput, match="the name 'a' stands twice in one object"):
        read(str(tmp_path / "c.json"))


def test_what_a_file_says_beyond_json_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("start = 2026-12-01\n")
    with pytest.raises(InvalidInput, match=r"config\['start'\] is of type date"):
        as_json(read(str(tmp_path / "a.toml")))
    (tmp_path / "a.json").write_text('{"a": 1e999}')
    with pytest.raises(InvalidInput, match=r"config\['a'\] is inf"):
        as_json(read(str(tmp_path / "a.json")))
