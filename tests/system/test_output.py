"""Output of any kind and size: bounded on disk, exact to the byte, and no reader harms anybody."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_disk import Small
from stack import FOXQUEUE, Stack, until_exists
from wait import until

from workers.output import BLOCK_BYTES, HEAD_BYTES, TAIL_BYTES

GIB = 1024**3
BOUND = HEAD_BYTES + TAIL_BYTES + 4 * BLOCK_BYTES


def output_of(stack: Stack, number: int) -> Path:
    """The output file of a job's run."""
    found = until(lambda: list(stack.home.glob(f"*/jobs/{stack.mark_of(number)}")), what="its directory")
    return found[0] / "output.log"


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


# --- much of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_gibibyte_does_not_fill_the_disk(running: Stack, stream: str) -> None:
    began = time.monotonic()
    number = running.queue("sh", "-c", f"exec >&{stream}; echo begin; head -c 1G /dev/zero; printf 'the end\\n'")
    until(lambda: running.job(number)["fence"], what="its start")
    most = 0

    def ended() -> bool:
        nonlocal most
        path = output_of(running, number)
        most = max(most, on_disk(path) if path.exists() else 0)
        return running.job(number)["state"] == "succeeded"

    until(ended, 60, "its end")
    took = time.monotonic() - began
    path = output_of(running, number)
    size = GIB + len("begin\nthe end\n")
    assert path.stat().st_size == size
    assert on_disk(path) <= BOUND
    print(f"{took:.1f} s, at most {most / 2**20:.0f} MiB on disk")
    assert took < 20
    assert most < GIB
    with path.open("rb") as file:
        assert file.read(16) == b"begin\n" + bytes(10)
        file.seek(HEAD_BYTES)
        assert file.read(BLOCK_BYTES).startswith(b"\n[foxqueue: 1,005,584,384 bytes of output dropped here, ")
        file.seek(size - TAIL_BYTES)
        assert file.read() == bytes(TAIL_BYTES - 8) + b"the end\n"
    assert running.api.job(number).logs()[-9:] == b"\0the end\n"
    pieces = running.api.inspector.log(number)
    assert pieces[-1].offset + len(pieces[-1].data) == size  # offsets are still those of all that was written
    assert running.api.job(number).view.result["output_bytes"] == size


def test_what_a_dead_worker_left_is_bounded_by_its_successor(stack: Stack) -> None:
    """Given a worker that cannot look, when its job writes a lot and the worker is killed, then the next one looks."""
    stack.serve(15_000)
    worker = stack.start_worker("sim:0", "--simulate", "1x24G")
    flag = stack.root / "flag"
    number = stack.queue("sh", "-c", f"until [ -e {flag} ]; do sleep 0.02; done; head -c 200M /dev/zero; echo end")
    until(lambda: stack.processes_of(number), what="its start")
    runner = stack.runner_of(number)
    os.kill(worker.pid, signal.SIGKILL)
    stack.exit_status(worker.pid)
    flag.touch()
    until(lambda: not runner.alive(), 20, what="its end")
    path = output_of(stack, number)
    assert on_disk(path) > 190 * 2**20
    stack.start_worker("sim:0", "--simulate", "1x24G")
    stack.await_state(number, "succeeded")
    until(lambda: on_disk(path) <= BOUND, what="the bound")
    assert stack.api.job(number).logs().endswith(b"\0end\n")


def test_where_files_have_no_holes_the_output_is_cut(stack: Stack) -> None:
    stack.serve()
    small = Small(stack, options="mode=700", kind="ramfs")
    flag = stack.root / "flag"
    number = stack.queue(
        "sh", "-c", f"echo begin; head -c 90M /dev/zero; until [ -e {flag} ]; do sleep 0.02; done; echo end"
    )
    stack.await_state(number, "running")
    path = small.place / stack.mark_of(number) / "output.log"
    marker = re.compile(rb"\[foxqueue: ([0-9,]+) bytes of output dropped here\]\n")
    until(lambda: path.exists() and path.stat().st_size < 2**25 and marker.search(path.read_bytes()), what="the cut")
    flag.touch()
    stack.await_state(number, "succeeded")
    kept = path.read_bytes()
    said = marker.search(kept)
    assert said
    assert kept.endswith(b"end\n")
    last = stack.api.inspector.log(number)[-1]
    assert last.data.endswith(b"end\n")
    assert last.offset + len(last.data) == int(said[1].replace(b",", b"")) + len(kept)


# --- every byte of it ----------------------------------------------------------------------------------------

# Writes its argument file in pieces that cut every kind of character, with pauses in which they are relayed.
PIECES = """
import os, sys, time
data = open(sys.argv[1], "rb").read()
step = int(sys.argv[2])
for at in range(0, len(data), step):
    os.write(1, data[at:at + step])
    time.sleep(0.005)
"""


@pytest.mark.parametrize("step", [1, 7, 997])
def test_bytes_arrive_as_they_were(running: Stack, step: int) -> None:
    data = (
        bytes(range(256)) * 8 + "🦊é\u2028𝒳\r\n".encode() * 40 + b"\xf0\x9f\xa6" + bytes(range(255, -1, -1)) + b"\n\n"
    )
    data = data[-100:] + b"\xf0" if step == 1 else data
    (running.work / "data").write_bytes(data)
    number = running.queue(sys.executable, "-S", "-c", PIECES, "data", str(step))
    followed = subprocess.run(
        [FOXQUEUE, "logs", "-f", str(number)], env=running.environ, capture_output=True, timeout=60, check=True
    )
    assert followed.stdout == data
    assert followed.stderr == b""
    kept = subprocess.run([FOXQUEUE, "logs", str(number)], env=running.environ, capture_output=True, check=True)
    assert kept.stdout == data
    assert running.api.job(number).logs() == data
    shown = json.loads(running.fox("logs", str(number), "--json").stdout)
    assert shown == {"number": number, "state": "succeeded", "output": data.decode("utf-8", "replace")}


def test_only_a_carriage_return_and_no_end_of_line(running: Stack) -> None:
    number = running.queue("sh", "-c", "printf '10%%\\r'; sleep 0.5; printf '20%%\\r'; sleep 0.5; printf '99%%'")
    running.await_state(number, "succeeded")
    kept = subprocess.run([FOXQUEUE, "logs", str(number)], env=running.environ, capture_output=True, check=True)
    assert kept.stdout == b"10%\r20%\r99%"
    assert "  99%\n" in running.fox("show", str(number)).stdout


# --- readers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["head -1", "true", "sh -c 'kill -9 $$'"])
def test_a_reader_that_leaves_harms_nobody(running: Stack, reader: str) -> None:
    flag = running.root / "flag"
    code = f"echo first; i=0; until [ -e {flag} ]; do i=$((i+1)); echo line $i; sleep 0.02; done"
    number = running.queue("sh", "-c", code)
    until(lambda: running.api.job(number).logs(), what="its first line")
    worker = running.worker_of(number)
    pipeline = f"set -o pipefail; '{FOXQUEUE}' logs -f {number} | {reader}"
    done = subprocess.run(
        ["bash", "-c", pipeline], env=running.environ, capture_output=True, timeout=30, text=True, check=False
    )
    assert done.stdout == ("first\n" if reader == "head -1" else "")
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr
    assert running.job(number)["state"] == "running"
    assert worker.alive()
    flag.touch()
    running.await_state(number, "succeeded")


def test_a_reader_that_is_killed_or_stopped_harms_nobody(running: Stack) -> None:
    flag = running.root / "flag"
    number = running.queue(*until_exists(flag))
    running.await_state(number, "running")
    readers = [running.start("logs", "-f", str(number)) for _ in range(3)]
    for reader, signum in zip(readers, (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP), strict=True):
        os.kill(reader.pid, signum)
    flag.touch()
    running.await_state(number, "succeeded")
