"""What is refused at submission, and what a job is made of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from foxqueue.codec import unpack
from foxqueue.errors import InvalidInput
from foxqueue.submission import Request, prepare

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
]


@pytest.mark.parametrize(("given", "text"), BAD, ids=[str(given)[:40] for given, _ in BAD])
def test_malformed_requests_are_refused_with_the_cure(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        prepare(Request(**{"argv": ["true"], **given}), {})


def test_a_job_carries_command_surroundings_and_wishes(tmp_path: Path) -> None:
    request = Request(
        ["python", Path("train.py"), b"\xff", ""],
        name="n" * 150,
        priority="high",
        gpu_memory="7.9G",
        time_limit="1h30m",
        retries=2,
        retry_delay=1.5,
        cwd=tmp_path,
        env={"HF_TOKEN": "x"},
        tags={"a": "b"},
        visible="uuid",
        umask=0o027,
    )
    found = prepare(request, {"PATH": "/bin", "HF_TOKEN": "y", "AWS_SECRET": "z"})
    spec = unpack(found.job.spec)
    assert spec["argv"] == ["python", "train.py", "\udcff", ""]
    assert spec["cwd"] == str(tmp_path)
    assert spec["umask"] == 0o027
    assert spec["env"] == {"HF_TOKEN": "x"}
    assert spec["time_limit_s"] == 5400
    assert spec["visible"] == "uuid"
    assert spec["name"] == "n" * 150
    assert len(found.job.name) == 64
    assert found.job.env == {"PATH": "/bin"}
    assert (found.job.shape, found.job.priority) == ("g1.m8192", 8)
    assert (found.job.retries, found.job.retry_delay_ms) == (2, 1500)
    assert found.left_out == ("AWS_SECRET",)


def test_the_directory_keeps_the_links_by_which_it_was_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.chdir(real)

    def cwd(pwd: str) -> object:
        return unpack(prepare(Request(["true"]), {"PWD": pwd}).job.spec)["cwd"]

    assert cwd(str(link)) == str(link)
    assert cwd("/") == str(real)
    assert cwd("relative") == str(real)


def test_a_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with pytest.raises(InvalidInput, match="--cwd"):
        prepare(Request(["true"]), dict(os.environ))
