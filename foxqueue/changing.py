"""What can be done with a job that is there: one entry a change, for one job and for very many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from foxqueue.bindings import Bindings, new_token
from foxqueue.broker import CHUNK_JOBS, Broker
from foxqueue.errors import (
    FoxqueueError,
    NotCancelled,
    NotChanged,
    NotRequeued,
    QueueFull,
)
from foxqueue.inspector import Inspector
from foxqueue.job import JobView
from foxqueue.messages import Reply
from foxqueue.paging import BATCH
from foxqueue.replies import text, whole
from foxqueue.scripts import Call
from foxqueue.states import BLOCKED, CANCELLED, FAILED, PENDING, RUNNING, SCHEDULED, WAITING

CHILDREN_AT_ONCE = 1000

# number, enqueue tick, who asks, token
Binding = Callable[[Bindings, int, str, str, str], Call]


class Outcome(NamedTuple):
    """What became of one job: the script's word and what belongs to it."""

    number: int
    born: str
    word: str
    rest: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Change:
    """A change of jobs.

    Attributes:
        verb: what it does.
        done: what was then done, for sums.
        states: of the jobs that it can be done with.
        call: binds its script.
        error: raised when it was not done.
        words: that say that it was done.
        refusals: other words, and what they say of several jobs, for sums.
        late: of those, the words for a job to which something else happened first.
        held: for True only jobs that are held; for False those that are not, though it does no harm to the others.
    """

    verb: str
    done: str
    states: frozenset[str]
    call: Binding
    error: type[FoxqueueError] = NotChanged
    words: frozenset[str] = frozenset({"ok"})
    refusals: Mapping[str, str] = field(default_factory=dict)
    late: frozenset[str] = frozenset({"no", "missing", "stale"})
    held: bool | None = None

    def possible(self, job: JobView) -> bool:
        """Whether it can be done with a job as it is."""
        return job.state in self.states and not (self.held is True and job.held is None)

    def sensible(self, job: JobView) -> bool:
        """Whether it can be, and was not done before: such jobs filters choose."""
        return self.possible(job) and not (self.held is False and job.held is not None)

    def refused(self, job: JobView, outcome: Outcome) -> FoxqueueError:
        """The error of one job, read again after its refusal."""
        if outcome.word == "full":
            return queue_full(outcome, job.user)
        return self.error(f"job {job.number} cannot be {self.done}: {_why(self, job, outcome)}")


_GONE = {"missing": "are gone", "stale": "are gone"}

CANCEL = Change(
    verb="cancel",
    done="cancelled",
    states=WAITING | {RUNNING},
    call=Bindings.cancel_call,
    error=NotCancelled,
    words=frozenset({"ok", CANCELLED}),
    refusals={"succeeded": "had ended", "failed": "had ended", **_GONE},
    late=frozenset({"succeeded", "failed", "missing", "stale"}),
)
REQUEUE = Change(
    verb="requeue",
    done="requeued",
    states=frozenset({FAILED, CANCELLED}),
    call=Bindings.requeue_call,
    error=NotRequeued,
    refusals={
        "no": "were neither failed nor cancelled",
        "gone": "have lost their environment",
        "unreadable": "cannot be read",
        "full": "found the queue full",
        "exists": "have a unique key that another job has now",
        "never": "wait for what can never be met (requeue one alone to see what to do)",
        **_GONE,
    },
)
HOLD = Change(
    verb="hold",
    done="held",
    states=WAITING,
    call=Bindings.hold_call,
    refusals={"no": "do not wait any more", **_GONE},
    held=False,
)
UNHOLD = Change(
    verb="unhold",
    done="unheld",
    states=frozenset({BLOCKED}),
    call=Bindings.unhold_call,
    refusals={"no": "were not held", **_GONE},
    held=True,
)


def reprioritizing(priority: int | None, front: bool = False) -> Change:
    """The change to another priority, or to a place before everything that is pending now.

    Args:
        priority: 0 to 9; None leaves it.
        front: before all that is pending.
    """

    def bind(to: Bindings, number: int, born: str, by: str, token: str) -> Call:
        return to.reprioritize_call(number, born, priority, by, token, front=front)

    if front:
        states, no = frozenset({PENDING, SCHEDULED}), "are neither pending nor scheduled"
    else:
        states, no = WAITING | {RUNNING}, "had ended"
    return Change("reprioritize", "moved", states, bind, refusals={"no": no, **_GONE})


def queue_full(outcome: Outcome, user: str | None) -> QueueFull:
    """The error of the word ``full`` about a job of that user."""
    which, limit, current = outcome.rest
    whose = (user or "somebody") if which == b"user" else None
    return QueueFull(whole(limit), whole(current), whose, "try again later")


def _why(change: Change, job: JobView, outcome: Outcome) -> str:
    if change.error is NotRequeued:
        said = text(outcome.rest[0]) if outcome.rest else ""
        cure = "requeue that one with --cascade"
        if said.endswith((" is gone", " succeeded")):
            cure = "it can never run again as it is, submit it anew"
        return {
            "gone": "its environment is no longer kept: submit it again",
            "unreadable": "its record in Redis cannot be read: submit it again",
            "exists": f"its unique key is job {said}'s, which has not ended",
            "never": f"what it waits for can never be met, {said}: {cure}",
        }.get(outcome.word, f"it is {job.state}, not failed or cancelled")
    if change.held is True and job.waiting:
        return "it is not held"
    ended = {"succeeded": "had succeeded", "failed": "had failed", "cancelled": "was cancelled"}
    return f"it {ended.get(job.state, f'is {job.state}')}" + (" before" if job.ended else "")


def change_one(broker: Broker, change: Change, number: int, born: str, by: str) -> Outcome:
    """Change one job; see :meth:`foxqueue.broker.Broker.resend` for errors."""
    token = new_token()
    return _outcome(number, born, broker.resend(change.call(broker, number, born, by, token), token))


def change_many(broker: Broker, change: Change, jobs: Iterable[tuple[int, str]], by: str) -> Iterator[Outcome]:
    """Change jobs in this order, at most a hundred a round trip.

    Args:
        broker: of the namespace.
        change: what to do.
        jobs: number and enqueue tick of each.
        by: who asks.

    Raises:
        OutcomeUnknown, ServerUnavailable: see :meth:`foxqueue.broker.Broker.resend`; those before were told.
    """
    waiting = iter(jobs)
    while some := list(islice(waiting, CHUNK_JOBS)):
        tokens = [new_token() for _ in some]
        calls = [(change.call(broker, *job, by, token), token) for job, token in zip(some, tokens, strict=True)]
        for job, reply in zip(some, broker.resend_all(calls), strict=True):
            yield _outcome(*job, reply)


def _outcome(number: int, born: str, reply: Reply) -> Outcome:
    return Outcome(number, born, reply.word, reply.rest)


def cascade(broker: Broker, inspector: Inspector, parents: Iterable[int], by: str) -> Iterator[Outcome]:
    """Requeue what was cancelled because one of these jobs had failed, and what was because of that, and so on.

    It may be done again: what was requeued before leads on to what was not.

    Args:
        broker, inspector: of the namespace.
        parents: jobs that wait or run by now.
        by: who asks.
    """
    seen = set(parents)
    generation = sorted(seen)
    too_early: dict[int, Outcome] = {}  # another parent of theirs may still come back
    while generation:
        following: list[int] = []
        for children in _children(broker, generation):
            fresh = sorted(set(children) - seen)
            views = [view for view in _views(inspector, fresh) if view is not None]
            following += [view.number for view in views if view.waiting or view.running]
            lost = [view for view in views if view.state == CANCELLED and view.reason == "dependency_failed"]
            for outcome in change_many(broker, REQUEUE, ((view.number, view.born) for view in lost), by):
                too_early.pop(outcome.number, None)
                if outcome.word == "never":
                    too_early[outcome.number] = outcome
                    continue
                if outcome.word in REQUEUE.words:
                    following.append(outcome.number)
                yield outcome
            seen.update(set(fresh) - too_early.keys())
        generation = following
    yield from too_early.values()


def _views(inspector: Inspector, numbers: list[int]) -> Iterator[JobView | None]:
    for start in range(0, len(numbers), BATCH):
        yield from inspector.views(numbers[start : start + BATCH])


def _children(broker: Broker, parents: list[int]) -> Iterator[list[int]]:
    """Jobs that depend on these, some at a time."""
    for start in range(0, len(parents), BATCH):
        some, at = parents[start : start + BATCH], 0
        while some:
            keys = [broker.keys.dependents(number) for number in some]
            pages = broker.connection.answers(
                [("ZRANGE", key, at, at + CHILDREN_AT_ONCE - 1) for key in keys], "dependents"
            )
            yield [whole(child) for page in pages for child in page]
            some = [number for number, page in zip(some, pages, strict=True) if len(page) == CHILDREN_AT_ONCE]
            at += CHILDREN_AT_ONCE
