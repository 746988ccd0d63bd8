"""How jobs end: those that cannot start, those that must be stopped, and those that die on their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from stack import MARK, Stack, ended
from wait import until

from foxqueue.processes import ProcessId, descendants, marked

CPUS = ("--simulate", "1x24G", "--cpu", "1")

# Runs in a worker: its runners start jobs as a user who is at his limit of processes.
NO_MORE_PROCESSES = """
import subprocess, sys, workers.runs as runs
runner = '''
import os, resource, sys
from workers import launch, runner
spawn = launch._Setting.spawn
def limited(*given):
    if os.getuid() == 0:  # root has no limit
        os.setgroups([]), os.setgid(61234), os.setuid(61234)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    return spawn(*given)
launch._Setting.spawn = limited
sys.exit(runner.main(sys.argv[1:]))
'''
class Popen(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__([sys.executable, "-P", "-c", runner, command[-1]], **options)
runs.subprocess = type(sys)("subprocess")
runs.subprocess.__dict__.update(subprocess.__dict__, Popen=Popen)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One foxqueue for the tests that leave it as it was."""
    root = tmp_path_factory.mktemp("ends")
    with ended(Stack(root)) as stack:
        stack.up()
        yield stack
    shutil.rmtree(root, ignore_errors=True)


# --- jobs that cannot start ---------------------------------------------------------------------------


def test_what_cannot_start_fails_at_once_with_the_reason_and_the_worker_goes_on(stack: Stack) -> None:
    """A4: everything between the claim and the command's first instruction."""
    stack.serve()
    place = stack.root / "place"
    for name in ("gone", "replaced"):
        (place / name).mkdir(parents=True)
    (place / "plain").write_text("#!/bin/sh\n")
    for name, text in (("bad", "#!/no/such/interpreter\n"), ("binary", "\x7fELF nonsense")):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    expected = {
        stack.queue("no-such-command-anywhere"): "was not found in the job's PATH",
        stack.queue(str(place / "missing")): "does not exist here",
        stack.queue("true", cwd=place / "gone"): "working directory",
        stack.queue("true", cwd=place / "replaced"): "is not a directory",
        stack.queue(str(place / "plain")): "is not executable: chmod +x",
        stack.queue(str(place)): "is a directory",
        stack.queue(str(place / "bad")): "names an interpreter in its first line that does not exist",
        stack.queue(str(place / "binary")): "is not a program for this machine",
    }
    blocked = stack.queue("true", retries=3)  # its directory cannot be made: a file lies where it should be
    job = stack.api.job(blocked)
    instance = stack.api.broker.settings().instance
    jobs = stack.api.config.jobs_dir
    (jobs / instance).mkdir(parents=True)
    (jobs / instance / f"{blocked}-{job.born}").touch()
    expected[blocked] = "cannot be prepared"
    (place / "gone").rmdir()
    (place / "replaced").rmdir()
    (place / "replaced").touch()
    good = stack.queue("true")
    stack.start_worker("sim:0", *CPUS)
    assert stack.await_state(good, "succeeded", seconds=10)["attempts"] == 1
    for number, text in expected.items():
        failed = stack.job(number)
        assert (failed["state"], failed["reason"], failed["exit_code"]) == ("failed", "launch_error", None), failed
        assert text in failed["detail"] and failed["attempts"] == 1, failed
        assert failed["started_at"] and failed["finished_at"]
    assert "is not executable" in stack.fox("show", str(next(iter(expected)) + 4)).stdout
    assert not stack.api.redis.keys(stack.api.broker.keys.lease("*"))
    assert [device["state"] for device in stack.devices().values()] == ["free"]

    shutil.rmtree(jobs)  # all of them: the same for every job until somebody clears it away
    jobs.touch()
    unwritable = stack.queue("true")
    assert "cannot be prepared" in stack.await_state(unwritable, "failed")["detail"]
    jobs.unlink()
    assert stack.await_state(stack.queue("true"), "succeeded")


def test_no_more_processes_is_a_failure_that_names_the_limit(stack: Stack) -> None:
    """A4: the kernel answers EAGAIN to the fork of the job."""
    stack.serve()
    worker = stack.start_worker("sim:0", *CPUS, before=NO_MORE_PROCESSES)
    for _ in range(2):
        failed = stack.await_state(stack.queue("true"), "failed")
        assert failed["reason"] == "launch_error" and "ulimit -u" in failed["detail"]
    assert worker.poll() is None


# --- jobs that must be stopped ------------------------------------------------------------------------

FAMILY = """
import multiprocessing, os, sys, time
def child():
    if not os.fork():
        os.setsid()
        time.sleep(300)
    time.sleep(300)
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    children = [multiprocessing.Process(target=child) for _ in range(3)]
    [child.start() for child in children]
    print("started", flush=True)
    [child.join() for child in children]
"""


def test_a_time_limit_ends_the_whole_tree(shared: Stack) -> None:
    """D1: a shell that waits for Python, which has children of its own that lead sessions of their own."""
    number = shared.queue("sh", "-c", '"$@" & wait', "sh", sys.executable, "-S", "-c", FAMILY, time_limit="2s")
    tree = until(lambda: len(found := descendants(shared.runner_of(number).pid)) >= 8 and found, 10, "the tree")
    identities = [identity for identity in map(ProcessId.of, tree) if identity is not None]
    mark = shared.mark_of(number)
    assert len(marked(MARK, mark)) >= 8
    began = time.monotonic()
    failed = shared.await_state(number, "failed", seconds=10)
    assert not marked(MARK, mark) and not any(identity.alive() for identity in identities)
    assert time.monotonic() - began < 5
    assert (failed["reason"], failed["exit_code"]) == ("timeout", None)
    assert "time limit of 2s" in failed["detail"] and "timeout" in shared.fox("show", str(number)).stdout


def test_what_ignores_term_is_killed_after_the_grace(shared: Stack) -> None:
    """D1: by its time limit on one device, by cancel on the other; grandchildren that ignore it too."""
    script = "trap '' TERM; sh -c 'sleep 300; true' & setsid sh -c 'sleep 300; true' & echo up; sleep 300"
    limited = shared.queue("sh", "-c", script, time_limit="1s")
    cancelled = shared.queue("sh", "-c", script)
    for number in (limited, cancelled):
        shared.await_state(number, "running")
        until(lambda number=number: len(shared.processes_of(number)) >= 5, 10, "the tree")
    marks = [shared.mark_of(number) for number in (limited, cancelled)]
    began = time.monotonic()
    done = shared.fox("cancel", str(cancelled))
    took = time.monotonic() - began
    assert 9 < took < 14 and done.stdout == f"{cancelled} cancelled\n"
    failed = shared.await_state(limited, "failed", seconds=5)
    assert failed["reason"] == "timeout"
    assert not [pid for mark in marks for pid in marked(MARK, mark)]
    assert "cancelled by" in shared.job(cancelled)["detail"]


def test_cancel_before_the_start_and_while_it_runs(stack: Stack) -> None:
    """Pending, scheduled and running jobs; a second cancel; jobs that had ended; the pending one never runs."""
    stack.up(*CPUS)
    running = stack.queue("sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    scheduled = stack.queue("false", gpus=0, retries=1, retry_delay="1h")
    pending = stack.queue("sh", "-c", f"touch {stack.root}/ran")
    stack.await_state(scheduled, "scheduled")
    until(lambda: b"up" in stack.api.job(running).logs(), 10, "the job")
    for number in (pending, scheduled, running):
        began = time.monotonic()
        assert stack.fox("cancel", str(number)).stdout == f"{number} cancelled\n"
        assert time.monotonic() - began < 3
        job = stack.job(number)
        assert (job["state"], job["reason"]) == ("cancelled", "cancelled_by_user"), job
        assert stack.fox("cancel", str(number)).returncode == 0, "cancelled before"
    assert stack.job(running)["exit_code"] == 0 and b"bye" in stack.api.job(running).logs()
    after = stack.queue("true")
    stack.await_state(after, "succeeded")
    assert not (stack.root / "ran").exists() and not stack.events(pending, "claim")
    had_ended = stack.fox("cancel", str(after), check=False)
    assert had_ended.returncode == 1 and f"job {after} cannot be cancelled: it had succeeded" in had_ended.stderr
    unknown = stack.fox("cancel", "999", check=False)
    assert unknown.returncode == 1 and "there is no job 999" in unknown.stderr


# --- jobs that die ------------------------------------------------------------------------------------


def test_deaths_are_told_with_signal_core_and_memory(shared: Stack) -> None:
    """E1: signals of its own, exit codes that look like signals, our own time limit."""
    signals = [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM]
    dies = {
        number: f"ulimit -c unlimited; mkdir {shared.root}/$$; cd {shared.root}/$$; kill -{number.value} $$"
        for number in signals
    }
    jobs = {number: shared.queue("sh", "-c", script) for number, script in dies.items()}
    codes = {code: shared.queue("sh", "-c", f"exit {code}") for code in (1, 137, 255)}
    limited = shared.queue("sleep", "300", time_limit="300ms")
    hungry = shared.queue(sys.executable, "-S", "-c", "import os; held = b'x' * (300 << 20); os.kill(os.getpid(), 9)")
    for number, job in jobs.items():
        plain = subprocess.Popen(["sh", "-c", dies[number]])
        dumped = os.WCOREDUMP(os.waitpid(plain.pid, 0)[1])  # what this machine does with cores
        plain.returncode = 0
        found = shared.await_state(job, "failed")
        assert (found["reason"], found["exit_code"]) == ("signal", None)
        assert f"killed by {number.name}" in found["detail"] and "not by the queue" in found["detail"]
        assert ("core dumped" in found["detail"]) == dumped
    for code, job in codes.items():
        found = shared.await_state(job, "failed")
        assert (found["reason"], found["exit_code"]) == ("exit_code", code)
        assert f"exited with {code}" in found["detail"]
    found = shared.await_state(limited, "failed")
    assert (found["reason"], found["exit_code"]) == ("timeout", None) and "not by" not in found["detail"]

    shown = shared.fox("show", str(jobs[signal.SIGKILL])).stdout
    assert "failed (signal)" in shown and "killed by SIGKILL" in shown and "peak memory" in shown
    shared.await_state(hungry, "failed")
    peak = next(line for line in shared.fox("show", str(hungry)).stdout.splitlines() if "peak memory" in line)
    assert 300 <= int(peak.split()[-1].removesuffix("M")) < 400, peak


@pytest.mark.parametrize(
    ("script", "status"), [("kill -9 $$", 137), ("exit 137", 137), ("kill -15 $$", 143), ("exit 0", 0), ("exit 3", 3)]
)
def test_wait_exits_as_the_job_did(shared: Stack, script: str, status: int) -> None:
    """E1: the code of the job itself, 128 and the signal's number when one ended it."""
    done = shared.fox("submit", "--wait", "--quiet", "--", "sh", "-c", f"echo out; {script}", check=False)
    assert (done.returncode, done.stdout) == (status, "out\n")


def test_time_limit_starts_with_the_job_and_not_with_its_waiting(shared: Stack) -> None:
    """A job that waited longer than its limit still has all of it."""
    gate = shared.root / "gate"
    holding = [shared.queue("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done") for _ in range(2)]
    limited = shared.queue("true", time_limit="300ms")
    threading.Timer(0.8, gate.touch).start()
    assert shared.await_state(limited, "succeeded")["reason"] == "exit_code"
    for number in holding:
        shared.await_state(number, "succeeded")
    gate.unlink()
