"""How leases end: with their process, against its will, and not at all while Redis is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from leases_place import gpus, is_free, is_unlocked, leases, lock_of, start
from nvml_stub import Child
from pretend import register
from queue_driver import Queue
from servers import RealServer
from stack import gone
from wait import until

from foxqueue.errors import GpuAlreadyLeased
from foxqueue.holding import left_lease
from foxqueue.leases import GpuLeases

__all__ = ["gpus", "leases", "start"]

Start = Callable[..., Child]


def holding(start: Start, device: int = 0) -> tuple[Child, int]:
    """A process that has a device, and the number of its helper."""
    child = start()
    child.run(f"heard = []\nlease = leases.acquire({device}, holder='training', lost=heard.append)")
    helper = int(child.ask("leases._renewing.helper"))
    return child, helper


def helper_listens(child: Child) -> None:
    """Wait until the helper has read what it was told."""
    path = Path(f"/proc/{child.ask('leases._renewing.helper')}/wchan")
    until(lambda: "poll" in path.read_text(), 10, "the helper's poll")


def run_to_end(server: RealServer, home: Path, body: str) -> subprocess.Popen[bytes]:
    """Start a program that acquires device 0 and then does what ``body`` says."""
    program = f"""
import os, signal, sys, time
from foxqueue.leases import GpuLeases
lease = GpuLeases({server.url!r}, "test", home={str(home)!r}).acquire(0, holder="program")
print("holds", flush=True)
{textwrap.dedent(body)}
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None and process.stdout.readline() == b"holds\n"
    return process


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "1 / 0",
        "os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()",
        "os.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()",
    ],
)
def test_the_end_of_the_program_is_the_end_of_the_lease(
    server: RealServer, queue: Queue, gpus: list[str], tmp_path: Path, body: str
) -> None:
    process = run_to_end(server, tmp_path, body)
    process.wait(20)
    quick = body in ("pass", "1 / 0") or "SIGINT" in body
    if quick:  # told by the program itself, before it is gone
        assert is_free(queue, gpus[0])
    until(lambda: is_free(queue, gpus[0]), 10, "the end of the lease")
    until(lambda: is_unlocked(tmp_path, gpus[0]), 10, "the end of the lock")


@pytest.mark.soak
def test_nothing_of_it_runs_on(start: Start, queue: Queue, gpus: list[str]) -> None:
    child, helper = holding(start)
    ended = gone([helper])
    child.process.kill()
    until(ended, 10, "the end of the helper")
    assert is_free(queue, gpus[0])


def test_a_helper_that_dies_is_replaced(start: Start, queue: Queue, gpus: list[str]) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, "beat_ms", 200)
    child, helper = holding(start)
    queue.broker.redis.delete(queue.broker.keys.lease(gpus[0]))
    os.kill(helper, signal.SIGKILL)
    until(lambda: child.ask("leases._renewing.helper") not in (None, helper), 10, "another helper")
    until(lambda: not is_free(queue, gpus[0]), 10, "a renewal by the other one")
    child.run("lease.check()")
    second = child.ask("leases._renewing.helper")
    child.process.kill()
    until(gone([second]), 10, "its end")
    assert is_free(queue, gpus[0])


def test_killed_with_its_helper_the_next_taker_gives_it_back(
    start: Start, leases: GpuLeases, queue: Queue, gpus: list[str], tmp_path: Path
) -> None:
    child, helper = holding(start)
    token = child.ask("lease.token")
    os.kill(helper, signal.SIGSTOP)  # as if it died in the same moment
    child.process.kill()
    child.process.wait()
    assert not is_free(queue, gpus[0])
    left = left_lease(lock_of(tmp_path, gpus[0]).read() or {}, gpus[0])
    assert left is not None and left.token == token
    lease = leases.acquire(0, timeout=0)
    os.kill(helper, signal.SIGCONT)
    until(gone([helper]), 10, "the end of the helper")
    lease.check()
    assert queue.broker.redis.get(queue.broker.keys.lease(gpus[0])) == str(lease.fence).encode()


@pytest.mark.soak
def test_a_stopped_holder_keeps_its_lease(start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 600, "margin_ms": 600, "beat_ms": 200})
    child, _ = holding(start)
    os.kill(child.process.pid, signal.SIGSTOP)
    key, redis = queue.broker.keys.lease(gpus[0]), queue.broker.redis
    stopped = time.monotonic()
    while time.monotonic() - stopped < 1.5:
        assert redis.pttl(key) > 0
        with pytest.raises(GpuAlreadyLeased):
            leases.acquire(0, timeout=0.1)
    os.kill(child.process.pid, signal.SIGCONT)
    child.run("lease.check()")
    assert child.ask("heard") == []


def test_what_keeps_the_interpreter_busy_starves_no_renewal(start: Start, queue: Queue, gpus: list[str]) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 400, "margin_ms": 400, "beat_ms": 130})
    child, _ = holding(start)
    child.run("import ctypes\nctypes.PyDLL(None).usleep(1_500_000)")  # it does not let go of the lock meanwhile
    assert child.seconds > 1.4
    assert not is_free(queue, gpus[0]) and child.ask("lease.check()") is None and child.ask("heard") == []


def test_what_was_forked_keeps_the_device(start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 600, "margin_ms": 600, "beat_ms": 200})
    child, helper = holding(start)
    forked = int(child.ask("os.fork() or (os.setsid(), signal.pause())"))
    child.process.kill()
    child.process.wait()
    began = time.monotonic()
    while time.monotonic() - began < 1.5:  # longer than a lease: it is renewed
        with pytest.raises(GpuAlreadyLeased):
            leases.acquire(0, timeout=0)
        assert not is_free(queue, gpus[0])
    os.kill(forked, signal.SIGKILL)
    until(lambda: is_free(queue, gpus[0]), 10, "the end of the lease")
    until(gone([helper]), 10, "the end of the helper")


def test_while_redis_is_away_nothing_is_lost(
    server: RealServer, start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]
) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 600, "margin_ms": 600, "beat_ms": 200})
    child, _ = holding(start)
    server.freeze()
    try:
        time.sleep(1.5)  # longer than a lease: that is what is tried here
        child.run("lease.check()")
    finally:
        server.thaw()
    until(lambda: not is_free(queue, gpus[0]), 10, "a renewal")
    child.run("lease.check()")
    assert child.ask("heard") == []


@pytest.mark.soak
def test_a_device_of_another_machine_is_lost_when_it_is_not_renewed(
    server: RealServer, queue: Queue, tmp_path: Path
) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 600, "margin_ms": 600, "beat_ms": 200})
    register(queue, "GPU-far", "far", kind="nvml", host="far", index=3)
    with GpuLeases(server.url, "test", host="far", home=tmp_path) as far:
        lease = far.acquire("GPU-far")
        until(lambda: queue.broker.redis.pttl(queue.broker.keys.lease("GPU-far")) > 1100, 10, "a renewal", every=0.001)
        lease.check()
        server.freeze()
        try:
            until(lambda: lease.lost, 10, "the loss")
        finally:
            server.thaw()
        assert "no file lock" in str(lease.lost)


@pytest.mark.soak
def test_another_life_of_the_namespace_takes_nothing(start: Start, queue: Queue, gpus: list[str]) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 600, "margin_ms": 600, "beat_ms": 200})
    child, _ = holding(start)
    queue.broker.redis.flushall()
    queue.broker.redis.set(queue.broker.keys.instance, "another")
    key = f"{queue.broker.keys.prefix}asked"
    began = time.monotonic()
    while time.monotonic() - began < 0.8:
        queue.broker.redis.set(key, 1)
        child.run("lease.check()")
    assert child.ask("heard") == []
    child.run("lease.release()")


def test_a_release_while_redis_is_away_is_told_later(
    server: RealServer, start: Start, queue: Queue, gpus: list[str]
) -> None:
    child, _ = holding(start)
    helper_listens(child)
    child.run("leases._core.broker = leases._core.broker.another(0.2)")
    server.freeze()
    try:
        child.run("lease.release()")
        child.run("released = lease.released")
    finally:
        server.thaw()
    until(lambda: is_free(queue, gpus[0]), 15, "the end of the lease")


@pytest.mark.soak
def test_exiting_while_redis_is_away_is_told_later(
    server: RealServer, start: Start, queue: Queue, gpus: list[str]
) -> None:
    child, helper = holding(start)
    helper_listens(child)
    server.freeze()
    try:
        child.process.kill()
        child.process.wait()
    finally:
        server.thaw()
    until(lambda: is_free(queue, gpus[0]), 15, "the end of the lease")
    until(gone([helper]), 10, "the end of the helper")


def test_no_secret_stands_on_the_command_line(start: Start, gpus: list[str], server: RealServer) -> None:
    child, helper = holding(start)
    line = Path(f"/proc/{helper}/cmdline").read_bytes()
    assert server.url.encode() not in line and b"foxqueue.leases.helper" in line
    assert os.getsid(helper) == helper and os.getsid(helper) != os.getsid(child.process.pid)


@pytest.mark.soak
def test_the_helper_minds_no_signals_of_the_terminal(start: Start, queue: Queue, gpus: list[str]) -> None:
    child, helper = holding(start)
    helper_listens(child)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        os.kill(helper, number)
    child.run("lease.check()")
    assert child.ask("leases._renewing.helper") == helper


def test_a_command_under_the_lease_is_ended_before_the_device_is_free(
    start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]
) -> None:
    child, _ = holding(start)
    child.run(
        "import subprocess, sys\n"
        "mark = f'{lease.instance}/lease-{lease.token}'\n"
        "command = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],"
        " env={**os.environ, 'FOXQUEUE_RUN': mark}, start_new_session=True)\n"
        "lease.note(mark=mark, command=True)"
    )
    ended = gone([int(child.ask("command.pid"))])
    assert not ended()
    child.process.kill()
    until(lambda: is_free(queue, gpus[0]), 20, "the end of the lease")
    assert ended()


@pytest.mark.soak
def test_refused_ones_start_no_helper(start: Start, leases: GpuLeases, gpus: list[str]) -> None:
    leases.acquire(0)
    child = start()
    with pytest.raises(Exception, match="GpuAlreadyLeased"):
        child.run("leases.acquire(0, timeout=0)")
    assert child.ask("leases._renewing is None")
    assert child.ask("[thread.name for thread in threading.enumerate() if thread.name == 'leases']") == []


@pytest.mark.soak
def test_a_helper_whose_server_is_gone_for_good_ends(
    server: RealServer, start: Start, queue: Queue, gpus: list[str]
) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 400, "margin_ms": 400, "beat_ms": 130})
    child, helper = holding(start)
    ended = gone([helper])
    server.kill()
    try:
        child.process.kill()
        until(ended, 20, "the end of the helper")
    finally:
        server.start()
