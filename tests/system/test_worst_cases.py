"""Several things fail at once, or in the worst order."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import RealServer
from stack import Stack, ended, gone, until_exists
from wait import until

from foxqueue.errors import JobGone
from foxqueue.processes import ProcessId, parent_of

PYTHON = sys.executable
ONE = ("--simulate", "1x24G")
TWO = ("--simulate", "2x24G")


@contextmanager
def remote(folder: Path) -> Iterator[Stack]:
    """A home whose server is not its own."""
    with (
        RealServer(None, folder / "server").start() as server,
        ended(Stack(folder / "home", {"FOXQUEUE_URL": server.url})) as stack,
    ):
        yield stack


def hidden_job(marks: Path) -> tuple[str, ...]:
    """A job whose processes have no environment to be found by; its first run goes on for ever."""
    code = (
        "import os, pathlib, time\n"
        f"marks = pathlib.Path({str(marks)!r}); first = not marks.exists()\n"
        "with marks.open('a') as file: file.write(f'{os.getpid()}\\n')\n"
        "while first: time.sleep(0.05)\n"
    )
    return ("env", "-i", PYTHON, "-S", "-c", code)


def test_a_job_without_environment_is_found_by_its_session(stack: Stack) -> None:
    """Worker and runner are killed, nobody is their parent: the successor ends the job before it claims."""
    stack.serve(ttl_ms=60_000)
    stack.start_worker("sim:0", *ONE)
    marks = stack.root / "marks"
    number = stack.queue(*hidden_job(marks))
    until(lambda: marks.exists() and marks.read_text().endswith("\n"), 10, "the first run")
    first = ProcessId.of(int(marks.read_text()))
    assert first is not None and first.alive()
    runner = ProcessId.of(parent_of(first.pid) or 0)
    assert runner is not None
    for process in (stack.worker_of(number), runner):
        process.send(signal.SIGKILL)
    stack.start_worker("sim:0", *ONE)
    done = stack.await_state(number, "succeeded")
    assert not first.alive() and (done["attempts"], done["losses"]) == (1, 1)
    assert len(marks.read_text().split()) == 2


def test_a_stopped_runner_does_not_keep_its_device(stack: Stack) -> None:
    """Its worker is killed: the successor wakes it, so that it ends the job."""
    stack.up(*ONE, workers=1)
    marks = stack.root / "marks"
    number = stack.queue("sh", "-c", f"echo run >> {marks}; [ $(wc -l < {marks}) -gt 1 ] || sleep 300")
    processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
    worker, runner = stack.worker_of(number), stack.runner_of(number)
    runner.send(signal.SIGSTOP)
    worker.send(signal.SIGKILL)
    done = stack.await_state(number, "succeeded", seconds=15)
    assert gone(processes)() and not runner.alive()
    assert (done["attempts"], done["losses"]) == (1, 1)


def test_a_worker_that_stood_still_for_less_than_its_lease_goes_on(stack: Stack) -> None:
    """For longer than two beats, though: its runner's answers wait to be read, and it is not taken for silent."""
    stack.up(*ONE, "--lease-ttl", "5s", workers=1)
    flag = stack.root / "flag"
    number = stack.queue(*until_exists(flag))
    worker = stack.worker_of(number)
    key = stack.api.broker.keys.lease(stack.job(number)["gpu_uuids"][0])
    for _ in range(2):
        worker.send(signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda since=stopped: time.monotonic() - since > 3.6, 5, "more than two beats")  # type: ignore[misc]
        worker.send(signal.SIGCONT)
        until(lambda: stack.api.redis.pttl(key) > 9500, 5, "a beat")
        until(lambda: stack.api.redis.pttl(key) < 9750, 5, "a moment in which the runner was fed")
    flag.touch()
    done = stack.await_state(number, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 0)


def test_a_runner_that_stands_still_is_killed_and_its_job_runs_again(stack: Stack) -> None:
    stack.up(*ONE, "--lease-ttl", "2s", workers=1)
    marks = stack.root / "marks"
    number = stack.queue("sh", "-c", f"echo run >> {marks}; [ $(wc -l < {marks}) -gt 1 ] || sleep 300")
    processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
    runner = stack.runner_of(number)
    runner.send(signal.SIGSTOP)
    done = stack.await_state(number, "succeeded", seconds=15)
    assert gone(processes)() and not runner.alive()
    assert (done["attempts"], done["losses"]) == (1, 1)


def test_jobs_of_a_new_shape_are_served_after_lost_data(stack: Stack) -> None:
    stack.up(*TWO)
    stack.await_state(stack.queue("true"), "succeeded")
    client = stack.api
    for _ in range(3):
        client.redis.flushall()
        number = client.submit(["true"], gpu_memory="1G", cwd="/").number
        stack.await_state(number, "succeeded", seconds=15)
        number = client.submit(["true"], gpu_memory="2G", cwd="/").number
        stack.await_state(number, "succeeded", seconds=15)


def test_a_password_set_during_a_run_ends_no_run(tmp_path: Path) -> None:
    """Redis refusing us is Redis being away: the job and its worker go on, and tell when they may again."""
    with remote(tmp_path) as stack:
        stack.up(*ONE, "--lease-ttl", "1s", workers=1)
        flag = stack.root / "flag"
        script = f"until [ -e {flag} ]; do echo line; sleep 0.02; done"
        number = stack.queue("sh", "-c", script)
        worker = stack.worker_of(number)
        admin = stack.api.redis
        admin.config_set("requirepass", "secret")
        admin.client_kill_filter(_type="normal", skipme=True)
        until(lambda: "goes on" in stack.log("up"), 10, "the worker's word that Redis is away")
        away = stack.root / "away"
        until(lambda: away.exists() or not worker.alive() or _touch_later(stack, away), 10, "three leases")
        assert worker.alive()
        admin.config_set("requirepass", "")
        flag.touch()
        done = stack.await_state(number, "succeeded")
        assert (done["attempts"], done["losses"]) == (1, 0)


def _touch_later(stack: Stack, flag: Path) -> bool:
    """True once the job has written for about three leases more."""
    output = next((stack.home).glob("*/jobs/*/*/*/output.log"))
    if output.stat().st_size > 5 * 150:
        flag.touch()
    return False


def test_a_lease_key_of_another_type_ends_the_run_and_loses_no_job(stack: Stack) -> None:
    stack.up(*ONE, "--lease-ttl", "1s", workers=1)
    number = stack.queue("sleep", "300")
    redis, keys = stack.api.redis, stack.api.broker.keys
    device = stack.await_state(number, "running")["gpu_uuids"][0]
    redis.delete(keys.lease(device))
    redis.lpush(keys.lease(device), "junk")
    done = stack.await_state(number, "failed")
    assert done["reason"] == "lease_lost" and redis.zcard(keys.running) == 0
    redis.delete(keys.lease(device))
    stack.await_state(stack.queue("true"), "succeeded")


def test_the_log_of_a_number_given_out_again_is_nobody_elses(tmp_path: Path) -> None:
    with remote(tmp_path) as stack:
        stack.up(*ONE, workers=1)
        old = stack.api.submit(["echo", "mine"], cwd="/")
        assert old.wait(20).succeeded and old.logs() == b"mine\n"
        stack.api.redis.flushall()
        new = stack.api.submit(["echo", "another's"], cwd="/")
        assert new.number == old.number and new.wait(20).succeeded
        with pytest.raises(JobGone):
            old.logs()


def talks_to_the_end(flag: Path) -> tuple[str, ...]:
    """A job that says FINAL when the file is there, and ends."""
    return ("sh", "-c", f"echo first; until [ -e {flag} ]; do sleep 0.02; done; echo FINAL")


def test_the_last_output_comes_before_the_outcome_when_redis_was_away(tmp_path: Path) -> None:
    with (
        RealServer(None, tmp_path / "server").start() as server,
        ended(Stack(tmp_path / "home", {"FOXQUEUE_URL": server.url})) as stack,
    ):
        stack.up(*ONE, workers=1)
        flag = stack.root / "flag"
        number = stack.queue(*talks_to_the_end(flag))
        processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
        until(lambda: stack.api.job(number).logs() == b"first\n", 10, "the first line")
        server.kill()
        flag.touch()
        until(gone(processes), 10, "the end of the job")
        server.start()
        stack.await_state(number, "succeeded")
        assert stack.api.job(number).logs() == b"first\nFINAL\n"


def test_a_successor_sends_the_last_output_of_a_run_that_it_accepts(stack: Stack) -> None:
    stack.up(*ONE, workers=1)
    flag = stack.root / "flag"
    number = stack.queue(*talks_to_the_end(flag))
    processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
    until(lambda: stack.api.job(number).logs() == b"first\n", 10, "the first line")
    worker = stack.worker_of(number)
    worker.send(signal.SIGSTOP)
    flag.touch()
    until(gone(processes), 10, "the end of the job")
    until(lambda: list(stack.home.glob("*/jobs/*/*/*/exit.json")), 10, "its exit record")
    worker.send(signal.SIGKILL)
    done = stack.await_state(number, "succeeded")
    assert done["losses"] == 0 and stack.api.job(number).logs() == b"first\nFINAL\n"
