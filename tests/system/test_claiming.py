"""Claims of custom workers: what a run is, how it ends, and how soon it begins."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from claims import claim, device_of
from queue_driver import Queue
from wait import until

import foxqueue
from foxqueue import Client, InvalidInput, LeaseLost
from foxqueue.broker import Claimed
from foxqueue.codec import pack

P50_MS = 20.0  # a wake-up, on a loaded machine
ROUNDS = 30


def state_of(fox: Client, number: int) -> tuple[str, str | None, int]:
    job = fox.job(number)
    return job.state, job.reason, job.attempts


# --- what a run is ---------------------------------------------------------------------------------------------


def test_what_a_run_says_of_its_job(fox: Client) -> None:
    job = fox.submit(["train", "--lr", "1"], name="x", tags={"a": "b"}, env={"GIVEN": "1"}, config={"lr": 0.5})
    device = device_of(fox)
    with claim(fox) as run:
        assert run is not None
        assert (run.number, run.born, run.attempt, run.state) == (job.number, job.born, 1, "running")
        assert (run.argv, run.name, run.tags, run.config) == (["train", "--lr", "1"], "x", {"a": "b"}, {"lr": 0.5})
        assert (run.call, run.arguments(), run.cancelled, run.lost) == (None, ([], {}), None, False)
        assert run.device == device and run.spec["argv"] == run.argv
        env = run.env()
        assert env["FOXQUEUE_JOB_ID"] == str(job.number) and env["FOXQUEUE_GPUS"] == device.uuid
        assert env["FOXQUEUE_FENCE"] == run.fence and env["FOXQUEUE_ATTEMPT"] == "1"
        assert env["CUDA_VISIBLE_DEVICES"] == "" and env["GIVEN"] == "1" and "PATH" in env
        shown = subprocess.run(["sh", "-c", "cat $FOXQUEUE_DIR/config.json"], env=env, capture_output=True, text=True)
        assert shown.stdout.split() == ['{"lr":', "0.5}"]
        assert fox.job(job.number).gpu_uuids == (device.uuid,)
        (worker,) = fox.workers()
        assert (worker["state"], worker["job"], worker["device"]) == ("busy", job.number, device.uuid)
        assert [gpu["state"] for gpu in fox.gpus()] == ["leased"]
    assert run.state == "succeeded" and job.refresh().state == "succeeded"
    assert fox.workers() == [] and [gpu["state"] for gpu in fox.gpus()] == ["unavailable"]


def test_a_call_is_carried_out_and_has_its_value(fox: Client) -> None:
    job = fox.enqueue("statistics:mean", args=([1, 2, 6],))
    with claim(fox) as run:
        assert run is not None and run.call is not None
        args, kwargs = run.arguments()
        assert (run.call["module"], run.call["qualname"], kwargs) == ("statistics", "mean", {})
        run.complete(sum(args[0]) / 3)
    assert job.result(timeout=5) == 3.0
    nothing = fox.enqueue("statistics:mean", args=([1],))
    with claim(fox):
        pass
    assert nothing.result(timeout=5) is None


def test_a_command_has_the_result_that_was_given(fox: Client) -> None:
    job, plain = fox.submit(["a"]), fox.submit(["b"])
    with claim(fox) as run:
        assert run is not None
        run.complete({"loss": 0.25, "steps": [1, 2]})
        assert run.state == "succeeded"
        with pytest.raises(InvalidInput, match=f"job {job.number} has ended before: succeeded"):
            run.complete()
        with pytest.raises(InvalidInput, match="ended before"):
            run.log("late")
    assert job.result(timeout=5) == {"loss": 0.25, "steps": [1, 2]}
    with claim(fox):
        pass
    assert plain.result(timeout=5) is None


def test_output_keeps_its_end_and_its_offsets(fox: Client) -> None:
    job = fox.submit(["a"])
    with claim(fox) as run:
        assert run is not None
        run.log("hällo\n")
        run.log(b"\xff" * 70_000)
        run.log("end")
        with pytest.raises(InvalidInput, match="bytes or text"):
            run.log(3)  # type: ignore[arg-type]
    assert job.logs()[-64 * 1024 + 3 :] == b"\xff" * (64 * 1024 - 6) + b"end"
    pieces = fox.inspector.log(job.number)
    assert pieces[-1].offset + len(pieces[-1].data) == 7 + 70_000 + 3


# --- how it ends -----------------------------------------------------------------------------------------------


def test_an_exception_fails_the_job_and_goes_on(fox: Client) -> None:
    job = fox.submit(["a"], retries=1, retry_delay=0)
    for attempt in (1, 2):
        with pytest.raises(ZeroDivisionError), claim(fox) as run:
            assert run is not None and run.attempt == attempt
            raise ZeroDivisionError("no\nway")
        assert run.state == "failed"
    assert state_of(fox, job.number) == ("failed", "exception", 2)
    raised = job.refresh().view.result["exception"]
    assert (raised["type"], raised["message"]) == ("ZeroDivisionError", "no\nway")
    assert 'raise ZeroDivisionError("no' in raised["traceback"] and job.detail == "ZeroDivisionError: no way"


def test_retry_and_fail_say_themselves_what_follows(fox: Client) -> None:
    again = fox.submit(["a"], retries=1, retry_delay=1000, retry_on=["signal"])
    with pytest.raises(foxqueue.Retry), claim(fox):
        raise foxqueue.Retry(0)
    assert state_of(fox, again.number) == ("scheduled", "exception", 1)
    with claim(fox) as run:
        assert run is not None and (run.number, run.attempt) == (again.number, 2)
    never = fox.submit(["b"], retries=5)
    with pytest.raises(foxqueue.Fail), claim(fox):
        raise foxqueue.Fail("hopeless")
    assert state_of(fox, never.number) == ("failed", "exception", 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_who_is_stopped_gives_the_job_back(fox: Client, error: type[BaseException]) -> None:
    job = fox.submit(["a"])
    with pytest.raises(error), claim(fox) as run:
        raise error
    assert run is not None and run.state == "released"
    assert state_of(fox, job.number) == ("pending", "shutdown", 0)
    with claim(fox) as again:
        assert again is not None and again.attempt == 1


def test_fail_and_release_by_name(fox: Client) -> None:
    job = fox.submit(["a"], retries=3, retry_delay=0, retry_on=["gpu_oom"])
    with claim(fox) as run:
        assert run is not None
        run.release("not now", delay=0)
    assert state_of(fox, job.number)[1:] == ("later", 0)
    with claim(fox) as run:
        assert run is not None
        run.fail("gpu_oom", "24 GiB were too few")
    assert state_of(fox, job.number) == ("scheduled", "gpu_oom", 1)
    with claim(fox) as run:
        assert run is not None
        with pytest.raises(InvalidInput, match="'poison' is not one: give exception, exit_code"):
            run.fail("poison")
        with pytest.raises(InvalidInput, match="exit code '3' is not a whole number"):
            run.fail("exit_code", "", "3")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="delay -1 is not understood"):
            run.release(delay=-1)
        run.fail("exit_code", "exited with 3", exit_code=3)
    assert state_of(fox, job.number) == ("failed", "exit_code", 2) and job.refresh().exit_code == 3


def test_a_result_that_cannot_be_kept_is_refused_before_anything_is_sent(fox: Client) -> None:
    bad, large, cured = (fox.submit(["a"]) for _ in range(3))
    with pytest.raises(InvalidInput, match=r"cannot be kept: result\['x'\] is a set"), claim(fox) as run:
        assert run is not None
        run.complete({"x": {1}})
    fox.broker.change_settings({"max_result_bytes": "1024"}, "test")
    with pytest.raises(InvalidInput, match=r"it has 2,0.. bytes, and 1,024 are allowed"), claim(fox) as run:
        assert run is not None
        run.complete("x" * 2000)
    with claim(fox) as run:
        assert run is not None
        with pytest.raises(InvalidInput, match="cannot be kept"):
            run.complete({1: object()})
        assert run.state == "running" and fox.job(cured.number).running
        run.complete("fine")
    for job in (bad, large):
        assert job.refresh().reason == "bad_result" and "cannot be kept" in (job.detail or "")
    assert cured.result(timeout=5) == "fine"


def test_a_cancel_is_told_at_once_and_wins(fox: Client) -> None:
    job = fox.submit(["a"])
    with claim(fox) as run:
        assert run is not None
        began = time.monotonic()
        job.cancel()
        until(lambda: run.cancelled, 4, "the cancel", every=0.001)  # a beat would take up to 5 s
        print(f"a cancel was told after {(time.monotonic() - began) * 1000:.1f} ms")
        assert not run.lost
        run.complete("too late")
    assert run.state == "cancelled" and job.refresh().state == "cancelled"


def test_a_pause_asks_for_the_job_back(fox: Client) -> None:
    job = fox.submit(["a"])
    with claim(fox) as run:
        assert run is not None
        fox.broker.pause("*", "update", "ann", requeue_running=True)
        until(lambda: run.release_requested, 4, "the wish")
        assert "ann: update" in (run.release_requested or "")
        run.release()
    assert state_of(fox, job.number) == ("pending", "paused", 0)
    with claim(fox, 0.2) as nothing:
        assert nothing is None
    fox.broker.resume("*", "ann")
    with claim(fox) as run:
        assert run is not None


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"timeout": -1}, "timeout -1 is not understood"),
        ({"timeout": float("nan")}, "timeout nan is not understood"),
        ({"timeout": "5"}, "time '5' is not understood"),
        ({"device": None}, "device None is not understood"),
        ({"simulate": "24G"}, "24G"),
        ({"simulate": None, "cpu": True}, "cpu True is not a number"),
    ],
)
def test_bad_input(fox: Client, given: dict[str, Any], text: str) -> None:
    words = {"device": "sim:0", "simulate": "1x24G", "timeout": 0, **given}
    with pytest.raises(InvalidInput, match=text):
        fox.claim(words.pop("device"), **words)
    with pytest.raises(foxqueue.NoDevice, match="no device 'sim:7' here; there are: sim:0"):
        fox.claim("sim:7", simulate="1x24G")


def test_a_job_that_cannot_be_read_is_put_aside(fox: Client, queue: Queue) -> None:
    broken = queue.enqueue()
    queue.broker.redis.set(queue.broker.keys.spec(broken), pack({"v": 99}))
    job = fox.submit(["a"])
    with claim(fox) as run:
        assert run is not None and run.number == job.number
    assert state_of(fox, broken)[:2] == ("failed", "bad_payload")


def test_a_thread_that_has_the_device_is_told(fox: Client) -> None:
    fox.submit(["a"])
    with claim(fox), pytest.raises(InvalidInput, match="this thread has sim:0 already"), claim(fox):
        pass


def test_importing_a_client_loads_nothing_of_it() -> None:
    code = "import sys, foxqueue.client; print([name for name in sys.modules if 'claim' in name or 'nvml' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- how soon --------------------------------------------------------------------------------------------------


def latencies(fox: Client, free: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> list[float]:
    """Milliseconds from what frees or brings something to the claim, which is waiting by then."""
    found = []
    for _ in range(ROUNDS):
        got: list[float] = []

        def wait(got: list[float] = got) -> None:
            with claim(fox) as run:
                got.append(time.monotonic())
                assert run is not None

        prepare()
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: fox.redis.zcard(fox.broker.keys.idle) == 1, 10, "an idle claim", every=0.001)
        began = time.monotonic()
        free()
        thread.join(20)
        found.append((got[0] - began) * 1000)
    return found


def told(what: str, found: list[float]) -> float:
    print(f"{what}: p50 {median(found):.2f} ms, worst {max(found):.2f} ms of {len(found)}")
    return median(found)


def test_a_job_wakes_an_idle_claim_at_once(fox: Client) -> None:
    assert told("woken by a job", latencies(fox, lambda: fox.submit(["a"]))) < P50_MS


def test_a_grant_that_ends_wakes_the_claim_that_waits_for_the_device(fox: Client, queue: Queue) -> None:
    """The device is granted in Redis to somebody whom no file lock tells of."""
    other = queue.worker(device=device_of(fox).uuid)
    runs: list[Claimed] = []

    def grant() -> None:
        fox.submit(["a"])
        runs.append(other.claim())
        fox.submit(["b"])

    found = latencies(fox, lambda: queue.complete(runs.pop()), grant)
    assert told("woken by the end of a grant", found) < P50_MS


def test_a_thread_gets_the_device_when_another_leaves_it(fox: Client) -> None:
    left, found = [0.0], []

    def second() -> None:
        with claim(fox) as run:
            found.append((time.monotonic() - left[0]) * 1000)
            assert run is not None

    for _ in range(ROUNDS):
        fox.submit(["a"]), fox.submit(["b"])
        with claim(fox):
            thread = threading.Thread(target=second)
            thread.start()
            left[0] = time.monotonic()
        left[0] = time.monotonic()
        thread.join(20)
    assert told("after another thread", found) < P50_MS


def test_the_time_is_kept_and_nothing_is_left(fox: Client) -> None:
    for timeout in (0, 0.2):
        began = time.monotonic()
        with claim(fox, timeout) as run:
            assert run is None
        assert timeout <= time.monotonic() - began < timeout + 1
    keys = fox.broker.keys
    assert fox.redis.zcard(keys.idle) == 0 and not fox.redis.keys(keys.idle_for("*")) and fox.workers() == []
    fox.submit(["a"])
    with claim(fox, 0) as run:
        assert run is not None


def test_a_loop_of_claims_is_one_worker(fox: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foxqueue.listener.BLOCK_S", 1)
    numbers = [fox.submit(["a"]).number for _ in range(20)]
    for number in numbers:
        with claim(fox) as run:
            assert run is not None and run.number == number
    workers = {fox.job(number).worker for number in numbers}
    assert len(workers) == 1 and fox.redis.hlen(fox.broker.keys.claims) == 1
    until(lambda: not {"heartbeat", "listener"} & {one.name for one in threading.enumerate()}, 15, "no threads left")


def test_a_lost_run_says_so(fox: Client, queue: Queue) -> None:
    number = fox.submit(["a"]).number
    with pytest.raises(LeaseLost, match=f"job {number} is no longer this process's"), claim(fox) as run:
        assert run is not None
        queue.send(queue.broker.lose_call(number, run.fence))
        run.log("nobody hears it")
        assert run.lost
    assert run.state == "lost" and state_of(fox, number)[0] == "pending" and fox.job(number).logs() == b""
