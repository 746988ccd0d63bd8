"""What applications use: submit jobs, follow them, look at devices.

from foxqueue import Client

fox = Client()
job = fox.submit(["python", "train.py"], priority="high", gpu_memory="8G")
job.wait()
print(job.state, job.logs().decode(errors="replace"))
print(fox.enqueue("package.module:function", args=(1,), kwargs={"lr": 0.1}).result())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from foxqueue.broker import Broker
from foxqueue.config import load_config
from foxqueue.errors import (
    InvalidInput,
    JobNotFound,
)
from foxqueue.following import Following
from foxqueue.handle import Job, same_job
from foxqueue.inspector import Inspector, Listing
from foxqueue.job import JobView
from foxqueue.putting import Putting
from foxqueue.replies import Piece, whole
from foxqueue.submission import Function, Options, Submission, Word, user

if TYPE_CHECKING:
    from redis import Redis

    from foxqueue.claiming import Claim, Claims
    from foxqueue.gpu import Device
    from foxqueue.selection import Selection
    from foxqueue.sweeping import Group

__all__ = ["Client", "Job"]


class Client:
    """One namespace on one server.

    Args:
        url: of the server; by default the configured one, else our own.
        namespace: name of the queue; the configured one by default.
        home: state directory; the configured one by default.

    Raises:
        InvalidInput: something configured or given is malformed.
        NoServer, ServerUnavailable, ServerRefused: no usable server.

    Attributes:
        config: what it works with.
        warnings: what the last submission, or requeue with its cascade, had to say, sentences for people.
    """

    def __init__(
        self, url: str | None = None, namespace: str | None = None, home: str | os.PathLike[str] | None = None
    ) -> None:
        self.config = load_config(url, namespace, home)
        self.broker = Broker.open(self.config)
        self.inspector = Inspector(self.broker)
        self.warnings: list[str] = []
        self._following = Following(self.broker, self.inspector)
        self._putting = Putting(self.broker, self.inspector, self._following)
        self._claims: Claims | None = None

    @property
    def redis(self) -> Redis:
        """The connection, for measurements. Replies are bytes."""
        return self.broker.redis

    def close(self) -> None:
        """Close all connections."""
        self.broker.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, argv: Sequence[Word], *, block: bool = False, **options: Unpack[Options]) -> Job:
        """Put a command into the queue.

        Args:
            argv: the command as a list, executed verbatim.
            block: where the queue is full, wait for room.
            options: see :class:`foxqueue.wishes.Options`; the defaults of ``foxqueue submit``.

        Returns:
            The job as it was accepted, or with ``if_exists="return"`` the one that has its unique key. ``warnings`` of
            this client says what is worth knowing.

        Raises:
            InvalidInput: something is malformed.
            Unsatisfiable: no registered device can ever meet it.
            QueueFull: there are as many unfinished jobs as there may be.
            JobExists: an unfinished job has its unique key.
            JobNotFound, JobGone: there is no such parent.
            OutcomeUnknown: no answer came; it may or may not be queued.
            ServerUnavailable: the server refuses it for now.
        """
        return self.put(self._putting.submitter.command(argv, options), block=block)

    def enqueue(
        self,
        function: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        block: bool = False,
        **options: Unpack[Options],
    ) -> Job:
        """Put a Python call into the queue; :meth:`Job.result` waits for what it returns.

        It runs in a process of its own, under this process's interpreter where the worker's machine has it, with the
        job's directory on sys.path. A function of the script that runs now is found by the script's path.

        Args:
            function: its name like ``package.module:function``, or itself where it has such a name.
            args: positional arguments: plain data and NumPy arrays, see :mod:`foxqueue.payload`; 1 MiB at most.
            kwargs: arguments by name.
            block, options: as of :meth:`submit`.

        Raises:
            InvalidInput: the function cannot be found by its name, an argument cannot be packed, or as of submit.
            Others as of submit.
        """
        return self.put(self._putting.submitter.call(function, args, kwargs, options), block=block)

    def put(self, submission: Submission, *, block: bool = False) -> Job:
        """Put a checked request into the queue; see :meth:`submit`."""
        return self._putting.one(self, submission, block)

    def submit_many(
        self, requests: Iterable[Mapping[str, Any]], progress: Callable[[int, int], None] | None = None
    ) -> list[Job]:
        """Put many jobs into the queue, in the order given.

        All are checked before anything is sent. They go in chunks, each of which is accepted as a whole or not at all.

        Args:
            requests: each ``{"argv": […]}`` or ``{"function": …, "args": …, "kwargs": …}``, with the options of
                :meth:`submit` beside it.
            progress: called after each chunk with how many are accepted and how many there are in all. What it
                raises ends the submission.

        Returns:
            The jobs as they were accepted.

        Raises:
            InvalidInput, Unsatisfiable: of one request; the text begins with its place. Nothing was sent.
            JobNotFound, JobGone: there is no such parent; the text begins likewise. Nothing was sent.
            PartlySubmitted: a chunk was refused, or it is not known whether it was accepted. It has the jobs of the
                chunks before.
        """
        return self._putting.many(self, requests, progress)

    def sweep(
        self,
        argv: Sequence[Word],
        params: Mapping[str, Iterable[Any]] | None = None,
        rows: Iterable[Mapping[str, Any]] | None = None,
        *,
        max_concurrent: int | None = None,
        max_fails: int | None = None,
        name_template: str | None = None,
        max_runs: int = 100_000,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[Options],
    ) -> Group:
        """Put one command into the queue with many parameters: the whole sweep appears at once, or nothing of it.

        fox.sweep(["python", "train.py", "--lr", "{lr}"], {"lr": [0.1, 0.01]}).wait()

        Args:
            argv: the command. In its words ``{name}`` stands for a parameter, and ``{{name}}`` for the text ``{name}``.
            params: names and lists of values: every combination is a run.
            rows: names and values of each run, all with the same names; with ``params``, each row with every
                combination. Values are text, or become text by ``str``.
            max_concurrent, max_fails: how many may run at once; failures in a row, for one reason, that pause it.
            name_template: for the names of the runs, like the command.
            max_runs: how many it may have; over that it is refused.
            progress: called after each piece with how many runs are in and how many there are in all.
            options: of every run, as of :meth:`submit`. ``group`` is the sweep's name, ``sweep-<UTC>-<4 hex>`` by
                default. The parameters become tags.

        Raises:
            InvalidInput: something is malformed; of one run, the text begins with its place and parameters.
            GroupExists: there is a group of that name.
            Unsatisfiable, QueueFull, JobNotFound, JobGone, ServerUnavailable: as of :meth:`submit`; nothing is queued.
            OutcomeUnknown: the last step had no answer; a note of the error says what is in the queue.
        """
        from foxqueue.sweeping import sweep  # as what follows, not needed by most

        return sweep(
            self,
            argv,
            params,
            rows,
            max_concurrent=max_concurrent,
            max_fails=max_fails,
            name_template=name_template,
            max_runs=max_runs,
            progress=progress,
            **options,
        )

    def claim(
        self,
        device: str | int | Device,
        *,
        simulate: str | None = None,
        cpu: int = 0,
        timeout: float | str | None = None,
    ) -> Claim:
        """A job for a device, in this process: ``with fox.claim("gpu:0", timeout=60) as run:``.

        Args:
            device: ``gpu:0``, ``sim:0``, ``cpu:0``, an index, a UUID, or a device itself.
            simulate: simulated GPUs in place of real ones, like ``1x24G``.
            cpu: how many CPU slots this machine has.
            timeout: seconds, or text like ``30m``, to wait for a job, None for as long as it takes; when they are
                over, ``run`` is None.

        Raises:
            InvalidInput: one of them is malformed.
            NoDevice: there is no such device.
            DeviceHeld: at the entrance: a foxqueue worker serves the device.
            LeaseLost: on leaving: the job was another's before it was completed.
        """
        if self._claims is None:
            from foxqueue.claiming import Claims

            self._claims = Claims(self.broker, self.config)
        return self._claims.claim(device, simulate=simulate, cpu=cpu, timeout=timeout)

    def pause(
        self, reason: str = "", *, group: str | None = None, device: str | None = None, requeue_running: bool = False
    ) -> bool:
        """Let nothing start any more: of the whole queue, of a group or on a device. See :mod:`foxqueue.pausing`.

        Args:
            reason: for people, one line.
            group: its name.
            device: its UUID, or as ``foxqueue gpus`` shows it.
            requeue_running: end what runs there; those jobs wait again, and the attempt is not counted.

        Returns:
            False when it was paused with these words before.

        Raises:
            InvalidInput: both a group and a device are given, one is no text, or the reason is no line.
            GroupNotFound, NoDevice: there is none.
        """
        from foxqueue.pausing import pause, scope_of

        scope = scope_of(self.inspector, group, device)
        return pause(self.broker, self.inspector, scope, reason, requeue_running=requeue_running)[0]

    def resume(self, *, group: str | None = None, device: str | None = None) -> bool:
        """Let jobs start again; False when nothing was paused. Arguments and errors as of :meth:`pause`."""
        from foxqueue.pausing import resume, scope_of

        return resume(self.broker, scope_of(self.inspector, group, device))

    def job(self, number: int | None = None, *, key: str | None = None) -> Job:
        """The job with this number, or the newest that was submitted with this unique key.

        Raises:
            JobNotFound: there is none.
        """
        if (number is None) == (key is None):
            raise InvalidInput("give the number of a job, or key=, the unique key that it was submitted with")
        if key is not None:
            if not isinstance(key, str):
                raise InvalidInput(f"unique key {key!r:.60} is no text")
            number = whole(self.broker.connection.answer(("HGET", self.broker.keys.unique, key), "unique") or b"")
            if not number:
                raise JobNotFound(f"there is no job with the unique key {key!r}")
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidInput(f"job {number!r} is not a number of a job: give a positive whole number")
        return Job(self, self.inspector.job(number))

    def last(self) -> Job:
        """The newest job that this user submitted.

        Raises:
            JobNotFound: there is none, or only very old ones.
        """
        from foxqueue.selection import last_of

        return self.job(last_of(self.broker, self.inspector, user()))

    def listing(self, selection: Selection | None = None, limit: int = 50) -> Listing:
        """As :meth:`jobs`, of a selection by filters, with how many there are in all."""
        from foxqueue.selection import Selection, select

        selection = select() if selection is None else selection
        if not isinstance(selection, Selection):
            raise InvalidInput(f"{selection!r:.60} is no selection: give what foxqueue.selection.select returns")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidInput(f"limit {limit!r} is not possible: give a whole number above 0")
        return self.inspector.jobs(selection.states, selection.match(), limit, group=selection.group)

    def jobs(
        self,
        state: str | Collection[str] | None = None,
        name: str | None = None,
        mine: bool = False,
        limit: int = 50,
        *,
        tags: Mapping[str, str | None] | None = None,
        group: str | None = None,
    ) -> list[Job]:
        """List jobs: pending in the order in which they would run, then others that wait, running, and ended, newest
        first.

        Args:
            state: one or several words; all by default.
            name: pattern with ``*`` and ``?``, matched with case.
            mine: only those submitted by this user.
            limit: how many at most.
            tags: only those that have all of these, None for any value.
            group: only those of this group.

        Raises:
            InvalidInput: one of them is malformed.
            GroupNotFound: there is no such group.
        """
        from foxqueue.selection import select

        states = () if state is None else state
        selection = select(states=states, name=name, tags=tags, group=group, user=user() if mine else None)
        return [Job(self, view) for view in self.listing(selection, limit).jobs]

    def gpus(self) -> list[dict[str, Any]]:
        """All registered devices, CPU slots and those without a worker too."""
        return self.inspector.gpus()

    def workers(self) -> list[dict[str, Any]]:
        """The live workers, one a device."""
        return self.inspector.workers()

    def stats(self) -> dict[str, Any]:
        """Figures of the queue; ages in seconds."""
        return self.inspector.stats()

    def wait(
        self,
        jobs: Job | Iterable[Job],
        timeout: float | str | None = None,
        on_end: Callable[[Job], None] | None = None,
    ) -> None:
        """Wait until all these jobs have ended.

        Args:
            jobs: one or several; they are refreshed as they end.
            timeout: seconds, or text like ``30m``; None for as long as it takes.
            on_end: called with each job when it is found ended.

        Raises:
            InvalidInput: one is no job, or no such time.
            WaitTimeout: the time is over.
            JobNotFound, JobGone: the server lost one.
        """
        self._following.wait(jobs, timeout, on_end)

    def look(self) -> None:
        """Help the queue along, as every client does: due jobs start, overdue leases end.

        Raises:
            ServerUnavailable, ServerRefused: no answer. That the data are damaged is told once and stops nobody from
                reading them.
        """
        self._following.look()

    def pieces(self, job: Job) -> Iterator[Piece]:
        """Output of a job as it comes, over all its attempts, until it has ended. See :meth:`Job.follow`."""
        return self._following.pieces(job)

    def current(self, number: int, born: str) -> JobView:
        """The job as it is now, if the number is still its own."""
        return same_job(self.inspector.job(number), number, born)
