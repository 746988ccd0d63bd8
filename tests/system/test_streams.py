"""Programs that run for long, whoever reads what they say, and whatever was closed before they began."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from stack import FOXQUEUE, Stack
from wait import until


def up_into(stack: Stack, stderr: int, *flags: str) -> subprocess.Popen[bytes]:
    """`up` with this stderr, its workers registered."""
    command = [str(FOXQUEUE), "up", "--simulate", "2x24G", *flags]
    process = subprocess.Popen(
        command, env=stack.environ, cwd=stack.work, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
    )
    until(lambda: stack.fox("workers", "--json", check=False).stdout.count('"pid"') == 2, 30, "two workers")
    return process


def test_a_reader_that_died_ends_nothing(stack: Stack) -> None:
    """`up 2>&1 | tee log`, and tee is gone: workers are started again, and a stop still drains."""
    reader, writer = os.pipe()
    up = up_into(stack, writer)
    os.close(writer)
    os.close(reader)
    flag, saved = stack.root / "flag", stack.root / "saved"
    number = stack.queue("sh", "-c", f"until [ -e {flag} ]; do sleep 0.02; done; touch {saved}")
    busy = stack.worker_of(number).pid
    idle = next(worker for worker in stack.api.workers() if worker["pid"] != busy)
    os.kill(idle["pid"], signal.SIGKILL)
    until(lambda: {w["pid"] for w in stack.api.workers()} - {busy, idle["pid"]}, 15, "another worker")
    assert stack.job(number)["state"] == "running"
    short = stack.queue("true")
    stack.await_state(short, "succeeded")
    up.send_signal(signal.SIGTERM)
    until(lambda: any(w["state"] == "draining" for w in stack.api.workers()), 10, "the drain")
    flag.touch()
    assert up.wait(40) == 0 and saved.exists()
    assert stack.all_processes() == []


def test_a_reader_that_does_not_read_stops_nothing(stack: Stack) -> None:
    """A paused pager, Ctrl-S: the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    up = up_into(stack, writer, "--lease-ttl", "1s")
    for number in [stack.queue("true") for _ in range(4)]:
        stack.await_state(number, "succeeded")
    assert stack.fox("cancel", str(stack.queue("sleep", "300"))).returncode == 0
    assert stack.fox("down").returncode == 0
    assert up.wait(10) == 0
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("detach", [False, True])
def test_streams_that_were_closed_are_no_files_of_ours(stack: Stack, closed: str, detach: bool) -> None:
    script = f'"$@" {closed}' + ("" if detach else " & wait")
    command = ["sh", "-c", script, "sh", str(FOXQUEUE), "up", "--simulate", "1x24G", *(["--detach"] if detach else [])]
    shell = subprocess.Popen(command, env=stack.environ, cwd=stack.work, stderr=subprocess.DEVNULL)
    until(lambda: stack.fox("workers", "--json", check=False).stdout.count('"pid"') == 1, 30, "a worker")
    done = stack.await_state(stack.queue("sh", "-c", "echo out; echo err >&2"), "succeeded")
    assert done["losses"] == 0 and stack.api.job(1).logs() == b"out\nerr\n"
    stack.fox("down")
    assert shell.wait(20) == 0


def test_a_full_disk_behind_stderr_ends_nothing(stack: Stack) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        up = up_into(stack, full.fileno())
    stack.await_state(stack.queue(sys.executable, "-c", "print(1)"), "succeeded")
    up.send_signal(signal.SIGTERM)
    assert up.wait(30) == 0
