"""`foxqueue lease`: a command has a device to itself, with the streams, the directory and the signals of its caller."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import time
from unittest import mock

import pytest
from lessee import PYTHON, STAY, lease_of, lessee, shared_stack
from pretend import quiet_logs
from stack import FOXQUEUE, Stack
from wait import until

from foxqueue.cli import main
from foxqueue.processes import marked
from foxqueue.submission import user


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Stack:
    return shared_stack(request)


def run(stack: Stack, *words: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(FOXQUEUE), "lease", *words],
        env={**stack.environ, **more},
        cwd=stack.work,
        input=stdin,
        capture_output=True,
        timeout=60,
        start_new_session=True,
    )


def refused(stack: Stack, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a `foxqueue lease` that runs nothing: in this process, which is quicker."""
    said = io.StringIO()
    with (
        mock.patch.dict(os.environ, stack.environ, clear=True),
        contextlib.chdir(stack.work),
        contextlib.redirect_stderr(said),
        quiet_logs(),
    ):
        return main(["lease", *words]), said.getvalue()


SOAK = pytest.mark.soak


# --- what the command gets -----------------------------------------------------------------------------------


def test_a_command_has_its_callers_streams_and_directory_and_sees_its_device_alone(stack: Stack) -> None:
    script = "cat; pwd; umask; printf '%s\\n' $CUDA_DEVICE_ORDER [$CUDA_VISIBLE_DEVICES] $FOXQUEUE_GPUS $FOXQUEUE_FENCE"
    before = os.umask(0o057)
    try:
        done = run(stack, "--", "sh", "-c", f"{script} $FOXQUEUE_RUN $MINE ${{FOXQUEUE_PASSWORD-none}}",
                   stdin=b"typed\n", MINE="mine", FOXQUEUE_PASSWORD="secret")  # fmt: skip
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    typed, cwd, umask, order, visible, gpus, fence, mark, mine, password = done.stdout.decode().split()
    assert (typed, cwd, umask, mine, password) == ("typed", str(stack.work), "0057", "mine", "none")
    assert (order, visible) == ("PCI_BUS_ID", "[]")  # of a simulated device CUDA is shown nothing
    assert gpus in stack.devices()
    assert mark.startswith("lease/") and mark.endswith(f"/{fence}") and int(fence) > 10**15
    assert "is yours" in done.stderr.decode()


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["sh", "-c", "exit 3"], 3, ""),
        (["sh", "-c", "kill -9 $$"], 128 + 9, ""),
        (["no-such-command-at-all"], 127, "was not found in your PATH"),
        (["./none"], 127, "does not exist here"),
        ([os.devnull], 126, "is not executable"),
    ],
)
def test_the_exit_code_is_the_commands(stack: Stack, argv: list[str], code: int, words: str) -> None:
    done = run(stack, "-q", "--", *argv)
    assert done.returncode == code
    assert words in done.stderr.decode()
    assert done.stdout == b""


def test_words_that_look_like_subcommands(stack: Stack) -> None:
    (stack.work / "a-file-of-mine").touch()
    done = run(stack, "-q", "--", "ls")
    assert done.returncode == 0 and "a-file-of-mine" in done.stdout.decode().split()
    done = run(stack, "-q", "echo", "ls", "--json", "-h")  # no -- is needed before a program
    assert (done.returncode, done.stdout) == (0, b"ls --json -h\n")
    done = run(stack, "ls", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"leases": [], "waiting": []})


def test_several_devices_or_none(stack: Stack) -> None:
    script = "echo $FOXQUEUE_GPUS"
    done = run(stack, "-q", "--gpus", "2", "--", "sh", "-c", script)
    assert sorted(done.stdout.decode().strip().split(",")) == sorted(stack.devices())
    with lessee(stack, "--gpu", "sim:0", "--for", "1h") as other:
        other.lasts()
        assert run(stack, "--gpus", "2", "--timeout", "0", "--", "true").returncode == 75
    done = run(stack, "--gpus", "3", "--timeout", "0", "--", "true")
    assert done.returncode == 69 and b"3 devices" in done.stderr


def test_without_any_gpu(stack: Stack) -> None:
    """Given a namespace in which nobody serves a device, when no GPU will do, then the command runs and sees none."""
    script = "echo [$CUDA_VISIBLE_DEVICES] [$FOXQUEUE_GPUS] $FOXQUEUE_FENCE"
    done = run(stack, "--namespace", "empty", "--no-gpu-ok", "--", "sh", "-c", script, CUDA_VISIBLE_DEVICES="0")
    assert (done.returncode, done.stdout) == (0, b"[] [] 0\n"), done.stderr
    assert b"there is no GPU here" in done.stderr
    done = run(stack, "--namespace", "empty", "--", "true")
    assert done.returncode == 1 and b"there is no device to lease" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--gpu", "gpu:7"], 1, "no device 'gpu:7' may be leased here; there are: sim:0"),
        (["--gpu", "SIM-"], 1, "no device"),
        (["--gpu", " "], 2, "device ' ' is not understood"),
        (["--memory", "0"], 2, "memory"),
        (["--memory", "-8G"], 2, "memory size '-8G' is not understood"),
        (["--memory", "80G"], 69, "24,576 MiB in all"),
        (["--name", "x" * 61], 2, "60"),
        (["--priority", "10"], 2, "priority '10' is not understood"),
        (["--timeout", "soon"], 2, "time 'soon' is not understood"),
        (["--grace", "-1s"], 2, "time '-1s' is not understood"),
        (["--gpus", "0"], 2, "0 is not in the range"),
        (["--gpu", "0", "--gpu", "1"], 2, "--gpu is given twice"),
        (["--for", "0"], 2, "--for 0 is no time"),
        (["--gpus", "2", "--gpu", "sim:0"], 2, "leave one of them out"),
        (["--no-such-option"], 2, "No such option"),
    ],
)
def test_bad_input_is_told_before_anything_happens(stack: Stack, words: list[str], code: int, text: str) -> None:
    timeout = [] if "--timeout" in words else ["--timeout", "0"]
    status, said = refused(stack, *timeout, *words, "--", "touch", "made")
    assert status == code, said
    assert text in said
    assert "Traceback" not in said
    assert not (stack.work / "made").exists()


def test_what_is_missing_is_told(stack: Stack) -> None:
    for words, text in (((), "Give a command behind --, or --for TIME"), (("--gpu", "0", "ls"), "write -- ls to run")):
        status, said = refused(stack, *words)
        assert status == 2 and text in said


# --- who has it, and who waits ----------------------------------------------------------------------------------


def test_everybody_sees_who_has_a_device_and_until_when(stack: Stack) -> None:
    """Given a lease with a time, when others look, then gpus, lease ls, health, stats, and the job that waits behind it
    name its holder, and who stands in line has a place."""
    command = ("--gpus", "2", "--for", "2h", "--name", "my notebook", "--", *PYTHON, STAY)
    with lessee(stack, *command) as holder:
        device = holder.lasts()
        job = stack.queue("true")
        with lessee(stack, "--gpu", "sim:1", "--", "true") as first:
            until(lambda: "waiting: device sim:1" in first.said, 15, first.said)
            assert f'pid {holder.pid}, "my notebook") since' in first.said and "until" in first.said
            with lessee(stack, "--gpu", "sim:1", "--name", "next", "--", "true") as second:
                until(lambda: "place 2 in line, behind" in second.said, 15, second.said)
                assert f"pid {first.pid}" in second.said
                told = json.loads(stack.fox("lease", "ls", "--json").stdout)
                text = stack.fox("lease", "ls").stdout
                found = {found["uuid"]: found for found in json.loads(stack.fox("gpus", "--json").stdout)}
                figures, health = stack.api.stats(), stack.fox("health").stdout
                waits = stack.show(job)
        stack.fox("cancel", str(job))
    uuid = device.uuid
    assert [entry["label"] for entry in told["leases"]] == ["my notebook"] * 2
    mine = next(entry for entry in told["leases"] if entry["uuid"] == uuid)
    assert (mine["user"], mine["host"], mine["pid"]) == (user(), socket.gethostname(), holder.pid)
    assert mine["until"] > mine["since"] and mine["fence"].isdigit() and mine["taken_by"] is None
    in_line = [(entry["label"], entry["pid"], list(entry["places"].values())) for entry in told["waiting"]]
    assert in_line == [("true", first.pid, [1]), ("next", second.pid, [2])]
    assert "my notebook" in text and "2 for sim:1 on" in text
    assert (found[uuid]["state"], found[uuid]["job"]) == ("leased", None)
    assert {name: found[uuid]["holder"][name] for name in ("pid", "label", "until")} == {
        "pid": holder.pid,
        "label": "my notebook",
        "until": mine["until"],
    }
    assert found[uuid]["detail"].startswith(f"by {user()} on {socket.gethostname()} (pid {holder.pid}")
    assert (figures["leased"], figures["waiting_for_leases"], figures["available_gpu_slots"]) == (2, 2, 0)
    assert figures["leases_acquired"] >= 1
    assert "leased" in health and "my notebook" in health
    assert waits["waiting_for"] == "devices_busy"
    assert "are leased" in waits["detail"] and '"my notebook") since' in waits["detail"]


def test_who_does_not_want_to_wait(stack: Stack) -> None:
    with lessee(stack, "--gpu", "sim:0", "--for", "1h", "--name", "kept") as holder:
        holder.lasts()
        for timeout, code in (("0", 75), ("300ms", 124)):
            began = time.monotonic()
            done = run(stack, "--gpu", "sim:0", "--timeout", timeout, "--", "true")
            assert done.returncode == code, done.stderr
            assert b'"kept"' in done.stderr and f"pid {holder.pid}".encode() in done.stderr
            assert time.monotonic() - began < 10
        assert run(stack, "--timeout", "0", "--", "true").returncode == 0  # any: the other one is free


@pytest.mark.soak
def test_a_waiter_gets_the_device_when_it_is_given_back(stack: Stack) -> None:
    with lessee(stack, "--gpu", "sim:0", "--", *PYTHON, STAY) as holder:
        holder.lasts()
        with lessee(stack, "--gpu", "sim:0", "--", "echo", "mine") as waiter:
            until(lambda: "waiting" in waiter.said, 15, waiter.said)
            holder.process.terminate()
            assert holder.ends() == 128 + signal.SIGTERM
            waiter.prints("mine")
            assert waiter.ends() == 0


@pytest.mark.soak
def test_a_signal_takes_a_waiter_out_of_its_line(stack: Stack) -> None:
    with lessee(stack, "--gpu", "sim:0", "--for", "1h") as holder:
        holder.lasts()
        for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with lessee(stack, "--gpu", "sim:0", "--", "true") as waiter:
                until(lambda: "waiting" in waiter.said, 15, waiter.said)
                waiter.process.send_signal(signum)
                assert waiter.ends() == code
            fleet = stack.api.inspector.fleet
            assert fleet.waiters(fleet.seen()) == []


# --- times ------------------------------------------------------------------------------------------------------


def test_the_time_of_a_lease_with_a_command_is_over(stack: Stack) -> None:
    with lessee(stack, "--for", "1500ms", "--", *PYTHON, STAY) as holder:
        device = holder.lasts()
        assert device.holder is not None and device.holder.until_ms is not None
        assert holder.ends() == 128 + signal.SIGTERM
        assert "the time of the lease was over" in holder.said
        assert abs(device.holder.until_ms / 1000 - time.time()) < 5
    assert lease_of(stack, holder.pid) is None


@pytest.mark.soak
def test_the_time_is_over_for_a_stopped_holder_too(stack: Stack) -> None:
    with lessee(stack, "--for", "2s", "--", *PYTHON, f"print('on', flush=True)\n{STAY}") as holder:
        holder.prints("on")
        os.kill(holder.pid, signal.SIGSTOP)
        assert holder.ends() == 143
    assert lease_of(stack, holder.pid) is None


@pytest.mark.parametrize("how", [pytest.param("time", marks=SOAK), pytest.param("ctrl-c", marks=SOAK), "release"])
def test_a_device_is_kept_without_a_command(stack: Stack, how: str) -> None:
    with lessee(stack, "--gpu", "sim:1", "--for", "1500ms" if how == "time" else "1h") as holder:
        assert holder.lasts().short == "sim:1"
        until(lambda: "sim:1" in holder.said and "until" in holder.said, 10, holder.said)
        if how == "ctrl-c":
            holder.process.send_signal(signal.SIGINT)
        elif how == "release":
            until(lambda: "gives it back" in holder.said, 10, holder.said)
            assert "is being ended" in stack.fox("lease", "release", "sim:1").stdout
        assert holder.ends() == {"time": 0, "ctrl-c": 130, "release": 143}[how]
    assert lease_of(stack, holder.pid) is None


# --- taking it away ---------------------------------------------------------------------------------------------


def test_c1_a_device_that_is_taken_away_is_free_when_the_tree_is_gone(stack: Stack) -> None:
    """C1: given a command that ends slowly, when an operator takes the device, then the command is ended, says why, and
    nobody has the device before its last process is gone."""
    code = (
        "import os, signal, time\nsignal.signal(15, lambda *_: os.write(1, b'term;'))\nos.write(1, b'ready;')\n"
        "while True: time.sleep(60)"
    )
    with lessee(stack, "--gpu", "sim:0", "--grace", "1s", "--", *PYTHON, code) as holder:
        device = holder.lasts()
        holder.prints("ready;")
        assert "the lease of sim:0" in stack.fox("gpus", "--release", "sim:0").stdout
        with lessee(stack, "--gpu", "sim:0", "-q", "--", "echo", "next") as waiter:
            holder.prints("term;")
            assert stack.api.inspector.devices()[0].state != "free"
            waiter.prints("next")
            assert holder.ends(1.0) == 137  # it was gone before
        assert f"taken away by {user()}" in holder.said
    events = json.loads(stack.fox("events", "--json").stdout)
    assert any(event["event"] == "force_release" and event["device"] == device.uuid for event in events)


def test_c1_a_lease_key_that_is_lost_heals(stack: Stack) -> None:
    """C1: a DEL of the lease key ends nothing; another owner's fence in the grant does."""
    redis, keys = stack.api.redis, stack.api.broker.keys
    with lessee(stack, "--gpu", "sim:0", "--", *PYTHON, STAY) as holder:
        device = holder.lasts()
        redis.delete(keys.lease(device.uuid))
        until(lambda: redis.exists(keys.lease(device.uuid)), 10, "the next beat")
        assert holder.process.poll() is None
        redis.hset(keys.granted, device.uuid, f"{int(device.holder.fence) + 1} lease:00ff")  # type: ignore[union-attr]
        redis.set(keys.lease(device.uuid), int(device.holder.fence) + 1, px=1500)  # type: ignore[union-attr]
        assert holder.ends() == 143
        assert "the lease is lost" in holder.said


def test_one_releases_ones_own_and_only_force_takes_others(stack: Stack) -> None:
    script = (
        "from foxqueue.leases import GpuLeases\nimport os, time\n"
        "leases = GpuLeases()\nlease = leases.acquire('sim:1', holder='library')\nprint('held', flush=True)\n"
        "while lease.lost is None: time.sleep(0.02)\nprint(lease.lost, flush=True)"
    )
    python = str(FOXQUEUE.with_name("python"))
    with lessee(stack, "--gpu", "sim:0", "--", *PYTHON, STAY) as command:
        command.lasts()
        library = subprocess.Popen(
            [python, "-c", script], env=stack.environ, cwd=stack.work, stdout=subprocess.PIPE, text=True
        )
        assert library.stdout is not None
        assert library.stdout.readline() == "held\n"
        redis, keys = stack.api.redis, stack.api.broker.keys
        own = dict(redis.hgetall(keys.holders))
        for uuid, text in own.items():
            redis.hset(keys.holders, uuid, b"eve" + text[text.index(b"\t") :])
        for device in ("sim:0", "sim:1"):
            done = stack.fox("lease", "release", device, check=False)
            assert done.returncode == 1 and "in use by eve on" in done.stderr
        for uuid, text in own.items():
            redis.hset(keys.holders, uuid, text)
        told = json.loads(stack.fox("lease", "release", "sim:0", "--json").stdout)
        assert (told["released"], told["holder"]["pid"]) == (True, command.pid)
        assert command.ends() == 143
        assert "lost" not in command.said  # it was asked to end, and gave the device back
        stack.fox("lease", "release", "sim:1")
        assert f"taken away by {user()}" in library.stdout.readline()
        assert library.wait(10) == 0
        library.stdout.close()
    done = stack.fox("lease", "release", "sim:1", check=False)
    assert done.returncode == 1 and "there is no lease of sim:1" in done.stderr


@pytest.mark.soak
def test_a_stopped_holder_keeps_its_lease_and_can_still_lose_it(stack: Stack) -> None:
    """Given a stopped `foxqueue lease`, when longer than its lease goes by, then nobody else gets the device; and when
    an operator takes it, then the command is ended all the same."""
    with lessee(stack, "--gpu", "sim:0", "--", *PYTHON, STAY) as holder:
        device = holder.lasts()
        mark = until(holder.mark, 10)
        os.kill(holder.pid, signal.SIGSTOP)
        done = run(stack, "--gpu", "sim:0", "--timeout", "3s", "--", "true")  # the lease is of 2 s
        assert done.returncode == 124
        assert marked("FOXQUEUE_RUN", mark)
        stack.fox("lease", "release", "--force", device.uuid)
        until(lambda: not marked("FOXQUEUE_RUN", mark), 15, "the end of the command")
        assert holder.ends() == 143
