"""The command line where its surroundings are at fault: full streams, no Redis, damaged data, no directory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pretend import output, register, serving
from queue_driver import Queue
from servers import RealServer
from shell import Shell
from stack import FOXQUEUE
from wait import until

from foxqueue.broker import Claimed
from foxqueue.codec import pack
from foxqueue.keys import Keys

FULL = Path("/dev/full")


# Streams that take nothing


def full(
    shell: Shell, *words: str, stdout: bool = False, stderr: bool = False, buffered: bool = True
) -> tuple[int, str]:
    """Run a command with a full stream; its exit code and what stands on the other one."""
    with FULL.open("wb") as nowhere:
        done = subprocess.run(
            [str(FOXQUEUE), *words],
            env=shell.environ | ({} if buffered else {"PYTHONUNBUFFERED": "1"}),
            cwd=shell.directory,
            stdin=subprocess.DEVNULL,
            stdout=nowhere if stdout else subprocess.PIPE,
            stderr=nowhere if stderr else subprocess.PIPE,
            timeout=60,
        )
    return done.returncode, (done.stderr if stdout else done.stdout).decode()


@pytest.mark.parametrize("flags", [["-q"], [], ["--json"]])
def test_an_accepted_job_is_told_on_stderr_where_stdout_is_full(shell: Shell, queue: Queue, flags: list[str]) -> None:
    code, err = full(shell, "submit", *flags, "--", "true", stdout=True)
    assert code == 1
    assert "job 1 was submitted, but its number could not be written: No space left on device" in err
    assert len(err.splitlines()) == 2  # that no device is registered is the other


def test_an_accepted_job_is_told_where_nobody_reads_stdout(shell: Shell, queue: Queue) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [str(FOXQUEUE), "submit", "-q", "--", "true"], env=shell.environ, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"job 1 was submitted, but its number could not be written" in err


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["--help"], ["version"], ["doctor"]])
def test_a_full_stdout_is_one_plain_sentence(shell: Shell, queue: Queue, words: list[str], buffered: bool) -> None:
    queue.enqueue()
    assert full(shell, *words, stdout=True, buffered=buffered) == (
        1,
        "foxqueue: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_stderr_changes_nothing(shell: Shell, queue: Queue, buffered: bool) -> None:
    assert full(shell, "submit", "-q", "--", "true", stderr=True, buffered=buffered) == (0, "1\n")
    assert full(shell, "show", "x", stderr=True, buffered=buffered) == (2, "")
    assert full(shell, "show", "99", stderr=True, buffered=buffered) == (1, "")
    worker = threading.Thread(target=play, args=(queue,))
    worker.start()
    assert full(shell, "submit", "-w", "--", "x", stderr=True, buffered=buffered) == (1, "seen\n")
    worker.join(20)


def play(queue: Queue) -> None:
    """Serve two jobs by hand: the first one, and the one that is submitted meanwhile."""
    worker = queue.worker()
    for _ in range(2):
        reply = until(lambda: (reply := worker.ask()).word == "ok" and reply, seconds=20, what="a job")
        run = Claimed.of(reply)
        output(queue, run, 0, b"seen\n")
        queue.fail(run, delay_ms=None)


# Output that came too fast


def test_a_gap_says_where_all_of_it_lies_and_goes_on_at_a_line(shell: Shell, queue: Queue) -> None:
    queue.enqueue()
    run = queue.worker().claim()
    output(queue, run, 1000, b"half a line\nwhole\nlast\n", keep_from=1000)
    output(queue, run, 5000, b"x\n")
    queue.complete(run)
    out, err = shell.fox("logs", "-f", "1")
    assert out == "whole\nlast\nx\n"
    first, second = err.splitlines()
    run_dir = f"<home>/<machine-id>/jobs/{queue.broker.settings().instance}/1-{run.born}/{run.fence}/output.log"
    kept = "what is kept of it (the first 1 MiB and the last 64 MiB)"
    assert first.startswith(f"foxqueue: 1,012 bytes of output are not kept here; {kept} is on ")
    assert first.endswith(run_dir)
    assert second == "foxqueue: 3,977 bytes of output are not kept here"
    out, err = shell.fox("logs", "1")
    assert out.startswith("half a line\n")
    assert run_dir in err


# What is no Redis


def answer_all(link: socket.socket, answer: bytes) -> None:
    with link, contextlib.suppress(OSError):
        while link.recv(65536):
            link.sendall(answer)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n<html>", b"\x15\x03\x01\xfe", b"+OK\r\n", b"$-1\r\n", b"+PONG\r\n", b":1\r\n"],
)
def test_what_is_no_redis_server_is_told_so(shell: Shell, answer: bytes) -> None:
    with serving(lambda link: answer_all(link, answer)) as url:
        expected = f"foxqueue: what answers at {url} is not a Redis server: is FOXQUEUE_URL right?\n"
        assert shell.fox("ls", "--url", url, code=1) == ("", expected)
        check = shell.json("doctor", "--url", url, code=1)["checks"][0]
        assert (check["name"], check["ok"]) == ("server", False)
        assert "not a Redis server" in check["detail"]
        assert "FOXQUEUE_URL" in check["cure"]


def test_the_cure_fits_the_fault(shell: Shell, server: RealServer, tmp_path: Path) -> None:
    def cure(url: str) -> str:
        return str(shell.json("doctor", "--url", url, code=1)["checks"][0]["cure"])

    assert "start that server" in cure(f"unix://{tmp_path}/none.sock")
    assert "a database that it has" in cure(server.url + "?db=4000")
    with RealServer(None, tmp_path / "s", "--requirepass", "right") as guarded:
        assert "password" in cure(guarded.url)


# Damaged data


READING = (["ls"], ["show", "1"], ["gpus"], ["workers"], ["stats"])


KEYS = [name for name, kind in vars(Keys).items() if isinstance(kind, property) and name != "prefix"]


@pytest.mark.parametrize("key", KEYS)
def test_what_only_reads_survives_a_failing_script_and_doctor_names_the_key(
    shell: Shell, queue: Queue, key: str
) -> None:
    queue.enqueue()
    register(queue)
    name = getattr(queue.broker.keys, key)
    queue.broker.redis.delete(name)
    queue.broker.redis.rpush(name, "not what it was")
    for words in READING:
        shell.fox(*words)
        shell.json(*words)
    report = {check["name"]: check for check in shell.json("doctor", code=1)["checks"]}
    assert (report["server"]["ok"], report["keys"]["ok"]) == (True, False)
    assert f"{name} is a list, not a " in report["keys"]["detail"]
    assert report["keys"]["cure"]


def test_a_script_that_fails_is_named_with_the_next_step(shell: Shell, queue: Queue) -> None:
    queue.broker.redis.set(queue.broker.keys.shapes, "no hash")
    err = shell.fox("submit", "--", "true", code=1)[1]
    assert "the script enqueue failed" in err
    assert "foxqueue doctor" in err


def test_garbage_among_the_workers_hides_nobody(shell: Shell, queue: Queue) -> None:
    queue.enqueue()
    register(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.zadd(keys.workers, {"w\xff": float("inf"), b"\xff\xfe": float("-inf"), "later": 1e300})
    redis.set(keys.instance, b"\xff\xfe")
    for words in (*READING, ["doctor"]):
        shell.fox(*words)
    assert [worker["id"] for worker in shell.json("workers")] == ["w1"]


# The current directory


def test_a_directory_that_is_gone_stops_only_what_needs_it(shell: Shell, queue: Queue, tmp_path: Path) -> None:
    def there(*words: str) -> subprocess.CompletedProcess[str]:
        gone = tmp_path / "gone"
        gone.mkdir(exist_ok=True)
        script = 'rmdir "$1"; shift; exec "$@"'
        command = ["sh", "-c", script, "sh", str(gone), str(FOXQUEUE), *words]
        return subprocess.run(command, env=shell.environ, cwd=gone, capture_output=True, text=True, timeout=60)

    assert there("ls").returncode == 0
    assert there("submit", "-q", "-d", str(tmp_path), "--", "true").stdout == "1\n"
    for words in (["submit", "--", "true"], ["submit", "-d", "relative", "--", "true"]):
        refused = there(*words)
        assert refused.returncode == 2
        assert "the current directory is gone" in refused.stderr
        assert "-d" in refused.stderr


# Lists


def test_a_listing_that_was_cut_says_so(shell: Shell, queue: Queue) -> None:
    for at in range(4):
        queue.enqueue(f"n{at}")
    assert "the first 3 of the matches" in shell.fox("ls", "--name", "n*", "--limit", "3")[1]
    assert "the first 3 of the matches" in shell.fox("ls", "--name", "n*", "--limit", "3", "--json")[1]
    assert len(shell.json("ls", "--name", "n*", "--limit", "3")) == 3
    assert shell.fox("ls", "--name", "n*", "--limit", "4")[1] == ""
    assert shell.fox("ls", "--limit", "4")[1] == ""


def test_a_wait_that_fails_writes_what_is_known(shell: Shell, queue: Queue) -> None:
    queue.enqueue()
    assert shell.json("wait", "999", code=1) == []
    assert [job["number"] for job in shell.json("wait", "999", "1", code=1)] == [1]
    assert [job["state"] for job in shell.json("wait", "--timeout", "50ms", "1", code=124)] == ["pending"]


def test_doctor_misses_no_driver_where_simulated_devices_are_served(
    shell: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foxqueue.survey.survey", _no_gpu())
    assert _devices(shell)["ok"] is False
    register(queue)
    assert _devices(shell) == {"name": "devices", "ok": True, "detail": _devices(shell)["detail"], "cure": None}
    assert "not needed" in _devices(shell)["detail"]


def _no_gpu() -> Callable[..., object]:
    from foxqueue.survey import Survey

    return lambda *_: Survey((), (), "no driver")


def _devices(shell: Shell) -> dict[str, object]:
    report = json.loads(shell.fox("doctor", "--json")[0])
    return next(check for check in report["checks"] if check["name"] == "devices")


def test_the_runners_own_memory_is_not_that_of_a_job_that_never_started(shell: Shell, queue: Queue) -> None:
    worker = queue.worker()
    for reason in ("launch_error", "exit_code"):
        queue.enqueue()
        run = worker.claim()
        outcome = pack({"max_rss_kib": 16384})
        queue.broker.send(queue.broker.fail_call(run.number, run.fence, reason, "x", None, outcome, None))
    assert "peak memory" not in shell.fox("show", "1")[0]
    assert "peak memory  16M" in shell.fox("show", "2")[0]
