"""Messages between worker and runner: JSON objects in frames over a socket pair, with descriptors attached.

A frame is its length and the number of its descriptors, four bytes each, then the JSON. Text that is not UTF-8
travels as lone surrogates, which JSON escapes. Standard library only: the runner imports this.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

_HEADER: Final = struct.Struct("!II")
_MAX_FRAME: Final = 64 * 1024 * 1024
_MAX_FDS: Final = 250  # what one message can carry is 253
_CHUNK: Final = 65536

Message = dict[str, Any]


class Channel:
    """One end. Any thread may send; one thread at a time receives.

    Descriptors that came with a message stand in it as a list under ``fds``; whoever takes the message owns them.

    Args:
        sock: a connected stream socket, taken over.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.set_inheritable(False)
        self._socket = sock
        self._sending = threading.Lock()
        self._torn = False
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._waiting: deque[Message] = deque()
        self.eof = False

    @classmethod
    def from_fd(cls, descriptor: int) -> Channel:
        """The channel on a descriptor that the parent left open for us.

        Raises:
            OSError: it is not open, or not a socket.
        """
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """The descriptor to wait on for reading; -1 when closed."""
        return self._socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = (), timeout_s: float = 5.0) -> None:
        """Send one message, whole.

        Args:
            message: plain data.
            fds: descriptors whose open files the other side shall share.
            timeout_s: seconds to wait for the other side to make room.

        Raises:
            OSError: the other side is gone, or (TimeoutError) made no room in time. After a frame was cut in
                the middle the channel is torn and every further send raises BrokenPipeError.
            ValueError: the message is too large, or has too many descriptors.
        """
        body = json.dumps(message).encode("ascii")
        if len(body) > _MAX_FRAME or len(fds) > _MAX_FDS:
            raise ValueError(f"a message of {len(body)} bytes and {len(fds)} descriptors is too large")
        data = memoryview(_HEADER.pack(len(body), len(fds)) + body)
        deadline = time.monotonic() + timeout_s
        with self._sending:
            if self._torn:
                raise BrokenPipeError("an earlier message was cut off")
            sent = 0
            try:
                while sent < len(data):
                    sent += self._send_some(data[sent:], () if sent else fds, deadline)
            except OSError:
                self._torn = sent > 0
                raise

    def _send_some(self, data: memoryview, fds: Sequence[int], deadline: float) -> int:
        while True:
            try:
                if fds:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    return self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
                return self._socket.send(data, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, waited for; None when the other side is gone and nothing is left.

        Raises:
            TimeoutError: nothing came in ``timeout_s`` seconds.
            ValueError: what came is not a message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._waiting:
            if self.eof:
                return None
            self._waiting.extend(self._read())
            if not self._waiting and not self.eof:
                self._wait(select.POLLIN, deadline)
        return self._waiting.popleft()

    def take(self) -> Message | None:
        """The next message if one is there, without waiting; ``eof`` is set when the other side is gone.

        Raises:
            ValueError: what came is not a message.
        """
        if not self._waiting:
            self._waiting.extend(self._read())
        return self._waiting.popleft() if self._waiting else None

    def drain(self) -> list[Message]:
        """All messages that are there, without waiting; ``eof`` is set when the other side is gone.

        Raises:
            ValueError: what came is not a message.
        """
        messages = [*self._waiting, *self._read()]
        self._waiting.clear()
        return messages

    def close(self) -> None:
        """Close this end, and descriptors that nobody took."""
        self._socket.close()
        self.eof = True
        while self._fds:
            os.close(self._fds.popleft())

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not poll.poll(None if left is None else left * 1000) and left is not None:
            raise TimeoutError("the other side of the channel is silent")

    def _read(self) -> list[Message]:
        room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
        while not self.eof:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(_CHUNK, room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except OSError:  # reset: the other side died with messages unread
                self.eof = True
                break
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    rights = array.array("i")
                    rights.frombytes(payload[: len(payload) - len(payload) % rights.itemsize])
                    self._fds.extend(rights)
            if flags & socket.MSG_CTRUNC:
                raise ValueError("descriptors were lost on the way: too many open files")
            if not data:
                self.eof = True
            self._buffer += data
        return self._parse()

    def _parse(self) -> list[Message]:
        messages: list[Message] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            length, count = _HEADER.unpack_from(self._buffer, start)
            if length > _MAX_FRAME or count > _MAX_FDS:
                raise ValueError("not a frame")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            message = json.loads(self._buffer[start + _HEADER.size : end])
            if not isinstance(message, dict) or count > len(self._fds):
                raise ValueError("not a message")
            if count:
                message["fds"] = [self._fds.popleft() for _ in range(count)]
            messages.append(message)
            start = end
        del self._buffer[:start]
        return messages


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process, and the socket of its other end for a child."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs
