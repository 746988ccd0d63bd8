"""Python calls through the client on a real server; workers are played by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy
import pytest
from queue_driver import Queue
from shell import Shell

from foxqueue import (
    Client,
    FoxqueueError,
    InvalidInput,
    Job,
    JobCancelled,
    JobFailed,
    JobGone,
    JobNotFound,
    ValueUnreadable,
    WaitTimeout,
    payload,
)
from foxqueue.broker import Claimed
from foxqueue.codec import pack, unpack


def work(*args: Any, **kwargs: Any) -> Any:
    """Never run here."""


def returned(queue: Queue, run: Claimed, value: Any) -> None:
    """What a worker does when the function has returned."""
    call = queue.broker.complete_call(run.number, run.fence, pack({}), payload.pack(value))
    assert queue.send(call) == "succeeded"


def raised(queue: Queue, run: Claimed, exception: Any, reason: str = "exception") -> None:
    """What a worker does when it has raised."""
    outcome = pack({"exception": exception})
    call = queue.broker.fail_call(run.number, run.fence, reason, "raised ValueError", 1, outcome, None)
    assert queue.send(call) == "failed"


def test_a_call_goes_to_the_worker_and_its_value_comes_back(fox: Client, queue: Queue) -> None:
    now = datetime.now(UTC)
    job = fox.enqueue(work, (1, "a", now), {"lr": 0.1, "w": numpy.arange(3)}, name="call", gpus=1, priority="high")
    assert (job.name, job.priority, job.state) == ("call", 8, "pending")
    assert job.command[0].startswith(f"{__name__}:work(1, 'a', datetime.datetime(")
    run = queue.worker().claim()
    call = unpack(run.spec)["call"]
    args, kwargs = payload.unpack(call["data"])
    assert (call["module"], call["script"], call["qualname"]) == (__name__, None, "work")
    assert args == [1, "a", now]
    assert (kwargs["lr"], kwargs["w"].tolist()) == (0.1, [0, 1, 2])
    returned(queue, run, {"loss": math.inf, "t": (1, 2), "w": numpy.float32(1.5)})
    found = job.result(10)
    assert found == {"loss": math.inf, "t": [1, 2], "w": 1.5}
    assert type(found["w"]) is numpy.float32
    assert fox.job(job.number).result(0) == found


def test_a_job_of_several_attempts_gives_the_value_of_the_last(fox: Client, queue: Queue) -> None:
    job = fox.enqueue("a:b", retries=1)
    worker = queue.worker()
    run = worker.claim()
    queue.send(queue.broker.fail_call(run.number, run.fence, "exception", "x", 1, pack({}), 0))
    fox.look()
    returned(queue, worker.claim(), None)
    assert job.result(10) is None


def test_a_plain_command_has_no_value(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"])
    queue.complete(queue.worker().claim())
    assert job.result(10) is None


def test_what_the_function_raised_is_told_as_text(fox: Client, queue: Queue) -> None:
    job = fox.enqueue("a:b")
    texts = {"type": "ValueError", "message": "bad lr", "traceback": "Traceback …\nValueError: bad lr"}
    raised(queue, queue.worker().claim(), texts)
    with pytest.raises(JobFailed) as caught:
        job.result(10)
    error = caught.value
    assert str(error) == "job 1 failed (exception): ValueError: bad lr"
    assert (error.job, error.reason, error.detail) == (job, "exception", "raised ValueError")
    assert (error.exception_type, error.exception_message) == ("ValueError", "bad lr")
    assert error.traceback == texts["traceback"]
    assert isinstance(error, FoxqueueError)


@pytest.mark.parametrize("exception", [None, "text", [], {"type": 3, "message": None}], ids=repr)
def test_a_malformed_record_of_an_exception_is_no_harm(fox: Client, queue: Queue, exception: Any) -> None:
    job = fox.enqueue("a:b")
    raised(queue, queue.worker().claim(), exception, "bad_result")
    with pytest.raises(JobFailed, match=r"job 1 failed \(bad_result\): "):
        job.result(10)


def test_a_failed_command_says_how_it_ended(fox: Client, queue: Queue) -> None:
    job = fox.submit(["false"])
    queue.fail(queue.worker().claim(), delay_ms=None)
    with pytest.raises(JobFailed, match=r"job 1 failed \(exit_code\): exited with 1") as caught:
        job.result(10)
    assert caught.value.exception_type == caught.value.traceback == ""


def test_a_cancelled_call_has_no_value(fox: Client) -> None:
    job = fox.enqueue("a:b")
    job.cancel()
    with pytest.raises(JobCancelled, match="job 1 was cancelled: cancelled by") as caught:
        job.result(10)
    assert caught.value.job is job


def test_a_value_is_waited_for_no_longer_than_the_time(fox: Client) -> None:
    with pytest.raises(WaitTimeout):
        fox.enqueue("a:b").result(0.05)


def test_a_value_that_cannot_be_read_says_so(fox: Client, queue: Queue) -> None:
    job = fox.enqueue("a:b")
    returned(queue, queue.worker().claim(), 1)
    redis, key = queue.broker.redis, queue.broker.keys.value(job.number)
    redis.set(key, b"\xc1")
    with pytest.raises(ValueUnreadable, match="the value of job 1 cannot be read: it is no msgpack"):
        job.result(10)
    redis.delete(key)
    with pytest.raises(ValueUnreadable, match="the value of job 1 is no longer kept"):
        job.result(10)


def test_the_value_of_another_job_with_the_number_is_never_given(
    fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fox.enqueue("a:b")
    returned(queue, queue.worker().claim(), "mine")
    queue.broker.redis.flushall()
    with pytest.raises(JobNotFound):
        job.result(10)
    returned(queue, run_of(fox, queue), "another's")
    with pytest.raises(JobGone):
        job.result(10)
    # The number changes hands between the wait and the reading of the value.
    monkeypatch.setattr(Job, "wait", lambda job, timeout: job)
    with pytest.raises(JobGone):
        job_seen_succeeded(job).result(10)


def run_of(fox: Client, queue: Queue) -> Claimed:
    fox.enqueue("a:b")
    return queue.worker("w2").claim()


def job_seen_succeeded(job: Job) -> Job:
    view = job.view
    job.view = type(view)(**{**vars(view), "state": "succeeded"})
    return job


def test_what_cannot_be_sent_is_refused_before_anything_is(fox: Client, queue: Queue) -> None:
    for function, args in ((lambda: 0, ()), (work, ({1},)), ("no colon", ()), (work, (b"x" * 2_000_000,))):
        with pytest.raises(InvalidInput):
            fox.enqueue(function, args)
    with pytest.raises(InvalidInput, match="no option 'gpu'"):
        fox.enqueue(work, gpu=1)  # type: ignore[call-arg]
    assert fox.jobs() == []


def test_listings_show_calls_without_unpacking_them(fox: Client, queue: Queue, shell: Shell) -> None:
    """A listing must not need what a value needs, nor be taken away by one that is damaged."""
    job = fox.enqueue("pkg.mod:func", ("x" * 300,), {"lr": 0.1})
    run = queue.worker().claim()
    queue.send(queue.broker.complete_call(run.number, run.fence, pack({}), b"\xc1 no payload"))
    assert "pkg.mod:func(" in shell.fox("ls")[0]
    assert "pkg.mod:func(" in shell.fox("show", str(job.number))[0]
    assert shell.json("show", str(job.number))["command"] == [job.command[0]]
    assert len(job.command[0]) <= 200


def test_a_job_just_accepted_is_seen_without_asking(fox: Client, queue: Queue) -> None:
    job = fox.submit(["python", "train.py"], tags={"a": "b"}, retries=2, gpu_memory="8G")
    queue.broker.redis.flushall()
    assert (job.number, job.state, job.command, dict(job.tags)) == (1, "pending", ("python", "train.py"), {"a": "b"})
    assert repr(job) == "<Job 1 pending>"
    with pytest.raises(AttributeError):
        _ = job.no_such_thing
    with pytest.raises(JobNotFound):
        job.refresh()
