"""The Python client on a real server; workers are played by hand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pretend import register, silence
from queue_driver import Queue
from servers import RealServer
from shell import Shell

from foxqueue import Client, InvalidInput, Job, ServerRefused, Unsatisfiable, judging
from foxqueue.states import WAIT_REASONS
from foxqueue.submission import user
from foxqueue.wishes import Options


def numbers(jobs: list[Job]) -> list[int]:
    return [job.number for job in jobs]


# Submitting


def test_a_job_comes_back_as_it_was_accepted(fox: Client) -> None:
    job = fox.submit(["python", "train.py"], name="a", priority="high", gpu_memory="8G", tags={"x": "y"})
    assert (job.number, job.state, job.priority, job.attempts) == (1, "pending", 8, 0)
    accepted = job.to_dict()
    read = fox.job(1).to_dict()
    assert read.pop("waiting_for") == "no_worker"
    assert "foxqueue up" in read.pop("detail")
    accepted.pop("waiting_for")
    accepted.pop("detail")
    assert abs(time.time() - job.submitted_ms / 1000) < 60
    assert accepted.pop("submitted_at")[:19] == read.pop("submitted_at")[:19]
    assert accepted == read
    assert read["user"] == user()
    assert read["tags"] == {"x": "y"}


def test_a_hundred_threads_submit_at_once(fox: Client) -> None:
    begin = time.monotonic()
    with ThreadPoolExecutor(100) as pool:
        jobs = list(pool.map(lambda at: fox.submit(["true"], name=f"n{at}"), range(100)))
    assert time.monotonic() - begin < 5
    assert sorted(numbers(jobs)) == list(range(1, 101))
    assert {job.name for job in fox.jobs(limit=200)} == {f"n{at}" for at in range(100)}


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that looks at the devices at every submission."""
    monkeypatch.setattr(judging, "LOOK_KEPT_S", -1.0)


@pytest.mark.usefixtures("looking")
def test_more_memory_than_any_device_has_is_refused_with_the_numbers(fox: Client, queue: Queue) -> None:
    assert fox.submit(["true"], gpu_memory="80G").state == "pending"
    assert "no device is registered" in fox.warnings[0]
    register(queue, "SIM-1", memory_total_mib=24576)
    register(queue, "CPU-1", "w2", kind="cpu", memory_total_mib=None, memory_free_mib=None)
    with pytest.raises(Unsatisfiable, match=r"needs 80G .* has 24G"):
        fox.submit(["true"], gpu_memory="80G")
    fox.submit(["true"], gpu_memory="24G")
    assert fox.warnings == []
    assert fox.job(1).waiting_for == "unsatisfiable"
    silence(queue, "w1")
    with pytest.raises(Unsatisfiable, match=r"needs 25G .* has 24G"):
        fox.submit(["true"], gpu_memory="25G")
    fox.submit(["true"], gpu_memory="24G")
    assert "no worker is running" in fox.warnings[0]


@pytest.mark.usefixtures("looking")
def test_a_kind_of_device_that_is_not_registered_gives_a_warning(fox: Client, queue: Queue) -> None:
    register(queue, "SIM-1")
    fox.submit(["true"], gpus=0)
    assert "no CPU slot" in fox.warnings[0]
    queue.broker.redis.flushall()
    register(queue, "CPU-1", kind="cpu", memory_total_mib=None)
    fox.submit(["true"], gpu_memory="8G")
    assert "only CPU slots" in fox.warnings[0]


def test_devices_are_looked_at_once_a_second(fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    seen = fox.inspector.seen
    monkeypatch.setattr(fox.inspector, "seen", lambda: looks.append(time.monotonic()) or seen())
    register(queue, "SIM-1")
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        fox.submit(["true"])
    assert 3 <= len(looks) <= 4
    assert all(1 <= later - earlier < 1.5 for earlier, later in itertools.pairwise(looks))


def test_nothing_is_refused_by_an_old_look(fox: Client, queue: Queue) -> None:
    register(queue, "SIM-1", memory_total_mib=8192)
    fox.submit(["true"])
    with pytest.raises(Unsatisfiable, match="has 8G"):
        fox.submit(["true"], gpu_memory="24G")
    register(queue, "SIM-2", "w2")
    fox.submit(["true"], gpu_memory="24G")
    assert fox.warnings == []


# Priorities by model type


def test_the_model_type_gives_the_priority_unless_one_is_given(fox: Client, queue: Queue) -> None:
    queue.broker.change_settings({"priority:LLama": "8", "priority:dqn": "1"}, "me")
    given: list[tuple[Options, int]] = [
        ({"model_type": "llama"}, 8),
        ({"model_type": "LLaMA"}, 8),
        ({"model_type": "dqn"}, 1),
        ({"model_type": "other"}, 5),
        ({}, 5),
        ({"model_type": "llama", "priority": "low"}, 2),
        ({"model_type": "llama", "priority": 0}, 0),
        ({"model_type": "llama", "priority": None}, 8),
    ]
    jobs = [fox.submit(["true"], **options) for options, _ in given]
    many = fox.submit_many([{"argv": ["true"], **options} for options, _ in given])
    for job, again, (_, priority) in zip(jobs, many, given, strict=True):
        assert (job.priority, fox.job(job.number).priority, again.priority) == (priority,) * 3


def test_the_command_line_goes_by_the_model_type_too(fox: Client, queue: Queue, shell: Shell) -> None:
    queue.broker.change_settings({"priority:llama": "8"}, "me")
    for options in (["--model-type", "Llama"], [], ["--model-type", "llama", "-p", "low"]):
        shell.fox("submit", *options, "--", "true")
    assert [fox.job(number).priority for number in (1, 2, 3)] == [8, 5, 2]


# Listing


def test_pending_jobs_are_listed_in_the_order_in_which_they_run(fox: Client, queue: Queue) -> None:
    wishes = [("low", None), ("high", "8G"), ("medium", None), (9, "16G"), ("high", None), (0, "8G")] * 3
    for priority, memory in wishes:
        fox.submit(["true"], priority=priority, gpu_memory=memory)
    listed = numbers(fox.jobs(state="pending", limit=100))
    assert [job.number for job in fox.jobs(limit=5)] == listed[:5]
    worker = queue.worker(shapes=("g1", "g1.m8192", "g1.m16384"))
    claimed = []
    for _ in wishes:
        run = worker.claim()
        claimed.append(run.number)
        queue.complete(run)
    assert listed == claimed


def test_groups_follow_each_other_and_ended_jobs_stand_newest_first(fox: Client, queue: Queue) -> None:
    for name in ("wins", "fails", "cancelled", "retries", "runs", "waits"):
        fox.submit(["true"], name=name, retries=int(name == "retries"))
    worker = queue.worker()
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    fox.job(3).cancel()
    queue.fail(worker.claim(), delay_ms=60_000)
    worker.claim()
    jobs = fox.jobs()
    assert [(job.name, job.state) for job in jobs] == [
        ("waits", "pending"),
        ("retries", "scheduled"),
        ("runs", "running"),
        ("cancelled", "cancelled"),
        ("fails", "failed"),
        ("wins", "succeeded"),
    ]
    assert [job.waiting_for for job in jobs] == ["no_worker", "backoff", None, None, None, None]
    assert numbers(fox.jobs(state=["failed", "running"])) == [5, 2]
    assert numbers(fox.jobs(state="cancelled")) == [3]
    assert numbers(fox.jobs(name="*s", limit=2)) == [6, 4]
    assert numbers(fox.jobs(name="W*")) == []
    assert len(fox.jobs(mine=True)) == 6
    listing = fox.listing(limit=2)
    assert listing.counts == {
        "pending": 1,
        "scheduled": 1,
        "blocked": 0,
        "running": 1,
        "finished": 2,
        "failed": 1,
    }


def test_a_long_queue_is_listed_over_many_batches(fox: Client, queue: Queue) -> None:
    for at in range(250):
        queue.enqueue(f"n{at}", shape=("g1", "g1.m8192")[at % 2])
    assert numbers(fox.jobs(limit=1000)) == list(range(1, 251))
    assert numbers(fox.jobs(name="n24?")) == list(range(241, 251))
    last = fox.jobs(state="pending", limit=250)[-1]
    register(queue)
    queue.worker(device="SIM-1", shapes=("g1", "g1.m8192")).claim()
    assert "248 jobs ahead" in str(fox.job(last.number).detail)
    assert "248 jobs ahead" in str(fox.jobs(name="n249")[0].detail)


def test_unreadable_records_do_not_take_the_listing_away(fox: Client, queue: Queue) -> None:
    good = queue.enqueue("good")
    keys, redis = queue.broker.keys, queue.broker.redis
    bad = [queue.enqueue(f"bad{at}") for at in range(4)]
    redis.delete(keys.job(bad[0]), keys.spec(bad[0]))
    redis.delete(keys.job(bad[1]))
    redis.set(keys.job(bad[1]), "no hash")
    redis.set(keys.spec(bad[2]), b"\xc1garbage")
    redis.hset(keys.job(bad[3]), mapping={"priority": "x", "submitted_at": "yesterday", "shape": "z9"})
    redis.hset(keys.gpus, "GPU-9", b"nonsense")
    redis.hset(keys.gpus, "GPU-8", b"w 1 \xc1")
    listed = {job.number: job for job in fox.jobs()}
    assert listed[good].name == "good"
    assert set(listed) == {good, *bad[1:]}
    assert listed[bad[1]].state == "unknown"
    assert listed[bad[3]].waiting_for == "no_matching_device"
    assert fox.gpus() == []
    assert fox.stats()["queued_jobs"] == 5


@pytest.mark.parametrize("given", [{"state": "done"}, {"limit": 0}, {"limit": True}])
def test_malformed_questions_are_refused(fox: Client, given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        fox.jobs(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, -1, True, "1", 1.5])
def test_what_is_no_number_of_a_job_is_refused(fox: Client, number: object) -> None:
    with pytest.raises(InvalidInput, match="positive whole number"):
        fox.job(number)  # type: ignore[arg-type]


# Why it waits


def test_every_wait_is_explained_from_the_closed_list(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"], gpu_memory="16G")

    def why() -> tuple[str, str]:
        job.refresh()
        assert job.waiting_for in WAIT_REASONS
        return str(job.waiting_for), str(job.detail)

    register(queue, "SIM-1")
    assert why()[0] == "behind"
    register(queue, "SIM-1", sequence=2, memory_free_mib=4096)
    assert why() == (
        "memory",
        f"needs 16G of GPU memory, free are 4G of 24G on {fox.inspector.devices()[0].label}, next in line",
    )
    register(queue, "SIM-1", sequence=3, state="occupied", detail="9G held by pid 7")
    assert why()[0] == "occupied"
    assert "9G held by pid 7" in why()[1]
    fox.submit(["true"], priority="high")
    queue.worker(device="SIM-1").claim()
    assert why()[0] == "devices_busy"
    silence(queue, "w1")
    assert why()[0] == "no_worker"


# Devices and figures


def test_the_grant_sets_right_what_a_worker_saw(fox: Client, queue: Queue) -> None:
    register(queue, "SIM-1", "w1")
    register(queue, "SIM-2", "w2", index=1, state="leased", job=77)
    register(queue, "SIM-3", "w3", index=2)
    queue.broker.redis.hset(queue.broker.keys.granted, "SIM-2", "4 -")
    queue.broker.redis.hset(queue.broker.keys.withheld, "SIM-3", "dirty\t5\tboot\tmemory\t2G of a run")
    fox.submit(["true"])
    run = queue.worker("w1", device="SIM-1").claim()
    found = fox.gpus()
    assert [(device["uuid"], device["state"], device["job"]) for device in found] == [
        ("SIM-1", "leased", 1),
        ("SIM-2", "free", None),
        ("SIM-3", "dirty", None),
    ]
    assert [(worker["id"], worker["state"], worker["job"]) for worker in fox.workers()] == [
        ("w1", "busy", 1),
        ("w2", "idle", None),
        ("w3", "idle", None),
    ]
    assert found[0]["observed_at"].endswith("Z")
    assert fox.workers()[0]["since"] == "2026-11-30T16:38:26.600Z"
    queue.complete(run)
    silence(queue, "w1")
    first = fox.gpus()[0]
    assert (first["state"], first["detail"]) == ("unavailable", "its worker is gone")
    assert [worker["id"] for worker in fox.workers()] == ["w2", "w3"]


NO_LEASES = {
    "withheld": 0,
    "leased": 0,
    "waiting_for_leases": 0,
    **dict.fromkeys(("leases_acquired", "leases_contended", "leases_lost", "leases_released"), 0),
    **dict.fromkeys(("leases_wait_s", "leases_hold_s"), 0.0),
}


def test_figures_of_the_queue(fox: Client, queue: Queue) -> None:
    assert fox.stats() == {
        "queued_jobs": 0,
        "processing_jobs": 0,
        "total_gpu_slots": 0,
        "available_gpu_slots": 0,
        "finished": 0,
        "failed": 0,
        "oldest_pending_s": None,
        "last_claim_s": None,
        "scheduled": 0,
        "blocked": 0,
        "unfinished": 0,
        "paused": None,
        **NO_LEASES,
    }
    register(queue, "SIM-1")
    register(queue, "SIM-2", "w2")
    register(queue, "CPU-1", "w3", kind="cpu")
    for priority in (0, 9, 5, 5):
        queue.enqueue(priority=priority)
    worker = queue.worker(device="SIM-1")
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    worker.claim()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.hset(keys.job(1), "tick", (queue.broker.server_time_ms() - 90_000) * 1000)
    found = fox.stats()
    assert 90 <= found.pop("oldest_pending_s") < 100
    assert 0 <= found.pop("last_claim_s") < 10
    assert found == {
        "queued_jobs": 1,
        "processing_jobs": 1,
        "total_gpu_slots": 2,
        "available_gpu_slots": 1,
        "finished": 1,
        "failed": 1,
        "scheduled": 0,
        "blocked": 0,
        "unfinished": 0,  # of jobs whose user is known
        "paused": None,
        **NO_LEASES,
    }


# Servers


def test_passwords_with_any_character_and_none_is_ever_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = "p/w@!+#? %41"
    with RealServer(None, tmp_path / "server", "--requirepass", password) as server:
        bare = server.url
        monkeypatch.setenv("FOXQUEUE_PASSWORD", password)
        Client(bare, "test", tmp_path).close()
        monkeypatch.delenv("FOXQUEUE_PASSWORD")
        encoded = f"unix://:{quote(password, safe='')}@{server.socket}"
        Client(encoded, "test", tmp_path).close()
        for url in (bare, f"unix://:wrong-secret@{server.socket}"):
            with pytest.raises(ServerRefused, match="FOXQUEUE_PASSWORD") as caught:
                Client(url, "test", tmp_path)
            assert "wrong-secret" not in str(caught.value)


def test_a_listing_misses_nobody_while_others_leave(fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that are claimed between two pages shift none of the others out of the list."""
    accepted = fox.submit_many([{"argv": ["true"]} for _ in range(350)])
    reader, worker = fox.inspector._reader, queue.worker()
    ask = reader.ask
    left: list[int] = []

    def meanwhile(commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        if any(command[0] == "ZRANGE" for command in commands) and len(left) < 40:
            for _ in range(5):
                run = worker.claim()
                left.append(run.number)
                queue.complete(run)
        return ask(commands)

    monkeypatch.setattr(reader, "ask", meanwhile)
    listed = [job.number for job in fox.jobs(state="pending", limit=1000)]
    assert listed == sorted(set(listed)), "each once, in the order of the queue"
    assert {job.number for job in accepted} - set(left) <= set(listed) and left


def test_a_listing_goes_through_more_of_one_moment_than_a_page_holds(fox: Client, queue: Queue) -> None:
    numbers = [job.number for job in fox.submit_many([{"argv": ["true"]} for _ in range(250)])]
    for number in numbers:
        queue.broker.cancel(number, "", "me")
    queue.broker.redis.zadd(queue.broker.keys.finished, dict.fromkeys(map(str, numbers), 5.0))
    assert {job.number for job in fox.jobs(state="cancelled", limit=1000)} == set(numbers)
