"""What listens on a socket, told by a handful of bytes and without a Redis client."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from foxqueue.errors import ServerRefused

_ANSWER_S = 2.0
_PEER = struct.Struct("3i")


def look(path: Path, password: str | None = None) -> str:
    """One question to the server behind a unix socket.

    Args:
        path: of the socket.
        password: of the server, if it has one.

    Returns:
        ``ready``, ``loading`` (its data), ``silent`` (it holds the socket and says nothing) or ``absent``.

    Raises:
        ServerRefused: it belongs to another user.
    """
    link = connect(path)
    if link is None:
        return "absent"
    with link:
        answer = _ask(link, with_password(b"PING\r\n", password))
    if b"-LOADING" in answer:
        return "loading"
    return "ready" if answer else "silent"  # an error is an answer too: the disk is full, clients are many


def listens(path: Path) -> bool:
    """Whether a living process holds the unix socket. Raises ServerRefused for another user's."""
    link = connect(path)
    if link:
        link.close()
    return link is not None


def neighbour(port: int = 6379) -> str | None:
    """A sentence about a Redis on 127.0.0.1 that is not ours, for the message that there is no server."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.3) as link:
            answer = _ask(link, b"PING\r\n")
    except OSError:
        return None
    if not answer.startswith((b"+PONG", b"-NOAUTH", b"-DENIED", b"-LOADING")):
        return None
    return (
        f"a Redis answers on 127.0.0.1:{port}; it is somebody's, so it is not used unless you say so: "
        f"FOXQUEUE_URL=redis://127.0.0.1:{port}/0"
    )


def connect(path: Path) -> socket.socket | None:
    """A connection to whatever listens there; None when nothing does.

    Raises:
        ServerRefused: it belongs to another user, or may not be opened.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(_ANSWER_S)
        link.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    except (BlockingIOError, TimeoutError):
        return link  # it listens, and its queue of connections is full: it is stopped or very busy
    except OSError as error:
        link.close()
        raise ServerRefused(f"{path} cannot be used: {error.strerror or error}") from error
    owner = _peer(link)[1]
    if owner != os.geteuid():
        link.close()
        raise ServerRefused(f"the server on {path} belongs to user {owner}, not to you: set FOXQUEUE_HOME")
    return link


def listener(path: Path) -> int | None:
    """Number of the process that listens; 0 when it is in another pid namespace, None when nothing listens."""
    link = connect(path)
    if link is None:
        return None
    with link:
        return _peer(link)[0]


def with_password(command: bytes, password: str | None) -> bytes:
    """An inline command behind the password, which has no blanks or quotes in it."""
    return command if password is None else b"AUTH %s\r\n%s" % (password.encode(), command)


def _ask(link: socket.socket, commands: bytes) -> bytes:
    """The answers to inline commands, a line each; empty when not all come."""
    answers = b""
    try:
        link.settimeout(_ANSWER_S)
        link.sendall(commands)
        while answers.count(b"\n") < commands.count(b"\n"):
            data = link.recv(256)
            if not data:
                break  # it refuses us altogether, with one line
            answers += data
    except OSError:
        return b""
    return answers


def _peer(link: socket.socket) -> tuple[int, int]:
    pid, uid, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid
