"""Moments between a claim and the start of its job, and lock records that say nothing."""

from __future__ import annotations

import signal
from pathlib import Path

from stack import Stack, gone
from wait import until

from foxqueue.processes import ProcessId

ONE = ("--simulate", "1x24G")

# Runs in a worker: the first runner that is told to start is dead by then.
RUNNER_DEAD = """
from workers.runs import RunnerHandle
start = RunnerHandle.start
def dead(self, *given):
    RunnerHandle.start = start
    self.process.kill()
    self.process.wait()
    return start(self, *given)
RunnerHandle.start = dead
"""

# Runs in a worker: every question looks as if its answer had taken a minute.
LATE = """
from foxqueue.questions import Questions
ask = Questions.ask
def late(self, seen):
    call = ask(self, seen)
    self.asked_at -= 60.0
    return call
Questions.ask = late
"""


# Runs in a worker: the server dies between the claim of the first job and the look at its environment.
SERVER_DIES = """
import os, signal
from foxqueue.broker import Broker
environment = Broker.environment
def dies(self, digest):
    Broker.environment = environment
    os.kill(int(self.connection.answer(("INFO", "server"), "info").split(b"process_id:")[1].split()[0]), signal.SIGKILL)
    return environment(self, digest)
Broker.environment = dies
"""


def test_a_server_that_dies_before_a_claimed_job_starts_costs_nothing(stack: Stack) -> None:
    """The job waits for its environment, and starts when the server is back: it is claimed once."""
    stack.serve(ttl_ms=15_000)
    stack.start_worker("sim:0", *ONE, before=SERVER_DIES)
    job = stack.api.submit(["true"], cwd=stack.work).wait(30)
    assert (job.state, job.attempts, job.losses) == ("succeeded", 1, 0)
    assert [event["event"] for event in stack.events(job.number)] == ["enqueue", "claim", "complete"]


def test_a_runner_that_died_before_its_order_costs_the_job_nothing(stack: Stack) -> None:
    stack.serve()
    stack.start_worker("sim:0", *ONE, before=RUNNER_DEAD)
    done = stack.await_state(stack.queue("true"), "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 0)


def test_a_job_that_was_claimed_late_is_asked_about_before_it_begins(stack: Stack) -> None:
    """Its feed counts from the first question: without a beat in between the runner would not start it."""
    stack.serve()
    stack.start_worker("sim:0", *ONE, before=LATE)
    for number in [stack.queue("true") for _ in range(3)]:
        done = stack.await_state(number, "succeeded")
        assert (done["attempts"], done["losses"]) == (1, 0)


def test_a_lock_record_that_says_nothing_hides_no_run(stack: Stack) -> None:
    """Worker and runner are dead and the record is garbage: what was given the device is found and ended."""
    stack.serve(ttl_ms=2000)
    stack.start_worker("sim:0", *ONE)
    marks = stack.root / "marks"
    number = stack.queue("sh", "-c", f"echo run >> {marks}; [ $(wc -l < {marks}) -gt 1 ] || sleep 300")
    processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
    device = stack.job(number)["gpu_uuids"][0]
    worker, runner = stack.worker_of(number), stack.runner_of(number)
    identities: list[ProcessId] = [worker, runner]
    for identity in identities:
        identity.send(signal.SIGSTOP)
    for identity in identities:
        identity.send(signal.SIGKILL)
    lock: Path = next(stack.home.glob(f"*/locks/{device}.gpu"))
    lock.write_bytes(b"\xff garbage")
    stack.start_worker("sim:0", *ONE)
    done = stack.await_state(number, "succeeded", seconds=20)
    assert gone(processes)() and (done["attempts"], done["losses"]) == (1, 1)
