"""Real servers for tests: our own redis.conf, a unix socket, everything in a directory of the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from wait import until

import foxqueue
from foxqueue.binaries import Binary, embedded, examine, on_path
from foxqueue.config import MAX_SOCKET_PATH, url_of_socket

CONF = Path(foxqueue.__file__).with_name("redis.conf")


def binaries() -> list[Binary]:
    """The embedded server and those on PATH: ``@pytest.mark.parametrize("binary", binaries(), ids=str)``."""
    paths = [path for path in (embedded(), *on_path(os.environ)) if path]
    found = [examine(path) for path in paths]
    assert found, "no Redis server to test with: run make setup"
    return found


class RealServer:
    """One server process. Its data survives ``kill`` and ``stop`` and is there after ``start``.

    Args:
        binary: the program, the embedded one by default.
        directory: for its data; made when missing.
        flags: more words for its command line, like ``"--requirepass", "secret"``.
    """

    def __init__(self, binary: Binary | Path | None, directory: Path, *flags: str) -> None:
        self.binary = binary.path if isinstance(binary, Binary) else binary or binaries()[0].path
        self.directory = directory
        self.flags = flags
        self._short: str | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.socket = directory / "server.sock"
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH:
            self._short = tempfile.mkdtemp(prefix="fq-")
            self.socket = Path(self._short) / "server.sock"
        self.log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``Client(url=…)``; the same over every restart."""
        return url_of_socket(self.socket)

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self, wait: bool = True) -> RealServer:
        """Start it and, by default, wait until it answers."""
        assert self._process is None, "the server runs already"
        command = [self.binary, CONF, "--dir", self.directory, "--unixsocket", self.socket]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*map(str, command), *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            until(self._ready, seconds=20, what="an answer of the server", every=0.005)
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self._end(signal.SIGTERM)

    def restart(self, crash: bool = True) -> None:
        """End it, by SIGKILL unless ``crash`` is false, and start it again on the same data."""
        self._end(signal.SIGKILL if crash else signal.SIGTERM)
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it if it runs, whatever state it is in, and remove what lies outside the directory."""
        if self._process is not None:
            self._end(signal.SIGKILL)
        if self._short:
            shutil.rmtree(self._short, ignore_errors=True)

    def __enter__(self) -> RealServer:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        self._process.send_signal(number)
        self._process.wait(timeout=20)
        self._process = None

    def _ready(self) -> bool:
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"the server ended with {status}: {self.log.read_text(errors='replace')[-2000:]}"
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5)
            try:
                link.connect(str(self.socket))
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False
