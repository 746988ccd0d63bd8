"""This process's side of the helper that renews its leases: it starts one with the first lease, tells it of devices,
hears of losses, and starts another one when it dies.

The helper is a process because a lease must outlast whatever holds Python's interpreter lock here, and a holder that
is stopped. It reads in the devices' locks which leases there are. It gets what it needs through a pair of sockets:
nothing secret stands on its command line.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import foxqueue
from foxqueue.broker import Broker, NamespaceSettings
from foxqueue.leases.grant import Grant, identity
from foxqueue.locks import DeviceLock

RESTART_S: Final = 1.0  # between two starts of helpers that die at once
LONGEST: Final = 65536  # bytes of a message

# What this program has found foxqueue by may be ways of its own.
_PROGRAM: Final = "import sys; sys.path.append(sys.argv[1]); from foxqueue.leases.helper import main; main(sys.argv[2])"

_log = logging.getLogger(__name__)


class Renewals:
    """The leases of this process in one namespace.

    Args:
        broker: of the queue.
        settings: for the length of lease and beat.
    """

    def __init__(self, broker: Broker, settings: NamespaceSettings) -> None:
        self.pid = os.getpid()
        self._hello = json.dumps(
            {
                "url": broker.connection.url,
                "password": broker.connection.password,
                "namespace": broker.keys.namespace,
                "ttl_ms": settings.ttl_ms,
                "beat_ms": settings.beat_ms,
                "holder": identity(os.getpid()),
            }
        ).encode()
        self._lock = threading.RLock()
        self._held: dict[str, Callable[[str], None]] = {}
        self._watched: dict[str, bytes] = {}  # device -> what was said of it
        self._far: dict[str, bytes] = {}  # lease of a device without a lock -> what was said of it
        self._left: dict[str, bytes] = {}  # to be given back by the helper
        self._unsaid: deque[bytes] = deque()  # a helper that is stopped takes nothing
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -1e9
        self._closed = False

    @property
    def helper(self) -> int | None:
        """Number of the helper process; None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def begin(self, grant: Grant, lost: Callable[[str], None]) -> None:
        """Renew a lease from now on.

        Args:
            grant: of the lease.
            lost: called in a thread when it is found lost, with why.
        """
        with self._lock:
            self._held[grant.token] = lost
            news = []
            for spot in grant.spots:
                lock = None if spot.hold is None else spot.hold.gpu
                if lock is not None and lock.device not in self._watched:
                    news.append(_packed(watch=[_place(lock)]))
                    self._watched[lock.device] = news[-1]
            if all(spot.hold is None for spot in grant.spots):
                news.append(_packed(far=_told(grant)))
                self._far[grant.token] = news[-1]
            if self._socket is None:
                self._start()
            else:
                for packed in news:
                    self._send(packed)

    def end(self, grant: Grant, *, told: bool) -> None:
        """Renew a lease no longer.

        Args:
            grant: of the lease.
            told: whether the server knows that it is over; else the helper tells it, as soon as it answers.
        """
        with self._lock:
            self._held.pop(grant.token, None)
            far = self._far.pop(grant.token, None)
            if not told:
                locks = [_place(spot.hold.gpu) for spot in grant.spots if spot.hold is not None]
                self._left[grant.token] = _packed(leave={**_told(grant), "locks": locks})
                self._send(self._left[grant.token])
            elif far is not None:
                self._send(_packed(end=grant.token))

    def hear(self) -> None:
        """Take what the helper has said, not waiting."""
        news: list[dict[str, Any]] = []
        with self._lock:
            while self._socket is not None:
                try:
                    data = self._socket.recv(LONGEST, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError:
                    data = b""
                if not data:
                    self._dead()
                    break
                news.append(json.loads(data))
            told = [(self._held.pop(one["lost"], None), one) for one in news if "lost" in one]
            for one in news:
                self._left.pop(one.get("left", ""), None)
        for lost, one in told:
            if lost is not None:
                lost(str(one["why"]))

    def close(self) -> None:
        """Nothing is renewed any more; the helper ends when it has given back what it was left."""
        with self._lock:
            self._closed = True
            link, self._socket = self._socket, None
        if link is not None:
            link.shutdown(socket.SHUT_RDWR)  # the thread that listens is woken, and closes it

    # --- the process -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start a helper and tell it all. Not waited for: what is said to it waits in the socket."""
        self._started_at = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {name: value for name, value in os.environ.items() if name != "FOXQUEUE_PASSWORD"}
        try:
            self._process = subprocess.Popen(
                [_python(), "-P", "-c", _PROGRAM, _source(), str(theirs.fileno())],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            _log.error("leases are not renewed, for the process that does so cannot be started: %s", error)
            threading.Timer(RESTART_S, self._revive).start()
            return
        finally:
            theirs.close()
        self._socket = ours
        self._unsaid.clear()
        for packed in (self._hello, *self._watched.values(), *self._far.values(), *self._left.values()):
            self._send(packed)
        threading.Thread(target=self._listen, args=(ours, self._process), name="leases", daemon=True).start()

    def _send(self, packed: bytes) -> None:
        """Say something, not waiting: what a busy helper does not take now is said later, in order."""
        if self._socket is None:
            return
        if not self._unsaid:
            try:
                self._socket.send(packed, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                threading.Thread(target=self._catch_up, args=(self._socket,), daemon=True).start()
            except OSError:
                return  # it is dead: the thread that listens starts another one and tells it all
        self._unsaid.append(packed)

    def _catch_up(self, link: socket.socket) -> None:
        """Say what was left unsaid."""
        poll = select.poll()
        poll.register(link, select.POLLOUT)
        while True:
            poll.poll(1000)
            with self._lock:
                try:
                    while self._unsaid and self._socket is link:
                        link.send(self._unsaid[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                        self._unsaid.popleft()
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                return

    def _listen(self, link: socket.socket, process: subprocess.Popen[bytes]) -> None:
        """The thread: hear what one helper says, until it dies."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while self._socket is link:
            poll.poll()
            self.hear()
        link.close()
        process.wait()
        self._revive()

    def _dead(self) -> None:
        self._socket = None

    def _revive(self) -> None:
        """Start another helper where one is needed; called in a thread."""
        wait = self._started_at + RESTART_S - time.monotonic()
        if wait > 0 and (self._held or self._left):
            time.sleep(wait)
        with self._lock:
            if not self._closed and self._socket is None and (self._held or self._left):
                _log.warning("the process that renewed leases has died: another one goes on")
                self._start()


def _packed(**message: Any) -> bytes:
    return json.dumps(message).encode()


def _place(lock: DeviceLock) -> tuple[str, list[str]]:
    """What the helper finds a lock by."""
    return lock.device, [str(path.parent) for path in lock.paths]


def _told(grant: Grant) -> dict[str, Any]:
    """A lease as the helper takes it."""
    return {
        "token": grant.token,
        "fence": str(grant.fence),
        "instance": grant.instance,
        "devices": [spot.place.uuid for spot in grant.spots],
    }


def _source() -> str:
    """The directory that foxqueue was loaded from."""
    return str(Path(foxqueue.__file__).resolve().parent.parent)


def _python() -> str:
    """The interpreter; of a program that embeds one, the one of its installation."""
    if os.path.basename(sys.executable or "").startswith("python"):  # noqa: PTH119
        return sys.executable
    return os.path.join(sys.exec_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")  # noqa: PTH118
