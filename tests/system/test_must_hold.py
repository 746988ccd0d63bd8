"""What must hold whatever dies: a real server, real workers, real signals."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

from servers import RealServer
from stack import Stack, gone
from wait import until

from foxqueue import Client
from foxqueue.processes import ProcessId

PYTHON = sys.executable


def interval_job(folder: Path) -> tuple[str, ...]:
    """A job that leaves its device and the times of its start and end."""
    code = (
        "import os, time, pathlib\n"
        "a = time.monotonic(); time.sleep(0.02); b = time.monotonic()\n"
        f"pathlib.Path({str(folder)!r}, os.environ['FOXQUEUE_JOB_ID']).write_text("
        "f\"{os.environ['FOXQUEUE_GPUS']} {a} {b}\")\n"
    )
    return (PYTHON, "-S", "-c", code)


def test_a_hundred_submissions_at_once_are_all_accepted(stack: Stack) -> None:
    stack.start("server")
    until(lambda: stack.fox("ls", check=False).returncode == 0, 15, "the server")
    client, accepted, lock = stack.client(), [], threading.Lock()
    gate = threading.Barrier(101)

    def submit(name: str) -> None:
        gate.wait()
        job = client.submit(["true"], name=name)
        with lock:
            accepted.append(job.number)

    threads = [threading.Thread(target=submit, args=(f"job-{index}",)) for index in range(100)]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 5
    assert sorted(accepted) == list(range(1, 101))
    names = {job.name for job in client.jobs(state="pending", limit=1000)}
    assert names == {f"job-{index}" for index in range(100)}


def test_fifty_jobs_on_two_devices_never_share_one_and_keep_their_order(stack: Stack) -> None:
    stack.start("server")
    until(lambda: stack.fox("ls", check=False).returncode == 0, 15, "the server")
    client, folder = stack.client(), stack.root / "intervals"
    folder.mkdir()
    priorities = ["low", "high", "medium"]
    jobs = {
        client.submit(interval_job(folder), priority=priorities[index % 3], cwd=str(stack.work)).number: priorities[
            index % 3
        ]
        for index in range(50)
    }
    stack.up()
    for number in jobs:
        stack.await_state(number, "succeeded", seconds=60)
    intervals = [(file.read_text().split(), int(file.name)) for file in folder.iterdir()]
    assert len(intervals) == 50
    by_device: dict[str, list[tuple[float, float]]] = {}
    for (device, start, end), _ in intervals:
        by_device.setdefault(device, []).append((float(start), float(end)))
    assert len(by_device) == 2
    for spans in by_device.values():
        spans.sort()
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))
    fences = {number: int(client.job(number).fence or 0) for number in jobs}
    claimed = sorted(jobs, key=lambda number: fences[number])
    wanted = [number for level in ("high", "medium", "low") for number in sorted(jobs) if jobs[number] == level]
    assert claimed == wanted


def test_a_killed_worker_is_replaced_and_its_job_runs_again_within_five_seconds(running: Stack) -> None:
    flag = running.root / "second"
    number = running.submit("sh", "-c", f"trap '' TERM; sleep 300 & [ -e {flag} ] || wait; echo done")
    worker = running.worker_of(number)
    old = until(lambda: running.processes_of(number), 10, "processes of the job")
    flag.touch()
    began = time.monotonic()
    assert worker.send(signal.SIGKILL)
    ended = running.await_state(number, "succeeded")
    assert time.monotonic() - began < 5
    assert (ended["attempts"], ended["losses"]) == (1, 1)
    assert gone(old)()
    log = [entry[1] for entry in running.client().redis.xrange(running.client().broker.keys.events)]
    accepted = [entry for entry in log if entry[b"event"] == b"complete" and entry[b"job"] == str(number).encode()]
    assert len(accepted) == 1


def test_the_job_of_a_worker_that_never_comes_back_is_pending_again_after_its_lease(stack: Stack) -> None:
    stack.start("server")
    until(lambda: stack.fox("ls", check=False).returncode == 0, 15, "the server")
    stack.client().broker.configure(2000)
    stack.start("worker", "--gpu", "sim:0", "--simulate", "1x24G")
    number = stack.submit("sleep", "300")
    worker = stack.worker_of(number)
    processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
    worker.send(signal.SIGKILL)
    client = stack.client()

    def pending() -> bool:
        client.broker.sweep()  # a waiting client looks, too
        return client.job(number).state == "pending"

    began = time.monotonic()
    until(pending, 15, "pending again")
    took = time.monotonic() - began
    assert 2.5 < took < 4 + 0.7 + 2, took  # ttl + margin after the last beat
    assert gone(processes)(), "the run was not dead before its job was given out again"
    assert (client.job(number).attempts, client.job(number).losses) == (0, 1)


def test_everything_killed_the_server_too_loses_no_accepted_job(stack: Stack) -> None:
    stack.up()
    flag = stack.root / "flag"
    numbers = [stack.submit("sh", "-c", f"[ -e {flag} ] || sleep 300; echo ran") for _ in range(6)]
    stack.await_state(numbers[0], "running")
    stack.await_state(numbers[1], "running")
    stack.kill_everything()
    flag.touch()
    stack.up()
    for number in numbers:
        ended = stack.await_state(number, "succeeded", seconds=30)
        assert ended["attempts"] == 1
    assert sorted(stack.client().job(number).losses for number in numbers) == [0, 0, 0, 0, 1, 1]


def test_a_worker_stopped_past_its_lease_is_fenced_off(quick: Stack) -> None:
    marks = quick.root / "marks"
    number = quick.submit("sh", "-c", f"echo $FOXQUEUE_FENCE >> {marks}; sleep 300")
    worker = quick.worker_of(number)
    processes = until(lambda: quick.processes_of(number), 10, "processes of the job")
    client = quick.client()
    old = client.job(number)
    worker.send(signal.SIGSTOP)
    until(lambda: client.job(number).fence != old.fence, 20, "another worker's claim")
    assert gone(processes)(), "the first run was still alive when the second began"
    current = client.job(number).fence
    worker.send(signal.SIGCONT)
    refused = "the lease was refused"
    until(lambda: "job 1: lose" in quick.log("up") or refused in quick.log("up"), 10, "the old worker's refusal")
    broker = client.broker
    for call in (
        broker.complete_call(number, str(old.fence), b"x"),
        broker.heartbeat_call(number, str(old.fence)),
        broker.log_call(number, str(old.fence), 10**6, 0, b"x"),
    ):
        assert broker.send(call)[0].word == "lost"
    assert client.job(number).fence == current and client.job(number).state == "running"
    until(lambda: marks.read_text().split() == [old.fence, current], 10, "the second run's mark, and no other")
    # The old worker serves its device again.
    other = quick.submit("true")
    assert quick.await_state(other, "succeeded")["gpu_uuids"] == list(old.gpu_uuids)


def test_the_server_killed_during_a_job_changes_nothing(running: Stack) -> None:
    flag = running.root / "flag"
    number = running.submit("sh", "-c", f"until [ -e {flag} ]; do sleep 0.05; done; echo done")
    client = running.client()
    running.await_state(number, "running")
    for _ in range(3):  # three restarts within five seconds
        server = until(lambda: _server_of(running), 10, "the server")
        os.kill(server, signal.SIGKILL)
        until(lambda old=server: _server_of(running, old), 10, "the next server")
    flag.touch()
    ended = client.job(number).wait(timeout=20)  # the same client all along
    assert (ended.state, ended.attempts, ended.losses) == ("succeeded", 1, 0)
    again = client.submit(["true"])
    began = time.monotonic()
    assert again.wait(timeout=20).state == "succeeded"
    assert time.monotonic() - began < 5


def _server_of(stack: Stack, but: int = 0) -> int:
    """The pid of the server, once it answers and is another than ``but``."""
    for pid in stack.all_processes():
        try:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        identity = ProcessId.of(pid)
        if (
            (b"valkey-server" in name or b"redis-server" in name)
            and pid != but
            and identity is not None
            and identity.alive()
        ):
            return pid if stack.fox("ls", check=False).returncode == 0 else 0
    return 0


def test_script_flush_between_any_two_operations_changes_nothing(running: Stack) -> None:
    stop = threading.Event()
    flusher = running.client()

    def flush() -> None:
        while not stop.is_set():
            flusher.redis.script_flush()
            stop.wait(0.002)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        numbers = [running.submit("sh", "-c", "echo out; true") for _ in range(5)]
        for number in numbers:
            ended = running.await_state(number, "succeeded")
            assert (ended["attempts"], ended["losses"]) == (1, 0)
    finally:
        stop.set()
        thread.join()


def test_a_client_of_another_server_version(tmp_path: Path) -> None:
    """The scripts run on every server found here, through the client."""
    from servers import binaries

    for binary in binaries():
        with RealServer(binary, tmp_path / str(binary).replace(" ", "-").replace("/", "-")).start() as server:
            client = Client(url=server.url)
            job = client.submit(["true"])
            assert client.job(job.number).state == "pending"
            job.cancel()
            assert client.job(job.number).state == "cancelled"
