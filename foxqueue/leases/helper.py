"""The helper: a process that renews the leases of the one that started it, and gives them back when that one dies.

It hears from its holder once of each device, and reads from then on in the devices' locks which leases the holder has:
a lease costs its holder no word. Of devices of other machines, which have no lock here, it is told each lease. It says
what was lost.

When the holder is gone the leases whose file locks nobody holds any more are given back at once; what processes forked
by it still lock is renewed until they are gone too. While the server is away, or another life of the namespace answers,
nothing is lost: only words are definite.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from foxqueue.connection import Connection
from foxqueue.errors import FoxqueueError, LeftoverProcesses, ServerError, ServerUnavailable
from foxqueue.holding import end_named, left_lease
from foxqueue.locks import DeviceLock
from foxqueue.messages import Reply
from foxqueue.processes import ProcessId
from foxqueue.replies import text
from foxqueue.sender import Sender

LONGEST: Final = 65536
SEND_TIMEOUT_S: Final = 2.0
ORPHANED_S: Final = 0.1  # between tries to get the locks of a dead holder
AGAIN_S: Final = 0.5  # between tries to give a lease back while the server is away
GIVE_UP_S: Final = 5.0  # on top of lease and margin: then it has lapsed, whenever the server comes back


@dataclass
class Kept:
    """A lease that is renewed.

    Attributes:
        token, fence, instance, devices: as they were granted.
        room: MiB of the whole device, of a slot; 0 when it is not known.
        locks: the ``.gpu`` locks of its devices that are on this machine.
        heard: seconds of time.monotonic() when the last renewal that was answered was sent.
        since: when it was over, where it is to be given back.
    """

    token: str
    fence: str
    instance: str
    devices: list[str]
    room: int = 0
    locks: list[DeviceLock] = field(default_factory=list)
    heard: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)


class Helper:
    """Renews and gives back.

    Args:
        link: to the holder.
        hello: its first message: where the server is, and who the holder is.
    """

    def __init__(self, link: socket.socket, hello: dict[str, Any]) -> None:
        self._link = link
        self._ttl_s: float = hello["ttl_ms"] / 1000
        self._beat_s: float = hello["beat_ms"] / 1000
        connection = Connection(hello["url"], hello["password"], timeout_s=min(SEND_TIMEOUT_S, self._beat_s))
        self._sender = Sender(connection, hello["namespace"])
        self._me: Any = hello["holder"]
        self._holder = ProcessId.named(hello, "holder")
        self._watched: dict[str, DeviceLock] = {}
        self._leases: dict[str, Kept] = {}  # of devices that are watched, as they were read
        self._far: dict[str, Kept] = {}  # of devices of other machines alone
        self._leaving: dict[str, Kept] = {}
        self._lost: set[str] = set()
        self._gone = False  # the holder is dead, or has closed the socket
        self._closed = False
        self._pidfd: int | None = None
        self._due = time.monotonic() + self._beat_s
        self._try_at = 0.0
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._watch_holder()

    def run(self) -> None:
        """Until the holder is gone and nothing of its is left."""
        self._hear()
        while not self._gone or self._leases or self._far or self._leaving:
            until = min(self._due, self._try_at) if self._gone or self._leaving else self._due
            self._poll.poll(max(until - time.monotonic(), 0.0) * 1000)
            self._hear()
            self._look_at_holder()
            now = time.monotonic()
            if now >= self._due:
                self._read()
                self._due = now + self._renew()
            if now >= self._try_at and (self._gone or self._leaving):
                self._give_back()

    # --- the holder ------------------------------------------------------------------------------------

    def _watch_holder(self) -> None:
        """Have its end told: processes that it forked may hold its end of the socket."""
        with contextlib.suppress(OSError):
            if self._holder is not None:
                self._pidfd = os.pidfd_open(self._holder.pid)
                self._poll.register(self._pidfd, select.POLLIN)
        self._look_at_holder()

    def _look_at_holder(self) -> None:
        if self._holder is None or self._gone or self._holder.alive():
            return
        if self._pidfd is not None:
            self._poll.unregister(self._pidfd)
        self._is_gone()

    def _is_gone(self) -> None:
        if not self._gone:
            self._gone = True
            self._hear()
            self._read()
            self._try_at = 0.0

    def _hear(self) -> None:
        while not self._closed:
            try:
                data = self._link.recv(LONGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._take(json.loads(data))
                continue
            self._closed = True
            self._poll.unregister(self._link)
            self._is_gone()

    def _take(self, message: dict[str, Any]) -> None:
        if "watch" in message:
            for device, places in message["watch"]:
                self._watched[device] = _lock(device, places)
        elif "far" in message:
            kept = Kept(**message["far"])
            self._far[kept.token] = kept
        elif "end" in message:
            self._far.pop(message["end"], None)
        elif "leave" in message:
            told = dict(message["leave"])
            locks = [_lock(device, places) for device, places in told.pop("locks")]
            self._leaving[told["token"]] = Kept(**told, locks=locks)
            self._far.pop(told["token"], None)
            self._try_at = 0.0

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # gone, or so stopped that its socket is full: the server tells it then
            self._link.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    # --- which leases ----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read in the locks which leases the holder has."""
        found: dict[str, Kept] = {}
        for device, lock in self._watched.items():
            record = lock.read()
            if record is None:  # just being written, perhaps
                found |= {token: kept for token, kept in self._leases.items() if device in kept.devices}
                continue
            left = left_lease(record, device)
            if left is None or record.get("worker") != self._me or left.token in self._leaving:
                continue
            if left.token not in found:
                known = self._leases.get(left.token)
                found[left.token] = Kept(left.token, left.fence, str(record.get("instance")), record["devices"])
                room = record.get("room")
                found[left.token].room = room if isinstance(room, int) else 0
                if known is not None:
                    found[left.token].heard, found[left.token].since = known.heard, known.since
            found[left.token].locks.append(lock)
        self._leases = found
        self._lost &= found.keys()

    # --- renewing --------------------------------------------------------------------------------------

    def _renew(self) -> float:
        """Renew all. Seconds until the next time."""
        kept = [one for one in (*self._leases.values(), *self._far.values()) if one.token not in self._lost]
        if not kept:
            return self._beat_s
        sent = time.monotonic()
        try:
            replies = self._sender.send(
                *(self._sender.lease_renew_call(one.token, one.fence, one.devices, one.room) for one in kept)
            )
        except ServerError as error:
            for one in kept:
                self._unheard(one)
            return min(self._beat_s / 4, 1.0) if isinstance(error, ServerUnavailable) else self._beat_s
        for one, reply in zip(kept, replies, strict=True):
            self._judge(one, reply, sent)
        return max(self._beat_s - (time.monotonic() - sent), 0.01)

    def _judge(self, kept: Kept, reply: Reply, sent: float) -> None:
        if reply.instance != kept.instance:  # another life of the namespace knows nothing of it: as good as away
            self._unheard(kept)
        elif reply.word == "ok":
            kept.heard = sent
        else:
            said = text(reply.rest[0]) if reply.rest else ""
            why = f"taken away by {said}" if reply.word == "released" else said or "somebody else has it"
            self._is_lost(kept, why)

    def _unheard(self, kept: Kept) -> None:
        """Not renewed. The file lock keeps the device ours; without one somebody else may have it soon."""
        if len(kept.locks) < len(kept.devices) and time.monotonic() - kept.heard > self._ttl_s:
            self._is_lost(kept, f"not renewed for {self._ttl_s:g} s, and a device of another machine has no file lock")

    def _is_lost(self, kept: Kept, why: str) -> None:
        if self._far.pop(kept.token, None) is None:
            self._lost.add(kept.token)  # it stays in its lock until its holder has released it
        self._say({"lost": kept.token, "why": why})
        for lock in kept.locks:
            if (lock.read() or {}).get("command") and self._holder is not None:
                self._holder.send(signal.SIGCONT)  # stopped, it could not end its command
                return

    # --- giving back -----------------------------------------------------------------------------------

    def _give_back(self) -> None:
        """Give back what is over, and of a dead holder what nobody locks any more."""
        for kept in list(self._leaving.values()):
            if self._leave(kept):
                del self._leaving[kept.token]
        if self._gone:
            for leases in (self._leases, self._far):
                for kept in list(leases.values()):
                    if self._bury(kept):
                        del leases[kept.token]
        self._try_at = time.monotonic() + (AGAIN_S if self._leaving else ORPHANED_S)

    def _bury(self, kept: Kept) -> bool:
        """Give back a dead holder's lease, as soon as its locks can be had. Whether it is over."""
        with _locked(kept) as locks:
            if locks is None and any(_names(lock, kept.token) for lock in kept.locks):
                kept.since = time.monotonic()  # a forked process holds it
                return False
            if locks is None:  # somebody has the device since, perhaps of another queue, who could not tell ours
                return self._leave(kept)
            try:
                for lock in locks:
                    if _names(lock, kept.token):
                        end_named(lock)
            except LeftoverProcesses:
                return False  # renewed until they are gone
            return self._leave(kept)

    def _leave(self, kept: Kept) -> bool:
        """Tell the server that a lease is over. Whether it knows, or would never be asked for it."""
        try:
            self._sender.send(self._sender.lease_release_call(kept.token, kept.fence, kept.devices))
        except FoxqueueError:
            return time.monotonic() - kept.since > 2 * self._ttl_s + GIVE_UP_S
        self._say({"left": kept.token})
        with _locked(kept) as locks:
            for lock in locks or ():
                _blank(lock, kept.token)
        return True


def _lock(device: str, places: Sequence[str]) -> DeviceLock:
    return DeviceLock(device, "gpu", [Path(place) for place in places])


@contextlib.contextmanager
def _locked(kept: Kept) -> Iterator[list[DeviceLock] | None]:
    """Its locks, held for the block where this process can have them all; None where somebody has one."""
    held = [lock for lock in kept.locks if lock.held]
    took = [lock for lock in kept.locks if not lock.held and _try(lock)]
    try:
        yield kept.locks if len(held) + len(took) == len(kept.locks) else None
    finally:
        for lock in took:
            lock.release()


def _try(lock: DeviceLock) -> bool:
    try:
        return lock.acquire()
    except OSError:
        return False


def _names(lock: DeviceLock, token: str) -> bool:
    left = left_lease(lock.read() or {}, lock.device)
    return left is not None and left.token == token


def _blank(lock: DeviceLock, token: str) -> None:
    """Nobody has to look after this lease any more; another's record stays."""
    record = lock.read() or {}
    if _names(lock, token):
        with contextlib.suppress(OSError):
            lock.write({name: record[name] for name in ("home", "namespace") if name in record})


def main(descriptor: str) -> None:
    """The process.

    Args:
        descriptor: number of the socket.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(fileno=int(descriptor))
    os.set_inheritable(link.fileno(), False)
    try:
        data = link.recv(LONGEST)
        if data:
            Helper(link, json.loads(data)).run()
    except OSError:
        return  # the holder was gone before it said anything
