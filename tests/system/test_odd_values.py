"""Values that are not understood are refused in our words; times may be text, and a job may stand for several."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pretend import register
from queue_driver import ENVIRONMENT, Queue
from shell import Shell

from foxqueue import Client, Retry, WaitTimeout
from foxqueue.broker import NewJob
from foxqueue.codec import pack
from foxqueue.errors import InvalidInput
from foxqueue.pausing import await_idle, scope_of
from foxqueue.submission import user

ODD: dict[str, Callable[[Any], object]] = {
    "pause": lambda fox: fox.pause(5),
    "pause with bytes": lambda fox: fox.pause(b"x"),
    "pause of a group": lambda fox: fox.pause(group=5),
    "pause of a device": lambda fox: fox.pause(device=0),
    "resume": lambda fox: fox.resume(group=["a"]),
    "jobs by tag": lambda fox: fox.jobs(tags="a"),
    "jobs by tags of numbers": lambda fox: fox.jobs(tags={"a": 1}),
    "jobs by state": lambda fox: fox.jobs(5),
    "jobs by states": lambda fox: fox.jobs([["pending"]]),
    "jobs by name": lambda fox: fox.jobs(name=5),
    "jobs by group": lambda fox: fox.jobs(group=5),
    "jobs up to": lambda fox: fox.jobs(limit="5"),
    "listing": lambda fox: fox.listing("failed"),
    "wait for numbers": lambda fox: fox.wait([1, 2]),
    "wait for a number": lambda fox: fox.wait(1),
    "wait for text": lambda fox: fox.wait("1"),
    "wait for nothing": lambda fox: fox.wait(None),
    "wait a while": lambda fox: fox.wait([fox.job(1)], "soon"),
    "wait of a job": lambda fox: fox.job(1).wait([5]),
    "result": lambda fox: fox.job(1).result("5"),
    "a year": lambda fox: fox.job(1).wait(float("inf")),
    "claim": lambda fox: fox.claim("sim:0", simulate="1x24G", timeout="1x"),
    "claim of nothing": lambda fox: fox.claim(None),
    "job": lambda fox: fox.job("x"),
    "job by key": lambda fox: fox.job(key=5),
    "job without": lambda fox: fox.job(),
    "reprioritize": lambda fox: fox.job(1).reprioritize("x"),
    "submit": lambda fox: fox.submit(5),
    "enqueue": lambda fox: fox.enqueue(5),
    "submit_many": lambda fox: fox.submit_many(5),
    "submit_many of text": lambda fox: fox.submit_many(["true"]),
    "Retry": lambda fox: Retry("1s"),
    "Retry of a list": lambda fox: Retry([]),
    "drain": lambda fox: await_idle(fox.broker, fox.inspector, scope_of(fox.inspector), "soon"),
}


@pytest.mark.parametrize("given", ODD)
def test_odd_values_are_refused_in_our_words(fox: Client, queue: Queue, given: str) -> None:
    fox.submit(["true"])
    before = queue.snapshot()
    with pytest.raises(InvalidInput):
        ODD[given](fox)
    assert queue.snapshot() == before


def test_times_may_be_text_and_one_job_may_stand_for_several(fox: Client) -> None:
    job = fox.submit(["true"])
    for wait in (lambda: fox.wait(job, "10ms"), lambda: job.wait("10ms"), lambda: fox.wait([job], -0.5)):
        with pytest.raises(WaitTimeout):
            wait()
    job.cancel()
    fox.wait(job)
    fox.wait(each for each in [job])
    fox.wait([], "1s")


def test_what_was_claimed_is_given_back_for_a_time_in_text(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"])
    with fox.claim("sim:0", simulate="1x24G", timeout="30s") as run:
        assert run is not None
        with pytest.raises(InvalidInput, match=r"delay 'soon'|time 'soon'"):
            run.release("x", "soon")
        run.release("x", "1h")
    assert run.state == "released" and job.refresh().state == "scheduled"
    with fox.claim("sim:0", simulate="1x24G", timeout="20ms") as none:
        assert none is None


def test_a_cascade_says_which_children_stay(fox: Client, queue: Queue) -> None:
    parent, other = fox.submit(["true"]), fox.submit(["true"])
    child = fox.submit(["true"], after=[parent, other])
    other.cancel()
    parent.cancel()
    fox.look()
    parent.requeue(cascade=True)
    [said] = fox.warnings
    assert f"job {child.number} cannot be requeued: what it waits for can never be met, job {other.number}" in said
    assert "requeue that one with --cascade" in said
    other.requeue(cascade=True)
    assert fox.warnings == [] and child.refresh().state == "blocked"


def test_a_child_of_a_success_that_waited_for_a_failure_can_never_run(shell: Shell, fox: Client, queue: Queue) -> None:
    parent = fox.submit(["true"])
    child = fox.submit(["true"], after_failed=parent)
    queue.complete(queue.worker().claim())
    fox.look()
    err = shell.fox("requeue", str(child.number), code=1)[1]
    assert "job 1 succeeded: it can never run again as it is, submit it anew" in err and "--cascade" not in err


# --- what the commands say -------------------------------------------------------------------------------


def test_a_priority_before_front_is_no_job(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit_many([{"argv": ["true"]}] * 10)
    before = queue.snapshot()
    for words in (["9", "--front", "10"], ["low", "--front", "10"], ["--yes", "9", "--front"], ["9", "10", "--front"]):
        assert "give a priority or --front" in shell.fox("reprioritize", *words, code=2)[1]
    assert queue.snapshot() == before
    assert shell.fox("reprioritize", "--front", "9")[0] == "9 at the front\n"
    assert shell.fox("reprioritize", "10", "--front")[0] == "10 at the front\n"


def test_a_dry_run_says_why_jobs_wait(shell: Shell, fox: Client) -> None:
    fox.submit_many([{"argv": ["true"], "hold": at % 2 == 1} for at in range(30)])
    for words in (["last"], ["1-3"], ["--all"]):
        asked = shell.json("cancel", "--dry-run", *words)
        there = {job["number"]: job for job in shell.json("ls")}
        for job in asked:
            assert (job["waiting_for"], job["detail"]) == (
                there[job["number"]]["waiting_for"],
                there[job["number"]]["detail"],
            )
    assert "held: held by" in shell.fox("cancel", "--dry-run", "last")[0]


def test_nothing_to_show_is_said(shell: Shell, fox: Client) -> None:
    assert shell.fox("ls") == ("", "foxqueue: no jobs in namespace test: foxqueue submit -- CMD puts one in\n")
    assert shell.fox("ls", "--all") == shell.fox("ls")
    assert shell.fox("ls", "--name", "x") == ("", "foxqueue: no such jobs in namespace test\n")
    assert shell.fox("groups")[1].startswith("foxqueue: no groups in namespace test: ")
    for command in ("ls", "groups", "failed", "events"):
        assert shell.fox(command, "--json") == ("[]\n", "")
    fox.submit(["true"])
    assert shell.json("ls", "--all") == shell.json("ls")
    assert "leave --all out" in shell.fox("ls", "--all", "--mine", code=2)[1]


def test_failed_refuses_other_states(shell: Shell) -> None:
    assert "foxqueue ls --state cancelled" in shell.fox("failed", "--state", "cancelled", code=2)[1]
    shell.fox("failed", "--state", "failed")


def test_events_of_the_last_job(shell: Shell, fox: Client) -> None:
    assert "there is no job of" in shell.fox("events", "--job", "last", code=1)[1]
    fox.submit(["true"])
    fox.submit(["true"]).cancel()
    assert [event["event"] for event in shell.json("events", "--job", "last")] == ["enqueue", "cancel"]
    assert "or last" in shell.fox("events", "--job", "0", code=2)[1]


def test_a_drain_that_takes_too_long_prints_its_object(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit(["true"])
    queue.worker().claim()
    out, err = shell.fox("drain", "--json", "--timeout", "20ms", "--reason", "x", code=124)
    assert json.loads(out) == {"scope": "*", "group": None, "device": None, "paused": f"{user()}: x"}
    assert "the time is over" in err


def test_groups_and_events_are_json_in_every_state(shell: Shell, fox: Client, queue: Queue) -> None:
    register(queue)
    for group, filling in (("a", ""), ("b", ""), ("c", "0011223344556677")):
        spec = pack({"v": 1, "argv": ["true"], "user": user()})
        queue.broker.enqueue_many([NewJob("x", f"g1@{group}", 5, 0, 1000, spec)], ENVIRONMENT, filling=filling)
    fox.pause('with "quotes" and \\ and ü', group="a")
    fox.pause("all", device="SIM-1")
    fox.pause("all")
    out, err = shell.fox("groups", "--json")
    assert {group["name"]: group["state"] for group in json.loads(out)} == {"a": "paused", "b": "open", "c": "filling"}
    assert err == ""
    for name in "abc":
        assert [group["name"] for group in shell.json("groups", name)] == [name]
    fox.resume(group="a")
    names = [event["event"] for event in shell.json("events")]
    assert names.count("pause") == 3 and "resume" in names


def test_who_waits_is_told_that_the_queue_is_paused(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.pause("upgrade")
    said = f"foxqueue: the queue is paused by {user()}: upgrade\n"
    job = fox.submit(["true"])
    assert shell.fox("wait", str(job.number), "--timeout", "10ms", code=124)[1].count(said) == 1
    assert said not in shell.fox("wait", "--json", str(job.number), "--timeout", "10ms", code=124)[1]
    job.cancel()
    assert said not in shell.fox("wait", str(job.number), code=1)[1], "it waits for nothing"
    shell.fox("submit", "--expires", "50ms", "--wait", "--", "true", code=1)
    assert shell.fox("submit", "--expires", "50ms", "--wait", "--", "true", code=1)[1].count(said) == 1
