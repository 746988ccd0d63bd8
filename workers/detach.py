"""Into the background, with the parent waiting until it is worth returning."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foxqueue.errors import FoxqueueError
from foxqueue.streams import PatientStream
from workers.keeper import say

REGISTER_S = 60.0  # from the start of the workers until all have registered
_LOG_BYTES = 10 * 1024 * 1024
_TAIL_BYTES = 4096

Report = Callable[[dict[str, Any]], None]


def detached(log: Path, body: Callable[[Report], int]) -> int:
    """Run ``body`` in a process that outlives this one and its terminal.

    Args:
        log: where its output goes.
        body: is given a function to report with: ``{"started": n}`` when n workers were started, and
            ``{"ready": text}`` when there is no more to wait for.

    Returns:
        0 when it was ready, else the exit code of its error or 1; the end of its log has been printed then.
    """
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    begin = log.stat().st_size if log.exists() else 0
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            _daemon(log, body, writer)
        finally:
            os._exit(1)
    os.close(writer)
    os.waitpid(child, 0)
    try:
        return _await(reader, log, begin)
    finally:
        os.close(reader)


def _daemon(log: Path, body: Callable[[Report], int], writer: int) -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir("/")
    code = 1
    try:
        code = body(lambda fact: _tell(writer, fact))
    except FoxqueueError as error:
        say(str(error))
        code = error.exit_code
        _tell(writer, {"failed": code})
    except BaseException:  # noqa: BLE001 (the last frame of this process: its log must have the trace)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        if isinstance(sys.stderr, PatientStream):
            sys.stderr.drain()
        os._exit(code)


def _tell(writer: int, fact: dict[str, Any]) -> None:
    try:
        os.write(writer, json.dumps(fact).encode() + b"\n")
    except BrokenPipeError:
        return  # the parent was interrupted: nobody waits any more


def _await(reader: int, log: Path, begin: int) -> int:
    code, deadline, rest = 1, float("inf"), b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            say(f"not all workers registered within {REGISTER_S:g} s; still trying in the background: see {log}")
            return 1
        if not select.select([reader], [], [], min(left, 3600.0))[0]:
            continue
        data = os.read(reader, 4096)
        if not data:
            _print_tail(log, begin)
            return code
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            fact = json.loads(line)
            if "ready" in fact:
                say(f"{fact['ready']}, in the background; output in {log}; end it with foxqueue down")
                return 0
            if "started" in fact:
                deadline = time.monotonic() + REGISTER_S
            code = fact.get("failed", code)


def _print_tail(log: Path, begin: int) -> None:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - _TAIL_BYTES))
        sys.stderr.write(file.read().decode(errors="replace"))
    say(f"it did not come up: the above is the end of {log}")
