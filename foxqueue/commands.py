"""What users ask of the queue, sent until there is an answer."""

from __future__ import annotations

from collections.abc import Sequence

from foxqueue.bindings import new_token
from foxqueue.connection import Connection
from foxqueue.errors import (
    FoxqueueError,
    GroupExists,
    InvalidInput,
    JobExists,
    JobGone,
    JobNotFound,
    QueueFull,
    ServerRefused,
    ServerUnavailable,
)
from foxqueue.messages import Environment, NewJob, Reply
from foxqueue.replies import text
from foxqueue.sender import Sender

CHUNK_JOBS = 100  # enqueued in one step: some 1.5 ms of the server's time
CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_PARENTS = 1000  # that jobs of one step may wait for in all


class Commands(Sender):
    """Users' commands.

    Args:
        connection: where to send.
        namespace: name of the queue.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        super().__init__(connection, namespace)
        self._kept: set[str] = set()  # digests of environments that this process has sent

    def enqueue(self, job: NewJob, env: Environment, token: str | None = None, *, user: str = "") -> tuple[int, str]:
        """Put a job into the queue; see :meth:`enqueue_many`."""
        return self.enqueue_many([job], env, token, user=user)[0]

    def enqueue_many(
        self,
        jobs: Sequence[NewJob],
        env: Environment,
        token: str | None = None,
        *,
        user: str = "",
        filling: str = "",
    ) -> list[tuple[int, str]]:
        """Put jobs into the queue in this order, all of them or none, in one step.

        Args:
            jobs: at most CHUNK_JOBS, whose specs have at most CHUNK_BYTES together unless it is one.
            env: their environment.
            token: of an earlier request that had no answer, to send it again.
            user: who submits.
            filling: id of the sweep whose group this is a piece of: nobody sees it before :meth:`open_group`.

        Returns:
            Number and enqueue tick of each.

        Raises:
            OutcomeUnknown, ServerUnavailable: see :meth:`resend`; there are too many shapes.
            QueueFull: a limit on unfinished jobs is reached.
            JobExists: an unfinished job has the unique key.
            JobNotFound, JobGone: there is no such parent, or its number is another job's by now.
            GroupExists: another sweep has the group's name.
            ServerRefused: a newer foxqueue has changed the data since this one began.
            InvalidInput: no jobs, or too many for one step.
        """
        if not 0 < len(jobs) <= CHUNK_JOBS or (len(jobs) > 1 and sum(len(job.spec) for job in jobs) > CHUNK_BYTES):
            raise InvalidInput(f"{len(jobs)} jobs cannot be enqueued in one step: give 1 to {CHUNK_JOBS}, 4 MiB in all")
        token = token or new_token()

        def ask(with_env: bool) -> Reply:
            call = self.enqueue_call(jobs, env, token, with_env=with_env, user=user, filling=filling)
            return self.resend(call, token)

        reply = ask(env.digest not in self._kept)
        if reply.word == "missing":  # it was sent once, and the server has lost it since
            reply = ask(True)
        if reply.word != "ok":
            raise self._refusal(reply, user, jobs[0].more, filling)
        self._kept.add(env.digest)
        first, born = map(int, reply.rest)
        return [(first + at, str(born + at)) for at in range(len(jobs))]

    def _refusal(self, reply: Reply, user: str, more: str, filling: str) -> FoxqueueError:
        """The error that an answer of enqueue means, other than ``ok``."""
        said = [text(part) for part in reply.rest]
        match reply.word:
            case "full":
                which, limit, current = said
                if which == "shapes":
                    return ServerUnavailable(
                        f"there are pending jobs of {int(limit):,} different requirements: try later", definite=True
                    )
                return QueueFull(int(limit), int(current), user if which == "user" else None)
            case "exists":
                key = next((line[7:] for line in more.split("\n") if line.startswith("unique=")), "")
                return JobExists(int(said[0]), said[1], key)
            case "unknown":
                return JobNotFound(f"there is no job {said[0]} to wait for: look with foxqueue ls")
            case "stale":
                return JobGone(
                    f"job {said[0]} is another job by now: the server lost data and gave the number out again"
                )
            case "taken" if filling:
                return GroupExists(said[0])
            case "taken":
                return ServerUnavailable(
                    f"a sweep is being submitted as group {said[0]!r}: try again when it is there", definite=True
                )
        return ServerRefused(
            f"namespace {self.keys.namespace!r} was changed by a newer foxqueue ({reply.word}): upgrade this machine",
            cure="pip install --upgrade foxqueue",
        )

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
        token = token or new_token()
        return self.resend(self.cancel_call(number, born, by, token), token).word

    def requeue(self, number: int, born: str, by: str, token: str | None = None) -> Reply:
        """Put a failed or cancelled job back into the queue: its attempts and losses are counted anew.

        Args:
            number: of the job.
            born: its enqueue tick, or "" for whatever has the number.
            by: who asks.
            token: of an earlier request that had no answer.

        Returns:
            ``ok``, ``no`` (it is neither failed nor cancelled), ``gone`` (its environment is no longer kept),
            ``unreadable`` (its record is malformed), ``missing``, ``stale`` (the number is another job's), ``exists``
            and the unfinished job that has its unique key, ``never`` and why what it depends on cannot be met, or
            ``full`` and which limit: ``queue`` or ``user``, limit, current.
        """
        token = token or new_token()
        return self.resend(self.requeue_call(number, born, by, token), token)

    def hold(self, number: int, born: str, by: str, token: str | None = None) -> str:
        """Keep a waiting job from starting.

        Returns:
            ``ok``, ``no`` (it runs or has ended), ``missing``, or ``stale`` (the number is another job's).
        """
        token = token or new_token()
        return self.resend(self.hold_call(number, born, by, token), token).word

    def unhold(self, number: int, born: str, by: str, token: str | None = None) -> str:
        """Let a held job take its place again.

        Returns:
            ``ok``, ``no`` (it is not held), ``missing``, or ``stale`` (the number is another job's).
        """
        token = token or new_token()
        return self.resend(self.unhold_call(number, born, by, token), token).word

    def reprioritize(
        self, number: int, born: str, priority: int | None, by: str, token: str | None = None, *, front: bool = False
    ) -> str:
        """Give a job another priority (None leaves it), or put it before all that is pending now.

        Returns:
            ``ok``, ``no`` (it has ended, or cannot go to the front because it is neither pending nor scheduled),
            ``missing``, or ``stale`` (the number is another job's).
        """
        token = token or new_token()
        return self.resend(self.reprioritize_call(number, born, priority, by, token, front=front), token).word

    def pause(
        self, scope: str, reason: str, by: str, token: str | None = None, *, requeue_running: bool = False
    ) -> tuple[str, int]:
        """Start nothing more; what runs goes on, or is given back.

        Args:
            scope: ``*`` for the namespace, ``@<group>``, or the uuid of a device.
            reason: for people; may be empty.
            by: who asks.
            token: of an earlier request that had no answer.
            requeue_running: runs are ended and wait again, their attempt not counted.

        Returns:
            ``ok``, ``no`` (it was so already) or ``missing`` (no such group or device); and how many runs were asked to
            end.
        """
        token = token or new_token()
        reply = self.resend(self.pause_call(scope, reason, by, token, requeue_running=requeue_running), token)
        return reply.word, int(reply.rest[0] or 0)

    def resume(self, scope: str, by: str, token: str | None = None) -> str:
        """Start again what was paused.

        Returns:
            ``ok``, ``no`` (it was not paused), or ``missing`` (no such group or device).
        """
        token = token or new_token()
        return self.resend(self.resume_call(scope, by, token), token).word

    def open_group(
        self, group: str, filling: str, total: int, max_concurrent: int = 0, max_fails: int = 0, by: str = ""
    ) -> str:
        """Show a group that was filled in pieces, as a whole.

        Args:
            group: its name.
            filling: id of the sweep that filled it.
            total: how many jobs there must be.
            max_concurrent: of its jobs that may run at once; 0 for no limit.
            max_fails: failures in a row, for one reason, after which it is paused; 0 for no limit.
            by: who asks.

        Returns:
            ``ok``, or ``no``: it is not being filled by this sweep any more, or not all are in it.
        """
        token = new_token()
        call = self.open_call(group, filling, total, by, token, max_concurrent=max_concurrent, max_fails=max_fails)
        return self.resend(call, token).word

    def give_up_group(self, group: str, filling: str, by: str = "") -> str:
        """Take back a group that is being filled: its jobs were never seen, and go.

        Returns:
            ``ok``, or ``no``: it is not being filled by this sweep.
        """
        token = new_token()
        return self.resend(self.open_call(group, filling, None, by, token), token).word

    def force_release(self, device: str, by: str, token: str | None = None) -> tuple[str, int | None]:
        """Take a device from the job that runs on it, which ends as lease_lost, or from the holder of its lease.

        Args:
            device: uuid.
            by: who asks.
            token: of an earlier request that had no answer.

        Returns:
            ``ok`` and the job (None for a lease), or ``no`` and None when nobody has it.
        """
        token = token or new_token()
        reply = self.resend(self.force_release_call(device, by, token), token)
        return reply.word, int(reply.rest[0]) if reply.rest[0] else None

    def clear(self, device: str, by: str, token: str | None = None) -> str:
        """Let a device be used again that was dirty or quarantined.

        Returns:
            ``ok``, or ``no``: it was not withheld.
        """
        token = token or new_token()
        return self.resend(self.clear_call(device, by, token), token).word

    def forget(self, device: str, by: str, token: str | None = None) -> tuple[str, str]:
        """Take a device from the lists that is not there any more.

        Returns:
            ``ok``, ``missing``, or ``no`` and why: ``live`` (its worker was heard of lately) or ``granted``.
        """
        token = token or new_token()
        reply = self.resend(self.forget_call(device, by, token), token)
        return reply.word, reply.rest[0].decode() if reply.rest else ""
