"""One typed method a script: binds its arguments to a call, which may then be sent, alone or with others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from foxqueue.keys import Keys
from foxqueue.messages import Environment, NewJob
from foxqueue.scripts import Call, Scripts, Value

SWEEP_LIMIT = 100  # jobs for each kind of work in one sweep


class Bindings:
    """The calls of one namespace.

    Args:
        namespace: name of the queue.
    """

    def __init__(self, namespace: str) -> None:
        self.keys = Keys(namespace)
        self.scripts = Scripts(self.keys)

    # --- users' commands: each carries a token, so that it may be sent again --------------------------------

    def enqueue_call(self, jobs: Sequence[NewJob], env: Environment, token: str, *, with_env: bool) -> Call:
        """Put jobs into the queue, all or none; ``with_env`` sends the environment along."""
        words: list[Value] = []
        for job in jobs:
            words += (_text(job.name), job.shape, job.priority, job.retries, job.retry_delay_ms, job.spec)
        return self.scripts.call(
            "enqueue",
            env_blob=self.keys.env(env.digest),
            token=token,
            candidate=_candidate(),
            env_digest=env.digest,
            env=env.packed if with_env else b"",
            jobs=words,
        )

    def cancel_call(self, number: int, born: str, by: str, token: str) -> Call:
        """End a waiting job, or ask a running one to stop."""
        return self.scripts.call("cancel", token=token, number=number, born=born, by=_text(by))

    def requeue_call(self, number: int, born: str, by: str, token: str) -> Call:
        """Put a failed or cancelled job back into the queue."""
        return self.scripts.call("requeue", token=token, number=number, born=born, by=_text(by))

    def force_release_call(self, device: str, by: str, token: str) -> Call:
        """Take a device from its run."""
        return self.scripts.call("force_release", token=token, device=device, by=_text(by))

    def configure_call(
        self, wanted_ttl_ms: int | None = None, changes: Mapping[str, str] | None = None, by: str = "", token: str = ""
    ) -> Call:
        """Read the settings; set the lease's length, or other fields ("" brings a default back)."""
        words = [word for change in (changes or {}).items() for word in change]
        wanted = "" if wanted_ttl_ms is None else wanted_ttl_ms
        return self.scripts.call(
            "configure", token=token, by=_text(by), wanted_ttl_ms=wanted, candidate=_candidate(), changes=words
        )

    # --- a worker's calls, several in one round trip ----------------------------------------------------------

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

    def complete_call(self, number: int, fence: str, outcome: bytes, value: bytes = b"") -> Call:
        """The run succeeded; ``value`` is what a call returned, packed."""
        return self.scripts.call(
            "complete",
            result=self.keys.result(number),
            value=self.keys.value(number),
            number=number,
            fence=fence,
            outcome=outcome,
            returned=value,
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

    def sweep_call(self, limit: int = SWEEP_LIMIT) -> Call:
        """Look after what time brings: due jobs, overdue leases, ended jobs to be purged."""
        return self.scripts.call("sweep", limit=limit)


def new_token() -> str:
    """A random token of a request, 16 bytes in hex."""
    return os.urandom(16).hex()


def _candidate() -> str:
    return os.urandom(8).hex()


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
