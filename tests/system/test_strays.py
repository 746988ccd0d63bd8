"""What is left when a worker, its runner, or both were killed: ended by `up` and by `down`, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import Stack, gone
from supervised import Home, running
from wait import until

from foxqueue.broker import Broker
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId, children, parent_of
from foxqueue.server import find_server
from workers import leftovers

ONE = ("--simulate", "1x24G")
LONG = 60_000  # ms; a lease that does not run out during the test


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def pids_in(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def clean_job(stack: Stack, *, daemon: bool) -> tuple[int, Path, Path]:
    """A job, or a daemon of it, that nothing in its environment tells; it notes its pid, and whether it is alone."""
    pids, met = stack.root / "pids", stack.root / "met"
    look = f"for pid in $(cat {pids} 2>/dev/null); do kill -0 $pid 2>/dev/null && echo $pid >> {met}; done"
    script = f"{look}; echo $$ >> {pids}; exec sleep 300"
    if not daemon:
        return stack.queue("env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", script), pids, met
    away = f"env -i PATH=/usr/bin:/bin setsid sh -c '{script}' &"
    return stack.queue("sh", "-c", f"({away}) ; exec sleep 300"), pids, met


def kill_both(stack: Stack, number: int, leader: int, *, first: str) -> None:
    """SIGKILL to worker and runner, the worker stopped first so that it cannot see its runner die."""
    worker = stack.worker_of(number)
    parent = parent_of(leader)
    runner = ProcessId.of(parent) if parent else None
    assert runner and parent_of(runner.pid) == worker.pid
    worker.send(signal.SIGSTOP)
    for process in (worker, runner) if first == "worker" else (runner, worker):
        process.send(signal.SIGKILL)


def leader_of(stack: Stack, number: int) -> int:
    """The process that the runner of the only running job started."""
    worker = stack.worker_of(number)
    below = until(lambda: [job for runner in children(worker.pid) for job in children(runner)], 10, "the job")
    return below[0]


# --- up: orphans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["worker", "runner"])
@pytest.mark.parametrize("daemon", [False, True], ids=["job", "daemon"])
def test_what_survives_worker_and_runner_never_meets_the_next_run(stack: Stack, daemon: bool, first: str) -> None:
    stack.up(*ONE, workers=1)
    number, pids, met = clean_job(stack, daemon=daemon)
    stray = until(lambda: pids_in(pids), 10, "the job")[0]
    assert not daemon or os.getsid(stray) == stray
    kill_both(stack, number, leader_of(stack, number), first=first)
    until(lambda: len(pids_in(pids)) == 2, 20, "the job again")
    assert not running(stray) and not met.exists()
    said = [line for line in stack.log("up").splitlines() if "a dead worker and its runner had left" in line]
    assert any(f"pid {stray} (" in line for line in said)
    assert stack.job(number)["losses"] == 1


def test_other_slots_and_the_server_do_not_feel_it(stack: Stack) -> None:
    """A busy job forks all the time and the server rewrites its file, while strays are killed beside them."""
    up = stack.up(*ONE, "--cpu", "1")
    client = stack.api.redis
    for turn in range(60):
        client.set(f"kept:{turn}", turn)
    client.config_set("rdb-key-save-delay", 50_000)  # µs: so that a rewrite takes 3 s
    flag = stack.root / "flag"
    busy = stack.queue("sh", "-c", f"until [ -e {flag} ]; do (sh -c '(true; true); true'; true); done", gpus=0)
    until(lambda: stack.processes_of(busy), 10, "the busy job")
    number, pids, _ = clean_job(stack, daemon=True)
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"], 10, "a rewrite")
    for turn in (1, 2):
        until(lambda turn=turn: len(pids_in(pids)) >= turn, 20, "the job")
        worker = stack.worker_of(number)
        [runner] = [pid for pid in children(worker.pid) if children(pid)]
        kill_both(stack, number, children(runner)[0], first="runner")
        until(lambda turn=turn: not running(pids_in(pids)[turn - 1]), 10, "the end of the stray")
    assert client.info("persistence")["aof_rewrite_in_progress"]
    until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 20, "the end of the rewrite")
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    flag.touch()
    done = stack.await_state(busy, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 0)
    until(lambda: not zombies(up.pid), 5, "no zombie left")


def test_runner_that_lives_ends_its_job_itself(stack: Stack) -> None:
    up = stack.up(*ONE, workers=1)
    felt = stack.root / "felt"
    number = stack.queue("sh", "-c", f"trap 'echo felt >> {felt}; exit' TERM; while :; do sleep 0.05; done")
    until(lambda: stack.processes_of(number), 10, "the job")
    runner, worker = stack.runner_of(number), stack.worker_of(number)
    worker.send(signal.SIGKILL)
    until(lambda: stack.job(number)["losses"] == 1, 20, "the loss told")
    assert felt.read_text() == "felt\n" and not runner.alive()
    assert "had left" not in stack.log("up")
    until(lambda: not zombies(up.pid), 5, "no zombie left")


def zombies(parent: int) -> list[int]:
    return [pid for pid in children(parent) if not running(pid)]


def test_children_that_up_did_not_start_are_left_alone(home: Home) -> None:
    up = home.up(stranger=["sleep", "300"])
    [stranger] = [pid for pid in children(up.pid) if "sleep" in Path(f"/proc/{pid}/comm").read_text()]
    assert "start foxqueue up on its own" in home.said
    os.kill(home.workers()[0], signal.SIGKILL)
    until(lambda: len(home.notes("start")) == 3, what="another start")
    up.terminate()
    assert up.wait(30) == 0 and running(stranger)
    os.kill(stranger, signal.SIGKILL)


def test_server_that_is_being_started_is_no_stray(home: Home) -> None:
    """It dies together with a worker, time after time: its starter's children come while orphans are looked for."""
    home.up()
    for turn in range(3, 7):
        url = find_server(home.config)
        assert url
        broker = Broker.connect(url, "default")
        server = int(broker.redis.info("server")["process_id"])
        broker.close()
        os.kill(server, signal.SIGKILL)
        os.kill(home.workers()[0], signal.SIGKILL)
        until(lambda turn=turn: len(home.notes("start")) == turn, what="a worker", seconds=20)
        until(lambda turn=turn: home.said.count("and runs again") == turn - 2, what="the server", seconds=10)
    assert "had left" not in home.said and "does not start" not in home.said


# --- down and the end of up: runners without a worker -------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True], ids=["runner", "stopped runner"])
def test_down_ends_a_run_that_has_no_worker(stack: Stack, stopped: bool) -> None:
    stack.serve(LONG)
    worker = stack.start_worker("sim:0", *ONE)
    number = stack.queue("sleep", "300")
    job = until(lambda: stack.processes_of(number), 10, "the job")
    runner = stack.runner_of(number)
    worker.kill()
    worker.wait(10)
    if stopped:
        runner.send(signal.SIGSTOP)
    done = stack.fox("down")
    assert gone(job)() and not runner.alive()
    until(lambda: not stack.all_processes(), 5, "the end of foxqueue server, whose seat is free before it is gone")
    assert f"ending job {number}, which has no worker any more" in done.stderr and "all ended" in done.stderr
    stack.up(*ONE, workers=1)
    until(lambda: stack.events(number, "lose"), 10, "the loss told")
    stack.await_state(number, "running")


def test_ending_up_ends_the_run_of_a_worker_that_was_just_killed(stack: Stack) -> None:
    up = stack.up(*ONE, workers=1)
    number = stack.queue("sleep", "300")
    job = until(lambda: stack.processes_of(number), 10, "the job")
    worker = stack.worker_of(number)
    up.send_signal(signal.SIGSTOP)  # so that no successor comes first
    worker.send(signal.SIGKILL)
    up.terminate()
    up.send_signal(signal.SIGCONT)
    assert up.wait(30) == 0
    assert gone(job)() and not stack.all_processes()


def test_ending_up_leaves_the_run_of_a_worker_that_it_does_not_serve(stack: Stack) -> None:
    """`up` has the first device; somebody's own worker has the second, on a server that goes on."""
    stack.serve(LONG)
    other = stack.start_worker("sim:1", "--simulate", "2x24G")
    number = stack.queue("sleep", "300")
    job = until(lambda: stack.processes_of(number), 10, "the job")
    up = stack.up(*ONE)
    up.terminate()
    assert up.wait(30) == 0
    assert not gone(job)() and other.poll() is None and stack.job(number)["state"] == "running"


def test_down_kills_what_neither_worker_nor_runner_watch(home: Home) -> None:
    """By its mark, and by the session of its recorded leader."""
    mark = "instance/1-1/1"
    marked = subprocess.Popen(["setsid", "sleep", "300"], env={"PATH": os.environ["PATH"], "FOXQUEUE_RUN": mark})
    script = "sleep 301 & echo $!; exec sleep 300"
    clean = subprocess.Popen(["/bin/sh", "-c", script], env={}, stdout=subprocess.PIPE, start_new_session=True)
    home.started += [marked, clean]
    assert clean.stdout is not None
    member = int(clean.stdout.readline())
    leader, dead = ProcessId.of(clean.pid), ProcessId(2**22 + 5, 1, "another boot", "x")
    assert leader
    write_run(home, {"mark": mark, "runner": dead.to_dict(), "worker": dead.to_dict(), "leader": leader.to_dict()})
    assert home.run("down") == 0
    assert marked.wait(5) == clean.wait(5) == -signal.SIGKILL and not running(member)
    assert "ending job 1, which has no worker any more" in home.said and "all ended" in home.said
    assert home.run("down") == 0 and "nothing was running" in home.said


def test_down_leaves_runs_of_others_alone(home: Home) -> None:
    job = subprocess.Popen(["sleep", "300"], start_new_session=True)
    home.started.append(job)
    leader = ProcessId.of(job.pid)
    assert leader
    write_run(home, {"leader": leader.to_dict(), "namespace": "theirs"})
    assert home.run("down") == 0 and "nothing was running" in home.said and job.poll() is None


def test_what_cannot_be_killed_is_told(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leftovers, "kill_marked", lambda *_: False)
    assert not leftovers.end_runs([leftovers.LoneRun("job 7", "a/7-1/1", None, None)])
    assert "processes of job 7 (marked FOXQUEUE_RUN=a/7-1/1) cannot be killed" in capsys.readouterr().err


def write_run(home: Home, facts: dict[str, object]) -> None:
    """What a worker writes down about its run."""
    place = home.config.machine_dir / "locks"
    place.mkdir(parents=True)
    lock = DeviceLock("FOX-1", "gpu", [place])
    assert lock.acquire()
    lock.write({"home": str(home.config.home), "namespace": home.config.namespace, "job": 1, **facts})
    lock.release()
