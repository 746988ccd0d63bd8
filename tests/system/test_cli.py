"""The command line as a program: streams, exit codes, surroundings."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretend import output, register
from queue_driver import Queue
from servers import RealServer
from shell import Shell
from stack import FOXQUEUE, Stack
from wait import until

# Streams


def test_data_alone_is_on_stdout(shell: Shell, queue: Queue) -> None:
    out, err = shell.fox("submit", "-q", "--", "true", CUDA_HOME="/c", HF_TOKEN="hf_secret")
    assert out == "1\n"
    assert "CUDA_HOME, HF_TOKEN" in err
    assert "no device is registered" in err
    assert "hf_secret" not in out + err
    out, err = shell.fox("submit", "-n", "x", "--", "true")
    assert out == "job 2 submitted\n"
    assert shell.json("submit", "--", "a", "b")["command"] == ["a", "b"]
    assert [job["number"] for job in shell.json("ls")] == [1, 2, 3]
    assert shell.fox("ls", "--state", "failed") == ("", "foxqueue: no such jobs in namespace test\n")
    assert shell.json("ls", "--state", "failed") == []
    assert (shell.json("gpus"), shell.json("workers")) == ([], [])
    assert shell.json("stats")["queued_jobs"] == 3
    out, err = shell.fox("ls", "--limit", "2")
    assert len(out.splitlines()) == 3
    assert "the first 2 of 3 jobs" in err


def test_options_may_stand_on_either_side_and_the_last_one_counts(shell: Shell, queue: Queue) -> None:
    shell.fox("--namespace", "other", "submit", "-q", "--", "true")
    assert len(shell.json("ls", "--namespace", "other")) == 1
    assert json.loads(shell.fox("--namespace", "other", "ls", "--json")[0]) == shell.json("ls", "--namespace", "other")
    assert shell.fox("--namespace", "other", "ls", "--namespace", "test")[0] == ""
    url = shell.environ["FOXQUEUE_URL"]
    assert shell.fox("--url", url, "--home", "elsewhere", "ls")[0] == ""
    err = shell.fox("ls", "--url", "unix:///nowhere.sock", code=1)[1]
    assert "unix:///nowhere.sock" in err
    assert "FOXQUEUE_URL" in err


def test_everybody_sees_the_same_queue(shell: Shell, queue: Queue, tmp_path: Path) -> None:
    shell.fox("submit", "-q", "--", "true")
    other = {"HOME": "/", "TMPDIR": str(tmp_path / "other"), "FOXQUEUE_HOME": str(tmp_path / "h2"), "LANG": "C"}
    assert "pending" in shell.fox("ls", **other)[0]


def test_a_reader_that_leaves_harms_nothing(shell: Shell, queue: Queue) -> None:
    shell.fox("submit", "-q", "--", "true")
    run = queue.worker().claim()
    output(queue, run, 0, b"first\n")
    process = shell.start("logs", "-f", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    output(queue, run, 6, b"second\n")
    assert process.wait(10) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
    assert queue.beat(run) == "ok"


def test_texts_of_users_cannot_disturb_a_terminal(shell: Shell, queue: Queue) -> None:
    shell.fox("submit", "-q", "-n", "evil\x1b[2J\nname", "--", "a\x1b[31m", "b c", "\udcff")
    run = queue.worker().claim()
    output(queue, run, 0, b"10%\r99%\n\x1b[31mred\x1b[0m\n" + b"\n".join(b"%d" % n for n in range(30)))
    for words in (("ls",), ("show", "1"), ("ls", "--json"), ("show", "1", "--json")):
        out, err = shell.fox(*words)
        assert "\x1b" not in out + err
    shown = shell.fox("show", "1")[0]
    assert "evil\\x1b[2J\\nname" in shown
    assert shown.splitlines()[-20:] == [f"  {n}" for n in range(10, 30)]
    assert shell.fox("logs", "1")[0].encode().startswith(b"10%\r99%\n\x1b[31mred")
    assert shell.json("ls")[0]["command"] == ["a\x1b[31m", "b c", "\udcff"]


# Exit codes


def test_cancel_waits_and_tells_by_its_exit_code(shell: Shell, queue: Queue) -> None:
    for _ in range(4):
        queue.enqueue()
    assert shell.fox("cancel", "4")[0] == "4 cancelled\n"
    assert shell.json("cancel", "4")[0]["state"] == "cancelled"
    worker = queue.worker()
    queue.complete(worker.claim())
    err = shell.fox("cancel", "1", "99", "3", code=1)[1]
    assert "job 1 cannot be cancelled: it had succeeded" in err
    assert "there is no job 99" in err
    run = worker.claim()
    process = shell.start("cancel", "2")
    until(lambda: "cancel_requested" in queue.job(2), what="the request")
    assert process.poll() is None
    queue.fail(run)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"2 cancelled\n")


def test_wait_tells_by_its_exit_code(shell: Shell, queue: Queue) -> None:
    for _ in range(3):
        queue.enqueue()
    worker = queue.worker()
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    assert shell.fox("wait", "1")[0] == "1 succeeded\n"
    out, err = shell.fox("wait", "1", "2", code=1)
    assert out == "1 succeeded\n2 failed\n"
    assert "job 2 failed (exit_code): exited with 1" in err
    assert [job["state"] for job in shell.json("wait", "2", "1", code=1)] == ["failed", "succeeded"]
    assert "3 is pending" in shell.fox("wait", "--timeout", "50ms", "3", code=124)[1]
    assert "there is no job 99" in shell.fox("wait", "99", code=1)[1]
    assert "there is no job 99" in shell.fox("show", "99", code=1)[1]


def test_what_no_device_can_ever_meet_exits_with_69(shell: Shell, queue: Queue) -> None:
    register(queue)
    out, err = shell.fox("submit", "--gpu-memory", "80G", "--", "true", code=69)
    assert out == ""
    assert "needs 80G" in err
    assert "24G" in err
    assert "no CPU slot" in shell.fox("submit", "--gpus", "0", "--", "true")[1]


# Doctor


def test_doctor_finds_a_server_that_may_lose_jobs(tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "s", "--appendonly", "no", "--maxmemory-policy", "allkeys-lru") as server:
        report = Shell(server, tmp_path).json("doctor")
    assert report["url"] == server.url
    assert report["server"] in ("valkey", "redis")
    checks = {check["name"]: check for check in report["checks"]}
    assert set(checks["server"]) == {"name", "ok", "detail", "cure"}
    assert (checks["server"]["ok"], checks["persistence"]["ok"], checks["eviction"]["ok"]) == (True, False, False)
    assert "appendonly yes" in checks["persistence"]["cure"]
    assert "noeviction" in checks["eviction"]["cure"]


def test_doctor_fails_only_where_it_must(shell: Shell, queue: Queue, tmp_path: Path) -> None:
    assert "append-only file" in shell.fox("doctor")[0]
    report = shell.json("doctor", "--url", f"unix://user:sesame@{tmp_path}/none.sock", code=1)
    assert "sesame" not in json.dumps(report)
    assert report["checks"][0]["ok"] is False
    assert "--url" in report["checks"][0]["cure"]


def test_a_wrong_password_is_told_with_its_setting(tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "s", "--requirepass", "right") as server:
        shell = Shell(server, tmp_path)
        for wrong in ("", "wr0ng"):
            err = shell.fox("ls", code=1, FOXQUEUE_PASSWORD=wrong)[1]
            assert "FOXQUEUE_PASSWORD" in err
            assert "wr0ng" not in err
        assert shell.json("doctor", code=1)["checks"][0]["ok"] is False
        assert shell.fox("ls", FOXQUEUE_PASSWORD="right")[0] == ""


# With real workers


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack(tmp_path_factory.mktemp("stack"))
    try:
        running.up("--simulate", "2x24G", "--cpu", "1", workers=3)
        yield running
    finally:
        running.end()


@pytest.mark.parametrize(
    ("command", "code"),
    [(["true"], 0), (["sh", "-c", "exit 77"], 77), (["sh", "-c", "kill -9 $$"], 137), (["/no/such/program"], 1)],
)
def test_submit_wait_exits_as_the_job_did(stack: Stack, command: list[str], code: int) -> None:
    done = stack.fox("submit", "--wait", "--", *command, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""


def test_submit_wait_streams_bytes_as_they_come(stack: Stack) -> None:
    gate = stack.work / "gate"
    command = f"printf 'one\\r\\377'; while [ ! -e '{gate}' ]; do sleep 0.05; done; echo two >&2"
    process = subprocess.Popen(
        [str(FOXQUEUE), "submit", "--wait", "--", "sh", "-c", command],
        env=stack.environ,
        cwd=stack.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(5) == b"one\r\xff"
    gate.touch()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"two\n")
    assert b"submitted" in err


def test_ctrl_c_detaches_and_says_how_to_cancel(stack: Stack) -> None:
    process = subprocess.Popen(
        [str(FOXQUEUE), "submit", "--wait", "--", "sh", "-c", "echo begun; exec sleep 600"],
        env=stack.environ,
        cwd=stack.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    number = err.decode().rpartition("foxqueue cancel ")[2].split()[0]
    assert "goes on" in err.decode()
    assert stack.show(int(number))["state"] == "running"
    assert stack.fox("cancel", number).stdout == f"{number} cancelled\n"
    assert stack.fox("logs", number).stdout == "begun\n"


def test_cancelling_ends_a_submit_that_waits(stack: Stack) -> None:
    process = subprocess.Popen(
        [str(FOXQUEUE), "submit", "--wait", "-n", "victim", "--", "sleep", "600"],
        env=stack.environ,
        cwd=stack.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    found = until(lambda: stack.client().jobs(state="running", name="victim"), what="the job")
    stack.fox("cancel", str(found[0].number))
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"cancelled by" in err


ODD_WORDS = ["a b", "$HOME", "*", ";", "'", '"', "new\nline", "", "-n", "--", "🙂", "\udcff", "\\", "`id`", "%s", "~"]


def test_arguments_arrive_word_for_word(stack: Stack) -> None:
    code = "import os, sys; [os.write(1, os.fsencode(word) + b'\\0') for word in sys.argv[1:]]"
    done = stack.fox("submit", "-w", "--", sys.executable, "-c", code, *ODD_WORDS)
    assert done.stdout.split("\0")[:-1] == ODD_WORDS


def test_a_job_has_its_submitters_surroundings(stack: Stack) -> None:
    """A venv is activated, then a job is submitted; the worker was started elsewhere, with another environment."""
    venv, there = stack.root / "venv", stack.work / "there"
    (venv / "bin").mkdir(parents=True)
    there.mkdir()
    tool = venv / "bin" / "which-python"
    tool.write_text('#!/bin/sh\necho "$VIRTUAL_ENV|$A|$EMPTY|$HF_TOKEN|$WANDB_API_KEY|$CUDA_HOME|$PWD" >made\n')
    tool.chmod(0o755)
    activated = {
        "PATH": f"{venv}/bin:{stack.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "EMPTY": "full",
        "HF_TOKEN": "hf_secret",
        "WANDB_API_KEY": "wandb_secret",
        "CUDA_HOME": "/cuda",
        "CUDA_VISIBLE_DEVICES": "7",
    }
    command = [
        "sh",
        "-c",
        f'umask 027; exec "{FOXQUEUE}" submit -w -d there -e A=1 -e EMPTY= -e HF_TOKEN -- which-python',
    ]
    done = subprocess.run(
        command, env=stack.environ | activated, cwd=stack.work, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    assert (there / "made").read_text() == f"{venv}|1||hf_secret|||{there}\n"
    assert "CUDA_HOME, CUDA_VISIBLE_DEVICES, WANDB_API_KEY" in done.stderr
    assert stat.S_IMODE((there / "made").stat().st_mode) == 0o640
    number = stack.client().jobs(state="succeeded")[0].number
    for words in (["ls"], ["show", str(number)], ["ls", "--json"], ["show", str(number), "--json"]):
        shown = stack.fox(*words).stdout
        assert "hf_secret" not in shown
        assert "wandb_secret" not in shown


def test_a_device_is_shown_for_what_it_is(stack: Stack) -> None:
    devices = json.loads(stack.fox("gpus", "--json").stdout)
    assert [(device["kind"], device["index"]) for device in devices] == [("simulated", 0), ("simulated", 1), ("cpu", 0)]
    assert list(devices[0]) == [
        "uuid",
        "index",
        "name",
        "kind",
        "memory_total_mib",
        "memory_free_mib",
        "utilization",
        "state",
        "detail",
        "job",
        "worker",
        "observed_at",
        "ref",
        "host",
        "slot",
        "declared_mib",
        "holder",
        "withheld",
        "strangers",
    ]
    assert stack.fox("gpus").stdout.count("simulated") == 2
    workers = json.loads(stack.fox("workers", "--json").stdout)
    assert list(workers[0]) == ["id", "host", "pid", "device", "state", "job", "since"]
    assert len(workers) == 3
