"""Our own private server: found by its socket, started under a file lock, stopped by signal.

The server process inherits the locked descriptor and so holds ``server.lock`` for its whole life: whoever can
lock it knows that nothing uses the data, across crashes, reused process numbers and containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foxqueue.binaries import Binary, choose
from foxqueue.config import Config, server_socket, url_of_socket
from foxqueue.errors import ServerError, ServerRefused, ServerUnavailable
from foxqueue.listening import connect, listener, listens, look
from foxqueue.places import (
    NETWORK_FILE_SYSTEMS,
    file_system,
    private_dir,
    read_json,
    write_json,
)
from foxqueue.processes import ProcessId, pid_namespace

FORCE_VARIABLE = "FOXQUEUE_FORCE_NETWORK_FS"
CONF = Path(__file__).with_name("redis.conf")
STARTING_S = 600.0  # a large append-only file takes its time
STOPPING_S = 10.0
UNREACHABLE_S = 15.0  # a server listens within milliseconds, long before it has loaded its data
SILENT_S = 60.0
_POLL_S = 0.01
_LOG_BYTES = 10 * 1024 * 1024


@dataclass
class RunningServer:
    """Our own server while it runs.

    Attributes:
        url: of its socket.
        process: who it is; None when it lives in another pid namespace.
        started_here: whether this call started it.
    """

    url: str
    process: ProcessId | None
    started_here: bool
    _socket: Path
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def alive(self) -> bool:
        """Whether it still runs. Cheap enough to ask ten times a second."""
        if self._child is not None:
            return self._child.poll() is None
        if self.process is not None:
            return self.process.alive()
        return listens(self._socket)


@dataclass(frozen=True)
class _Place:
    """Where the server of one home keeps what."""

    data: Path
    socket: Path

    @classmethod
    def of(cls, config: Config) -> _Place:
        return cls(config.machine_dir / "server", server_socket(config))

    @property
    def record(self) -> Path:
        return self.data / "server.json"

    @property
    def log(self) -> Path:
        return self.data / "server.log"

    def prepare(self, config: Config, environ: Mapping[str, str]) -> None:
        private_dir(config.machine_dir)
        private_dir(self.data)
        private_dir(self.socket.parent)
        kind = file_system(self.data)
        if kind in NETWORK_FILE_SYSTEMS and environ.get(FORCE_VARIABLE) != "1":
            raise ServerRefused(
                f"{self.data} lies on a network file system ({kind}), which may lose or mix up a server's data: set "
                f"FOXQUEUE_HOME to a local directory, FOXQUEUE_URL to a server, or {FORCE_VARIABLE}=1 to do it anyway"
            )

    def listening(self) -> Path:
        """The socket a server listens on, else the one it should: XDG_RUNTIME_DIR may have differed at its start."""
        recorded = read_json(self.record).get("socket")
        if isinstance(recorded, str) and not listens(self.socket) and listens(Path(recorded)):
            return Path(recorded)
        return self.socket

    def process(self) -> ProcessId | None:
        """The recorded server; None without one or when the record is malformed."""
        return ProcessId.named(read_json(self.record), "process")

    def binary(self) -> Binary | None:
        """What served the data last."""
        record = read_json(self.record)
        try:
            major, minor, patch = (int(part) for part in record["version"])
            return Binary(Path(record["binary"]), str(record["product"]), (major, minor, patch))
        except (KeyError, TypeError, ValueError):
            return None


def find_server(config: Config) -> str | None:
    """URL of our own server when one listens, answering already or still loading its data; else None.

    Raises:
        ServerRefused: what listens there belongs to another user.
    """
    path = _Place.of(config).listening()
    return url_of_socket(path) if listens(path) else None


def ensure_server(
    config: Config,
    *,
    environ: Mapping[str, str] | None = None,
    patience_s: float = STARTING_S,
    cancelled: Callable[[], bool] = lambda: False,
) -> RunningServer:
    """Find our own server or start it, and wait until it answers. However many ask at once, one is started.

    Args:
        config: whose home; its ``url`` is not looked at.
        environ: for FOXQUEUE_REDIS_SERVER, PATH and FOXQUEUE_FORCE_NETWORK_FS; this process's by default.
        patience_s: how long it may load its data, in seconds.
        cancelled: asked between looks; true gives up and ends what was started.

    Raises:
        NoServer: there is no server program.
        ServerRefused: the program is too old for foxqueue or for the data, or the place is not safe.
        ServerUnavailable: it ended at once, or did not answer in time; the text holds the end of its log.
        FoxqueueError: the directory cannot be used.
    """
    environ = os.environ if environ is None else environ
    place = _Place.of(config)
    place.prepare(config, environ)
    wait = _Wait(place, time.monotonic() + patience_s, cancelled)
    with _lock_file(place) as lock:
        while not _lockable(lock):  # somebody starts it, or it runs
            if wait.answered():
                path = place.listening()
                return RunningServer(url_of_socket(path), _judge(place), False, path)
        return _start(place, lock, environ, wait)


def stop_server(config: Config, kill_after_s: float = STOPPING_S) -> bool:
    """End our own server: SIGTERM, and SIGKILL after ``kill_after_s`` seconds. Its data stays.

    Returns:
        Whether there was one.

    Raises:
        ServerUnavailable: it is in another pid namespace and does not answer, or survived SIGKILL.
    """
    place = _Place.of(config)
    if not place.data.is_dir():
        return False
    process = _judge(place)
    if process is None:
        return _shut_down(place, kill_after_s)
    for number, seconds in ((signal.SIGTERM, kill_after_s), (signal.SIGKILL, STOPPING_S)):
        process.send(number)
        if _until(lambda: not process.alive(), seconds):
            _until(lambda: _free(place), 1.0)  # its other threads end after the first
            return True
    raise ServerUnavailable(f"our own server (pid {process.pid}) does not end, not even by SIGKILL")


@contextlib.contextmanager
def _lock_file(place: _Place) -> Iterator[int]:
    try:
        descriptor = os.open(place.data / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerError(f"{place.data / 'server.lock'} cannot be opened: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # never LOCK_UN: the server shares this lock


def _lockable(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(place: _Place) -> bool:
    with _lock_file(place) as lock:
        return _lockable(lock)


@dataclass
class _Wait:
    """Patience with a server: long while it loads its data, short while nothing comes at all."""

    place: _Place
    deadline: float
    cancelled: Callable[[], bool]
    _state: str = ""
    _since: float = 0.0

    def answered(self) -> bool:
        """Look once, after a short pause; true when it serves. Raises ServerUnavailable when patience ends."""
        state = look(self.place.listening())
        if state == "ready":
            return True
        now = time.monotonic()
        if state != self._state:
            self._state, self._since = state, now
        if self.cancelled():
            raise ServerUnavailable("waiting for our own server was given up")
        if state == "absent" and now - self._since > UNREACHABLE_S:
            self._since = now
            self._end_unreachable()
        if now > self.deadline or (state == "silent" and now - self._since > SILENT_S):
            raise ServerUnavailable(f"our own server does not answer ({state}): see {self.place.log}")
        time.sleep(_POLL_S)
        return False

    def _end_unreachable(self) -> None:
        process = self.place.process()
        if process is None or not process.send(signal.SIGTERM):
            raise ServerUnavailable(
                f"something holds {self.place.data / 'server.lock'} but nothing listens on {self.place.socket}: "
                "end the server process that was started by hand or in another container"
            )


def _start(place: _Place, lock: int, environ: Mapping[str, str], wait: _Wait) -> RunningServer:
    recorded = place.binary()
    binary = choose(recorded, environ)
    place.socket.unlink(missing_ok=True)  # we hold the lock: nobody listens there any more
    child = _spawn(place, binary, lock, environ)
    process = ProcessId.of(child.pid)
    try:
        _write(place, process, recorded)
        while not wait.answered():
            if child.poll() is not None:
                raise ServerUnavailable(f"{binary} ended at once ({child.returncode}): {_last_lines(place.log)}")
        _write(place, process, binary)  # only now: what never served has not written the data
    except BaseException:
        _end_child(child)
        raise
    return RunningServer(url_of_socket(place.socket), process, True, place.socket, child)


def _spawn(place: _Place, binary: Binary, lock: int, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [binary.path, CONF, "--dir", place.data, "--unixsocket", place.socket, "--logfile", place.log]
    try:
        if place.log.exists() and place.log.stat().st_size > _LOG_BYTES:
            place.log.replace(place.log.with_suffix(".log.1"))
        with place.log.open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={name: value for name, value in environ.items() if not name.startswith("FOXQUEUE_")},
                start_new_session=True,  # Ctrl-C and a closed terminal do not reach it
                pass_fds=(lock,),
            )
    except OSError as error:
        raise ServerUnavailable(f"{binary} cannot be started: {error}") from error


def _end_child(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOPPING_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _write(place: _Place, process: ProcessId | None, binary: Binary | None) -> None:
    record: dict[str, Any] = {"process": process.to_dict() if process else None, "socket": str(place.socket)}
    if binary:
        record |= {"binary": str(binary.path), "product": binary.product, "version": list(binary.version)}
    try:
        write_json(place.record, record)
    except OSError as error:
        raise ServerUnavailable(f"{place.record} cannot be written: {error.strerror}") from error


def _last_lines(log: Path, lines: int = 5) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"see {log}"
    return " | ".join(text.splitlines()[-lines:]) + f" (see {log})"


def _judge(place: _Place) -> ProcessId | None:
    """The server's process: the one that listens, else the recorded one, as far as it lives and can be judged."""
    recorded = place.process()
    if recorded and recorded.alive() and recorded.pid_ns == pid_namespace():
        return recorded
    pid = listener(place.listening())
    return ProcessId.of(pid) if pid else None


def _shut_down(place: _Place, seconds: float) -> bool:
    """By the socket: for a server whose process cannot be signalled from here."""
    path = place.listening()
    link = connect(path)
    if link is None:
        return False
    with link, contextlib.suppress(OSError):
        link.sendall(b"SHUTDOWN\r\n")
    if not _until(lambda: not listens(path), seconds):
        raise ServerUnavailable("our own server runs in another container and does not end: stop it there")
    return True


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
