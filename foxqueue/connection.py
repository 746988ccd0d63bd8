"""The connection to Redis: what is an answer, what means that Redis is away, and what is a bug."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import hiredis

from foxqueue.errors import ServerError, ServerRefused, ServerUnavailable
from foxqueue.links import Command, Link, Links, Packer, read_target
from foxqueue.scripts import Call, load, names
from foxqueue.urls import hide_password

if TYPE_CHECKING:
    import redis

LOADING_S = 60.0
# First words of error replies that mean "not now": nothing was done. The first group passes by itself.
_PASSING = ("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "UNKILLABLE")
_REFUSING = ("OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOAUTH", "WRONGPASS", "NOPERM")
# redis-py takes the word away from some replies and has a class for it in its place. Derived classes stand first.
_CLASSES = {
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ClusterCrossSlotError": "CROSSSLOT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "AuthenticationError": "NOAUTH",
    "NoPermissionError": "NOPERM",
}
# Replies about passwords without a word of their own.
_OF_PASSWORDS = re.compile(
    r"ERR (AUTH <password> called without|Client sent AUTH|invalid password|Protocol error: unauthenticated)"
)
_PIPELINE = re.compile(r"Command # [0-9]+ \(.*\) of pipeline caused error: ", re.DOTALL)  # put in front by redis-py
_NONSENSE = (AttributeError, IndexError, KeyError, TypeError, ValueError)  # answers in shapes that Redis never gives
_OTHER_URL = "set FOXQUEUE_URL (--url) to the address of a Redis server"


class Connection:
    """A server, asked without a library's own retries: a resent command could run twice, ours are sent again by hand.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; percent-encoded characters in it are decoded.
        password: when the URL has none.
        timeout_s: of connecting and of each answer.
    """

    def __init__(self, url: str, password: str | None = None, *, timeout_s: float = 5.0) -> None:
        self.url = url
        self.password = password
        self._timeout_s = timeout_s
        self._links = Links(read_target(url, password), timeout_s)
        self._client: redis.Redis | None = None

    @property
    def client(self) -> redis.Redis:
        """A client of redis-py, made when it is asked for. Replies are bytes."""
        if self._client is None:
            self._client = self._redis(self._timeout_s)
        return self._client

    def blocking(self, block_s: float) -> redis.Redis:
        """A client for calls that block: its time-out lies above the block time."""
        return self._redis(block_s + self._timeout_s)

    def apart(self) -> Link:
        """A connection for a command that blocks, by socket alone; the caller closes it.

        Raises:
            ServerUnavailable, ServerRefused: no connection, or none that may be used.
        """
        with self.errors("waiting"):
            return self._links.apart(self._timeout_s)

    def another(self, timeout_s: float) -> Connection:
        """The same server over connections of its own, with another time-out."""
        return Connection(self.url, self.password, timeout_s=timeout_s)

    def _redis(self, timeout_s: float) -> redis.Redis:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options: dict[str, Any] = {"command_packer": Packer()}
        if self.password is not None:
            options["password"] = self.password
        if not self.url.startswith("unix"):
            options |= {"socket_keepalive": True, "socket_connect_timeout": min(timeout_s, 5.0)}
        return redis.Redis.from_url(self.url, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0), **options)

    def close(self) -> None:
        """Close all its connections."""
        self._links.close()
        if self._client is not None:
            self._client.close()
            self._client.connection_pool.disconnect()

    def test(self, patience_s: float) -> None:
        """Wait until the server answers, then check what it is, and its version.

        Raises:
            ServerUnavailable: it does not answer within ``patience_s``, or is still loading after a minute.
            ServerRefused: wrong password, no permission, a version that is too old, or no Redis at all.
        """
        try:
            self._await_answer(patience_s)
            self._check_version()
        except (hiredis.ProtocolError, *_NONSENSE) as error:
            raise ServerRefused(self._no_redis(), cure=_OTHER_URL) from error

    def _await_answer(self, patience_s: float) -> None:
        start = time.monotonic()
        while True:
            try:
                with self._own_errors("ping"):
                    if _answer(self._links.roundtrip([("PING",)])[0]) != b"PONG":
                        raise ValueError("this is no PONG")
                return
            except ServerUnavailable as error:
                waited = time.monotonic() - start
                if waited > (LOADING_S if error.passing else patience_s):
                    raise
                time.sleep(0.05)

    def _check_version(self) -> None:
        try:
            with self._own_errors("info"):
                told = _answer(self._links.roundtrip([("INFO", "server")])[0]).decode()
        except ServerRefused:
            return  # an access list that hides INFO: the scripts will say what they miss
        version = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)["redis_version"]
        if int(version.split(".")[0]) < 7:
            raise ServerRefused(
                f"the server at {hide_password(self.url)} is Redis {version}: foxqueue needs Redis 7.0 or Valkey 7.2",
                cure="upgrade that server, or use another",
            )

    def _no_redis(self) -> str:
        return f"what answers at {hide_password(self.url)} is not a Redis server: is FOXQUEUE_URL right?"

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn hiredis's and redis-py's errors into ours."""
        try:
            with self._own_errors(what):
                yield
        except hiredis.ProtocolError as error:
            # It was a Redis server when it was tested: something stands in its place, and the server may come back.
            raise ServerUnavailable(self._no_redis(), cure=_OTHER_URL) from error
        except Exception as error:
            if not _is_of_redis_py(error, "InvalidResponse"):
                raise
            raise ServerUnavailable(self._no_redis(), cure=_OTHER_URL) from error

    @contextlib.contextmanager
    def _own_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not (_is_reply(error) or _is_lost(error)):
                raise
            raise self._response_error(error, what) from error

    def _response_error(self, error: Exception, what: str) -> ServerError:
        word = _word(error)
        where = hide_password(self.url)
        elsewhere = _of_cluster(word, str(error), where)
        if elsewhere is not None:
            return elsewhere
        if word in ("NOAUTH", "WRONGPASS"):
            return ServerRefused(
                f"the server at {where} refuses the password: set it in the URL (FOXQUEUE_URL, --url), in "
                "FOXQUEUE_PASSWORD or in the file that FOXQUEUE_PASSWORD_FILE names",
                cure="set the right password there",
            )
        if word == "NOPERM":
            cure = "allow this user what foxqueue runs: EVALSHA, SCRIPT, INFO, CONFIG GET and reading its keys"
            return ServerRefused(f"the server at {where} does not permit this user to run {what}: {error}", cure=cure)
        if word == "DENIED":
            cure = "give that server a password, or bind it to addresses that only you can reach"
            return ServerRefused(f"the server at {where} refuses this machine ({_first_line(error)})", cure=cure)
        if "DB index is out of range" in str(error):
            cure = "name a database that it has, like 0, at the end of the URL"
            return ServerRefused(f"the server at {where} has no such database ({error}): {cure}", cure=cure)
        if word in _PASSING:
            text = f"the server at {where} cannot answer yet ({error})"
            return ServerUnavailable(text, definite=True, passing=True, cure="wait until it does, or see its log")
        if word in _REFUSING:
            text = f"the server at {where} refuses {what} now ({error})"
            return ServerUnavailable(text, definite=True, cure=f"see what it says, and its log: {word}")
        if not _is_reply(error):
            return ServerUnavailable(
                f"the server at {where} does not answer ({_plain(error)}): is it running, and is FOXQUEUE_URL right?"
            )
        if what in names():
            return ServerError(
                f"the script {what} failed on the server at {where}: foxqueue doctor looks for what is wrong with its "
                f"data ({_first_line(error)})",
                cure="see the check keys, and what was written into the namespace by something else than foxqueue",
            )
        cure = "see what it says, and the server's log"
        return ServerError(f"{what} failed on the server at {where}: {_first_line(error)}", cure=cure)

    # --- scripts ---------------------------------------------------------------------------------------

    def ask(self, commands: Sequence[Command], what: str = "read") -> list[Any]:
        """Send commands in one round trip. An error reply stands in the place of a reply.

        Args:
            commands: name and arguments of each.
            what: they are, for messages.

        Raises:
            ServerUnavailable, ServerRefused: no connection, or none that may be used.
        """
        try:
            return self._links.roundtrip(commands)
        except Exception:
            with self.errors(what):
                raise

    def answers(self, commands: Sequence[Command], what: str) -> list[Any]:
        """Send commands in one round trip and return their replies.

        Raises:
            ServerUnavailable, ServerRefused, ServerError: there are none, or one is an error.
        """
        with self.errors(what):
            return [_answer(reply) for reply in self._links.roundtrip(commands)]

    def answer(self, command: Command, what: str) -> Any:
        """Send one command and return its reply; see :meth:`answers`."""
        return self.answers([command], what)[0]

    def evalsha(self, calls: Sequence[Call]) -> list[Any]:
        """Send scripts in one round trip; scripts that the server has forgotten are sent again, with their text.

        Sending again is safe: a script that had run answers what it had answered.

        Raises:
            ServerUnavailable, ServerError: for the first call without an answer.
        """
        replies = self.ask([call.evalsha() for call in calls], "scripts")
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                return self._again(calls, replies)
        return replies

    def _again(self, calls: Sequence[Call], replies: list[Any]) -> list[Any]:
        forgotten = [i for i, reply in enumerate(replies) if _is_reply(reply) and _word(reply) == "NOSCRIPT"]
        if forgotten:
            # Sent with their text nothing can be flushed in between. All others are loaded too: else a later
            # pipeline would find one of its scripts and miss the other, and run them out of order.
            commands: list[Command] = [calls[i].eval() for i in forgotten]
            commands += [("SCRIPT", "LOAD", load(name).text) for name in names()]
            again = self.ask(commands, "scripts")
            for i, reply in zip(forgotten, again, strict=False):
                replies[i] = reply
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                raise self._response_error(reply, call.script.name) from reply
        return replies


def _of_cluster(word: str | None, text: str, where: str) -> ServerRefused | None:
    """What a node of a cluster says that has not our slot. All keys of a namespace lie in one, so one node will do."""
    if word == "MOVED":
        slot, _, owner = text.removeprefix("MOVED ").partition(" ")
        host, _, port = owner.rpartition(":")
        cure = f"give the URL of the node that owns slot {slot}, {host or 'the same host'}:{port}"
        return ServerRefused(
            f"the server at {where} is a node of a cluster and has not the slot of this namespace: {cure}", cure=cure
        )
    if word == "CLUSTERDOWN" and "not served" in text:
        cure = "give all slots to its nodes (redis-cli --cluster fix), or use a server without a cluster"
        return ServerRefused(
            f"the server at {where} is a node of a cluster in which nobody serves the slot of this namespace: {cure}",
            cure=cure,
        )
    if word == "CROSSSLOT":
        cure = "use a Redis or Valkey server that keeps to hash tags, or one without a cluster"
        return ServerRefused(
            f"the server at {where} is part of a cluster that spreads the keys of one namespace over slots: {cure}",
            cure=cure,
        )
    return None


def _answer(reply: Any) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply


def _is_of_redis_py(error: Exception, *kinds: str) -> bool:
    """Whether it is of these classes of redis-py, which need not be loaded for the answer no."""
    known = sys.modules.get("redis.exceptions")
    return known is not None and isinstance(error, tuple(getattr(known, kind) for kind in kinds))


def _is_reply(error: Exception) -> bool:
    """Whether the server said it."""
    if isinstance(error, hiredis.ReplyError):
        return not str(error).startswith("ERR max number of clients")
    return _is_of_redis_py(error, "ResponseError", "AuthenticationError")


def _is_lost(error: Exception) -> bool:
    if isinstance(error, OSError | hiredis.ReplyError):
        return True
    return _is_of_redis_py(error, "ConnectionError", "TimeoutError")


def _word(error: Exception) -> str | None:
    """The first word of an error reply; None for what is none."""
    for kind, word in _CLASSES.items():
        if _is_of_redis_py(error, kind):
            return word
    if not _is_reply(error):
        return None
    text = _PIPELINE.sub("", str(error))
    return "NOAUTH" if _OF_PASSWORDS.match(text) else text.split(" ", 1)[0]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _plain(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.rstrip(".")
