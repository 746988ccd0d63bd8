"""Who may keep a home running, and the thread that keeps its own server alive."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from foxqueue.access import Access
from foxqueue.config import Config
from foxqueue.errors import AlreadyRunning, FoxqueueError
from foxqueue.places import private_dir, read_json, write_json
from foxqueue.processes import ProcessId
from foxqueue.server import RunningServer, ensure_server

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
SETTLED_S = 10.0  # what lived this long did not die of its start
_LOOK_S = 0.1


def say(text: str) -> None:
    """One line for people, on stderr."""
    print(f"foxqueue: {text}", file=sys.stderr, flush=True)


class Backoff:
    """Delays between restarts: none after a long life, then 0.2 s doubling to 10 s while lives stay short."""

    def __init__(self) -> None:
        self._short_lives = 0

    def after(self, lived_s: float) -> float:
        """Seconds to wait before the next start, after a life of ``lived_s`` seconds."""
        if lived_s >= SETTLED_S:
            self._short_lives = 0
        self._short_lives += 1
        if self._short_lives == 1:
            return 0.0
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * float(2 ** min(self._short_lives - 2, 10)))


class Seat:
    """A role that one process of a home has: a file lock, and a record of who holds it.

    The lock tells the truth, whatever a crash or a power cut left in the record.

    Args:
        config: whose home.
        name: of the role; files ``<name>.lock`` and ``<name>.json``.
        title: what the holder is, for messages.
    """

    def __init__(self, config: Config, name: str, title: str) -> None:
        self._directory = config.machine_dir
        self._lock = config.machine_dir / f"{name}.lock"
        self._file = config.machine_dir / f"{name}.json"
        self.title = title
        self._descriptor: int | None = None

    def take(self) -> None:
        """Become the holder.

        Raises:
            AlreadyRunning: another process is; the text names it.
            FoxqueueError: the home cannot be used.
        """
        private_dir(self._directory)
        deadline = time.monotonic() + 0.3  # a mere look at the lock holds it for an instant
        while not self._try():
            if time.monotonic() > deadline:
                holder = self.holder()
                who = f"pid {holder.pid}" if holder else "in another container or just starting"
                raise AlreadyRunning(f"{self.title} already runs for {self._directory} ({who})")
            time.sleep(0.02)
        self.write({})

    def write(self, record: dict[str, Any]) -> None:
        """Say more about the holder."""
        process = ProcessId.of()
        try:
            write_json(self._file, {"process": process.to_dict() if process else None, **record})
        except OSError as error:
            raise FoxqueueError(f"{self._file} cannot be written: {error.strerror}") from error

    def read(self) -> dict[str, Any]:
        """What the last holder wrote, whether it lives or not."""
        return read_json(self._file)

    def taken(self) -> bool:
        """Whether a living process holds it."""
        if self._descriptor is not None or not self._lock.exists():
            return self._descriptor is not None
        if self._try():
            self._close()
            return False
        return True

    def holder(self) -> ProcessId | None:
        """The recorded process, as far as it lives."""
        process = ProcessId.named(self.read(), "process")
        return process if process and process.alive() else None

    def leave(self) -> None:
        """No longer be the holder."""
        if self._descriptor is not None:
            self._file.unlink(missing_ok=True)
            self._close()

    def _try(self) -> bool:
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FoxqueueError(f"{self._lock} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def up_seat(config: Config) -> Seat:
    """The seat of ``foxqueue up``."""
    return Seat(config, "up", "foxqueue up")


def server_seat(config: Config) -> Seat:
    """The seat of ``foxqueue server``."""
    return Seat(config, "serve", "foxqueue server")


class Keeper:
    """Starts our own server, and again whenever it dies, from a thread, so that a long start stops nothing else.

    Args:
        config: whose home.
        access: what to open it to besides this user; None takes one that runs as it is.
        cancelled: asked while the server starts the first time; true gives up.

    Attributes:
        starting: held while a server is started, when children come and go that nobody else knows.

    Raises:
        ServerError: the first start failed; see :func:`foxqueue.server.ensure_server`.
    """

    def __init__(self, config: Config, access: Access | None, cancelled: Callable[[], bool]) -> None:
        self._config = config
        self.starting = threading.Lock()
        self._ending = threading.Event()
        self._server = ensure_server(config, access, cancelled=cancelled)
        self._access = self._server.access  # of whoever started it: it comes back as it was
        self._began = time.monotonic()
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._keep, name="server-keeper", daemon=True)
        self._thread.start()

    @property
    def server(self) -> RunningServer:
        """The server that runs, or ran last."""
        return self._server

    def close(self) -> None:
        """Keep it no longer. The server itself runs on."""
        self._ending.set()
        self._thread.join()

    def _keep(self) -> None:
        told = ""
        while not self._ending.wait(_LOOK_S):
            if self._server.alive():
                continue
            if self._ending.wait(self._backoff.after(time.monotonic() - self._began)):
                return
            self._began = time.monotonic()
            try:
                with self.starting:
                    self._server = ensure_server(self._config, self._access, cancelled=self._ending.is_set)
            except FoxqueueError as error:
                if not self._ending.is_set() and str(error) != told:
                    told = str(error)
                    say(f"our own server ended and does not start: {told}; trying on")
                continue
            told = ""
            say("our own server had ended and runs again")
