"""What is refused at submission, and what a job is made of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from foxqueue import calls, payload
from foxqueue.capture import current_umask
from foxqueue.codec import unpack
from foxqueue.errors import InvalidInput
from foxqueue.repository import Repositories
from foxqueue.submission import REMEMBERED, Submission, Submitter, prepare

BAD: list[tuple[dict[str, Any], str]] = [
    ({"argv": []}, "empty command"),
    ({"argv": [""]}, "empty command"),
    ({"argv": "python train.py"}, "give a list"),
    ({"argv": ["a", 3]}, "list of text"),
    ({"argv": ["a\0b"]}, "NUL"),
    ({"cwd": "/no/such/directory"}, "/no/such/directory does not exist"),
    ({"priority": "urgent"}, "priority 'urgent'"),
    ({"gpus": 2}, "give 0 to 1"),
    ({"gpus": True}, "give 0 to 1"),
    ({"gpu_memory": "lots"}, "memory size 'lots'"),
    ({"gpu_memory": 8}, "has no unit"),
    ({"gpus": 0, "gpu_memory": "8G"}, "without a GPU"),
    ({"time_limit": "soon"}, "time 'soon'"),
    ({"time_limit": 0}, "leave it out"),
    ({"time_limit": -1.0}, "time limit -1.0"),
    ({"time_limit": float("nan")}, "time limit nan"),
    ({"retries": -1}, "retries -1"),
    ({"retries": 1001}, "give 0 to 1000"),
    ({"retry_delay": "x"}, "time 'x'"),
    ({"visible": "both"}, "index or uuid"),
    ({"tags": {"a": 1}}, "must be text"),
    ({"tags": {"a=b": "c"}}, "malformed"),
    ({"name": "x" * 201}, "at most 200"),
    ({"name": 5}, "must be text"),
    ({"name": "\ud800"}, "not text"),
    ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "--visible"),
    ({"env": {"A": 1}}, "must be text"),
    ({"umask": 0o1000}, "umask"),
    ({"description": "x" * 5_000_000}, "at most"),
    ({"description": "x" * 4_194_304}, "at most"),
    ({"env": ["A=1"]}, "must map names to values"),
    ({"tags": 3}, "must map names to values"),
    ({"cwd": 3}, "is no path"),
    ({"cwd": [1]}, "is no path"),
    ({"model_type": 3}, "must be text"),
    ({"gpu": 1}, "no option 'gpu': give name, priority, gpus"),
    ({"priority": True}, "priority True"),
]


@pytest.mark.parametrize(("given", "text"), BAD, ids=[str(given)[:40] for given, _ in BAD])
def test_malformed_requests_are_refused_with_the_cure(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        options = dict(given)
        prepare(options.pop("argv", ["true"]), options, {})


def test_a_job_carries_command_surroundings_and_wishes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "name": "n" * 150,
        "priority": "high",
        "gpu_memory": "7.9G",
        "time_limit": "1h30m",
        "retries": 2,
        "retry_delay": 1.5,
        "cwd": tmp_path,
        "env": {"HF_TOKEN": "x"},
        "tags": {"a": "b"},
        "visible": "uuid",
        "umask": 0o027,
    }
    command = ["python", Path("train.py"), b"\xff", ""]
    found = prepare(command, options, {"PATH": "/bin", "HF_TOKEN": "y", "AWS_SECRET": "z"})
    spec = unpack(found.spec)
    assert spec["argv"] == ["python", "train.py", "\udcff", ""]
    assert spec["cwd"] == str(tmp_path)
    assert spec["umask"] == 0o027
    assert spec["env"] == {"HF_TOKEN": "x"}
    assert spec["time_limit_s"] == 5400
    assert spec["visible"] == "uuid"
    assert spec["name"] == "n" * 150
    job = found.job(8)
    assert len(job.name) == 64
    assert unpack(found.environment.packed) == {"PATH": "/bin"}
    assert (job.shape, job.priority, found.wishes.priority) == ("g1.m8192", 8, 8)
    assert (job.retries, job.retry_delay_ms, job.spec) == (2, 1500, found.spec)
    assert found.left_out == ("AWS_SECRET",)


def test_the_directory_keeps_the_links_by_which_it_was_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.chdir(real)

    def cwd(pwd: str) -> object:
        return unpack(prepare(["true"], {}, {"PWD": pwd}).spec)["cwd"]

    assert cwd(str(link)) == str(link)
    assert cwd("/") == str(real)
    assert cwd("relative") == str(real)


def test_a_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with pytest.raises(InvalidInput, match="--cwd"):
        prepare(["true"], {}, dict(os.environ))


def test_what_has_its_default_takes_no_room(tmp_path: Path) -> None:
    spec = unpack(prepare(["true"], {"env": {}, "name": "", "tags": {}, "visible": "index", "cwd": tmp_path}, {}).spec)
    assert set(spec) == {"v", "argv", "cwd", "umask", "submit_host", "user"}


def test_every_option_at_once_still_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    every: dict[str, Any] = {
        "name": "n",
        "time_limit": 1,
        "env": {"A": "1"},
        "tags": {"a": "b"},
        "description": "d",
        "model_type": "m",
        "visible": "uuid",
        "retries": 1,
        "retry_on": [3],
        "retry_cap": "1m",
        "notify": "true",
        "after": 1,
        "config": {"a": 1},
    }
    here = {"commit": "c", "branch": None, "dirty": False}
    monkeypatch.setattr(Repositories, "state", lambda _, directory: here)
    spec = unpack(Submitter({}).call("a:b", (1,), {"c": 2}, every).spec)
    assert (spec["argv"], spec["name"], spec["user"], len(spec)) == (["a:b(1, c=2)"], "n", spec["user"], 20)
    assert (spec["git"], spec["config"], spec["after"]) == (here, '{"a": 1}', {"1": "succeeded"})
    spec = unpack(Submitter({}).command(["./x"], every, b"#!/bin/sh").spec)
    assert (spec["argv"], spec["script"], spec["notify"], len(spec)) == (["./x"], b"#!/bin/sh", "true", 20)


# What is remembered from one request to the next


def spec_of(found: Submission) -> Any:
    return unpack(found.spec)


def test_options_that_only_look_alike_are_checked_anew() -> None:
    submitter = Submitter({})
    assert submitter.command(["true"], {"gpus": 1}).wishes.need.gpus == 1
    for given in (True, 1.0):
        with pytest.raises(InvalidInput, match="gpus"):
            submitter.command(["true"], {"gpus": given})
    tags = {"a": "1"}
    assert spec_of(submitter.command(["true"], {"tags": tags}))["tags"] == {"a": "1"}
    tags["a"] = "2"
    assert spec_of(submitter.command(["true"], {"tags": tags}))["tags"] == {"a": "2"}


def test_memory_has_a_bound() -> None:
    submitter = Submitter({})
    for at in range(3 * REMEMBERED):
        assert spec_of(submitter.command(["true"], {"time_limit": 1 + at}))["time_limit_s"] == 1 + at
    assert submitter._now is not None
    assert max(len(submitter._checked), len(submitter._now._usual)) <= REMEMBERED


def test_changes_of_the_surroundings_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitter = Submitter(os.environ)
    monkeypatch.setenv("GREETING", "a")
    first = submitter.command(["true"], {})
    monkeypatch.setenv("GREETING", "b")
    second = submitter.command(["true"], {})
    monkeypatch.delenv("GREETING")
    third = submitter.command(["true"], {})
    found = [unpack(one.environment.packed).get("GREETING") for one in (first, second, third)]
    assert found == ["a", "b", None]
    assert submitter.command(["true"], {}).environment is third.environment
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o037)
    try:
        spec = spec_of(submitter.command(["true"], {}))
        assert (spec["cwd"], spec["umask"], current_umask()) == (str(tmp_path), 0o037, 0o037)
    finally:
        assert os.umask(before) == 0o037
    assert spec_of(submitter.command(["true"], {}))["umask"] == before


def test_a_directory_that_has_gone_since_is_noticed(tmp_path: Path) -> None:
    submitter = Submitter({})
    here = tmp_path / "here"
    here.mkdir()
    submitter.command(["true"], {"cwd": here})
    here.rmdir()
    with pytest.raises(InvalidInput, match="does not exist"):
        submitter.command(["true"], {"cwd": here})


# Calls


def test_a_call_carries_where_its_function_is_and_its_arguments() -> None:
    spec = spec_of(Submitter({}).call("pkg.mod:f", (1, (2,)), {"lr": 0.1}, {"name": "x"}))
    call = spec["call"]
    assert payload.unpack(call.pop("data")) == [[1, [2]], {"lr": 0.1}]
    assert call.pop("beside") == calls.beside()
    assert call == {"module": "pkg.mod", "script": None, "qualname": "f", "python": sys.executable}
    assert (spec["argv"], spec["name"]) == (["pkg.mod:f(1, (2,), lr=0.1)"], "x")


BAD_CALLS: list[tuple[tuple[Any, ...], str]] = [
    (("a:b", ({1},), None), r"args\[0\] is a set"),
    (("a:b", (), {"m": {"x": object()}}), r"kwargs\['m'\]\['x'\] is an object"),
    (("a:b", "abc", None), "args must be a list or a tuple"),
    (("a:b", 1, None), "args must be a list or a tuple"),
    (("a:b", None, None), "args must be a list or a tuple"),
    (("a:b", (), [1]), "kwargs must map names"),
    (("a:b", (), {1: 2}), "kwargs must map names"),
    (("a:b", (b"x" * 1_048_576,), None), "at most 1 MiB .* write the data to a file"),
    ((lambda: 0, (), None), "lambda"),
]


@pytest.mark.parametrize(("given", "text"), BAD_CALLS, ids=[text for _, text in BAD_CALLS])
def test_malformed_calls_are_refused(given: tuple[Any, ...], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Submitter({}).call(*given, {})


# Many at once


BAD_MANY: list[tuple[Any, str]] = [
    ({"argv": ["true"]}, "a list of mappings"),
    ("true", "a list of mappings"),
    ([{"argv": ["true"]}, ["true"]], r"requests\[1\]: .* is no mapping"),
    ([{}], r"requests\[0\]: give either argv"),
    ([{"argv": ["true"], "function": "a:b"}], "give either argv"),
    ([{"argv": ["true"], "args": (1,)}], "no option 'args'"),
    ([{"argv": ["true"]}, {"argv": "true"}], r"requests\[1\]: the command is one piece"),
    ([{"argv": ["true"]}, {"argv": ["true"], "cwd": "/no/such"}], r"requests\[1\]: directory /no/such"),
    ([{"function": "a:b"}, {"function": "a"}], r"requests\[1\]: the function 'a'"),
    ([{"argv": ["true"], 3: 4}], "no option 3"),
]


@pytest.mark.parametrize(("requests", "text"), BAD_MANY, ids=[text for _, text in BAD_MANY])
def test_one_malformed_request_of_many_is_named(requests: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Submitter({}).many(requests)


def test_many_are_the_same_as_one_by_one() -> None:
    submitter = Submitter({"PATH": "/bin"})
    found = submitter.many([{"argv": ["true"], "name": "a"}, {"function": "a:b", "args": [1], "kwargs": {"c": 2}}])
    assert found[0] == submitter.command(["true"], {"name": "a"})
    assert found[1].spec == submitter.call("a:b", [1], {"c": 2}, {}).spec
