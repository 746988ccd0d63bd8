"""Where a waiter in line hears that it is its turn: one blocking command on a connection of its own.

The command stays with the server while its waiter looks after other things, so that a hundred waiters cost it next to
nothing.
"""

from __future__ import annotations

from typing import Any, Final

from foxqueue.connection import Connection
from foxqueue.errors import ServerUnavailable
from foxqueue.links import Link

BLOCK_S: Final = 25  # a block ends by itself after so long, which shows that the server lives
LATE_S: Final = 5.0  # by so much the end of a block may be late before the connection counts as dead


class Ear:
    """Hears what is pushed into one list.

    Args:
        connection: to the server.
        key: of the list.
    """

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._link: Link | None = None
        self._asked: float | None = None

    @property
    def open(self) -> bool:
        """Whether its connection is there; :meth:`ask` makes it, which may block for a moment."""
        return self._link is not None

    def ask(self, now: float) -> Link:
        """Have the blocking command sent, unless it is under way.

        Args:
            now: seconds of time.monotonic().

        Raises:
            ServerUnavailable, ServerRefused: no connection, or it has been silent for too long.
        """
        if self._link is None:
            self._link = self._connection.apart()
        if self._asked is not None and now - self._asked > BLOCK_S + LATE_S:
            self.close()
            raise ServerUnavailable("the server has not answered a waiter in time")
        if self._asked is None:
            with self._connection.errors("waiting"):
                self._link.post(("BLPOP", self._key, str(BLOCK_S)))
            self._asked = now
        return self._link

    def take(self, seconds: float) -> str | None:
        """What was pushed, None when nothing comes in so many seconds, or the block has ended; after :meth:`ask`.

        Raises:
            ServerUnavailable, ServerRefused, ServerError: there is no answer to be had, or it is an error.
        """
        assert self._link is not None
        try:
            with self._connection.errors("waiting"):
                found: Any = self._link.take(seconds)
                if isinstance(found, Exception):
                    raise found
        except BaseException:
            self.close()
            raise
        if found is Ellipsis:
            return None
        self._asked = None
        return None if found is None else bytes(found[1]).decode("utf-8", "replace")

    def close(self) -> None:
        """Close its connection; with it the server forgets the command."""
        link, self._link, self._asked = self._link, None, None
        if link is not None:
            link.close()
