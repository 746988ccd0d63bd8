"""Commands from other surroundings, commands that die, workers too many, and what jobs leave behind on a device."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stack import FOXQUEUE, Stack, until_exists
from wait import until

from foxqueue.server import find_server

ONE = ("--simulate", "1x24G")


# --- A8: one truth, in Redis -----------------------------------------------------------------------------------


def surroundings(stack: Stack) -> list[dict[str, str]]:
    """Of a login, of a service manager, of a container, and of a shell with everything set to something else."""
    other = str(stack.root / "other")
    home = {"FOXQUEUE_HOME": str(stack.home)}
    gone = dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME"), "/nonexistent")
    return [
        stack.environ,
        home,
        {**home, **dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"), other), "LANG": "C"},
        {**home, **gone, "XDG_RUNTIME_DIR": "", "PATH": "", "USER": "nobody", "LC_ALL": "xx_XX"},
        {**stack.environ, "CUDA_VISIBLE_DEVICES": "7", "PYTHONPATH": other, "TZ": "Asia/Tokyo", "COLUMNS": "1"},
    ]


@pytest.mark.soak
def test_everybody_sees_the_same_queue_whatever_surrounds_him(stack: Stack) -> None:
    """A8: other HOME, TMPDIR and variables, and next to none: the same jobs, devices and workers; all may cancel."""
    stack.up(*ONE, workers=1)
    running, waiting = stack.queue("sleep", "300"), [stack.queue("sleep", "300") for _ in range(5)]
    stack.await_state(running, "running")
    (stack.root / "other").mkdir()

    def fox(environ: dict[str, str], *words: str) -> Any:
        done = subprocess.run([FOXQUEUE, *words], env=environ, cwd="/", capture_output=True, timeout=30, check=False)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done
        return json.loads(done.stdout) if "--json" in words else done.stdout

    everywhere = surroundings(stack)
    for words in (("ls", "--json"), ("workers", "--json")):
        first, *others = [fox(environ, *words) for environ in everywhere]
        assert first and others == [first] * len(others), words
    for device in [fox(environ, "gpus", "--json") for environ in everywhere]:
        assert [(found["state"], found["job"]) for found in device] == [("leased", running)]
    for number, environ in zip(waiting, everywhere, strict=True):
        assert fox(environ, "cancel", str(number)) == b"%d cancelled\n" % number
    assert {stack.job(number)["state"] for number in waiting} == {"cancelled"}
    assert stack.job(running)["state"] == "running"


def test_commands_that_die_midway_harm_nobody(running: Stack) -> None:
    """A8: `logs -f | head -1` of a job that floods, and every command killed at some moment of its life."""
    flag = running.root / "flag"
    flood = f"i=0; until [ -e {flag} ]; do echo line $((i+=1)); [ $((i % 200)) -gt 0 ] || sleep 0.05; done; echo end"
    number = running.queue("sh", "-c", flood)
    until(lambda: running.api.job(number).logs(), 10, "its output")
    server, worker = find_server(running.api.config), running.worker_of(number)
    assert server is not None
    connected = int(running.api.redis.info("clients")["connected_clients"])
    pipeline = ["bash", "-c", f"'{FOXQUEUE}' logs -f {number} | head -1"]
    piped = subprocess.run(pipeline, env=running.environ, capture_output=True, timeout=30, check=False)
    assert piped.stdout == b"line 1\n" and piped.stderr == b""
    commands = (("logs", "-f", str(number)), ("ls",), ("submit", "--wait", "--", "true"), ("wait", str(number)))
    dead = [running.start(*words) for words in commands for _ in range(3)]
    for at, process in enumerate(dead):  # at moments that differ, for they were started one after another
        process.send_signal((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[at % 3])
    for process in dead:
        process.wait(20)
    until(lambda: running.api.redis.info("clients")["connected_clients"] <= connected, 10, "no client left connected")
    assert running.job(number)["state"] == "running"
    flag.touch()
    done = running.await_state(number, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 0)
    assert running.api.job(number).logs().endswith(b"\nend\n")
    assert find_server(running.api.config) == server and worker.alive()


def test_a_second_worker_of_a_device_is_refused_and_told_who_has_it(stack: Stack) -> None:
    """A8: from another home of a user and another directory for temporary files; the first one goes on."""
    stack.up(*ONE, workers=1)
    flag = stack.root / "flag"
    (first,) = stack.api.workers()
    number = stack.queue(*until_exists(flag))
    stack.await_state(number, "running")
    other = {"TMPDIR": str(stack.work), "XDG_RUNTIME_DIR": str(stack.work), "HOME": "/"}
    second = stack.fox("worker", "--gpu", "sim:0", *ONE, check=False, environ=other)
    assert second.returncode == 1 and second.stdout == ""
    for word in ("sim:0", first["device"], first["id"], f"pid {first['pid']}", str(stack.home), "stop that one"):
        assert word in second.stderr, (word, second.stderr)
    assert "Traceback" not in second.stderr
    flag.touch()
    done = stack.await_state(number, "succeeded")
    assert (done["worker"], done["attempts"], done["losses"]) == (first["id"], 1, 0)
    assert [worker["id"] for worker in stack.api.workers()] == [first["id"]]


# --- D2: nothing of a run meets the next one on its device -----------------------------------------------------

# The first run leaves children: one in its group, one in a session of its own, one whose parents have gone; all ignore
# SIGTERM. Any later run says which of them it met.
FAMILY = """
import os, signal, sys, time
how, folder = sys.argv[1:]
pids, met = f"{folder}/pids", f"{folder}/met"
def note(path, text):
    os.write(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), text.encode())
def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
if os.path.exists(pids):
    with open(pids) as file:
        note(met, "".join(f"{pid} " for pid in file.read().split() if lives(pid)) + ".")
    sys.exit(0)
def stay():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(pids, f"{os.getpid()}\\n")
    while True:
        time.sleep(60)
if os.fork() == 0:
    stay()
if os.fork() == 0:
    os.setsid()
    stay()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay()
    os._exit(0)
while not os.path.exists(pids) or len(open(pids).read().split()) < 3:
    time.sleep(0.01)
note(pids, f"{os.getpid()}\\n")
if how == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "exit":
    os._exit(0)
stay()
"""


@pytest.mark.parametrize("how", ["exit", "segfault", "cancel", "worker killed", "runner killed"])
def test_nothing_of_a_run_is_alive_when_the_next_begins(stack: Stack, how: str) -> None:
    """D2: children that ignore SIGTERM and leave their session, whatever ended the run; the next job waits already."""
    stack.up(*ONE, "--lease-ttl", "2s", workers=1)
    pids, met = stack.root / "pids", stack.root / "met"
    job = (sys.executable, "-S", "-c", FAMILY, how, str(stack.root))
    first, second = stack.queue(*job), stack.queue(*job)
    until(lambda: pids.exists() and len(pids.read_text().split()) >= 4, 15, "the family")
    if how == "cancel":
        stack.api.job(first).cancel()
    elif how == "worker killed":
        stack.worker_of(first).send(signal.SIGKILL)
    elif how == "runner killed":
        stack.runner_of(first).send(signal.SIGKILL)
    stack.await_state(second, "succeeded", seconds=30)
    lost = how.endswith("killed")
    assert met.read_text() == "." * (2 if lost else 1)
    states = {"exit": "succeeded", "segfault": "failed", "cancel": "cancelled"}
    assert (stack.job(first)["state"], stack.job(first)["losses"]) == (states.get(how, "succeeded"), int(lost))
    assert not [pid for pid in map(int, pids.read_text().split()) if Path(f"/proc/{pid}").exists()]


# --- D6: a job that no device can take -------------------------------------------------------------------------


def test_a_head_that_no_device_fits_is_cancelled_at_once(stack: Stack) -> None:
    """D6: it was accepted before there was any device; jobs behind it run, and it never does."""
    stack.serve(15_000)
    head = stack.queue("true", gpu_memory="100G", priority=9)
    behind = stack.queue("true", priority=0)
    stack.start_worker("sim:0", *ONE)
    stack.await_state(behind, "succeeded")
    assert (stack.job(head)["state"], stack.job(head)["waiting_for"]) == ("pending", "unsatisfiable")
    done = stack.fox("cancel", str(head), timeout=5)
    assert done.stdout == f"{head} cancelled\n"
    view = stack.api.job(head).view
    assert (view.state, view.reason) == ("cancelled", "cancelled_by_user")
    asked = [int(entry.partition(b"-")[0]) for entry, fields in events(stack) if fields[b"event"] == b"cancel"]
    assert asked == [view.finished_ms]
    assert not stack.events(head, "claim")


def events(stack: Stack) -> Any:
    return stack.api.redis.xrange(stack.api.broker.keys.events)
