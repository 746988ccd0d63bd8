"""Connections kept at hand for scripts, and how commands are packed for the wire.

redis-py's pool alone costs as much as a small script's whole round trip.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import hiredis
import redis

_PLAIN: Final = frozenset({bytes, str})


def packed(command: tuple[Any, ...]) -> bytes:
    """One command as it goes over the wire.

    hiredis is given text and bytes alone: a signal whose handler raises, like Ctrl-C, ends the process when it comes
    while hiredis packs a number (pack.c, 3.x: the result of PyObject_Repr is used unseen).

    Raises:
        redis.exceptions.DataError: a word that is no text, bytes or number.
    """
    if not _PLAIN.issuperset(map(type, command)):
        command = tuple(word if type(word) in _PLAIN else _plain(word) for word in command)
    data: bytes = hiredis.pack_command(command)
    return data


def _plain(word: Any) -> str | bytes:
    if isinstance(word, bytes | bytearray | memoryview):
        return bytes(word)
    if isinstance(word, bool) or not isinstance(word, int | float | str):
        raise redis.exceptions.DataError(f"{word!r:.100} is neither text nor bytes nor a number")
    return str(word)


class Packer:
    """The same for redis-py's own commands, which may be of two words, like ``CONFIG GET``."""

    def pack(self, *command: Any) -> list[bytes]:
        """What redis-py sends for a command."""
        verb = command[0] if isinstance(command[0], bytes) else str(command[0]).encode()
        return [packed((*verb.split(), *command[1:]))]


class Links:
    """Raw round trips on connections of a client's pool, as many at once as there are threads that ask.

    Args:
        client: whose pool they come from; it connects and authenticates them.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._free: list[Any] = []  # append and pop are atomic
        self._pid = os.getpid()

    def roundtrip(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands together and read their replies. An error reply stands in the place of a reply.

        Raises:
            redis.exceptions.RedisError, OSError: the connection failed; what was sent may have been done.
        """
        link = self._take()
        try:
            link.send_packed_command([b"".join(map(packed, commands))], check_health=False)
            replies = [_read(link) for _ in commands]
        except BaseException:
            self._drop(link)  # what is still under way must not answer somebody else's question
            raise
        self._free.append(link)
        return replies

    def _take(self) -> Any:
        if self._pid != os.getpid():  # after a fork the parent goes on with its connections
            self._free, self._pid = [], os.getpid()
        while self._free:
            link = self._free.pop()
            try:
                if not link.can_read():
                    return link
            except redis.exceptions.ConnectionError:
                pass  # it was closed while nobody used it
            self._drop(link)
        return self._pool.get_connection()

    def _drop(self, link: Any) -> None:
        link.disconnect()
        self._pool.release(link)


def _read(link: Any) -> Any:
    try:
        return link.read_response()
    except redis.exceptions.ResponseError as error:
        return error
