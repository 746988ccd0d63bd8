"""Workers, runners, hosts that die or stand still: their jobs are lost once, and run again with nothing left over."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from servers import RealServer
from stack import Stack, ended, gone, is_stopped, until_exists
from wait import until

from foxqueue.processes import ProcessId, children, descendants

ONE = ("--simulate", "1x24G")
THREE = ("--simulate", "3x24G")
LEASE_S = 4.0  # ttl and margin of `serve`
BEAT_S = 0.7

# Runs in a worker: the process does this to itself when it has the answer of its claim and nothing else.
AFTER_CLAIM = """
import os, signal
from workers.run import Run
start = Run.start
def held(self, *given):
    Run.start = start
    os.kill(os.getpid(), signal.{signal})
    return start(self, *given)
Run.start = held
"""


def runs_once(folder: Path, after: str = "true") -> tuple[str, ...]:
    """A job whose first run sleeps for ever; every run leaves its fence, later ones then do ``after``."""
    return (
        "sh",
        "-c",
        f"echo $FOXQUEUE_FENCE >> {folder}/marks; [ $(wc -l < {folder}/marks) -gt 1 ] || sleep 300; {after}",
    )


def kill_run(stack: Stack, number: int) -> ProcessId:
    """SIGKILL to the worker, runner and processes of a job, at once; returns the worker."""
    worker, runner = stack.worker_of(number), stack.runner_of(number)
    identities = [worker, runner, *(found for pid in descendants(runner.pid) if (found := ProcessId.of(pid)))]
    for identity in identities:
        identity.send(signal.SIGSTOP)
    for identity in identities:
        identity.send(signal.SIGKILL)
    return worker


def test_a_successor_on_the_device_gives_the_job_back_at_once(stack: Stack) -> None:
    """A1: worker and child killed, no time limit; the next worker of the device needs no lease to run out."""
    stack.serve(ttl_ms=60_000)
    stack.start_worker("sim:0", *ONE)
    number = stack.queue(*runs_once(stack.root))
    until(lambda: (stack.root / "marks").exists(), 10, "the first run")
    first = stack.await_state(number, "running")
    processes = stack.processes_of(number)
    kill_run(stack, number)
    until(gone(processes), 10, "the end of the run")
    began = time.monotonic()
    stack.start_worker("sim:0", *ONE)
    done = stack.await_state(number, "succeeded", seconds=15)
    assert time.monotonic() - began < 8
    assert (done["attempts"], done["losses"], done["reason"]) == (1, 1, "exit_code")
    lost = stack.events(number, "lose", "reap")
    assert [(event["event"], event["worker"], event["device"]) for event in lost] == [
        ("lose", first["worker"], first["gpu_uuids"][0])
    ]


def test_a_successor_gives_back_what_was_claimed_and_not_yet_written_down(stack: Stack) -> None:
    """A2: killed between the claim's answer and anything else; the next worker of the device waits for no lease."""
    stack.serve(ttl_ms=60_000)
    stack.start_worker("sim:0", *ONE, before=AFTER_CLAIM.format(signal="SIGKILL"))
    number = stack.queue("true")
    until(lambda: stack.events(number, "claim"), 10, "the claim")
    began = time.monotonic()
    stack.start_worker("sim:0", *ONE)
    done = stack.await_state(number, "succeeded", seconds=15)
    assert time.monotonic() - began < 5
    assert (done["attempts"], done["losses"]) == (1, 1)
    assert len(stack.events(number, "lose")) == 1


def test_no_job_stays_running_without_a_worker(stack: Stack) -> None:
    """A1, A2: killed with its child, or between the claim's answer and the start: nobody comes back for the device."""
    stack.serve()
    others = stack.root / "others"
    others.mkdir()
    stack.start_worker("sim:0", *THREE)
    mid_job = stack.queue(*runs_once(stack.root))
    stack.await_state(mid_job, "running")
    stack.start_worker("sim:1", *THREE, before=AFTER_CLAIM.format(signal="SIGKILL"))
    unstarted = stack.queue("sh", "-c", f"echo $FOXQUEUE_FENCE >> {others}/marks")
    first = stack.await_state(unstarted, "running")
    until(lambda: (stack.root / "marks").exists(), 10, "the first run")
    kill_run(stack, mid_job)
    began = time.monotonic()
    stack.start_worker("sim:2", *THREE)
    stale_s = 0.0
    while {stack.job(number)["state"] for number in (mid_job, unstarted)} != {"succeeded"}:
        listed = json.loads(stack.fox("ls", "--state", "running", "--json").stdout)
        ours = [job for job in listed if job["losses"] == 0]
        leases = [stack.api.redis.exists(stack.api.broker.keys.lease(job["gpu_uuids"][0])) for job in ours]
        stale_s = 0.0 if all(leases) else stale_s or time.monotonic()
        assert not stale_s or time.monotonic() - stale_s < 1.2, f"running without a live lease: {ours}"
        assert time.monotonic() - began < 2 * LEASE_S + 4, "recovery is bounded by the lease"
    for number, marks in ((mid_job, 2), (unstarted, 1)):
        done = stack.job(number)
        assert (done["attempts"], done["losses"]) == (1, 1)
        assert len(stack.events(number, "lose", "reap")) == 1
        folder = stack.root if number == mid_job else others
        assert len((folder / "marks").read_text().split()) == marks
    assert stack.job(unstarted)["gpu_uuids"] != first["gpu_uuids"]


def test_a_host_that_is_gone_gives_its_jobs_to_another(tmp_path: Path) -> None:
    """A1, A10: everything of a home killed, its server elsewhere lives on; another home takes over."""
    with RealServer(None, tmp_path / "server").start() as server:
        environ = {"FOXQUEUE_URL": server.url}
        with ended(Stack(tmp_path / "one", environ)) as one, ended(Stack(tmp_path / "two", environ)) as two:
            one.up(*ONE, "--lease-ttl", "2s", workers=1)
            number = one.queue(*runs_once(tmp_path))
            until(lambda: (tmp_path / "marks").exists(), 10, "the first run")
            first = one.await_state(number, "running")
            one.kill_everything()
            began = time.monotonic()

            def lost() -> dict[str, Any] | None:
                two.api.look()  # as every waiting client does
                found = two.job(number)
                return found if found["state"] == "pending" else None

            waiting = until(lost, 2 * LEASE_S, "a loss")
            assert waiting is not None and LEASE_S - BEAT_S - 0.3 < time.monotonic() - began < LEASE_S + 2
            assert (waiting["reason"], waiting["attempts"], waiting["losses"]) == ("worker_lost", 0, 1)
            assert f"worker {first['worker']} was lost" in waiting["detail"] and waiting["host"] == first["host"]
            two.up(*ONE, workers=1)
            done = two.await_state(number, "succeeded")
            assert (done["attempts"], done["losses"]) == (1, 1)
            assert len(two.events(number, "lose", "reap")) == 1
            dead = [device for device in two.devices().values() if device["state"] == "unavailable"]
            assert [device["detail"] for device in dead] == ["its worker is gone"]


def test_workers_that_stand_still_past_their_lease_are_fenced_off(stack: Stack) -> None:
    """A2, B2: SIGSTOP in the middle of a job, and between the claim's answer and the start; then SIGCONT."""
    stack.serve()
    early = stack.root / "early"
    early.mkdir()
    stack.start_worker("sim:0", *THREE)
    mid_job = stack.queue(*runs_once(stack.root))
    until(lambda: (stack.root / "marks").exists(), 10, "the first run")
    first_worker = stack.worker_of(mid_job)
    processes = stack.processes_of(mid_job)
    held = stack.start_worker("sim:1", *THREE, before=AFTER_CLAIM.format(signal="SIGSTOP"))
    unstarted = stack.queue("sh", "-c", f"echo $FOXQUEUE_FENCE >> {early}/marks; sleep 0.3")
    until(lambda: is_stopped(held.pid), 10, "a worker stopped at its claim")
    fences = [stack.job(number)["fence"] for number in (mid_job, unstarted)]
    first_worker.send(signal.SIGSTOP)
    stack.start_worker("sim:2", *THREE)
    for number in (mid_job, unstarted):
        stack.await_state(number, "succeeded", seconds=2 * LEASE_S + 6)
    assert gone(processes)(), "the first run was alive when the second had ended"
    results = [stack.job(number) for number in (mid_job, unstarted)]
    for pid in (first_worker.pid, held.pid):
        os.kill(pid, signal.SIGCONT)
    for device in (0, 1):  # both serve again, which they do not before the old run is settled
        uuid = next(found["uuid"] for found in stack.devices().values() if found["index"] == device)
        blocked = [stack.queue(*until_exists(stack.root / "flag")) for _ in range(3)]
        until(lambda uuid=uuid: stack.devices()[uuid]["state"] == "leased", 15, f"sim:{device} at work")
        (stack.root / "flag").touch()
        for number in blocked:
            stack.await_state(number, "succeeded")
        (stack.root / "flag").unlink()
    assert [stack.job(number) for number in (mid_job, unstarted)] == results
    assert len((early / "marks").read_text().split()) == 1, "a run without a lease was started"
    assert (early / "marks").read_text().split() != fences[1:]
    for number, fence in zip((mid_job, unstarted), fences, strict=True):
        assert (stack.job(number)["attempts"], stack.job(number)["losses"]) == (1, 1)
        accepted = stack.events(number, "complete", "fail", "release")
        assert len(accepted) == 1 and accepted[0]["fence"] != fence


def test_a_killed_runner_is_noticed_and_nothing_is_left_of_its_job(quick: Stack) -> None:
    """A9: SIGKILL of the runner of a tree that left its session and ignores TERM."""
    stubborn = "trap '' TERM; (setsid sh -c 'sleep 300; true' & setsid env -i sleep 300 &) ; sleep 300"
    script = f"echo x >> {quick.root}/marks; [ $(wc -l < {quick.root}/marks) -gt 1 ] && exit; {stubborn}"
    number = quick.queue("sh", "-c", script)
    worker, runner = quick.worker_of(number), quick.runner_of(number)
    tree = until(lambda: len(found := descendants(runner.pid)) == 5 and found, 10, "the tree")
    alive = gone(tree)
    assert not alive()
    began = time.monotonic()
    runner.send(signal.SIGKILL)
    until(lambda: quick.events(number, "lose"), 10, "the loss")
    assert time.monotonic() - began < BEAT_S + 1.0
    assert alive(), "something of the tree was left when the job was given back"
    done = quick.await_state(number, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 1)
    assert len(quick.events(number, "claim")) == 2
    assert worker.alive(), "the worker went with its runner"
    dead = [runner.pid, *tree]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in dead), 10, "zombies reaped")


def test_a_zombie_is_not_taken_for_a_living_job(quick: Stack) -> None:
    """A9: the job is a zombie because its runner stands still; a child of a job is a zombie while the job works."""
    number = quick.queue(*runs_once(quick.root))
    until(lambda: (quick.root / "marks").exists(), 10, "the first run")
    runner = quick.runner_of(number)
    first = children(runner.pid)[0]
    runner.send(signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    code = "import os, time\nif not os.fork(): os._exit(0)\ntime.sleep(0.3)\nprint('worked')"
    other = quick.queue("python3", "-c", code)
    assert quick.await_state(other, "succeeded")["losses"] == 0
    done = quick.await_state(number, "succeeded")  # two silent beats and two seconds
    assert (done["attempts"], done["losses"]) == (1, 1)
    until(lambda: not Path(f"/proc/{first}").exists(), 10, "the zombie reaped")


def unfinished(stack: Stack, number: int) -> dict[str, Any]:
    """How a job stands once it is not running."""
    return stack.await_state(number, "pending", "failed", "cancelled", "succeeded", seconds=10)


def test_every_way_to_end_a_job_has_its_own_reason(stack: Stack) -> None:
    """A10, Q1: exit, kill from outside, cancel, TERM of its worker, and TERM twice."""
    stack.serve()
    forever = ("sleep", "300")
    worker = stack.start_worker("sim:0", *ONE)
    ends = {"good": stack.queue("true"), "bad": stack.queue("sh", "-c", "exit 7")}
    killed = stack.queue(*forever)
    os.kill(until(lambda: stack.processes_of(killed), 10, "the job")[0], signal.SIGKILL)
    cancelled = stack.queue(*forever)
    stack.await_state(cancelled, "running")
    assert stack.fox("cancel", str(cancelled)).stdout == f"{cancelled} cancelled\n"

    given_back = stack.queue(*forever)
    stack.await_state(given_back, "running")
    rank = stack.api.job(given_back).rank
    processes = until(lambda: stack.processes_of(given_back), 10, "the job")
    behind = stack.queue("true")
    worker.terminate()
    until(lambda: "stopping: job" in stack.log("worker"), 10, "the first TERM taken")
    assert stack.job(given_back)["state"] == "running"
    worker.terminate()
    assert worker.wait(10) == 0
    released = stack.job(given_back)
    assert gone(processes)()
    assert (released["state"], released["reason"]) == ("pending", "shutdown")
    assert (released["attempts"], released["losses"]) == (0, 0)
    assert stack.api.job(given_back).rank == rank
    assert "its worker was stopped" in stack.fox("show", str(given_back)).stdout
    assert stack.job(behind)["state"] == "pending", "a worker that was told to stop took another job"
    listed = json.loads(stack.fox("ls", "--state", "pending", "--json").stdout)
    assert [job["number"] for job in listed] == [given_back, behind]

    found = {number: unfinished(stack, number) for number in (*ends.values(), killed, cancelled)}
    assert [(job["state"], job["reason"], job["exit_code"]) for job in found.values()] == [
        ("succeeded", "exit_code", 0),
        ("failed", "exit_code", 7),
        ("failed", "signal", None),
        ("cancelled", "cancelled_by_user", None),
    ]
    details = [str(job["detail"]) for job in found.values()]
    assert (
        "7" in details[1]
        and "SIGKILL" in details[2]
        and "not by the queue" in details[2]
        and "cancelled by" in details[3]
    )
