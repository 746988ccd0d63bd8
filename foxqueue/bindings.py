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

    def enqueue_call(
        self,
        jobs: Sequence[NewJob],
        env: Environment,
        token: str,
        *,
        with_env: bool,
        user: str = "",
        filling: str = "",
    ) -> Call:
        """Put jobs into the queue, all or none; ``with_env`` sends the environment along."""
        words: list[Value] = []
        for job in jobs:
            more = _text(job.more) if job.more else b""
            words += (_text(job.name), job.shape, job.priority, job.retries, job.retry_delay_ms, job.spec, more)
        return self.scripts.call(
            "enqueue",
            env_blob=self.keys.env(env.digest),
            token=token,
            candidate=_candidate(),
            env_digest=env.digest,
            env=env.packed if with_env else b"",
            user=_text(user),
            sweep=filling,
            jobs=words,
        )

    def cancel_call(self, number: int, born: str, by: str, token: str) -> Call:
        """End a waiting job, or ask a running one to stop."""
        return self.scripts.call("cancel", token=token, number=number, born=born, by=_text(by))

    def requeue_call(self, number: int, born: str, by: str, token: str) -> Call:
        """Put a failed or cancelled job back into the queue."""
        return self.scripts.call("requeue", token=token, number=number, born=born, by=_text(by))

    def hold_call(self, number: int, born: str, by: str, token: str) -> Call:
        """Keep a waiting job from starting."""
        return self.scripts.call("hold", token=token, number=number, born=born, by=_text(by))

    def unhold_call(self, number: int, born: str, by: str, token: str) -> Call:
        """Let a held job take its place again."""
        return self.scripts.call("unhold", token=token, number=number, born=born, by=_text(by))

    def reprioritize_call(
        self, number: int, born: str, priority: int | None, by: str, token: str, *, front: bool = False
    ) -> Call:
        """Give a job another priority, or put it before all that is pending."""
        level = "" if priority is None else priority
        return self.scripts.call(
            "reprioritize", token=token, number=number, born=born, priority=level, front=int(front), by=_text(by)
        )

    def pause_call(self, scope: str, reason: str, by: str, token: str, *, requeue_running: bool = False) -> Call:
        """Start nothing of the namespace (``*``), of a group (``@name``) or on a device (its uuid)."""
        text = f"{by}: {reason}" if reason else by
        return self.scripts.call(
            "pause",
            token=token,
            scope=scope,
            text=_text(text),
            by=_text(by),
            why=_text(reason),
            requeue=int(requeue_running),
        )

    def resume_call(self, scope: str, by: str, token: str) -> Call:
        """Start again what was paused."""
        return self.scripts.call("resume", token=token, scope=scope, by=_text(by))

    def open_call(
        self,
        group: str,
        filling: str,
        total: int | None,
        by: str,
        token: str,
        *,
        max_concurrent: int = 0,
        max_fails: int = 0,
    ) -> Call:
        """Show a group that was filled in pieces; None as total gives it up."""
        return self.scripts.call(
            "open",
            token=token,
            group=group,
            sweep=filling,
            total="" if total is None else total,
            max_concurrent=max_concurrent or "",
            max_fails=max_fails or "",
            by=_text(by),
        )

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

    def import_call(
        self, file: str, by: str, step: str, last_number: int, last_tick: int, records: Sequence[Value]
    ) -> Call:
        """One step of putting a namespace back from a file; see ``import.lua``. Sent again it changes nothing more."""
        return self.scripts.call(
            "import",
            file=file,
            by=_text(by),
            candidate=_candidate(),
            step=step,
            last_number=last_number,
            last_known=last_tick,
            records=records,
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
        boot: str = "",
        declares: Sequence[int] = (),
        room: int = 0,
    ) -> Call:
        """Ask for the best job of the ``fitting`` shapes; see ``claim.lua`` for the answers.

        For a slot ``declares`` has the MiB of each shape (0: not now), and ``room`` those of the whole device.
        """
        return self.scripts.call(
            "claim",
            worker=worker,
            question=question,
            device=device,
            host=host,
            boot=boot,
            version=version,
            woken=",".join(woken),
            waits=int(waits),
            declares=",".join(map(str, declares)),
            room=room,
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

    def release_call(self, number: int, fence: str, reason: str, detail: str, delay_ms: int | None = None) -> Call:
        """The worker gives the job back: rank kept, attempt given back; it starts again after ``delay_ms``."""
        delay = "" if delay_ms is None else delay_ms
        return self.scripts.call(
            "release", number=number, fence=fence, reason=reason, detail=_text(detail), delay_ms=delay
        )

    def lose_call(self, number: int, fence: str, boot: str = "") -> Call:
        """The run lost its worker or runner, and its last process is gone. ``boot`` is that of the run's machine."""
        return self.scripts.call("lose", number=number, fence=fence, boot=boot)

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

    def register_call(
        self,
        worker: str,
        device: str,
        sequence: int,
        seen: bytes,
        host: str = "",
        boot: str = "",
        noted: Sequence[tuple[str, int | str, str]] = (),
    ) -> Call:
        """The worker lives and sees this; ``noted`` goes into the trail: event, job or "", text."""
        return self.scripts.call(
            "register",
            worker=worker,
            device=device,
            sequence=sequence,
            seen=seen,
            candidate=_candidate(),
            host=host,
            boot=boot,
            noted=[_text(word) if isinstance(word, str) else word for words in noted for word in words],
        )

    def withhold_call(
        self, device: str, word: str, kind: str, text: str, boot: str, worker: str, job: int = 0, token: str = ""
    ) -> Call:
        """Nobody gets the device: ``dirty`` or ``quarantined``, of kind memory, fault, ecc or failures."""
        return self.scripts.call(
            "withhold",
            token=token or new_token(),
            device=device,
            word=word,
            kind=kind,
            text=_text(" ".join(text.split())),
            boot=boot,
            worker=worker,
            number=job or "",
        )

    def clear_call(self, device: str, by: str, token: str, kind: str = "") -> Call:
        """A device that was withheld, for this kind or any, may be used again."""
        return self.scripts.call("clear", token=token, device=device, kind=kind, by=_text(by))

    def forget_call(self, device: str, by: str, token: str) -> Call:
        """A device that is not there any more leaves the lists."""
        return self.scripts.call("forget", token=token, device=device, by=_text(by))

    # --- leases without a job -------------------------------------------------------------------------------

    def lease_acquire_call(
        self,
        token: str,
        devices: Sequence[str],
        holder: str,
        *,
        priority: int = 5,
        version: str = "?",
        fitting: Sequence[str] = (),
        declares: int = 0,
        room: int = 0,
        waited_ms: int = 0,
        contended: int = 0,
    ) -> Call:
        """Grant these devices, all or none; see ``lease_acquire.lua`` for the answers."""
        return self.scripts.call(
            "lease_acquire",
            token=token,
            holder=_text(holder),
            devices=",".join(devices),
            priority=str(priority),
            waited_ms=str(waited_ms),
            contended=str(contended),
            declares=str(declares),
            room=str(room),
            candidate=_candidate(),
            version=version,
            fitting=list(fitting),
        )

    def lease_wait_call(
        self, token: str, devices: Sequence[str], holder: str, *, priority: int = 5, needs: int = 1
    ) -> Call:
        """Stand in the lines of these devices and of no others; ``needs`` 0: wait no more."""
        return self.scripts.call(
            "lease_wait",
            token=token,
            holder=_text(holder),
            devices=",".join(devices),
            priority=priority,
            needs=needs,
            candidate=_candidate(),
        )

    def lease_renew_call(self, token: str, fence: int | str, devices: Sequence[str], room: int = 0) -> Call:
        """The lease goes on; ``room`` is what the whole device of a slot has, MiB."""
        return self.scripts.call("lease_renew", token=token, fence=fence, devices=",".join(devices), room=room)

    def lease_release_call(self, token: str, fence: int | str, devices: Sequence[str]) -> Call:
        """The lease, or that of some of its devices, has ended."""
        return self.scripts.call("lease_release", token=token, fence=fence, devices=",".join(devices))

    def notice_call(self, limit: int) -> Call:
        """Take ended jobs whose end is to be told."""
        return self.scripts.call("notice", limit=limit)

    def told_call(self, number: int, born: str, ended_ms: int, worker: str) -> Call:
        """The end of a job, that of this moment, was told."""
        return self.scripts.call("told", number=number, born=born, ended=ended_ms, worker=worker)

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
