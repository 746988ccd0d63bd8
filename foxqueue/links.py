"""Connections to a server, by socket and hiredis alone, and how commands are packed for the wire.

redis-py takes as long to load as a whole command line may, and as long for a call as a small script's round trip.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

Command = tuple[Any, ...]

_PLAIN: Final = frozenset({bytes, str})
_CONNECT_S = 5.0
_CHUNK = 65536
_NO = ("no", "false", "0")


def packed(command: Command) -> bytes:
    """One command as it goes over the wire.

    hiredis is given text and bytes alone: a signal whose handler raises, like Ctrl-C, ends the process when it comes
    while hiredis packs a number (pack.c, 3.x: the result of PyObject_Repr is used unseen).

    Raises:
        TypeError: a word that is no text, bytes or number.
    """
    if not _PLAIN.issuperset(map(type, command)):
        command = tuple(word if type(word) in _PLAIN else _plain(word) for word in command)
    data: bytes = hiredis.pack_command(command)
    return data


def _plain(word: Any) -> str | bytes:
    if isinstance(word, bytes | bytearray | memoryview):
        return bytes(word)
    if isinstance(word, bool) or not isinstance(word, int | float | str):
        raise TypeError(f"{word!r:.100} is neither text nor bytes nor a number")
    return str(word)


class Packer:
    """The same for redis-py's own commands, which may be of two words, like ``CONFIG GET``."""

    def pack(self, *command: Any) -> list[bytes]:
        """What redis-py sends for a command."""
        verb = command[0] if isinstance(command[0], bytes) else str(command[0]).encode()
        return [packed((*verb.split(), *command[1:]))]


class Target(NamedTuple):
    """Where a URL leads, and what to say there first.

    Attributes:
        path: of a unix socket, "" for TCP.
        tls: the ``ssl_`` parameters of a rediss:// URL; None without TLS.
    """

    path: str
    host: str
    port: int
    greeting: tuple[Command, ...]
    tls: dict[str, str] | None


def read_target(url: str, password: str | None) -> Target:
    """Read a URL that :func:`foxqueue.urls.check_url` has let pass.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; percent-encoded characters in it are decoded.
        password: when the URL has none.
    """
    parts = urlsplit(url)
    given = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    user = unquote(parts.username) if parts.username else given.get("username", "")
    secret = unquote(parts.password) if parts.password else given.get("password", password)
    unix = parts.scheme == "unix"
    database = given.get("db") or ("" if unix else unquote(parts.path).strip("/"))
    greeting: list[Command] = []
    if secret is not None:
        greeting.append(("AUTH", user, secret) if user else ("AUTH", secret))
    if given.get("client_name"):
        greeting.append(("CLIENT", "SETNAME", given["client_name"]))
    if database and int(database):
        greeting.append(("SELECT", int(database)))
    return Target(
        unquote(parts.path) if unix else "",
        unquote(parts.hostname or ""),
        parts.port or 6379,
        tuple(greeting),
        given if parts.scheme == "rediss" else None,
    )


class Link:
    """One connection.

    Args:
        target: where to.
        timeout_s: of connecting and of each answer.

    Raises:
        OSError: nothing answers there.
        hiredis.ReplyError: the server refuses us.
    """

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._socket = _connect(target, timeout_s)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        if target.greeting:
            try:
                for reply in self.roundtrip(target.greeting):
                    if isinstance(reply, hiredis.ReplyError):
                        raise reply
            except BaseException:
                self.close()
                raise

    def roundtrip(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and read their replies; an error reply stands in the place of a reply."""
        self._socket.sendall(b"".join(map(packed, commands)))
        gets, feed, receive = self._reader.gets, self._reader.feed, self._socket.recv
        replies = []
        for _ in commands:
            reply = gets()
            while reply is Ellipsis:
                data = receive(_CHUNK)
                if not data:
                    raise ConnectionError("the server closed the connection")
                feed(data)
                reply = gets()
            replies.append(reply)
        return replies

    def post(self, command: Command) -> None:
        """Send a command whose reply is taken later: one that blocks."""
        self._socket.sendall(packed(command))

    def take(self, seconds: float) -> Any:
        """The reply to what was posted, or Ellipsis when it has not come in so many seconds."""
        deadline = time.monotonic() + seconds
        reply = self._reader.gets()
        while reply is Ellipsis:
            left = deadline - time.monotonic()
            if not self._poll.poll(max(left, 0.0) * 1000):
                return Ellipsis
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
            reply = self._reader.gets()
        return reply

    def fileno(self) -> int:
        """Of its socket, to wait for a reply in an event loop."""
        return self._socket.fileno()

    def idle(self) -> bool:
        """Whether it is as it was left: open, with nothing to read."""
        return not self._poll.poll(0)

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _connect(target: Target, timeout_s: float) -> socket.socket:
    if target.path:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_s)
            link.connect(target.path)
        except BaseException:
            link.close()
            raise
        return link
    link = socket.create_connection((target.host, target.port), min(timeout_s, _CONNECT_S))
    try:
        link.settimeout(timeout_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return link if target.tls is None else _encrypted(link, target.host, target.tls)
    except BaseException:
        link.close()
        raise


def _encrypted(link: socket.socket, host: str, given: dict[str, str]) -> socket.socket:
    import ssl

    context = ssl.create_default_context()
    demanded = given.get("ssl_cert_reqs", "required").lower()
    context.check_hostname = demanded != "none" and given.get("ssl_check_hostname", "yes").lower() not in _NO
    context.verify_mode = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL}.get(demanded, ssl.CERT_REQUIRED)
    if given.get("ssl_certfile") or given.get("ssl_keyfile"):
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    if given.get("ssl_ca_certs") or given.get("ssl_ca_path"):
        context.load_verify_locations(given.get("ssl_ca_certs"), given.get("ssl_ca_path"))
    return context.wrap_socket(link, server_hostname=host)


class Links:
    """Connections kept at hand, as many as there are threads that ask at once.

    Args:
        target: where to.
        timeout_s: of connecting and of each answer.
    """

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._free: list[Link] = []  # append and pop are atomic
        self._pid = os.getpid()

    def roundtrip(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and read their replies. An error reply stands in the place of a reply.

        Raises:
            OSError: the connection failed; what was sent may have been done.
            hiredis.ProtocolError: what answers is no Redis server.
            hiredis.ReplyError: the server refuses a new connection.
        """
        link = self._take()
        try:
            replies = link.roundtrip(commands)
        except BaseException:
            link.close()  # what is still under way must not answer somebody else's question
            raise
        self._free.append(link)
        return replies

    def apart(self, timeout_s: float) -> Link:
        """A connection for the caller alone, who closes it.

        Raises:
            OSError, hiredis.ReplyError: as of :class:`Link`.
        """
        return Link(self._target, timeout_s)

    def close(self) -> None:
        """Close all that are at hand."""
        while self._free:
            self._free.pop().close()

    def _take(self) -> Link:
        if self._pid != os.getpid():  # after a fork the parent goes on with its connections
            self._free, self._pid = [], os.getpid()
        while self._free:
            link = self._free.pop()
            if link.idle():
                return link
            link.close()  # closed by the server while nobody used it
        return Link(self._target, self._timeout_s)
