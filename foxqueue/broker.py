"""The queue of one namespace: users' commands, sent until there is an answer, and what workers ask."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from foxqueue.bindings import new_token
from foxqueue.commands import CHUNK_BYTES, CHUNK_JOBS, CHUNK_PARENTS, Commands
from foxqueue.config import Config, listening_socket, server_password, url_of_socket
from foxqueue.connection import Connection
from foxqueue.errors import (
    InvalidInput,
    NoServer,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    SettingsDiffer,
)
from foxqueue.keys import Keys
from foxqueue.messages import Claimed, Environment, NamespaceSettings, NewJob, Reply
from foxqueue.replies import read_pieces, whole

if TYPE_CHECKING:
    from redis import Redis

SCHEMA = 2  # of the data in Redis; a higher number there is refused
ENV_KEPT_MS = 90 * 86400 * 1000

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_JOBS",
    "CHUNK_PARENTS",
    "Broker",
    "Claimed",
    "Environment",
    "NamespaceSettings",
    "NewJob",
    "Reply",
    "server_url",
]


def server_url(config: Config) -> str:
    """URL of the configured server, or of our own.

    Raises:
        NoServer: none is configured and our own is not running.
        ServerRefused: what listens where ours should is somebody else's.
    """
    if config.url:
        return config.url
    path = listening_socket(config)
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise NoServer("no server: run foxqueue up (or set FOXQUEUE_URL)") from error
    if owner != os.geteuid():
        raise ServerRefused(
            f"the server's socket {path} belongs to user {owner}, not to you: set another FOXQUEUE_HOME"
        )
    return url_of_socket(path)


class Broker(Commands):
    """The queue of one namespace on one server.

    Args:
        connection: where to send.
        namespace: name of the queue.
    """

    @classmethod
    def connect(
        cls,
        url: str,
        namespace: str,
        password: str | None = None,
        *,
        patience_s: float = 5.0,
        timeout_s: float = 5.0,
    ) -> Broker:
        """Open and test a connection.

        Args:
            url: of the server.
            namespace: name of the queue.
            password: when the URL has none.
            patience_s: how long to try while nothing answers; a server that is loading gets a minute.
            timeout_s: of each command.

        Raises:
            ServerUnavailable: nothing answers.
            ServerRefused: wrong password, no permission, a version that is too old, or data of a newer foxqueue.
        """
        Keys(namespace)
        connection = Connection(url, password, timeout_s=timeout_s)
        connection.test(patience_s)
        broker = cls(connection, namespace)
        broker._check_schema(broker._schema())
        return broker

    @classmethod
    def open(cls, config: Config, *, patience_s: float = 5.0, timeout_s: float = 5.0) -> Broker:
        """Connect to the configured server, or to our own.

        Raises:
            NoServer: none is configured and ours does not run. Others as :meth:`connect`.
        """
        url = server_url(config)
        password = server_password(config)
        try:
            return cls.connect(url, config.namespace, password, patience_s=patience_s, timeout_s=timeout_s)
        except ServerUnavailable as error:
            if config.url or error.definite:
                raise
            raise NoServer(f"no server: run foxqueue up ({error})") from error

    @property
    def redis(self) -> Redis:
        """The client, for reading and measuring. Replies are bytes."""
        return self.connection.client

    def blocking(self, block_s: float) -> Redis:
        """A second client for calls that block up to ``block_s`` seconds."""
        return self.connection.blocking(block_s)

    def another(self, timeout_s: float) -> Broker:
        """The same queue over connections of its own, with another time-out of each command."""
        return Broker(self.connection.another(timeout_s), self.keys.namespace)

    def close(self) -> None:
        """Close all connections."""
        self.connection.close()

    # --- the namespace -------------------------------------------------------------------------------

    def configure(self, ttl_ms: int | None = None) -> NamespaceSettings:
        """Read the settings, or set the lease's length in an empty namespace.

        Raises:
            SettingsDiffer: the namespace is in use with another length.
            InvalidInput: the length is not 300 ms to 10 minutes.
            ServerRefused: the data were written by a newer foxqueue.
        """
        if ttl_ms is not None and not 300 <= ttl_ms <= 600_000:
            raise InvalidInput(f"a lease of {ttl_ms} ms is not possible: give 300ms to 10m")
        reply = self.send(self.configure_call(ttl_ms))[0]
        settings = self._read_settings(reply)
        if reply.word == "no":
            raise SettingsDiffer(
                f"namespace {self.keys.namespace!r} is in use with a lease of {settings.ttl_ms / 1000:g} s: "
                "leave --lease-ttl out, or use an empty namespace"
            )
        return settings

    def settings(self) -> NamespaceSettings:
        """The namespace's settings."""
        return self.configure(None)

    def change_settings(
        self, changes: Mapping[str, str | None], by: str, token: str | None = None
    ) -> NamespaceSettings:
        """Change settings of the namespace; it is written into the audit trail.

        Args:
            changes: field of the settings -> its new text, None for the default; see :mod:`foxqueue.settings`.
            by: who asks.
            token: of an earlier request that had no answer.

        Returns:
            All settings as they are then.

        Raises:
            OutcomeUnknown, ServerUnavailable: see :meth:`resend`.
        """
        token = token or new_token()
        words = {name: "" if value is None else value for name, value in changes.items()}
        self.resend(self.configure_call(None, words, by, token), token)
        return self.settings()

    def _schema(self) -> int:
        """Of the data; ours where there are none, or what stands there is none of foxqueue's (doctor tells)."""
        answer = self.connection.ask([("HGET", self.keys.settings, "schema")], "settings")[0]
        return int(answer) if isinstance(answer, bytes) and answer.isdigit() else SCHEMA

    def _read_settings(self, reply: Reply) -> NamespaceSettings:
        try:
            settings = NamespaceSettings.of(reply)
        except ValueError as error:
            raise ServerError(
                f"the settings of namespace {self.keys.namespace!r} cannot be read ({error})",
                cure=f"see HGETALL {self.keys.settings}, and remove what foxqueue did not write",
            ) from error
        self._check_schema(settings.schema)
        return settings

    def _check_schema(self, schema: int) -> None:
        if schema > SCHEMA:
            raise ServerRefused(
                f"namespace {self.keys.namespace!r} was written by a newer foxqueue (schema {schema}, "
                f"this one knows {SCHEMA}): upgrade this machine",
                cure="pip install --upgrade foxqueue",
            )

    def server_time_ms(self) -> int:
        """The server's clock, epoch ms."""
        seconds, micros = self.connection.answer(("TIME",), "time")
        return int(seconds) * 1000 + int(micros) // 1000

    # --- a worker's -----------------------------------------------------------------------------------

    def sweep(self) -> Reply:
        """Look once; any client may."""
        return self.send(self.sweep_call())[0]

    def withheld(self, device: str) -> str:
        """Why nobody gets a device, as in :mod:`foxqueue.withheld`; "" when it is not withheld."""
        found = self.connection.answer(("HGET", self.keys.withheld, device), "withheld")
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""

    def claimed_by(self, worker: str, device: str) -> tuple[int, str] | None:
        """The run that a worker's last claim got it, if it still has the device: job number and fence.

        Reading alone; what is done about it goes by the fence.

        Raises:
            ServerUnavailable: Redis is away.
        """
        last = self.connection.answer(("HGET", self.keys.claims, worker), "claims")
        number = bytes(last or b"").partition(b":")[2]
        if not number:
            return None
        fields = ("state", "worker", "gpus", "fence")
        found = self.connection.answer(("HMGET", self.keys.job(int(number)), *fields), "claims")
        state, holder, gpus, fence = (bytes(value or b"").decode("utf-8", "replace") for value in found)
        return (int(number), fence) if (state, holder, gpus) == ("running", worker, device) else None

    def how_many(self, numbers: Sequence[int]) -> int:
        """How many of these jobs there are, by one command.

        Raises:
            ServerUnavailable: Redis is away.
        """
        return int(self.connection.answer(("EXISTS", *(self.keys.job(number) for number in numbers)), "jobs"))

    def last_number(self) -> int:
        """The last number of a job that was given out; 0 before the first.

        Raises:
            ServerUnavailable: Redis is away.
        """
        return whole(self.connection.answer(("GET", self.keys.next), "next") or b"0")

    def born_of(self, numbers: Sequence[int]) -> list[str | None]:
        """Enqueue ticks of jobs, None for one that is not there.

        Raises:
            ServerUnavailable: Redis is away.
        """
        borns = self.connection.answers([("HGET", self.keys.job(number), "born") for number in numbers], "born")
        return [None if born is None else bytes(born).decode() for born in borns]

    def logged(self, number: int, fence: str) -> int:
        """Bytes of a run's output up to the end of its last piece here.

        Raises:
            ServerUnavailable: Redis is away.
        """
        last = self.connection.answer(("XREVRANGE", self.keys.log(number), "+", "-", "COUNT", 1), "log")
        for piece in read_pieces(last):
            return piece.offset + len(piece.data) if str(piece.fence) == fence else 0
        return 0

    def environment(self, digest: str) -> bytes | None:
        """A captured environment, kept for another 90 days; None when it is gone.

        Raises:
            ServerUnavailable: Redis is away.
        """
        data: bytes | None = self.connection.answer(("GETEX", self.keys.env(digest), "PX", ENV_KEPT_MS), "env")
        return data
