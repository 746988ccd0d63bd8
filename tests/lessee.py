"""`foxqueue lease …` as tests run it: a process with its streams, and a shell with a terminal to run it in."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from stack import FOXQUEUE, Stack
from wait import until

from foxqueue.devices import SeenDevice
from foxqueue.processes import ProcessId, children

_SHARED = pytest.StashKey[Stack]()

PYTHON = (sys.executable, "-S", "-c")
STAY = "import time\nwhile True: time.sleep(60)"  # a command that stays


class Lessee:
    """One `foxqueue lease …` in the background.

    Args:
        stack: whose.
        words: behind ``foxqueue lease``.
        stdin: what it reads.
        wrapped: words in front of ``foxqueue``.
    """

    def __init__(
        self, stack: Stack, *words: str, stdin: Any = subprocess.DEVNULL, wrapped: tuple[str, ...] = (), **more: Any
    ) -> None:
        self.stack = stack
        self.log = stack.root / f"lease-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*wrapped, str(FOXQUEUE), "lease", *words],
                env=stack.environ,
                cwd=stack.work,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                **more,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def lasts(self) -> SeenDevice:
        """Wait until it has a device; which."""

        def found() -> SeenDevice | None:
            assert self.process.poll() is None, self.said
            return lease_of(self.stack, self.pid)

        device = until(found, 15, f"a lease of pid {self.pid}: {self.said}")
        assert device is not None
        return device

    def prints(self, text: str, seconds: float = 15.0) -> None:
        """Wait until its command has written this on stdout."""
        assert self.process.stdout is not None
        found, deadline = b"", time.monotonic() + seconds
        while text.encode() not in found:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not come: {found!r}, {self.said}")
            piece = os.read(self.process.stdout.fileno(), 4096)
            assert piece, f"{text!r} did not come: {found!r}, {self.said}"
            found += piece

    def child(self, module: str) -> ProcessId:
        """Its child that runs this module: ``workers.runner`` or ``foxqueue.leases.helper``."""

        process = until(lambda: child_of(self.pid, module), 10, f"{module} of pid {self.pid}")
        assert process is not None
        return process

    def mark(self) -> str:
        """What its command's processes carry; "" while there is none."""
        found = lease_of(self.stack, self.pid)
        if found is None or found.holder is None:
            return ""
        for path in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                for entry in Path(f"/proc/{int(path.name)}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"FOXQUEUE_RUN=lease/") and entry.endswith(f"/{found.holder.fence}".encode()):
                        return entry.partition(b"=")[2].decode()
        return ""

    def ends(self, seconds: float = 20.0) -> int:
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on: {self.said}") from None

    def end(self) -> None:
        for signum in (signal.SIGCONT, signal.SIGTERM):
            with suppress(ProcessLookupError):
                self.process.send_signal(signum)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def lessee(stack: Stack, *words: str, **more: Any) -> Iterator[Lessee]:
    made = Lessee(stack, *words, **more)
    try:
        yield made
    finally:
        made.end()


def child_of(pid: int, module: str) -> ProcessId | None:
    """The child of a process that runs a module."""
    for child in children(pid):
        with suppress(OSError):
            if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                return ProcessId.of(child)
    return None


def shared_stack(request: pytest.FixtureRequest) -> Stack:
    """Two simulated devices under leases of 2 s, for all tests of leases that this process runs; all free now."""
    session = request.session
    if _SHARED not in session.stash:
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        made = Stack(factory.mktemp("leases"))
        session.addfinalizer(made.end)
        session.stash[_SHARED] = made
        made.up("--simulate", "2x24G", "--lease-ttl", "2s")
    stack = session.stash[_SHARED]
    until(lambda: all_free(stack), 40, "free devices")
    return stack


def lease_of(stack: Stack, pid: int) -> SeenDevice | None:
    """The device that a process has by a lease."""
    leased = stack.api.inspector.seen().leased
    return next((device for device in leased if device.holder and device.holder.pid == pid), None)


def all_free(stack: Stack) -> bool:
    """Whether nobody has a device, and the workers have seen it."""
    devices = stack.api.inspector.devices()
    return bool(devices) and all(device.state == "free" for device in devices)


class Terminal:
    """An interactive bash at a terminal of its own.

    Args:
        environ: of the shell.
        cwd: where it is.
    """

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
            os.execvpe("bash", shell, {**environ, "PS1": "$ ", "TERM": "dumb", "HISTFILE": ""})
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def expect(self, text: str, seconds: float = 20.0) -> None:
        """Wait until this stands behind what was expected before."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self._seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._terminal], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not come: {self._seen.decode(errors='replace')!r}")
            self._seen += os.read(self._terminal, 4096)
        self._seen = self._seen.partition(text.encode())[2]

    def close(self) -> None:
        os.close(self._terminal)  # hangs up
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def terminal(stack: Stack) -> Iterator[Terminal]:
    made = Terminal(stack.environ, stack.work)
    try:
        yield made
    finally:
        made.close()
