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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foxqueue.access import (
    Access,
    addresses,
    close_directory,
    hand_out,
    make_password,
    open_directory,
    server_settings,
)
from foxqueue.binaries import Binary, choose
from foxqueue.config import Config, own_password, server_socket, url_of_socket
from foxqueue.errors import ServerError, ServerRefused, ServerUnavailable
from foxqueue.listening import connect, listener, listens, look, with_password
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
        access: what it is opened to besides this user.
        before: what it was opened to when it was started the last time before.
    """

    url: str
    process: ProcessId | None
    started_here: bool
    access: Access
    before: Access
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
    """Where the server of one home keeps what, and where it listens unless it is opened to a group."""

    config: Config
    data: Path
    socket: Path

    @classmethod
    def of(cls, config: Config) -> _Place:
        return cls(config, config.machine_dir / "server", server_socket(config))

    @property
    def record(self) -> Path:
        return self.data / "server.json"

    @property
    def log(self) -> Path:
        return self.data / "server.log"

    def prepare(self, environ: Mapping[str, str]) -> None:
        private_dir(self.config.machine_dir)
        private_dir(self.data)
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

    def access(self) -> Access:
        """What the server is opened to, or was."""
        return Access.recorded(read_json(self.record))

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
    access: Access | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    patience_s: float = STARTING_S,
    cancelled: Callable[[], bool] = lambda: False,
) -> RunningServer:
    """Find our own server or start it, and wait until it answers. However many ask at once, one is started.

    Args:
        config: whose home; its ``url`` is not looked at.
        access: what to open it to besides this user. None takes one that runs as it is, and starts a private one.
        environ: for FOXQUEUE_REDIS_SERVER, PATH and FOXQUEUE_FORCE_NETWORK_FS; this process's by default.
        patience_s: how long it may load its data, in seconds.
        cancelled: asked between looks; true gives up and ends what was started.

    Raises:
        NoServer: there is no server program.
        ServerRefused: the program is too old for foxqueue or for the data, the place is not safe, or it runs
            already and is opened to others than ``access``.
        InvalidInput: about ``access``, see :meth:`foxqueue.access.Access.of` and :func:`foxqueue.access.addresses`.
        ServerUnavailable: it ended at once, or did not answer in time; the text holds the end of its log.
        FoxqueueError: the directory cannot be used.
    """
    environ = os.environ if environ is None else environ
    place = _Place.of(config)
    place.prepare(environ)
    wait = _Wait(place, time.monotonic() + patience_s, cancelled)
    with _lock_file(place) as lock:
        while not _lockable(lock):  # somebody starts it, or it runs
            if wait.answered():
                return _found(place, access)
        return _start(place, access or Access(), lock, environ, wait)


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
        state = look(self.place.listening(), own_password(self.place.config))
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


def _found(place: _Place, access: Access | None) -> RunningServer:
    path, found = place.listening(), place.access()
    if access not in (None, found):
        raise ServerRefused(
            f"our own server runs already ({found}), and what it is opened to is settled at its start: run "
            f"foxqueue down first, then it starts as wanted ({access})"
        )
    return RunningServer(url_of_socket(path), _judge(place), False, found, found, path)


def _start(place: _Place, access: Access, lock: int, environ: Mapping[str, str], wait: _Wait) -> RunningServer:
    recorded, before = place.binary(), place.access()
    binary = choose(recorded, environ)
    place, settings = _open(place, access)
    place.socket.unlink(missing_ok=True)  # we hold the lock: nobody listens there any more
    child = _spawn(place, binary, settings, lock, environ)
    process = ProcessId.of(child.pid)
    try:
        _write(place, access, process, recorded)
        while not wait.answered():
            if child.poll() is not None:
                raise ServerUnavailable(f"{binary} ended at once ({child.returncode}): {_last_lines(place.log)}")
        _write(place, access, process, binary)  # only now: what never served has not written the data
    except BaseException:
        _end_child(child)
        raise
    return RunningServer(url_of_socket(place.socket), process, True, access, before, place.socket, child)


def _open(place: _Place, access: Access) -> tuple[_Place, str]:
    """Where it shall listen, made ready, and the settings for that. Nothing is changed before all of it is possible."""
    config = place.config
    listens_on = addresses(access.bind) if access.bind is not None else []
    if access.group is None:
        close_directory(config)
        private_dir(place.socket.parent)
    else:
        place = replace(place, socket=open_directory(config, access.group) / "server.sock")
    password = make_password(config) if access.bind is not None else None
    hand_out(config, access, password)
    return place, server_settings(access, listens_on, password)


def _spawn(
    place: _Place, binary: Binary, settings: str, lock: int, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [binary.path, CONF, "--dir", place.data, "--unixsocket", place.socket, "--logfile", place.log]
    if settings:
        command.append("-")  # by its stdin: a password on a command line is everybody's
    try:
        if place.log.exists() and place.log.stat().st_size > _LOG_BYTES:
            place.log.replace(place.log.with_suffix(".log.1"))
        with place.log.open("ab") as log:
            child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE if settings else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={name: value for name, value in environ.items() if not name.startswith("FOXQUEUE_")},
                start_new_session=True,  # Ctrl-C and a closed terminal do not reach it
                pass_fds=(lock,),
            )
    except OSError as error:
        raise ServerUnavailable(f"{binary} cannot be started: {error}") from error
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError), child.stdin as stdin:  # one that died at once is told by its log
            stdin.write(settings.encode())
    return child


def _end_child(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOPPING_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _write(place: _Place, access: Access, process: ProcessId | None, binary: Binary | None) -> None:
    record: dict[str, Any] = {"process": process.to_dict() if process else None, "socket": str(place.socket)}
    record |= access.to_dict()
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
        link.sendall(with_password(b"SHUTDOWN\r\n", own_password(place.config)))
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
