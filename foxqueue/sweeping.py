"""Sweeps: many runs of one command, put into the queue in pieces and seen as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from foxqueue.bindings import new_token
from foxqueue.broker import Broker
from foxqueue.changing import CANCEL, change_many
from foxqueue.chunking import chunks
from foxqueue.errors import (
    FoxqueueError,
    GroupExists,
    InvalidInput,
    OutcomeUnknown,
    QueueFull,
    ServerError,
    ServerUnavailable,
)
from foxqueue.grid import Plan, Run, of_params, of_rows
from foxqueue.handle import Job
from foxqueue.job import JobView
from foxqueue.judging import Judge, sentences
from foxqueue.requirement import in_group
from foxqueue.states import CANCELLED
from foxqueue.submission import Options, Submission, Submitter, Word, user
from foxqueue.submission import command as checked

if TYPE_CHECKING:
    from foxqueue.client import Client

MAX_RUNS = 100_000  # more are refused unless that is allowed for
MAX_LIMIT = 1_000_000  # of max_concurrent and max_fails

_SHOWN = 80  # characters of a run's parameters in a message


class Request(NamedTuple):
    """A sweep that was checked, every run of it.

    Attributes:
        plan: its runs.
        options: of every run, with the group.
        group: its name.
        first: its first run as a submission; what all have in common is the same in each.
        max_concurrent: how many may run at once, 0 for no limit.
        max_fails: after how many failures in a row for one reason it is paused, 0 for never.
    """

    plan: Plan
    options: Mapping[str, Any]
    group: str
    first: Submission
    max_concurrent: int
    max_fails: int


def command(argv: Sequence[Word]) -> list[str]:
    """A sweep's command as a list of text, checked."""
    if isinstance(argv, list | tuple) and not argv:
        raise InvalidInput(
            "empty command: write it after --, like foxqueue sweep --param lr=1e-3,1e-4 -- python train.py --lr {lr}"
        )
    return checked(argv)


def sweep(
    client: Client,
    argv: Sequence[Word],
    params: Mapping[str, Iterable[Any]] | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
    *,
    max_concurrent: int | None = None,
    max_fails: int | None = None,
    name_template: str | None = None,
    max_runs: int = MAX_RUNS,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[Options],
) -> Group:
    """Put a sweep into the queue; see :meth:`foxqueue.client.Client.sweep`."""
    if not isinstance(name_template, str | None):
        raise InvalidInput(f"name_template {name_template!r:.60} is no text: give some, like 'lr-{{lr}}'")
    if progress is not None and not callable(progress):
        raise InvalidInput(f"progress {progress!r:.60} cannot be called: give a function of two numbers")
    axes = [*(of_params(params) if params is not None else []), *(of_rows(rows) if rows is not None else [])]
    plan = Plan(command(argv), axes, name_template)
    request = prepare(plan, options, max_concurrent=max_concurrent, max_fails=max_fails, max_runs=max_runs)
    return send(client, request, progress)


def prepare(
    plan: Plan,
    options: Mapping[str, Any],
    *,
    max_concurrent: int | None = None,
    max_fails: int | None = None,
    max_runs: int = MAX_RUNS,
) -> Request:
    """Check a sweep and each of its runs. Nothing is sent.

    Args:
        plan: its runs.
        options: of every run, see :class:`foxqueue.wishes.Options`; ``group`` is its name, a new one by default.
        max_concurrent: how many may run at once.
        max_fails: after how many failures in a row for one reason it is paused.
        max_runs: how many it may have.

    Raises:
        InvalidInput: something is malformed; of one run, the text begins with its place and parameters.
    """
    if isinstance(max_runs, bool) or not isinstance(max_runs, int):
        raise InvalidInput(f"max_runs {max_runs!r} is not possible: give a whole number")
    if plan.total > max_runs:
        raise InvalidInput(
            f"a sweep of {plan.total:,} runs is large, and over {max_runs:,} are refused: allow it with --yes "
            "(max_runs= in Python), or give fewer values"
        )
    group = options.get("group")
    group = _new_name() if group is None else group
    options = {**options, "group": group}
    _check(plan, options)
    limits = [_limit(max_concurrent, "max_concurrent"), _limit(max_fails, "max_fails")]
    submitter = Submitter(os.environ)
    submitter.command(["true"], options)  # what is wrong with every run is no matter of the first one
    first: Submission | None = None
    for submission in _submissions(plan, options, submitter):
        first = first or submission
    assert first is not None, "a plan has one run at least"
    return Request(plan, options, group, first, *limits)


def _new_name() -> str:
    return f"sweep-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def _check(plan: Plan, options: Mapping[str, Any]) -> None:
    if not isinstance(options["group"], str):
        raise InvalidInput(f"the group {options['group']!r:.60} is no text: give a name, like lr-sweep")
    in_group("", options["group"])
    if options.get("unique") is not None or options.get("if_exists") is not None:
        raise InvalidInput("a unique key is one job's, and a sweep has many: leave unique and if_exists out")
    if options.get("name") is not None and plan.names_runs:
        raise InvalidInput("a name and a template for names were given: leave one out")
    tags, title = options.get("tags"), options.get("name")
    for name in plan.names:
        if isinstance(title, str) and f"{{{name}}}" in title:
            raise InvalidInput(
                f"the name {title!r:.60} holds {{{name}}}, and a name is one text for all runs: give it as "
                "--name-template (name_template=)"
            )
        if isinstance(tags, Mapping) and name in tags:
            raise InvalidInput(f"{name!r} is a parameter, and so a tag of each run: leave the tag {name} out")


def _limit(given: Any, what: str) -> int:
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_LIMIT:
        raise InvalidInput(f"{what} {given!r} is not possible: give 1 to {MAX_LIMIT:,}, or leave it out for no limit")
    return given


def _submissions(plan: Plan, options: Mapping[str, Any], submitter: Submitter) -> Iterator[Submission]:
    """The runs, checked, one by one."""
    tags = options.get("tags") or {}
    for at, run in enumerate(plan.runs(), 1):
        own = {**options, "tags": {**tags, **run.values}}
        if run.name is not None:
            own["name"] = run.name
        try:
            submission = submitter.command(run.argv, own)
        except InvalidInput as error:
            raise InvalidInput(f"run {at:,} ({_described(run)}): {error}") from error
        yield submission


def _described(run: Run) -> str:
    """A run's parameters, for a message."""
    text = ", ".join(f"{name}={value}" for name, value in run.values.items())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- into the queue ----------------------------------------------------------------------------------------


def send(client: Client, request: Request, progress: Callable[[int, int], None] | None = None) -> Group:
    """Put a checked sweep into the queue; see :meth:`foxqueue.client.Client.sweep`."""
    judge = Judge(client.broker, client.inspector)
    said = judge.warnings(request.first.wishes)
    filling = _Filling(client.broker, request)
    try:
        filling.fill(judge.priority(request.first.wishes), progress)
        filling.open()
    except BaseException as error:
        note = filling.give_up()
        error.add_note("the sweep was not submitted" if isinstance(error, GroupExists) else note)
        if isinstance(error, QueueFull):
            raise _no_room(error, request) from error
        raise
    group = Group(client, request.group, request.plan.total, tuple(filling.numbers))
    client.warnings = sentences((*said, *_never_runs(client, group, request.first)), request.first.left_out)
    return group


def _no_room(error: QueueFull, request: Request) -> QueueFull:
    """The same error with what to do about a sweep."""
    cure = f"the sweep has {request.plan.total:,} runs and needs room for all: try later, or give fewer values"
    full = QueueFull(error.limit, error.current, error.whose, cure)
    for note in getattr(error, "__notes__", ()):
        full.add_note(note)
    return full


def _never_runs(client: Client, group: Group, first: Submission) -> tuple[str, ...]:
    """What is said of a sweep that can never run, as a parent ended in the wrong way. All runs have the same ones."""
    if "after=" not in first.more:
        return ()
    view = None
    with contextlib.suppress(ServerError):  # it is in the queue, whatever becomes of the server
        client.look()  # parents that had ended before are judged then
        view = client.inspector.views([group.numbers[0][0]])[0]
    if view is None or view.state != CANCELLED:
        return ()
    return (f"group {group.name} can never run, all its jobs are cancelled ({view.reason}): {view.detail}",)


class _Filling:
    """A group that is filled, unseen, under a name that nobody else has.

    Attributes:
        numbers: of its jobs so far.
    """

    def __init__(self, broker: Broker, request: Request) -> None:
        self.numbers: list[range] = []
        self._broker = broker
        self._request = request
        self._name = secrets.token_hex(8)
        self._opening = False

    def fill(self, priority: int, progress: Callable[[int, int], None] | None) -> None:
        """Enqueue all runs."""
        plan, options, group = self._request[:3]
        done = 0
        submissions = _submissions(plan, options, Submitter(os.environ))
        for chunk, first in chunks((submission.job(priority), submission) for submission in submissions):
            try:
                accepted = self._broker.enqueue_many(chunk, first.environment, user=user(), filling=self._name)
            except OutcomeUnknown as error:
                raise ServerUnavailable(
                    f"the server is gone, in the midst of the sweep {group} ({error.__cause__})", definite=True
                ) from error
            self._note(accepted[0][0], len(accepted))
            done += len(accepted)
            if progress:
                progress(done, plan.total)

    def open(self) -> None:
        """Show them, all at once."""
        request = self._request
        self._opening = True
        word = self._broker.open_group(
            request.group, self._name, request.plan.total, request.max_concurrent, request.max_fails, user()
        )
        if word != "ok":
            self._opening = False
            raise ServerUnavailable(
                f"the server has given up {request.group}, of which it had not heard for long: try again", definite=True
            )

    def give_up(self) -> str:
        """Take back what is there, if the server can be reached, and say what is in the queue."""
        group = self._request.group
        try:  # once: where nobody answers, a minute was waited for that already
            word = self._broker.send(self._broker.open_call(group, self._name, None, user(), new_token()))[0].word
        except (FoxqueueError, KeyboardInterrupt):
            doubt = ", unless its last step was done and foxqueue groups shows it" if self._opening else ""
            return f"nothing of {group} is in the queue{doubt}: the server forgets its parts within some ten minutes"
        if word == "no" and self._opening:
            return f"all of {group} is in the queue: foxqueue cancel --group {group} takes it out"
        return f"nothing of {group} is in the queue"

    def _note(self, first: int, count: int) -> None:
        """Keep numbers that were given out; those of other submitters may lie between two chunks."""
        if self.numbers and self.numbers[-1].stop == first:
            self.numbers[-1] = range(self.numbers[-1].start, first + count)
        else:
            self.numbers.append(range(first, first + count))


class Group:
    """The jobs of one sweep, in the queue.

    Attributes:
        name: of the group.
        total: how many jobs it had when it was put into the queue.
        numbers: theirs, in the order of the runs.
    """

    def __init__(self, client: Client, name: str, total: int, numbers: tuple[range, ...]) -> None:
        self._client = client
        self.name = name
        self.total = total
        self.numbers = numbers

    def __repr__(self) -> str:
        return f"<Group {self.name}: {self.total:,} jobs>"

    def jobs(self) -> list[Job]:
        """Its jobs as they are now, by number; those that were purged are left out.

        Raises:
            GroupNotFound: all of it was purged.
            ServerUnavailable, ServerRefused: no answer.
        """
        return [Job(self._client, view) for view in self._views()]

    def _views(self, states: Collection[str] = ()) -> Iterator[JobView]:
        return self._client.inspector.every(states, group=self.name)

    def wait(self, timeout: float | None = None) -> Group:
        """Wait until all its jobs have ended, however they ended.

        Args:
            timeout: seconds, None for as long as it takes.

        Raises:
            WaitTimeout: the time is over.
            GroupNotFound: all of it was purged.
        """
        self._client.wait(self.jobs(), timeout)
        return self

    def cancel(self) -> int:
        """Cancel its jobs: waiting ones end at once, running ones are asked to stop.

        Returns:
            How many have been cancelled or asked to stop.

        Raises:
            OutcomeUnknown, ServerUnavailable: no answer; it may be done again.
            GroupNotFound: all of it was purged.
        """
        jobs = ((view.number, view.born) for view in self._views(CANCEL.states))
        outcomes = change_many(self._client.broker, CANCEL, jobs, user())
        return sum(outcome.word in CANCEL.words for outcome in outcomes)
