"""S2: health is green only when jobs are really served, and answers within seconds whatever hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pretend import register, serving, silence
from queue_driver import Queue
from servers import RealServer
from shell import Shell
from stack import Stack, until_exists
from wait import until

from foxqueue import health

WITHIN_S = 7.0  # 6 that are promised, and the start of the program on a busy machine


def age(queue: Queue, number: int, seconds: float = 300.0) -> None:
    """As if the job had been queued long ago."""
    tick = (queue.broker.server_time_ms() - round(seconds * 1000)) * 1000
    queue.broker.redis.hset(queue.broker.keys.job(number), "tick", tick)


def verdicts(shell: Shell, code: int, *words: str) -> dict[str, str]:
    """Detail of each check that is not ok, the exit code being this one."""
    report = shell.json("health", *words, code=code)
    assert set(report) == {"healthy", "checks", "oldest_pending_s", "last_claim_s", "devices"}
    assert report["healthy"] is (code == 0)
    shell.fox("health", *words, code=code)
    return {check["name"]: check["detail"] for check in report["checks"] if not check["ok"]}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AGAIN_S", 0.05)


# --- the server ---------------------------------------------------------------------------------------


def quickly(shell: Shell, *words: str) -> str:
    """What a probe in a process of its own says, which must be red and in time."""
    began = time.monotonic()
    process = shell.start("health", "--json", *words)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < WITHIN_S
    assert process.returncode == 1 and b"Traceback" not in err, err
    report = json.loads(out)
    assert not report["healthy"]
    return str(report["checks"][0]["detail"])


def test_a_server_that_is_away_or_frozen_is_red_within_seconds(shell: Shell, tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "s") as own:
        frozen = Shell(own, tmp_path)
        own.freeze()
        assert "does not answer" in quickly(frozen)
        own.thaw()
    assert "does not answer" in quickly(frozen)
    frozen.environ.pop("FOXQUEUE_URL")
    assert "no server: run foxqueue up" in quickly(frozen)


@pytest.fixture
def dripping() -> Iterator[str]:
    """Something that accepts every connection and sends a byte a second, which no time-out of a read bounds."""
    ended = threading.Event()

    def drip(link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            link.sendall(b"$1000\r\n")
            while not ended.wait(1.0):
                link.sendall(b"x")

    with serving(drip) as url:
        yield url
        ended.set()


def test_an_answer_that_never_ends_is_red_within_seconds(shell: Shell, dripping: str) -> None:
    assert "no answer within 5 s" in quickly(shell, "--url", dripping)


def test_a_configuration_that_cannot_be_used_is_red_and_no_other_code(shell: Shell) -> None:
    """Exit code 2 means something else to containers."""
    assert "not understood" in quickly(shell, "--url", "nonsense")


def test_a_server_that_takes_no_jobs_is_red(tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "s") as own:
        queue, shell = Queue(own.url, "test"), Shell(own, tmp_path)
        register(queue)
        assert verdicts(shell, 0) == {}
        redis = queue.broker.redis
        redis.config_set("maxmemory", "1")
        assert "memory is full" in verdicts(shell, 1)["writes"]
        redis.config_set("maxmemory", "0")
        redis.config_set("min-replicas-to-write", "1")
        assert "NOREPLICAS" in verdicts(shell, 1)["writes"]
        redis.config_set("min-replicas-to-write", "0")
        redis.execute_command("REPLICAOF 127.0.0.1 1")
        assert "read only replica" in verdicts(shell, 1)["writes"]
        redis.execute_command("REPLICAOF NO ONE")
        assert verdicts(shell, 0) == {}
        queue.broker.close()


# --- workers and the queue ----------------------------------------------------------------------------


def test_no_worker_that_takes_jobs_is_red(shell: Shell, queue: Queue) -> None:
    assert "0 of 0" in verdicts(shell, 1)["workers"]
    register(queue)
    assert verdicts(shell, 0) == {}
    register(queue, sequence=2, worker_state="draining")
    assert "ending" in verdicts(shell, 1)["workers"]
    register(queue, "SIM-2", "w2")
    assert verdicts(shell, 0) == {}
    silence(queue, "w1")
    silence(queue, "w2")
    assert "0 of 2" in verdicts(shell, 1)["workers"]


def test_a_job_that_waits_too_long_beside_an_idle_device_is_red(shell: Shell, queue: Queue) -> None:
    register(queue)
    number = queue.enqueue()
    assert verdicts(shell, 0) == {}
    age(queue, number)
    said = verdicts(shell, 1)["queue"]
    assert said.startswith(f"job {number} has waited 5m00s while sim:0 on ")
    assert verdicts(shell, 0, "--max-age", "10m") == {}
    report = shell.json("health", code=1)
    assert report["oldest_pending_s"] == pytest.approx(300, abs=30) and report["last_claim_s"] is None
    assert report["devices"][0]["state"] == "free"


def test_a_job_behind_younger_ones_of_a_better_rank_counts(shell: Shell, queue: Queue) -> None:
    register(queue)
    old = queue.enqueue(priority=0)
    for _ in range(5):
        queue.enqueue(priority=9)
    age(queue, old)
    assert f"job {old} has waited" in verdicts(shell, 1)["queue"]


Look = dict[str, Any]


@pytest.mark.parametrize(
    ("look", "shape", "code"),
    [
        ({"state": "occupied", "detail": "others"}, "g1", 0),
        ({"state": "held", "detail": "another queue"}, "g1", 0),
        ({"worker_state": "draining"}, "g1", 0),
        ({"memory_free_mib": 1000}, "g1.m8192", 0),
        ({}, "g1.m40960", 0),
        ({}, "g0", 0),
        ({}, "g1.z9", 0),
        ({}, "g1.m8192", 1),
        ({"memory_total_mib": None, "memory_free_mib": None}, "g1.m8192", 0),
        ({"memory_total_mib": None, "memory_free_mib": None}, "g1", 1),
        ({"state": "unavailable", "detail": "driver upgraded, reboot"}, "g1", 1),
    ],
)
def test_what_a_device_does_decides(shell: Shell, queue: Queue, look: Look, shape: str, code: int) -> None:
    register(queue, **look)
    register(queue, "CPU-1", "w2", kind="cpu", memory_total_mib=None, memory_free_mib=None, state="occupied")
    number = queue.enqueue(shape=shape)
    age(queue, number)
    found = verdicts(shell, code)
    assert not code or "queue" in found
    assert "driver" not in str(look) or "driver upgraded, reboot" in found["queue"]


def test_busy_devices_are_green_however_long_the_queue_is(shell: Shell, queue: Queue) -> None:
    register(queue)
    queue.enqueue()
    queue.worker(device="SIM-1").claim()
    age(queue, queue.enqueue(), 86400)
    report = shell.json("health")
    assert report["devices"][0]["state"] == "leased" and report["last_claim_s"] is not None
    assert report["oldest_pending_s"] == pytest.approx(86400, abs=60)


@pytest.mark.parametrize("gone", [False, True], ids=["no such device", "its worker is gone"])
def test_a_job_that_nobody_can_serve_is_red_whoever_else_lives(shell: Shell, queue: Queue, gone: bool) -> None:
    register(queue, "CPU-1", "w2", kind="cpu", memory_total_mib=None, memory_free_mib=None)
    if gone:
        register(queue)
        queue.broker.redis.zincrby(queue.broker.keys.workers, -60_000, "w1")
    number = queue.enqueue()
    assert shell.json("health")["healthy"]
    age(queue, number)
    assert f"job {number} has waited" in verdicts(shell, 1)["queue"]
    assert "no live worker serves such a device" in verdicts(shell, 1)["queue"]


def test_what_is_paused_or_at_its_limit_is_green_and_said(shell: Shell, queue: Queue) -> None:
    """Jobs that are to wait do not stand in the way of a probe, and others still do."""

    def in_group(group: str, count: int = 1) -> list[int]:
        return [queue.enqueue(shape=f"g1@{group}") for _ in range(count)]

    register(queue)
    register(queue, "SIM-2", "w2", index=1)
    for number in in_group("lr", 2):
        age(queue, number)
    assert "job 1 has waited" in verdicts(shell, 1)["queue"]
    assert queue.broker.pause("@lr", "bad data", "ann") == ("ok", 0)
    assert "held back: group lr is paused by ann: bad data" in green(shell)["queue"]
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.hset(keys.group("bs"), "max_concurrent", 1)
    limited = in_group("bs", 2)
    age(queue, limited[1])
    assert queue.worker(device="SIM-1", shapes=("g1@bs",)).claim().number == limited[0]
    assert "group bs runs 1 at once, its most" in green(shell)["queue"]
    other = queue.enqueue()
    age(queue, other)
    assert f"job {other} has waited" in verdicts(shell, 1)["queue"]
    assert queue.broker.pause("SIM-2", "", "ann") == ("ok", 0)
    assert "1 of them paused" in green(shell)["workers"]
    assert queue.broker.resume("SIM-2", "ann") == "ok"
    verdicts(shell, 1)
    assert queue.broker.pause("*", "upgrade", "ann") == ("ok", 0)
    assert green(shell)["queue"] == "the queue is paused by ann: upgrade"


def green(shell: Shell) -> dict[str, str]:
    """Detail of each check, all being ok."""
    return {check["name"]: check["detail"] for check in shell.json("health")["checks"]}


def test_a_device_between_two_jobs_is_no_idle_one(shell: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free at both looks, and another grant ended in between."""
    register(queue)
    worker = queue.worker(device="SIM-1")
    number = queue.enqueue(priority=0)
    age(queue, number)
    queue.enqueue(priority=9)
    served: list[int] = []

    def meanwhile(_: float) -> None:
        run = worker.claim()
        served.append(run.number)
        queue.complete(run)

    monkeypatch.setattr(health.time, "sleep", meanwhile)
    assert shell.json("health")["healthy"] and served


# --- real workers -------------------------------------------------------------------------------------


def test_a_whole_foxqueue_is_green_until_its_worker_stands_still(stack: Stack) -> None:
    """S2: a stopped worker holds its connection and its registration, and takes nothing."""
    stack.up("--simulate", "1x24G", "--lease-ttl", "2s", workers=1)
    assert stack.fox("health").stdout.count("ok") >= 4
    flag = stack.root / "flag"
    running = stack.queue(*until_exists(flag))
    stack.await_state(running, "running")
    stack.queue("true")
    busy = json.loads(stack.fox("health", "--json", "--max-age", "0s").stdout)
    assert busy["healthy"] and busy["devices"][0]["job"] == running
    flag.touch()
    stack.await_state(running, "succeeded")
    until(lambda: stack.api.stats()["queued_jobs"] == 0, 10, "an empty queue")
    pid = stack.api.workers()[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    stack.queue("true")

    def red() -> bool:
        return stack.fox("health", "--max-age", "1s", check=False).returncode == 1

    until(red, 20, "a red probe")
    os.kill(pid, signal.SIGCONT)
    until(lambda: not red(), 20, "a green probe")


def test_the_help_says_what_red_means(shell: Shell) -> None:
    said = " ".join(shell.fox("health", "--help")[0].split())
    for part in (
        "in 5 seconds",
        "read-only replica",
        "memory full",
        "stands idle",
        "no live worker",
        "quarantined",
    ):
        assert part in said
