"""Who is next: one rule for all, an unfit job that blocks nobody and is not starved, and places that are kept."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import State
from stack import Stack, ended, until_exists
from test_reports_parents import order, stop_twice
from wait import until

from foxqueue import InvalidInput
from foxqueue.locks import SHARED_PLACES

ONE = ("--simulate", "1x24G")
UNLIKE = ("--simulate", "1x24G,1x8G")


def pending(stack: Stack) -> list[int]:
    """As ``ls`` shows them; in Python it is the same order."""
    listed = [job["number"] for job in json.loads(stack.fox("ls", "--state", "pending", "--json").stdout)]
    assert [job.number for job in stack.api.jobs(state="pending")] == listed
    return listed


def run_order(stack: Stack, numbers: list[int], seconds: float = 30.0) -> list[int]:
    """In which order these jobs were claimed at last, when all have succeeded."""
    for number in numbers:
        stack.await_state(number, "succeeded", seconds=seconds)
    claims = [number for event, number in order(stack) if event == "claim"]
    return sorted(numbers, key=lambda number: len(claims) - claims[::-1].index(number))


def submitted_ms(stack: Stack, number: int) -> int:
    found = stack.api.job(number).view.submitted_ms
    assert found is not None
    return found


# --- F8 ----------------------------------------------------------------------------------------------------------


def test_f8_what_no_device_can_ever_meet_is_refused(running: Stack) -> None:
    """Four GPUs where there are two, 100 GiB where there are 24: told with the numbers, and nothing is queued."""
    several = running.fox("submit", "--gpus", "4", "--", "true", check=False)
    assert several.returncode == 2 and "--gpus" in several.stderr and "0<=x<=1" in several.stderr
    with pytest.raises(InvalidInput, match="gpus 4 is not possible: give 0 to 1"):
        running.api.submit(["true"], gpus=4)
    large = ("--gpu-memory", "100G")
    for words in (("submit", *large), ("sweep", "--param", "a=1,2", *large), ("submit", "--hold", *large)):
        refused = running.fox(*words, "--", "echo", "{a}", check=False)
        assert (refused.returncode, refused.stdout) == (69, "")
        assert "needs 100G of GPU memory" in refused.stderr and "24G" in refused.stderr
    assert not running.api.jobs()


def test_f8_a_kind_of_device_that_is_not_there_is_flagged(running: Stack) -> None:
    """It may come: accepted with a word about it, and nobody waits behind it."""
    done = running.fox("submit", "-q", "-p", "9", "--gpus", "0", "--", "true")
    assert "no CPU slot is registered" in done.stderr
    running.await_state(running.queue("true", priority=0), "succeeded")
    shown = running.show(int(done.stdout))
    assert (shown["state"], shown["waiting_for"]) == ("pending", "no_matching_device")


def test_f8_a_job_whose_device_went_is_flagged_and_blocks_nobody(stack: Stack) -> None:
    """Accepted for the larger device, which is then gone, comes back smaller, and at last as it was."""
    stack.serve()
    larger = ("--simulate", "1x24G,1x80G")
    worker = stack.start_worker("sim:1", *larger)
    until(stack.api.workers, 20, "the worker")
    wanted = stack.submit("true", flags=("--gpu-memory", "40G", "--hold", "-p", "9"))
    worker.terminate()
    assert worker.wait(20) == 0

    def flagged(word: str, text: str) -> bool:
        small = stack.queue("true", priority=0)
        stack.await_state(small, "succeeded")
        shown = stack.show(wanted)
        assert (shown["state"], shown["waiting_for"]) == ("pending", word) and text in shown["detail"]
        return pending(stack) == [wanted] and text in stack.fox("ls").stdout

    stack.start_worker("sim:0", "--simulate", "2x24G")
    stack.fox("unhold", str(wanted))
    assert flagged("no_worker", "no worker is running for the matching device")
    worker = stack.start_worker("sim:1", "--simulate", "2x24G")
    until(lambda: len(stack.api.workers()) == 2, 20, "the worker of the smaller device")
    assert flagged("unsatisfiable", "needs 40G of GPU memory, and the largest registered device has 24G")
    assert stack.fox("submit", "--gpu-memory", "40G", "--", "true", check=False).returncode == 69
    worker.terminate()
    assert worker.wait(20) == 0
    stack.start_worker("sim:1", *larger)
    assert stack.await_state(wanted, "succeeded")["attempts"] == 1


# --- M3 ----------------------------------------------------------------------------------------------------------


def test_m3_the_order_of_ls_is_the_order_in_which_jobs_run(stack: Stack) -> None:
    """Priorities, age, --front, another priority afterwards, other needs, a hold between: one rule, one list."""
    stack.up(*ONE, workers=1)
    stack.fox("config", "set", "aging", "1s")
    flag = stack.root / "flag"
    stack.await_state(stack.queue(*until_exists(flag)), "running")
    aged = stack.queue("true")  # medium is 5
    until(lambda: stack.api.broker.server_time_ms() > submitted_ms(stack, aged) + 1100, 10, "a level's worth of age")
    asked: tuple[dict[str, Any], ...] = (
        {"priority": 6},
        {"priority": 6, "gpu_memory": "8G"},
        {"priority": "high"},
        {"priority": "low"},
        {"gpu_memory": "1G"},
        {},
        *[{"priority": 0}] * 3,
    )
    jobs = stack.api.submit_many([{"argv": ["true"], "cwd": stack.work, **options} for options in asked])
    newer, other_need, high, low, plain, held, raised, last, front = (job.number for job in jobs)
    stack.fox("hold", str(held))
    stack.fox("reprioritize", "8", str(raised))
    stack.fox("reprioritize", "--front", str(front))
    stack.fox("unhold", str(held))
    expected = [front, high, raised, aged, newer, other_need, plain, held, low, last]
    assert pending(stack) == expected
    lines = stack.fox("ls").stdout.splitlines()[1 : len(expected) + 1]
    assert [int(line.split()[0]) for line in lines] == expected
    flag.touch()
    assert run_order(stack, expected) == expected


@pytest.mark.parametrize("command", ["ls", "submit", "reprioritize"])
def test_m3_the_rule_is_in_the_help(stack: Stack, command: str) -> None:
    """Which way priorities count, and what age is worth."""
    text = " ".join(stack.fox(command, "--help").stdout.split())
    assert re.search(r"[Hh]igher (priorities )?runs? first", text)
    assert re.search(r"a level is (worth|a head start in time)", text) and "aging" in text
    if command == "ls":
        assert "pending in the order in which they will run" in text
    else:
        assert "0 to 9, or low (2), medium (5), high (8)" in text


# --- M4 ----------------------------------------------------------------------------------------------------------


def test_m4_ten_thousand_small_jobs_pass_a_head_that_fits_nowhere(stack: Stack) -> None:
    """It needs 80 of 24 GiB and is at the front; it runs as soon as a device comes that has them."""
    stack.serve()
    small = stack.api.submit_many([{"argv": ["true"], "gpu_memory": "4G"}] * 10_000)
    head = stack.queue("true", gpu_memory="80G", priority=9)
    stack.fox("reprioritize", "--front", str(head))
    stack.start_worker("sim:0", *ONE)
    first = [job.number for job in small[:10]]
    assert run_order(stack, first) == first
    shown = stack.show(head)
    assert (shown["state"], shown["waiting_for"]) == ("pending", "unsatisfiable")
    assert [job.number for job in stack.api.jobs(state="pending", limit=1)] == [head]
    stack.start_worker("sim:1", "--simulate", "1x24G,1x80G")
    assert stack.await_state(head, "succeeded")["attempts"] == 1
    assert stack.job(small[-1].number)["state"] == "pending"


def test_m4_who_waits_for_the_large_device_lets_small_ones_pass(stack: Stack) -> None:
    stack.up(*UNLIKE)
    flag = stack.root / "flag"
    running = stack.queue(*until_exists(flag), gpu_memory="20G")
    stack.await_state(running, "running")
    head = stack.queue("true", gpu_memory="20G", priority=9)
    small = [stack.queue("true", priority=0) for _ in range(5)]
    assert run_order(stack, small) == small
    shown = stack.show(head)
    assert (shown["state"], shown["waiting_for"]) == ("pending", "devices_busy")
    flag.touch()
    stack.await_state(head, "succeeded")


@pytest.mark.soak
def test_m4_a_large_job_starts_in_time_beside_an_endless_stream_of_small_ones(stack: Stack) -> None:
    """20 of 24 GiB at priority 0 against 4s at priority 2, of which there are always some: its age wins."""
    stack.up(*UNLIKE)
    stack.fox("config", "set", "aging", "1s")
    flag, small = stack.root / "flag", [0]
    redis: Any = stack.api.redis
    keys = stack.api.broker.keys

    def feed() -> int:
        """Keep 16 of them waiting; how many did when there were fewest."""
        left = int(redis.zcard(keys.pending("g1.m4096")))
        request = {"argv": ["sleep", "0.3"], "gpu_memory": "4G", "priority": 2}
        small.extend(job.number for job in stack.api.submit_many([request] * (16 - left)))
        return left

    def fed(number: int, state: str) -> bool:
        assert feed() > 0, "the stream ran dry"
        return bool(stack.job(number)["state"] == state)

    feed()
    large = stack.queue(*until_exists(flag), gpu_memory="20G", priority=0)
    until(lambda: fed(large, "running"), 30, "the large job")
    last = small[-12]
    until(lambda: fed(last, "succeeded"), 30, "small ones beside it")
    assert stack.job(large)["state"] == "running"
    flag.touch()
    done = stack.api.job(large).wait(20).view
    assert done.succeeded and (done.attempts, done.losses) == (1, 0)
    assert done.started_ms is not None and done.started_ms - submitted_ms(stack, large) < 2000 + 10_000
    trail = [number for event, number in order(stack) if event == "claim"]
    before, after = trail[: trail.index(large)], trail[trail.index(large) + 1 :]
    assert len(before) > 5 and after
    assert min(submitted_ms(stack, number) for number in after) >= submitted_ms(stack, large) + 2000 - 1


@pytest.fixture
def gpu() -> Iterator[str]:
    """UUID of a GPU, whose locks belong to the whole machine."""
    made = f"GPU-{uuid.uuid4()}"
    yield made
    for place in SHARED_PLACES:
        for file in place.glob(f"{made}.*"):
            file.unlink()


@pytest.mark.nvml
def test_m4_a_head_that_needs_more_memory_than_is_free_waits_alone(tmp_path: Path, nvml_state: State, gpu: str) -> None:
    """A desktop holds a little of the GPU; who needs all of it waits for that, and the others do not."""
    nvml_state.write(f"gpu 0 uuid {gpu}", "gpu 0 name NVIDIA A10", "gpu 0 mem_total_mib 24576")
    desktop = nvml_state.hold(0, 200)
    environ = nvml_state.env({}, LD_LIBRARY_PATH=str(nvml_state.library))
    with ended(Stack(tmp_path / "stack", environ)) as stack:
        stack.up("--lease-ttl", "2s", workers=1)
        head = stack.queue("true", gpu_memory="24G", priority=9)
        behind = [stack.queue("true", gpu_memory="20G", priority=0) for _ in range(3)]
        assert run_order(stack, behind) == behind
        until(lambda: stack.job(head)["waiting_for"] == "memory", 10, "what it waits for")
        detail = stack.job(head)["detail"]
        assert "needs 24G of GPU memory" in detail and "of 24G on gpu:0" in detail
        assert not stack.events(head, "claim")
        desktop.unlink()
        assert stack.await_state(head, "succeeded")["attempts"] == 1


# --- M6 ----------------------------------------------------------------------------------------------------------


def given_back(stack: Stack, marks: Path, then: str) -> int:
    """A job that goes on for ever, or does ``then``, at its first run, and ends well at its second."""
    script = f"echo $FOXQUEUE_ATTEMPT >> {marks}; [ $(wc -l < {marks}) -gt 1 ] || {then}"
    return stack.queue("sh", "-c", script, retry_delay="1s", priority=3)


@pytest.mark.parametrize("how", ["stopped", "paused", "later"])
def test_m6_a_job_that_is_given_back_keeps_its_place(stack: Stack, how: str) -> None:
    """Its worker is told to leave, its queue is paused, or it exits with 75: no attempt is counted, and it is next."""
    stack.serve(2000 if how == "later" else 60_000)  # who is busy looks once a beat
    marks, flag = stack.root / "marks", stack.root / "flag"
    later = [stack.queue(*until_exists(flag), priority=9), stack.queue("true", priority=9)]
    first = given_back(stack, marks, "exit 75" if how == "later" else "sleep 300")
    stack.fox("reprioritize", "--front", str(first))
    rank = stack.api.job(first).rank
    worker = stack.start_worker("sim:0", *ONE)
    match how:
        case "stopped":
            until(lambda: stack.processes_of(first), 20, "its first run")
            stop_twice(stack, worker)
        case "paused":
            until(lambda: marks.exists() and stack.processes_of(first), 20, "its first run")
            stack.fox("pause", "--running", "requeue")
        case "later":
            stack.await_state(first, "scheduled")
            stack.await_state(later[0], "running")
    back = stack.await_state(first, "pending")
    assert (back["attempts"], back["losses"]) == (0, 0)
    assert back["reason"] == {"stopped": "shutdown", "paused": "paused", "later": "later"}[how]
    assert stack.api.job(first).rank == rank
    behind = later[1:] if how == "later" else later
    assert pending(stack) == [first, *behind]
    match how:
        case "stopped":
            stack.start_worker("sim:0", *ONE)
        case "paused":
            stack.fox("resume")
    flag.touch()
    assert run_order(stack, [first, *behind]) == [first, *behind]
    done = stack.job(first)
    assert (done["attempts"], done["losses"], marks.read_text().split()) == (1, 0, ["1", "1"])


@pytest.mark.parametrize("front", [False, True], ids=["by priority", "at the front"])
def test_m6_a_job_that_was_held_keeps_its_place(stack: Stack, front: bool) -> None:
    stack.serve()
    first, second, third = (stack.queue("true") for _ in range(3))
    if front:
        stack.fox("reprioritize", "--front", str(third))
    expected = [third, first, second] if front else [first, second, third]
    assert pending(stack) == expected
    stack.fox("hold", str(expected[0]))
    assert pending(stack) == expected[1:]
    stack.fox("unhold", str(expected[0]))
    assert pending(stack) == expected
