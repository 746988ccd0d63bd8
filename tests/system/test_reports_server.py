"""A server that goes away, comes back, loads its data, or wants a password."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers import RealServer, binaries
from stack import Stack, ended, until_exists
from wait import until

from foxqueue.config import listening_socket
from foxqueue.listening import look
from foxqueue.places import read_json

PASSWORD = "p/a@s!s+w#o?r%d:&x "
CURES = ("FOXQUEUE_PASSWORD", "FOXQUEUE_PASSWORD_FILE", "FOXQUEUE_URL")


def server_pid(stack: Stack) -> int:
    """Of our own server, as its record says."""
    return int(read_json(stack.api.config.machine_dir / "server" / "server.json")["process"]["pid"])


def kill_server(stack: Stack) -> None:
    """SIGKILL, and wait until the next one answers."""
    old = server_pid(stack)
    os.kill(old, signal.SIGKILL)
    path = listening_socket(stack.api.config)
    until(lambda: server_pid(stack) != old and look(path) == "ready", 10, "the next server", every=0.005)


def run_soon(stack: Stack, seconds: float = 5.0) -> None:
    """Jobs on all devices succeed within seconds."""
    began = time.monotonic()
    numbers = [stack.queue("sleep", "0.2") for _ in range(4)]
    devices = {stack.await_state(number, "succeeded")["gpu_uuids"][0] for number in numbers}
    assert time.monotonic() - began < seconds and len(devices) == 2


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "during a job"])
def test_three_restarts_within_seconds_deafen_nobody(stack: Stack, busy: bool) -> None:
    """K1: SIGKILL of the server three times within five seconds, and all connections cut."""
    up = stack.up()
    pids = {worker["pid"] for worker in stack.api.workers()}
    flag = stack.root / "flag"
    number = stack.queue(*(until_exists(flag) if busy else ("true",)))
    stack.await_state(number, "running" if busy else "succeeded")
    began = time.monotonic()
    for _ in range(3):
        kill_server(stack)
    assert time.monotonic() - began < 5
    for _ in range(3):
        stack.api.redis.client_kill_filter(_type="normal", skipme=True)
    flag.touch()
    done = stack.await_state(number, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 0)
    assert [event["event"] for event in stack.events(number)] == ["enqueue", "claim", "complete"]
    run_soon(stack)
    assert {worker["pid"] for worker in stack.api.workers()} == pids and up.poll() is None


def test_restarts_while_the_workers_start(stack: Stack) -> None:
    """K1: three times from the moment when the server has answered `up`."""
    up = stack.start("up", "--simulate", "2x24G")
    until(lambda: "sim:1" in stack.log("up"), 15, "the server and its first client", every=0.005)
    for _ in range(3):
        kill_server(stack)
    assert up.poll() is None, stack.log("up")
    until(lambda: len(stack.api.workers()) == 2, 15, "both workers")
    run_soon(stack)


# --- LOADING ------------------------------------------------------------------------------------------


@contextmanager
def slow_server(stack: Stack, delay_us: int) -> Iterator[None]:
    """Our own server takes this long for each command of its append-only file."""
    program = stack.root / "slow-server"
    real = binaries()[0].path
    program.write_text(
        f'#!/bin/sh\ncase "$1" in *.conf) exec {real} "$@" --key-load-delay {delay_us};; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    stack.environ["FOXQUEUE_REDIS_SERVER"] = str(program)
    yield
    del stack.environ["FOXQUEUE_REDIS_SERVER"]


def test_a_server_that_loads_its_data_is_waited_for(stack: Stack) -> None:
    """K5: at the start of everything, and by every command that comes meanwhile."""
    stack.serve(ttl_ms=15_000)
    number = stack.queue("true")
    with stack.api.redis.pipeline(transaction=False) as pipeline:
        for at in range(6000):
            pipeline.set(f"ballast:{at}", at)
        pipeline.execute()
    stack.kill_everything()
    with slow_server(stack, 160):
        began = time.monotonic()
        stack.start("up", "--simulate", "2x24G")
        until(lambda: look(listening_socket(stack.api.config)) == "loading", 15, "LOADING", every=0.005)
        listed = stack.fox("ls", "--json")
        assert f'"number": {number}' in listed.stdout and time.monotonic() - began > 0.8
        assert stack.await_state(number, "succeeded")["attempts"] == 1
        until(lambda: len(stack.api.workers()) == 2, 15, "both workers")


# --- passwords ----------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[RealServer, int]]:
    """A server with a password, on a socket and on a port."""
    port = free_port()
    place = tmp_path / "server"
    with RealServer(None, place, "--requirepass", PASSWORD, "--port", str(port), "--bind", "127.0.0.1") as server:
        yield server, port
    shutil.rmtree(place, ignore_errors=True)


def test_a_password_of_any_characters_works_wherever_it_is_given(
    guarded: tuple[RealServer, int], tmp_path: Path
) -> None:
    """K10: in the URL percent-encoded, in the environment, in a file; on a port and on a socket."""
    server, port = guarded
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    coded, plain = quote(PASSWORD, safe=""), f"redis://127.0.0.1:{port}/0"
    ways: list[dict[str, str]] = [
        {"FOXQUEUE_URL": f"redis://:{coded}@127.0.0.1:{port}/0"},
        {"FOXQUEUE_URL": f"redis://default:{coded}@127.0.0.1:{port}"},
        {"FOXQUEUE_URL": plain, "FOXQUEUE_PASSWORD": PASSWORD},
        {"FOXQUEUE_URL": server.url, "FOXQUEUE_PASSWORD": PASSWORD},
        {"FOXQUEUE_URL": server.url.replace("unix://", f"unix://:{coded}@", 1)},
        {"FOXQUEUE_URL": plain, "FOXQUEUE_PASSWORD_FILE": str(secret)},
    ]
    said: list[str] = []
    with ended(Stack(tmp_path / "home", ways[0])) as stack:
        stack.environ["FOXQUEUE_LOG"] = "debug"
        for way in ways:
            stack.environ = {name: text for name, text in stack.environ.items() if name not in CURES} | way
            done = stack.fox("ls", "--json")
            said += [done.stdout, done.stderr]
        stack.start("up", "--simulate", "1x24G")
        env = stack.fox("submit", "--wait", "--", "env")
        assert "FOXQUEUE_JOB_ID" in env.stdout
        commands = (("ls",), ("show", "1"), ("logs", "1"), ("gpus",), ("workers",), ("stats",), ("doctor", "--json"))
        for command in commands:
            done = stack.fox(*command)
            said += [done.stdout, done.stderr]
        said += [env.stdout, env.stderr, stack.log("up"), *command_lines(stack)]
        stack.fox("down")
        said.append(stack.log("up"))
    said += [file.read_text(errors="replace") for file in stack.home.rglob("*") if file.is_file()]
    assert len(said) > 20 and not [text for text in said if PASSWORD.strip() in text or coded in text]


def command_lines(stack: Stack) -> list[str]:
    """What everybody on the machine can read of our processes."""
    pids = stack.all_processes()
    assert len(pids) > 2
    return [Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("given", [None, "wro/ng@1"])
def test_a_wrong_or_missing_password_is_told_with_the_setting(
    guarded: tuple[RealServer, int], tmp_path: Path, given: str | None
) -> None:
    """K10: every command says which setting, at once, and prints no password."""
    server, port = guarded
    coded = quote(given or "", safe="")
    ways: list[dict[str, str]] = [{"FOXQUEUE_URL": server.url}, {"FOXQUEUE_URL": f"redis://127.0.0.1:{port}"}]
    if given:
        ways[0]["FOXQUEUE_PASSWORD"] = given
        ways[1]["FOXQUEUE_URL"] = f"redis://:{coded}@127.0.0.1:{port}"
    commands: tuple[tuple[str, ...], ...] = (
        ("ls",),
        ("submit", "--", "true"),
        ("show", "1"),
        ("cancel", "1"),
        ("up", "--simulate", "1x24G"),
        ("worker", "--gpu", "0", "--simulate", "1x24G"),
    )
    with ended(Stack(tmp_path / "home", {"FOXQUEUE_LOG": "debug"})) as stack:
        for command, environ in (*((command, ways[0]) for command in commands), (commands[0], ways[1])):
            began = time.monotonic()
            done = stack.fox(*command, check=False, environ=environ)
            assert done.returncode == 1 and not done.stdout, (command, done)
            assert all(cure in done.stderr for cure in CURES), (command, done.stderr)
            assert not given or (given not in done.stderr and coded not in done.stderr)
            assert "Traceback" not in done.stderr and time.monotonic() - began < 4
        report: Any = stack.fox("doctor", check=False, environ=ways[1])
        assert report.returncode == 1 and "FOXQUEUE_PASSWORD" in report.stdout
        assert not given or (given not in report.stdout and coded not in report.stdout)


def test_a_password_that_is_not_encoded_is_told_and_not_printed(stack: Stack) -> None:
    """K10: characters that end the host part of a URL, and a file that is not there."""
    for raw in ("se/cret", "se#cret", "se?cret", "se[cret"):
        done = stack.fox("ls", check=False, environ={"FOXQUEUE_URL": f"redis://:{raw}@127.0.0.1:1/0"})
        assert done.returncode in (1, 2) and "cret" not in done.stderr, (raw, done.stderr)
        assert "FOXQUEUE_URL" in done.stderr
    missing = {"FOXQUEUE_URL": "redis://127.0.0.1:1/0", "FOXQUEUE_PASSWORD_FILE": str(stack.root / "none")}
    done = stack.fox("ls", check=False, environ=missing)
    assert done.returncode == 2 and "FOXQUEUE_PASSWORD_FILE" in done.stderr
