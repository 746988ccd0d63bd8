"""Workers that are told to stop, and jobs that fail and are tried again."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise

from stack import Stack, gone, until_exists
from wait import until

ONE = ("--simulate", "1x24G")


def idle_worker(stack: Stack) -> int:
    """A worker that waits for work; returns its pid."""
    process = stack.start_worker("sim:0", *ONE)
    until(lambda: [worker["pid"] for worker in stack.api.workers()] == [process.pid], 10, "the worker")
    until(lambda: stack.api.workers()[0]["state"] == "idle", 10, "an idle worker")
    return process.pid


def test_term_while_idle_ends_the_worker_and_leaves_the_queue_alone(stack: Stack) -> None:
    """Q1: TERM once, TERM twice, INT, and TERM to the group, while it waits for work."""
    stack.serve(ttl_ms=60_000)
    for signals, group in (((15,), False), ((15, 15), False), ((2,), False), ((15,), True)):
        pid = idle_worker(stack)
        began = time.monotonic()
        for number in signals:
            (os.killpg if group else os.kill)(pid, number)
        status = stack.exit_status(pid)
        assert status == 0 and time.monotonic() - began < 3, (signals, status, stack.log("worker"))
        [device] = stack.devices().values()
        assert (device["state"], device["job"]) == ("unavailable", None) and not stack.api.redis.zcard(
            stack.api.broker.keys.idle
        )
    number = stack.queue("true")  # nobody is left to be woken for it: the next worker has it at once
    assert stack.job(number)["waiting_for"] == "no_worker"
    stack.start_worker("sim:0", *ONE)
    assert stack.await_state(number, "succeeded", seconds=5)["attempts"] == 1


def test_term_during_a_job_waits_for_it(stack: Stack) -> None:
    """Q1: to the worker alone and to its whole group; the job does not feel it, no other job is taken."""
    stack.serve(ttl_ms=60_000)
    for group in (False, True):
        pid = idle_worker(stack)
        flag, felt = stack.root / f"flag-{group}", stack.root / "felt"
        script = f"trap 'touch {felt}' TERM INT HUP; until [ -e {flag} ]; do sleep 0.05; done"
        number, behind = stack.queue("sh", "-c", script), stack.queue("true", priority="low")
        until(lambda: stack.processes_of(number), 10, "the job")  # noqa: B023
        (os.killpg if group else os.kill)(pid, signal.SIGTERM)
        until(lambda: stack.api.workers()[0]["state"] == "draining", 10, "a draining worker")
        assert "draining" in stack.fox("workers").stdout
        flag.touch()
        done = stack.await_state(number, "succeeded")
        assert stack.exit_status(pid) == 0
        assert (done["attempts"], done["losses"], done["exit_code"]) == (1, 0, 0) and not felt.exists()
        assert stack.job(behind)["state"] == "pending" and not stack.events(behind, "claim")
        assert stack.fox("cancel", str(behind)).returncode == 0


def test_kill_after_term_loses_the_run_and_nothing_else(stack: Stack) -> None:
    """Q1: a worker that is killed while it waits for its job; the successor tells, and the job runs again."""
    stack.serve(ttl_ms=60_000)
    pid = idle_worker(stack)
    flag = stack.root / "flag"
    number = stack.queue("sh", "-c", f"trap '' TERM; [ -e {flag} ] || sleep 300")
    stack.await_state(number, "running")
    rank = stack.api.job(number).rank
    processes = until(lambda: stack.processes_of(number), 10, "the job")
    os.kill(pid, signal.SIGTERM)
    until(lambda: "stopping: job" in stack.log("worker"), 10, "the signal taken")
    os.kill(pid, signal.SIGKILL)
    assert stack.exit_status(pid) == -signal.SIGKILL
    flag.touch()
    first = idle_after(stack, number)
    assert (first["attempts"], first["losses"]) == (1, 1) and stack.api.job(number).rank == rank
    assert gone(processes)() and len(stack.events(number, "lose")) == 1


def idle_after(stack: Stack, number: int) -> dict[str, object]:
    """Start the next worker, and wait until the job has succeeded and the worker is idle."""
    stack.start_worker("sim:0", *ONE)
    done = stack.await_state(number, "succeeded")
    until(lambda: {worker["state"] for worker in stack.api.workers()} >= {"idle"}, 10, "an idle worker")
    return done


def test_down_waits_for_running_jobs_and_keeps_the_others(stack: Stack) -> None:
    """Q1, A10: `down` beside a foreground `up`, with a job that ends in time."""
    up = stack.up(*ONE, workers=1)
    flag = stack.root / "flag"
    number = stack.queue(*until_exists(flag))
    until(lambda: stack.processes_of(number), 10, "the job")
    behind = stack.queue("true")
    down = stack.start("down")
    until(lambda: "stopping: job" in stack.log("up"), 10, "the drain")
    assert down.poll() is None and stack.job(number)["state"] == "running"
    flag.touch()
    assert down.wait(20) == 0 and up.wait(5) == 0, stack.log("down")
    assert "all ended; jobs and data are kept" in stack.log("down") and not stack.all_processes()
    again = stack.fox("ls", check=False)
    assert again.returncode == 1 and "no server: run foxqueue up" in again.stderr
    stack.up(*ONE, workers=1)
    assert [stack.await_state(job, "succeeded")["attempts"] for job in (number, behind)] == [1, 1]
    assert stack.job(number)["losses"] == 0 and len(stack.events(number, "claim")) == 1


# --- retries ------------------------------------------------------------------------------------------


def test_retries_wait_longer_each_time_and_end_as_dead_letters(quick: Stack) -> None:
    """Exit codes, signals and time limits are retried after 0.3 s and 0.6 s; launch errors and cancels are not."""
    times = quick.root / "times"
    times.mkdir()
    stamp = f"date +%s.%N >> {times}/$FOXQUEUE_JOB_ID; echo try $FOXQUEUE_ATTEMPT"
    more = {"retries": 2, "retry_delay": "300ms"}
    code = quick.queue("sh", "-c", f"{stamp}; exit 3", **more)
    killed = quick.queue("sh", "-c", f"{stamp}; kill -9 $$", **more)
    limited = quick.queue("sh", "-c", f"{stamp}; exec sleep 300", time_limit="200ms", retries=1, retry_delay=0)
    saved = quick.queue("sh", "-c", f"{stamp}; [ $FOXQUEUE_ATTEMPT = 3 ]", **more)
    unstartable = quick.queue("no-such-command-anywhere", **more)
    waiting = quick.await_state(code, "scheduled")
    assert (waiting["waiting_for"], waiting["reason"]) == ("backoff", "exit_code")
    ends = {
        number: quick.await_state(number, "failed", "succeeded")
        for number in (code, killed, limited, saved, unstartable)
    }
    assert [(job["state"], job["reason"], job["attempts"], job["losses"]) for job in ends.values()] == [
        ("failed", "exit_code", 3, 0),
        ("failed", "signal", 3, 0),
        ("failed", "timeout", 2, 0),
        ("succeeded", "exit_code", 3, 0),
        ("failed", "launch_error", 1, 0),
    ]
    assert ends[code]["exit_code"] == 3 and ends[saved]["exit_code"] == 0
    for number in (code, killed, saved):
        stamps = [float(line) for line in (times / str(number)).read_text().split()]
        gaps = [later - earlier for earlier, later in pairwise(stamps)]
        assert len(gaps) == 2 and gaps[0] >= 0.3 and gaps[1] >= 0.6 and sum(gaps) < 8, gaps
    assert quick.fox("logs", str(saved)).stdout == "try 1\ntry 2\ntry 3\n"
    assert quick.api.stats()["failed"] == 4
    listed = [job.number for job in quick.api.jobs(state="failed")]
    assert sorted(listed) == sorted([code, killed, limited, unstartable])


def test_a_job_that_loses_its_worker_time_after_time_ends(stack: Stack) -> None:
    """A1, A10: its third loss is its last; it does not take workers down for ever."""
    stack.serve(ttl_ms=60_000)
    script = "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $$))"  # the worker: the parent of its runner
    number = stack.queue("sh", "-c", f"{script}; sleep 300")
    for _ in range(3):
        worker = stack.start_worker("sim:0", *ONE)
        assert worker.wait(20) == -signal.SIGKILL
    stack.start_worker("sim:0", *ONE)
    ended = stack.await_state(number, "failed")
    assert (ended["reason"], ended["attempts"], ended["losses"]) == ("poison", 0, 3)
    assert "lost its worker 3 times" in ended["detail"]
    assert stack.await_state(stack.queue("true"), "succeeded")
