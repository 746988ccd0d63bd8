"""Tells one end of a job to whom its submitter named: a command of theirs, or an address that takes a POST.

Either way by a process in a session of its own, with a time limit; nothing of it outlives that, nor its worker: a
guard beside it kills it when the worker is gone, and what escaped from that carries a mark by which the next worker of
the home finds it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from foxqueue.job import JobView
from foxqueue.processes import ProcessId, kill_marked
from foxqueue.wishes import is_url
from workers import post

COMMAND_S: Final = 55.0  # and killed before its end is given out again, a minute after it was taken
POST_S: Final = post.TIMEOUT_S
MARK: Final = "FOXQUEUE_NOTICE"
_LOOK_S: Final = 0.1
_KILL_S: Final = 5.0
_OUTPUT_BYTES: Final = 2048  # the end of it, for the log
_TEXT_CHARS: Final = 4096
_KEPT: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "FOXQUEUE_HOME"}
    | {"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
)


@dataclass(frozen=True)
class Delivery:
    """A process that tells an end.

    Attributes:
        to: for people, without what may be secret in an address.
        given: its standard input.
        limit_s: seconds that it may take.
    """

    to: str
    argv: list[str]
    cwd: str
    environ: dict[str, str]
    given: bytes
    limit_s: float


def delivery(job: JobView, to: str, namespace: str, environ: Mapping[str, str]) -> Delivery:
    """What tells an end.

    Args:
        job: that has ended.
        to: ``http://…``, ``https://…``, or a command for the shell.
        namespace: of the queue.
        environ: the worker's; little of it goes along, and no password of the server.
    """
    kept = {name: value for name, value in environ.items() if name in _KEPT or name.startswith("LC_")}
    kept.setdefault("PATH", os.defpath)
    if is_url(to):
        argv = [sys.executable, "-I", str(Path(post.__file__).resolve())]
        given = json.dumps([to, json.dumps(job.to_dict())]).encode()
        return Delivery(_host(to), argv, "/", kept, given, POST_S)
    ours = {
        "ID": str(job.number),
        "NAME": job.name,
        "STATE": job.state,
        "REASON": job.reason,
        "DETAIL": job.detail,
        "EXIT_CODE": "" if job.exit_code is None else str(job.exit_code),
        "USER": job.user,
    }
    told = {f"FOXQUEUE_JOB_{name}": (value or "").replace("\0", "")[:_TEXT_CHARS] for name, value in ours.items()}
    cwd = str(job.spec.get("cwd") or "/")
    return Delivery(
        "its command",
        ["/bin/sh", "-c", to],
        cwd if os.path.isdir(cwd) else "/",  # noqa: PTH112 - a text with a NUL is no directory either
        {**kept, **told, "FOXQUEUE_NAMESPACE": namespace},
        b"",
        COMMAND_S,
    )


def _host(url: str) -> str:
    try:
        found = urlsplit(url)
        return f"{found.scheme}://{found.hostname}"
    except ValueError:
        return "its address"


def deliver(what: Delivery, home: str, begun: Callable[[list[int]], None], stopped: Callable[[], bool]) -> str:
    """Carry it out, and end all that it started.

    Args:
        what: the process.
        home: whose worker this process is.
        begun: called with the pids of the children that this function waits for.
        stopped: whether to end it before its time.

    Returns:
        What went wrong; empty when it was told.
    """
    mark = _new_mark(home)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        process = _start(what, mark, writer)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the command
        os.close(reader)
        return f"it cannot be started: {error}"
    finally:
        os.close(writer)
    leader = ProcessId.of(process.pid)
    guard, sign_of_life = _guard(process.pid, mark)
    begun([process.pid, *([guard.pid] if guard else [])])
    try:
        fault, output = _watch(process.pid, reader, time.monotonic() + what.limit_s, stopped)
    finally:
        os.close(reader)
        if guard:
            guard.kill()  # before the group's number can be another's
            guard.wait()
        os.close(sign_of_life)
        gone = kill_marked(MARK, mark, 0.0, _KILL_S, leader)
        process.wait(_KILL_S) if gone else process.poll()
    fault = fault or ("" if gone else "what it started cannot be killed")
    return fault and f"{fault}{': ' if output else ''}{output}"


def _guard(group: int, mark: str) -> tuple[subprocess.Popen[bytes] | None, int]:
    """A process that kills a group as soon as this process is gone, whatever killed it.

    Returns:
        It, None where it cannot be started; and what must stay open until it is not needed any more.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _; kill -s KILL -- -{group}"],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={MARK: mark},
            start_new_session=True,
        )
    except OSError:
        return None, writer
    finally:
        os.close(reader)
    return process, writer


def _new_mark(home: str) -> str:
    """Names a delivery: whose it is, and which."""
    me = ProcessId.of()
    owner = f"{me.pid}/{me.start}/{me.boot_id}/{me.pid_ns}" if me else ""
    return f"{owner}/{os.urandom(8).hex()}/{home}"


def _owner(mark: str, home: str) -> ProcessId | None:
    """The worker that a mark names, None when it is none of this home."""
    with suppress(ValueError):
        pid, start, boot_id, pid_ns, _, found = mark.split("/", 5)
        return ProcessId(int(pid), int(start), boot_id, pid_ns) if found == home else None
    return None


def end_abandoned(home: str) -> list[int]:
    """Kill what is left of deliveries whose workers are dead.

    Args:
        home: whose.

    Returns:
        The pids that were found, one of each delivery.
    """
    found: dict[str, int] = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        mark = _mark_of(pid)
        owner = _owner(mark, home) if mark not in found else None
        if owner and not owner.alive():
            found[mark] = pid
    for mark, pid in found.items():
        leader = None
        with suppress(OSError):
            leader = ProcessId.of(os.getsid(pid))  # a marked process is in no session but one of its delivery
        kill_marked(MARK, mark, 0.0, _KILL_S, leader)
    return list(found.values())


def _mark_of(pid: int) -> str:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    name = f"{MARK}=".encode()
    return next((os.fsdecode(text.removeprefix(name)) for text in variables if text.startswith(name)), "")


def _start(what: Delivery, mark: str, output: int) -> subprocess.Popen[bytes]:
    given = os.memfd_create("foxqueue-notice")
    try:
        os.write(given, what.given)
        os.lseek(given, 0, os.SEEK_SET)
        return subprocess.Popen(
            what.argv,
            stdin=given,
            stdout=output,
            stderr=output,
            cwd=what.cwd,
            env={**what.environ, MARK: mark},
            start_new_session=True,
        )
    finally:
        os.close(given)


def _watch(pid: int, reader: int, until: float, stopped: Callable[[], bool]) -> tuple[str, str]:
    """Wait for its end. Returns what went wrong, and the last line that it said."""
    output = b""
    open_ends = [reader]
    while True:
        if select.select(open_ends, [], [], _LOOK_S if open_ends else _LOOK_S / 10)[0]:
            piece = _read(reader)
            open_ends = [reader] if piece else []
            output = (output + piece)[-_OUTPUT_BYTES:]
        fault = _status(pid)
        if fault is None and time.monotonic() >= until:
            fault = "it did not end in its time"
        if fault is None and stopped():
            fault = "its worker was stopped"
        if fault is not None:
            lines = (output + _read(reader)).decode("utf-8", "replace").split("\n")
            said = next((line for line in reversed(lines) if line.strip()), "")
            return fault, "".join(char if char.isprintable() else "?" for char in said.strip())[:300]


def _read(reader: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(reader, 65536)
    return b""


def _status(pid: int) -> str | None:
    """What its end says against it, empty for nothing; None while it goes on. The status is left for its owner."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "its status was lost"  # taken together with what a dead runner had left
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return f"it exited with {found.si_status}" if found.si_status else ""
    with suppress(ValueError):
        return f"it was killed by {signal.Signals(found.si_status).name}"
    return f"it was killed by signal {found.si_status}"
