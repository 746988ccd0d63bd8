"""O2: a run that is lost runs again at nobody's cost, unless the job itself is to blame."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from stack import Stack
from test_reports_lost import kill_run
from wait import until

THREE = ("--simulate", "3x24G")
KILLS_ITS_WORKER = "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $$)); exec sleep 300"
REBOOTED = "import foxqueue.processes as processes\nprocesses.short_boot_id = lambda: 'boot-{}'"


def counting(stack: Stack, *runs: str) -> tuple[str, ...]:
    """A job that says of each run which attempt it was, and then does what is given for this run."""
    cases = "".join(f"{at}) {code};; " for at, code in enumerate(runs, 1))
    marks = stack.root / "marks"
    return ("sh", "-c", f"echo $FOXQUEUE_ATTEMPT >> {marks}; case $(wc -l < {marks}) in {cases}esac")


def attempts(stack: Stack) -> list[int]:
    marks = stack.root / "marks"
    return [int(line) for line in marks.read_text().split()] if marks.exists() else []


def await_run(stack: Stack, number: int, run: int) -> None:
    """Wait until its so-manieth run goes on."""
    until(lambda: len(attempts(stack)) == run and bool(stack.processes_of(number)), 20, f"run {run}")


def lose(stack: Stack, number: int, run: int) -> None:
    """Kill worker, runner and processes of its so-manieth run."""
    await_run(stack, number, run)
    kill_run(stack, number)


def hows(stack: Stack, number: int) -> list[str]:
    """How its runs ended that did not succeed."""
    return [run.how for run in stack.api.job(number).view.history]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_o2_losses_cost_no_retry_and_failures_do(stack: Stack, retries: int) -> None:
    """Lost, failed, lost, failed, well: each loss runs again; each failure as long as there are retries."""
    stack.serve(60_000)
    runs = ("exec sleep 300", "exit 3", "exec sleep 300", "exit 3", "exit 0")
    number = stack.queue(*counting(stack, *runs), retries=retries, retry_delay=0)
    losses = 1 if retries == 0 else 2
    for run in (1, 3)[:losses]:
        stack.start_worker("sim:0", *THREE)
        lose(stack, number, run)
        assert stack.job(number)["state"] == "running"  # nobody has told yet
    stack.start_worker("sim:0", *THREE)
    done = stack.await_state(number, "succeeded", "failed", seconds=20)
    assert (done["state"], done["reason"]) == ("succeeded" if retries == 2 else "failed", "exit_code")
    assert (done["attempts"], done["losses"]) == (retries + 1, losses)
    assert attempts(stack) == [1, 1, 2, 2, 3][: (2, 4, 5)[retries]]
    assert hows(stack, number) == ["lose", "fail", "lose", "fail"][: (2, 4, 4)[retries]]
    claims, lost = stack.events(number, "claim"), stack.events(number, "lose", "reap")
    assert (len(claims), len(lost)) == (len(attempts(stack)), losses)


def test_o2_a_loss_that_a_lease_tells_costs_no_retry_either(stack: Stack) -> None:
    """Nobody comes back for the device: another worker's look finds the silence, and takes the job with its retry."""
    stack.serve(2000)
    number = stack.queue(*counting(stack, "exec sleep 300", "exit 3", "exit 0"), retries=1, retry_delay=0)
    stack.start_worker("sim:0", *THREE)
    lose(stack, number, 1)
    stack.start_worker("sim:1", *THREE)
    done = stack.await_state(number, "succeeded", seconds=20)
    assert (done["attempts"], done["losses"], attempts(stack)) == (2, 1, [1, 1, 2])
    assert hows(stack, number) == ["reap", "fail"]


def test_o2_no_retry_saves_a_job_that_takes_its_workers_down(stack: Stack) -> None:
    """Three quick losses end it; failures between them do not make it harmless."""
    stack.serve(60_000)
    command = counting(stack, KILLS_ITS_WORKER, "exit 3", KILLS_ITS_WORKER, KILLS_ITS_WORKER, "exit 0")
    number = stack.queue(*command, retries=5, retry_delay=0)
    for _ in range(3):
        assert stack.start_worker("sim:0", *THREE).wait(20) == -signal.SIGKILL
    stack.start_worker("sim:0", *THREE)
    done = stack.await_state(number, "failed", seconds=20)
    assert (done["reason"], done["attempts"], done["losses"]) == ("poison", 1, 3)
    assert "lost its worker 3 times" in done["detail"] and attempts(stack) == [1, 1, 2, 2]
    assert stack.await_state(stack.queue("true"), "succeeded")
    stack.fox("requeue", str(number))  # by hand it begins anew
    again = stack.await_state(number, "succeeded")
    assert (again["attempts"], again["losses"]) == (1, 0)


@pytest.mark.parametrize("how", ["rebooted", "late"])
def test_o2_losses_that_are_not_its_fault_never_end_a_job(stack: Stack, how: str) -> None:
    """The machine was rebooted each time, or the run was lost when it had gone on for over ten minutes."""
    stack.serve(60_000)
    number = stack.queue(*counting(stack, *["exec sleep 300"] * 4, "exit 0"))
    redis: Any = stack.api.redis
    for run in range(1, 5):
        stack.start_worker("sim:0", *THREE, before=REBOOTED.format(run) if how == "rebooted" else "")
        await_run(stack, number, run)
        if how == "late":
            long_ago = stack.api.broker.server_time_ms() - 601_000
            redis.hset(stack.api.broker.keys.job(number), "started_at", long_ago)
        kill_run(stack, number)
    stack.start_worker("sim:0", *THREE, before=REBOOTED.format(5) if how == "rebooted" else "")
    done = stack.await_state(number, "succeeded", seconds=20)
    assert (done["attempts"], done["losses"], attempts(stack)) == (1, 4, [1] * 5)


def test_o2_a_loss_after_it_had_ended_by_itself_is_no_loss(stack: Stack) -> None:
    """Its worker dies while the job fails: the next one counts the failure, and the retry is due."""
    stack.serve(60_000)
    flag = stack.root / "flag"
    wait = f"while [ ! -e {flag} ]; do sleep 0.02; done; exit 3"
    number = stack.queue(*counting(stack, wait, "exit 0"), retries=1, retry_delay=0)
    worker = stack.start_worker("sim:0", *THREE)
    runner = stack.runner_of(number)
    worker.kill()
    worker.wait(20)
    flag.touch()
    until(lambda: not runner.alive(), 20, "the runner's end")
    assert stack.job(number)["state"] == "running"
    stack.start_worker("sim:0", *THREE)
    done = stack.await_state(number, "succeeded")
    assert (done["attempts"], done["losses"], attempts(stack)) == (2, 0, [1, 2])
