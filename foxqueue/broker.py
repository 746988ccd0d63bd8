"""One typed method a script, and the connection they travel on."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from redis import Redis

from foxqueue.codec import pack
from foxqueue.config import Config, listening_socket, url_of_socket
from foxqueue.connection import Connection
from foxqueue.errors import (
    InvalidInput,
    NoServer,
    OutcomeUnknown,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    SettingsDiffer,
)
from foxqueue.keys import Keys
from foxqueue.messages import Claimed, NamespaceSettings, NewJob, Reply
from foxqueue.scripts import Call, Scripts

SCHEMA = 1  # of the data in Redis; a higher number there is refused
RESEND_S = 60.0  # a user's command is sent again for this long; answers are kept for three minutes
ENV_KEPT_MS = 90 * 86400 * 1000

__all__ = ["Broker", "Claimed", "NamespaceSettings", "NewJob", "Reply", "server_url"]


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


class Broker:
    """The queue of one namespace on one server.

    Args:
        connection: where to send.
        namespace: name of the queue.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self.connection = connection
        self.keys = Keys(namespace)
        self.scripts = Scripts(self.keys)

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
            ServerRefused: wrong password, no permission, or a version that is too old.
        """
        Keys(namespace)
        connection = Connection(url, password, timeout_s=timeout_s)
        connection.test(patience_s)
        return cls(connection, namespace)

    @classmethod
    def open(cls, config: Config, *, patience_s: float = 5.0, timeout_s: float = 5.0) -> Broker:
        """Connect to the configured server, or to our own.

        Raises:
            NoServer: none is configured and ours does not run. Others as :meth:`connect`.
        """
        url = server_url(config)
        password = config.password if config.url else None  # our own server has none
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

    def close(self) -> None:
        """Close all connections."""
        self.connection.close()

    # --- sending -------------------------------------------------------------------------------------

    def send(self, *calls: Call) -> list[Reply]:
        """Send scripts in one round trip and read their answers, once.

        Raises:
            ServerUnavailable: no answer, or an answer that means that Redis is away for now.
            ServerError: a script failed in a way that must not happen.
        """
        return [Reply.of(answer) for answer in self.connection.evalsha(calls)]

    def resend(self, call: Call, token: str) -> Reply:
        """Send a user's command, again while no answer comes, for at most a minute.

        Raises:
            OutcomeUnknown: no answer came; it may or may not have been done.
            ServerUnavailable: the server answers that it cannot do it now; it was not done.
        """
        deadline = time.monotonic() + RESEND_S
        pause, unanswered = 0.02, False
        while True:
            try:
                return self.send(call)[0]
            except ServerUnavailable as error:
                unanswered = unanswered or not error.definite
                if error.definite and not error.passing and not unanswered:
                    raise
                if time.monotonic() + pause > deadline:
                    if not unanswered:
                        raise
                    raise OutcomeUnknown(
                        token,
                        f"{call.script.name}: no answer for {RESEND_S:g} s, so it may or may not have been "
                        f"done: look with foxqueue ls ({error})",
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    # --- the namespace -------------------------------------------------------------------------------

    def configure(self, ttl_ms: int | None = None) -> NamespaceSettings:
        """Read the settings, or set the lease's length in an empty namespace.

        Raises:
            SettingsDiffer: the namespace is in use with another length.
            InvalidInput: the length is not 300 ms to 10 minutes.
            ServerError: the data were written by a newer foxqueue.
        """
        if ttl_ms is not None and not 300 <= ttl_ms <= 600_000:
            raise InvalidInput(f"a lease of {ttl_ms} ms is not possible: give 300ms to 10m")
        wanted = "" if ttl_ms is None else ttl_ms
        reply = self.send(self.scripts.call("configure", wanted_ttl_ms=wanted, candidate=_candidate()))[0]
        settings = NamespaceSettings(reply.instance, *(int(value) for value in reply.rest))
        if settings.schema > SCHEMA:
            raise ServerError(
                f"namespace {self.keys.namespace!r} was written by a newer foxqueue (schema {settings.schema}, "
                f"this one knows {SCHEMA}): upgrade this machine"
            )
        if reply.word == "no":
            raise SettingsDiffer(
                f"namespace {self.keys.namespace!r} is in use with a lease of {settings.ttl_ms / 1000:g} s: "
                "leave --lease-ttl out, or use an empty namespace"
            )
        return settings

    def settings(self) -> NamespaceSettings:
        """The namespace's settings."""
        return self.configure(None)

    def server_time_ms(self) -> int:
        """The server's clock, epoch ms."""
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    # --- users' commands -----------------------------------------------------------------------------

    def enqueue(self, job: NewJob, token: str | None = None) -> tuple[int, str]:
        """Put a job into the queue.

        Args:
            job: what to put.
            token: of an earlier request that had no answer, to send it again.

        Returns:
            The job's number and its enqueue tick.

        Raises:
            OutcomeUnknown, ServerUnavailable: see :meth:`resend`; there are too many shapes.
        """
        token = token or secrets.token_hex(16)
        env = pack(dict(sorted(job.env.items())))  # one content, one digest, whatever the order
        digest = sha256(env).hexdigest()
        call = self.scripts.call(
            "enqueue",
            env_blob=self.keys.env(digest),
            token=token,
            candidate=_candidate(),
            name=_text(job.name),
            shape=job.shape,
            priority=job.priority,
            retries=job.retries,
            retry_delay_ms=job.retry_delay_ms,
            env_digest=digest,
            env=env,
            spec=job.spec,
        )
        reply = self.resend(call, token)
        if reply.word == "full":
            raise ServerUnavailable("there are pending jobs of 1,000 different requirements: try later", definite=True)
        number, born = reply.rest
        return int(number), born.decode()

    def cancel(self, number: int, born: str, by: str, token: str | None = None) -> str:
        """Cancel a job.

        Args:
            number: of the job.
            born: its enqueue tick, or "" for whatever has the number.
            by: who asks.
            token: of an earlier request that had no answer.

        Returns:
            ``cancelled`` (ended now or before), ``ok`` (running, asked to stop), ``succeeded`` or ``failed``
            (had ended), ``missing``, or ``stale`` (the number is another job's).
        """
        token = token or secrets.token_hex(16)
        call = self.scripts.call("cancel", token=token, number=number, born=born, by=_text(by))
        return self.resend(call, token).word

    # --- the worker's calls: bound here, sent by the worker, several in one round trip ------------------

    def claim_call(
        self,
        worker: str,
        question: int,
        device: str,
        host: str,
        version: str,
        woken: Sequence[str],
        fitting: Sequence[str],
        *,
        waits: bool = True,
    ) -> Call:
        """Ask for the best job of the ``fitting`` shapes; see ``claim.lua`` for the answers."""
        return self.scripts.call(
            "claim",
            worker=worker,
            question=question,
            device=device,
            host=host,
            version=version,
            woken=",".join(woken),
            waits=int(waits),
            fitting=list(fitting),
        )

    def heartbeat_call(self, number: int, fence: str) -> Call:
        """Renew the lease of a run."""
        return self.scripts.call("heartbeat", number=number, fence=fence)

    def complete_call(self, number: int, fence: str, outcome: bytes) -> Call:
        """The run succeeded."""
        return self.scripts.call(
            "complete", result=self.keys.result(number), number=number, fence=fence, outcome=outcome
        )

    def fail_call(
        self,
        number: int,
        fence: str,
        reason: str,
        detail: str,
        exit_code: int | None,
        outcome: bytes,
        delay_ms: int | None,
    ) -> Call:
        """The run failed; ``delay_ms`` before another attempt, None when the reason is not retried."""
        return self.scripts.call(
            "fail",
            result=self.keys.result(number),
            number=number,
            fence=fence,
            reason=reason,
            detail=_text(detail),
            exit_code="" if exit_code is None else exit_code,
            outcome=outcome,
            delay_ms="" if delay_ms is None else delay_ms,
        )

    def release_call(self, number: int, fence: str, detail: str) -> Call:
        """The worker gives the job back: rank kept, attempt given back."""
        return self.scripts.call("release", number=number, fence=fence, detail=_text(detail))

    def lose_call(self, number: int, fence: str) -> Call:
        """The run lost its worker or runner, and its last process is gone."""
        return self.scripts.call("lose", number=number, fence=fence)

    def log_call(self, number: int, fence: str, offset: int, keep_from: int, data: bytes) -> Call:
        """A piece of the output, from byte ``offset``; pieces below ``keep_from`` may go."""
        return self.scripts.call(
            "log",
            log=self.keys.log(number),
            number=number,
            fence=fence,
            offset=offset,
            keep_from=keep_from,
            data=data,
        )

    def register_call(self, worker: str, device: str, sequence: int, seen: bytes) -> Call:
        """The worker lives and sees this."""
        return self.scripts.call(
            "register", worker=worker, device=device, sequence=sequence, seen=seen, candidate=_candidate()
        )

    def sweep_call(self, limit: int = 100) -> Call:
        """Look after due jobs and overdue leases."""
        return self.scripts.call("sweep", limit=limit)

    def sweep(self) -> Reply:
        """Look once; any client may."""
        return self.send(self.sweep_call())[0]

    def claimed_by(self, worker: str, device: str) -> tuple[int, str] | None:
        """The run that a worker's last claim got it, if it still has the device: job number and fence.

        Reading alone; what is done about it goes by the fence.

        Raises:
            ServerUnavailable: Redis is away.
        """
        with self.connection.errors("claims"):
            last: Any = self.redis.hget(self.keys.claims, worker)
            number = bytes(last or b"").partition(b":")[2]
            if not number:
                return None
            found: Any = self.redis.hmget(self.keys.job(int(number)), "state", "worker", "gpus", "fence")
        state, holder, gpus, fence = (bytes(value or b"").decode("utf-8", "replace") for value in found)
        return (int(number), fence) if (state, holder, gpus) == ("running", worker, device) else None

    def logged(self, number: int, fence: str) -> int:
        """Bytes of a run's output up to the end of its last piece here.

        Raises:
            ServerUnavailable: Redis is away.
        """
        with self.connection.errors("log"):
            last: Any = self.redis.xrevrange(self.keys.log(number), count=1)
        for entry, fields in last:
            of, _, offset = entry.decode().partition("-")
            return int(offset) + len(fields.get(b"data", b"")) if of == fence else 0
        return 0

    def environment(self, digest: str) -> bytes | None:
        """A captured environment, kept for another 90 days; None when it is gone.

        Raises:
            ServerUnavailable: Redis is away.
        """
        with self.connection.errors("env"):
            data: Any = self.redis.getex(self.keys.env(digest), px=ENV_KEPT_MS)
            return data if data is None else bytes(data)


def _candidate() -> str:
    return secrets.token_hex(8)


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
