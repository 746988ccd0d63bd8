"""Pause, resume and drain: of the queue, a group and a device."""

from __future__ import annotations

import signal
import threading

import pytest
from pretend import register
from queue_driver import ENVIRONMENT, Queue
from shell import Shell
from stack import Stack, until_exists
from wait import until

from foxqueue import Client, pausing
from foxqueue.broker import NewJob
from foxqueue.codec import pack
from foxqueue.errors import GroupNotFound, InvalidInput, NoDevice, WaitTimeout
from foxqueue.submission import user

ME = user()
SHOWN = (["ls"], ["gpus"], ["stats"], ["groups"])


def in_group(queue: Queue, group: str, count: int = 1) -> list[int]:
    jobs = [NewJob(f"run {at}", f"g1@{group}", 5, 0, 1000, pack({"v": 1, "argv": ["true"]})) for at in range(count)]
    return [number for number, _ in queue.broker.enqueue_many(jobs, ENVIRONMENT, user=ME)]


def waits_for(shell: Shell, number: int) -> tuple[str, str]:
    job = shell.json("show", str(number))
    return job["waiting_for"], job["detail"]


# --- what is paused does not start, and says so ----------------------------------------------------------


def test_a_paused_queue_starts_nothing_and_everybody_sees_why(shell: Shell, queue: Queue) -> None:
    register(queue)
    number = queue.enqueue()
    in_group(queue, "other")
    said, _ = shell.fox("pause", "--reason", "upgrade")
    assert said == "the queue is paused: nothing more starts, what runs goes on; foxqueue resume undoes it\n"
    worker = queue.worker(device="SIM-1", shapes=("g1", "g1@lr"))
    assert worker.ask().word == "empty"
    why = f"paused by {ME}: upgrade"
    assert waits_for(shell, number) == ("paused", why)
    assert shell.json("ls")[0]["waiting_for"] == "paused"
    assert f"paused: {why}" in shell.fox("ls")[0]
    for words in SHOWN:
        assert shell.fox(*words)[1] == f"foxqueue: the queue is {why}\n", words
        assert shell.fox(*words, "--json")[1] == "", words
    assert shell.json("stats")["paused"] == f"{ME}: upgrade"
    later = queue.enqueue()
    said, err = shell.fox("resume")
    assert said == "the queue goes on; foxqueue pause stops it again\n" and not err
    assert worker.claim().number == number and waits_for(shell, later)[0] == "devices_busy"
    for words in SHOWN:
        assert shell.fox(*words)[1] == "", words


def test_a_pause_says_what_was_so_before_and_takes_the_newest_reason(shell: Shell, queue: Queue) -> None:
    queue.enqueue()
    assert shell.fox("resume") == ("", "foxqueue: the queue was not paused\n")
    assert shell.json("pause", "--reason", "one") == {
        "scope": "*",
        "group": None,
        "device": None,
        "paused": f"{ME}: one",
        "asked_to_end": 0,
    }
    for words in (["--reason", "one"], [], ["--running", "requeue"]):
        assert f"the queue was paused before, by {ME}: one" in shell.fox("pause", *words)[0]
    assert "nothing of the queue runs any more" in shell.fox("drain")[0]
    assert shell.json("stats")["paused"] == f"{ME}: one", "a pause without a reason takes none away"
    assert "the queue is paused" in shell.fox("pause", "--reason", "two")[0]
    assert shell.json("stats")["paused"] == f"{ME}: two"
    assert shell.json("resume")["paused"] is None


def test_a_paused_group_lets_others_pass(shell: Shell, queue: Queue) -> None:
    register(queue)
    held = in_group(queue, "lr", 2)
    other = queue.enqueue()
    said, _ = shell.fox("pause", "--group", "lr", "--reason", "bad data")
    assert said.startswith("group lr is paused:") and said.endswith("foxqueue resume --group lr undoes it\n")
    assert waits_for(shell, held[0]) == ("paused", f"group lr is paused by {ME}: bad data")
    assert waits_for(shell, other)[1].startswith("next in line"), "what is held back stands before nobody"
    assert [job["number"] for job in shell.json("ls")] == [*held, other]
    assert shell.json("ls")[2]["detail"].startswith("next in line")
    assert shell.json("groups", "lr")[0]["paused"] == f"{ME}: bad data"
    worker = queue.worker(device="SIM-1", shapes=("g1", "g1@lr"))
    run = worker.claim()
    assert run.number == other
    queue.complete(run)
    assert worker.ask().word == "empty"
    assert shell.json("resume", "--group", "lr")["group"] == "lr"
    assert worker.claim().number == held[0]


def test_a_resumed_group_in_a_paused_queue_says_that_it_still_waits(shell: Shell, queue: Queue) -> None:
    in_group(queue, "lr")
    shell.fox("pause", "--reason", "upgrade")
    shell.fox("pause", "--group", "lr")
    assert shell.fox("resume", "--group", "lr")[1] == f"foxqueue: the queue is paused by {ME}: upgrade\n"


def test_a_paused_device_takes_no_job_and_the_others_do(shell: Shell, queue: Queue) -> None:
    register(queue)
    register(queue, "SIM-2", "w2", index=1)
    said, _ = shell.fox("pause", "--device", "sim:0", "--reason", "noisy fan")
    assert said.startswith("sim:0 on ") and "foxqueue resume --device SIM-1" in said
    device = shell.json("gpus")[0]
    assert (device["state"], device["detail"]) == ("paused", f"paused by {ME}: noisy fan")
    number = queue.enqueue()
    assert queue.worker(device="SIM-1").ask().word == "empty"
    assert shell.json("stats")["available_gpu_slots"] == 1
    run = queue.worker("w2", "SIM-2").claim()
    assert run.number == number
    later = queue.enqueue()
    shell.fox("pause", "--device", "SIM-2")
    device = shell.json("gpus")[1]
    assert (device["state"], device["job"], device["detail"]) == ("leased", number, f"paused by {ME}")
    assert waits_for(shell, later)[0] == "devices_busy"
    queue.complete(run)
    word, why = waits_for(shell, later)
    assert word == "paused" and f"sim:0 on {device_host(shell)}: paused by {ME}: noisy fan" in why
    shell.fox("resume", "--device", "SIM-1")
    assert queue.worker("w3", "SIM-1").claim().number == later


def device_host(shell: Shell) -> str:
    return str(shell.json("health", code=0)["devices"][0]["device"]).partition(" on ")[2]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--group", "none"], 1, "there is no group 'none'"),
        (["--device", "gpu:7"], 1, "no device 'gpu:7' is registered"),
        (["--group", "lr", "--device", "sim:0"], 2, "a group and a device were given"),
    ],
)
@pytest.mark.parametrize("command", ["pause", "resume", "drain"])
def test_what_cannot_be_paused_is_refused(
    shell: Shell, queue: Queue, command: str, words: list[str], code: int, text: str
) -> None:
    register(queue)
    in_group(queue, "lr")
    before = queue.snapshot()
    assert text in shell.fox(command, *words, code=code)[1]
    assert queue.snapshot() == before


@pytest.mark.parametrize("reason", ["x" * 501, "two\nlines", "\x1b[31mred"])
def test_a_reason_is_one_line_for_people(shell: Shell, queue: Queue, reason: str) -> None:
    queue.enqueue()
    assert "one line of at most 500 characters" in shell.fox("pause", "--reason", reason, code=2)[1]
    assert queue.broker.redis.hgetall(queue.broker.keys.paused) == {}


def test_what_is_gone_by_then_is_said(fox: Client, queue: Queue) -> None:
    for scope, error in ((pausing.of_group("lr"), GroupNotFound), (pausing.Scope("SIM-9", "sim:9"), NoDevice)):
        with pytest.raises(error, match="is not there any more"):
            pausing.pause(fox.broker, fox.inspector, scope)
        with pytest.raises(error, match="is not there any more"):
            pausing.resume(fox.broker, scope)
    with pytest.raises(InvalidInput, match="name one of them"):
        pausing.scope_of(fox.inspector, "lr", "sim:0")


# --- drain ---------------------------------------------------------------------------------------------


def test_a_drain_waits_for_what_runs_of_its_scope_alone(shell: Shell, queue: Queue) -> None:
    register(queue)
    register(queue, "SIM-2", "w2", index=1)
    of_group, other = in_group(queue, "lr")[0], queue.enqueue()
    runs = [queue.worker("w1", "SIM-1", ("g1@lr",)).claim(), queue.worker("w2", "SIM-2").claim()]
    assert [run.number for run in runs] == [of_group, other]
    for words, number in ((["--group", "lr"], of_group), (["--device", "SIM-2"], other), ([], of_group)):
        err = shell.fox("drain", *words, "--timeout", "200ms", code=124)[1]
        assert f"waiting for job {number}" in err and "it stays paused" in err, words
    assert queue.complete(runs[1]) == "succeeded"
    out, err = shell.fox("drain", "--device", "SIM-2")
    assert "nothing of sim:1 on " in out and "waiting" not in err
    ending = threading.Timer(0.3, lambda: queue.complete(runs[0]))
    ending.start()
    found = shell.json("drain", "--reason", "move", "--timeout", "20s")
    ending.join()
    assert found["paused"] == f"{ME}: move" and queue.job(of_group)["state"] == "succeeded"


def test_ctrl_c_stops_waiting_and_it_stays_paused(shell: Shell, queue: Queue) -> None:
    queue.worker_with_job()
    process = shell.start("drain", "--reason", "upgrade")
    assert process.stdout and process.stderr
    until(lambda: queue.broker.redis.hexists(queue.broker.keys.paused, "*"), 20, "the pause")
    assert b"waiting for job 1" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"the queue stays paused: foxqueue resume undoes it" in err and b"Traceback" not in err
    assert shell.json("stats")["paused"] == f"{ME}: upgrade" and queue.job(1)["state"] == "running"


def test_the_time_of_a_drain_is_over_even_while_the_server_is_away(fox: Client, queue: Queue) -> None:
    queue.worker_with_job()
    with pytest.raises(WaitTimeout, match="job 1 still runs"):
        pausing.await_idle(fox.broker, fox.inspector, pausing.Scope(), 0.05)


# --- with real workers ---------------------------------------------------------------------------------


def test_q4_a_device_is_drained_without_ending_its_job(running: Stack) -> None:
    """Q4: nothing starts on the device any more, its job runs to its end, and the other device goes on."""
    flag = running.root / "flag"
    job = running.queue(*until_exists(flag))
    running.await_state(job, "running")
    uuid = running.job(job)["gpu_uuids"][0]
    drain = running.start("drain", "--device", uuid, "--reason", "new cooler")
    until(lambda: "paused by" in (running.devices()[uuid]["detail"] or ""), 20, "the pause")
    others = [running.queue("true") for _ in range(3)]
    for other in others:
        running.await_state(other, "succeeded")
    assert drain.poll() is None and running.devices()[uuid]["state"] == "leased"
    flag.touch()
    assert drain.wait(30) == 0
    running.await_state(job, "succeeded")
    assert uuid not in {running.job(other)["gpu_uuids"][0] for other in others}
    assert running.devices()[uuid]["state"] == "paused"
    running.fox("resume", "--device", uuid)
    until(lambda: running.devices()[uuid]["state"] == "free", 10, "a free device")


def test_what_runs_goes_back_into_the_queue_when_asked_to(running: Stack) -> None:
    flag = running.root / "flag"
    jobs = [running.queue(*until_exists(flag)) for _ in range(2)]
    for job in jobs:
        running.await_state(job, "running")
    said = running.fox("pause", "--running", "requeue", "--reason", "reboot").stdout
    assert "2 running jobs go back into the queue" in said
    for job in jobs:
        running.await_state(job, "pending")
        shown = running.show(job)
        assert (shown["attempts"], shown["losses"], shown["waiting_for"]) == (0, 0, "paused")
    assert "nothing of the queue runs" in running.fox("drain", "--timeout", "10s").stdout
    running.fox("resume")
    flag.touch()
    for job in jobs:
        running.await_state(job, "succeeded")
