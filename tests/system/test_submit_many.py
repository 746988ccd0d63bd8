"""Many jobs at once through the client: order, chunks, and nothing lost when it ends half way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cutter import Cutter
from pretend import register
from queue_driver import Queue
from servers import RealServer

from foxqueue import (
    Client,
    InvalidInput,
    OutcomeUnknown,
    PartlySubmitted,
    ServerUnavailable,
    Unsatisfiable,
    judging,
    sender,
)
from foxqueue.broker import CHUNK_BYTES, CHUNK_JOBS
from foxqueue.codec import unpack
from foxqueue.scripts import load

SOME = 2 * CHUNK_JOBS + 50
STEPS = [CHUNK_JOBS, CHUNK_JOBS, 50]


def commands(count: int, **options: Any) -> list[dict[str, Any]]:
    return [{"argv": ["echo", str(at)], **options} for at in range(count)]


@pytest.fixture
def sent(fox: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each step had."""
    steps: list[int] = []
    enqueue_many = fox.broker.enqueue_many

    def counting(jobs: Any, *more: Any, **named: Any) -> Any:
        steps.append(len(jobs))
        return enqueue_many(jobs, *more, **named)

    monkeypatch.setattr(fox.broker, "enqueue_many", counting)
    return steps


def test_jobs_run_in_the_order_given(fox: Client, queue: Queue, sent: list[int]) -> None:
    told: list[tuple[int, int]] = []
    jobs = fox.submit_many(iter(commands(SOME, name="n")), progress=lambda done, total: told.append((done, total)))
    assert [job.number for job in jobs] == list(range(1, SOME + 1))
    assert sent == STEPS
    assert told == [(CHUNK_JOBS, SOME), (2 * CHUNK_JOBS, SOME), (SOME, SOME)]
    assert [job.command[1] for job in jobs] == [str(at) for at in range(SOME)]
    assert "no device is registered" in fox.warnings[0]
    read = fox.jobs(state="pending", limit=1000)
    assert [(job.number, job.born, job.command) for job in read] == [
        (job.number, job.born, job.command) for job in jobs
    ]
    worker = queue.worker()
    for job in jobs[:3]:
        run = worker.claim()
        assert (run.number, run.born) == (job.number, job.born)
        queue.complete(run)
    assert jobs[0].wait(5).succeeded


def test_commands_and_calls_with_their_own_options(fox: Client) -> None:
    jobs = fox.submit_many(
        [
            {"argv": ["true"], "priority": "high", "tags": {"a": "b"}},
            {"function": "pkg.mod:f", "args": (1,), "kwargs": {"lr": 0.1}, "gpu_memory": "8G"},
            {"function": os.path.join, "cwd": "/", "env": {"A": "1"}},
        ]
    )
    found = [fox.job(job.number) for job in jobs]
    assert [job.command for job in found] == [("true",), ("pkg.mod:f(1, lr=0.1)",), ("posixpath:join()",)]
    assert [(job.priority, job.shape) for job in found] == [(8, "g1"), (5, "g1.m8192"), (5, "g1")]
    assert (found[0].tags, found[2].view.spec["cwd"], found[2].view.spec["env"]) == ({"a": "b"}, "/", {"A": "1"})


def test_none_is_none(fox: Client, sent: list[int]) -> None:
    assert fox.submit_many([]) == []
    assert sent == []


def test_the_environment_is_captured_and_kept_once(fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fox.submit_many(commands(250), progress=lambda *_: monkeypatch.setenv("LATER", "1"))
    digests = {queue.job(number)["env"] for number in range(1, 251)}
    assert len(digests) == 1
    assert (
        len(list(queue.broker.redis.scan_iter(queue.broker.keys.env("*").replace("{", "[{]").replace("}", "[}]")))) == 1
    )


def test_no_step_is_larger_than_a_server_takes(fox: Client, sent: list[int]) -> None:
    size = CHUNK_BYTES // 4 + 1
    requests = [*commands(7, description="x" * size), *commands(3), *commands(1, description="x" * (CHUNK_BYTES - 300))]
    assert len(fox.submit_many(requests)) == 11
    assert sent == [3, 3, 4, 1]


# Refused before anything is sent


def test_a_malformed_request_is_named_and_nothing_is_sent(fox: Client, sent: list[int]) -> None:
    requests = commands(SOME)
    requests[117]["gpus"] = 7
    with pytest.raises(InvalidInput, match=r"requests\[117\]: gpus 7 is not possible"):
        fox.submit_many(requests)
    assert (sent, fox.jobs()) == ([], [])


def test_a_request_that_can_never_run_is_named_and_nothing_is_sent(
    fox: Client, queue: Queue, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(queue, "SIM-1")
    requests = commands(300)
    requests[250]["gpu_memory"] = "80G"
    with pytest.raises(Unsatisfiable, match=r"requests\[250\]: needs 80G"):
        fox.submit_many(requests)
    assert (sent, fox.jobs()) == ([], [])
    monkeypatch.setattr(judging, "LOOK_KEPT_S", -1.0)
    requests[250]["gpu_memory"] = "8G"
    assert len(fox.submit_many(requests)) == 300
    assert fox.warnings == []


# Ended half way


def test_a_server_that_gets_full_says_how_many_it_took(fox: Client, queue: Queue) -> None:
    redis = queue.broker.redis

    def fill(*_: int) -> None:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 1)

    try:
        with pytest.raises(
            PartlySubmitted, match=rf"{CHUNK_JOBS} of {SOME} jobs were accepted, the others were not"
        ) as caught:
            fox.submit_many(commands(SOME), progress=fill)
    finally:
        redis.config_set("maxmemory", 0)
    error = caught.value
    assert (len(error.jobs), error.total, error.unknown, error.exit_code) == (CHUNK_JOBS, SOME, 0, 75)
    assert isinstance(error.__cause__, ServerUnavailable)
    assert [job.number for job in fox.jobs(limit=1000)] == [job.number for job in error.jobs]
    assert error.jobs[0].cancel().state == "cancelled"
    rest = fox.submit_many(commands(SOME)[len(error.jobs) :])
    assert rest[-1].number == SOME


def test_what_progress_raises_ends_it(fox: Client) -> None:
    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fox.submit_many(commands(SOME), progress=stop)
    assert fox.stats()["queued_jobs"] == CHUNK_JOBS


@pytest.fixture
def cutter(server: RealServer, tmp_path: Path) -> Iterator[Cutter]:
    with Cutter(server.socket, None) as proxy:
        yield proxy


def test_a_lost_answer_doubles_nothing(cutter: Cutter, fox: Client, tmp_path: Path) -> None:
    with Client(cutter.url, "test", tmp_path) as far:
        far.submit(["true"])
        cutter.lose("reply", load("enqueue").sha, 1)
        jobs = far.submit_many(commands(SOME))
    assert cutter.cuts == 1
    assert [job.number for job in jobs] == list(range(2, SOME + 2))
    assert fox.stats()["queued_jobs"] == SOME + 1


@pytest.mark.parametrize("how", ["reply", "request"])
def test_a_server_that_falls_silent_leaves_one_step_in_doubt(
    cutter: Cutter, fox: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sender, "RESEND_S", 0.3)
    with Client(cutter.url, "test", tmp_path) as far:
        with pytest.raises(PartlySubmitted, match=f"of the next {CHUNK_JOBS} it is not known") as caught:
            far.submit_many(commands(SOME), progress=lambda *_: cutter.lose(how, load("enqueue").sha, 10_000))
        error = caught.value
        assert (len(error.jobs), error.total, error.unknown, error.exit_code) == (CHUNK_JOBS, SOME, CHUNK_JOBS, 75)
        assert isinstance(error.__cause__, OutcomeUnknown)
        assert len(error.__cause__.token) == 32
    taken = fox.stats()["queued_jobs"]
    assert taken == {"reply": 2 * CHUNK_JOBS, "request": CHUNK_JOBS}[how]
    assert [fox.job(job.number).born for job in error.jobs] == [job.born for job in error.jobs]


def test_what_a_generator_changes_on_its_way_goes_along(
    fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        for seed in range(4):
            monkeypatch.setenv("SEED_OF_TEST", str(seed // 2))
            yield {"argv": ["true"]}

    jobs = fox.submit_many(requests())
    kept = [queue.broker.environment(queue.job(job.number)["env"]) or b"" for job in jobs]
    assert [unpack(packed)["SEED_OF_TEST"] for packed in kept] == ["0", "0", "1", "1"]
    assert [job.number for job in jobs] == [1, 2, 3, 4]
