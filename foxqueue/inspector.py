"""Questions that change nothing: jobs, groups, devices, workers, statistics, output.

Everything is pipelined and bounded. Nothing walks the key space: jobs are found through the sets of their
states, so a listing sees what the scripts see.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from foxqueue import statistics, waiting
from foxqueue.broker import Broker
from foxqueue.devices import SeenDevice
from foxqueue.errors import GroupNotFound, JobNotFound
from foxqueue.fleet import Fleet, Seen
from foxqueue.groups import GroupView
from foxqueue.job import FIELDS, JobView, ended_runs, open_parents, view
from foxqueue.lines import Lines, read_groups
from foxqueue.paging import BATCH, Reader, chunks
from foxqueue.replies import Piece, fields, read_pieces, text
from foxqueue.states import BLOCKED, CANCELLED, ENDED, FAILED, PENDING, RUNNING, SCHEDULED, STATES, SUCCEEDED
from foxqueue.trail import BLOCK_S, News, Trail

LOOKED_AT_MOST = 20_000  # jobs that one filtered listing reads before it says that there may be more
STATES_AT_ONCE = 1000  # jobs whose state alone is read in one round trip
ASKED_ALONE = 20  # jobs whose places are counted one by one; over that the lines are read
LOG_ENTRIES = 10_000

__all__ = ["BATCH", "BLOCK_S", "LOOKED_AT_MOST", "Inspector", "Listing", "News", "Seen"]

Match = Callable[[JobView], bool]


@dataclass(frozen=True)
class Listing:
    """Some jobs in the order of a listing.

    Attributes:
        jobs: pending ones in the order in which they would run, scheduled, blocked, running, then ended, newest first.
        counts: how many stand in each set: pending, scheduled, blocked, running, finished, failed.
        complete: False when the search stopped at its bound before ``limit`` matches were found.
        paused: by whom and why the namespace (``*``) and devices are paused.
    """

    jobs: list[JobView]
    counts: dict[str, int]
    complete: bool
    paused: Mapping[str, str] = field(default_factory=dict)


class Inspector:
    """Read-only questions to one namespace."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._keys = broker.keys
        self._reader = Reader(broker)
        self.trail = Trail(self._reader)
        self.fleet = Fleet(self._reader)

    # Jobs

    def job(self, number: int) -> JobView:
        """One job, with the reason it waits and its history.

        Raises:
            JobNotFound: no job has that number.
        """
        more = [("HGETALL", self._keys.blocked_by(number)), ("LRANGE", self._keys.history(number), 0, -1)]
        edges, runs, *answers = self._reader.ask([*more, *self._commands(number)])
        found = _view(number, answers)
        if found is None:
            raise JobNotFound(f"there is no job {number}")
        found = replace(found, blocked_by=open_parents(fields(edges)), history=ended_runs(runs or []))
        if not found.waiting:
            return found
        lines = self.lines()
        if found.group in lines.unseen:
            raise JobNotFound(f"there is no job {number} yet: the sweep that it belongs to is still being submitted")
        ahead = lines.ahead(found) if found.state == PENDING else 0
        return _explain(found, self.seen(), lines, ahead)

    def explained(self, jobs: Sequence[JobView]) -> list[JobView]:
        """The same jobs, those that wait with the reason."""
        if not any(job.waiting for job in jobs):
            return list(jobs)
        lines, places = self.lines(), dict[int, int]()
        pending = [job for job in jobs if job.state == PENDING]
        if len(pending) <= ASKED_ALONE:
            places = {job.number: lines.ahead(job) for job in pending}
        else:
            missing = {job.number for job in pending}
            for number in lines.pending(places, BATCH):
                missing.discard(number)
                if not missing:
                    break
        seen = self.seen()
        return [_explain(job, seen, lines, places.get(job.number, 0)) for job in jobs]

    def views(self, numbers: Sequence[int]) -> list[JobView | None]:
        """Jobs by number, None where there is none, without the reasons they wait."""
        found: list[JobView | None] = []
        for some in chunks(iter(numbers), BATCH):
            answers = iter(self._reader.ask([command for number in some for command in self._commands(number)]))
            found += [_view(number, list(islice(answers, 3))) for number in some]
        return found

    def _commands(self, number: int) -> list[tuple[Any, ...]]:
        keys = self._keys
        return [("HMGET", keys.job(number), *FIELDS), ("GET", keys.spec(number)), ("GET", keys.result(number))]

    def jobs(
        self, states: Collection[str], match: Match | None = None, limit: int = 50, group: str | None = None
    ) -> Listing:
        """List jobs of these states, all states when there are none.

        Args:
            states: words of STATES.
            match: keeps a job when it answers True.
            limit: how many at most.
            group: only this one's.

        Raises:
            GroupNotFound: there is no such group.
        """
        wanted = set(states) or set(STATES)
        lines, batch = self._lines(group), min(limit, BATCH)
        at_once = BATCH if match else batch
        chosen: dict[int, JobView] = {}
        places: dict[int, int] = {}
        looked_at = 0
        for some in chunks(islice(self._numbers(wanted, lines, places, batch, group), LOOKED_AT_MOST), at_once):
            looked_at += len(some)
            for job in self._meant(some, wanted | {"unknown"}, match, group, lines):
                chosen.setdefault(job.number, job)
            if len(chosen) >= limit:
                break
        jobs = list(chosen.values())[:limit]
        if any(job.waiting for job in jobs):
            seen = self.seen()
            jobs = [_explain(job, seen, lines, places.get(job.number, 0)) for job in jobs]
            paused = seen.paused
        else:
            paused = self.paused()
        return Listing(jobs, lines.counts(), len(chosen) >= limit or looked_at < LOOKED_AT_MOST, paused)

    def every(self, states: Collection[str], match: Match | None = None, group: str | None = None) -> Iterator[JobView]:
        """All jobs of these states, each once, read as they are asked for, without the reasons they wait.

        They come in the order in which jobs move on (blocked, scheduled, pending, running, ended), those of a group by
        number, so that one that moves meanwhile is not missed.

        Args:
            states: words of STATES; all when there are none.
            match: keeps a job when it answers True.
            group: only this one's.

        Raises:
            GroupNotFound: there is no such group.
        """
        wanted, told = set(states) or set(STATES), set[int]()
        for part in [{BLOCKED}, {SCHEDULED}, {PENDING}, {RUNNING}, ENDED] if group is None else [wanted]:
            lines = self._lines(group)  # as they are when this part is read
            numbers = self._numbers(wanted & part, lines, {}, BATCH, None)
            if group is not None:
                numbers = self._reader.numbers(self._keys.members(group))
            for some in chunks(numbers, BATCH):
                for job in self._meant(some, wanted, match, group, lines):
                    if job.number not in told:
                        told.add(job.number)
                        yield job

    def counts(self) -> dict[str, int]:
        """How many jobs stand in each set: pending, scheduled, blocked, running, finished, failed."""
        return self.lines().counts()

    def lines(self) -> Lines:
        """The lines of pending jobs as they are now."""
        return Lines.read(self._reader)

    def _lines(self, group: str | None) -> Lines:
        if group is not None:
            self.group(group)
        return self.lines()

    def _meant(
        self, numbers: Sequence[int], states: set[str], match: Match | None, group: str | None, lines: Lines
    ) -> Iterator[JobView]:
        for job in self.views(numbers):
            if (
                job
                and job.state in states
                and job.group not in lines.unseen
                and (group is None or job.group == group)
                and (match is None or match(job))
            ):
                yield job

    def _numbers(
        self, states: set[str], lines: Lines, places: dict[int, int], batch: int, group: str | None
    ) -> Iterator[int]:
        """Numbers in the order of a listing; ``places`` learns how many stand before a pending one."""
        if PENDING in states:
            yield from lines.pending(places, batch, group)
        if group is not None:
            yield from self._members(states, group)
            return
        for state in (SCHEDULED, BLOCKED, RUNNING):
            if state in states:
                yield from self._reader.numbers(getattr(self._keys, state), "ZRANGE", batch)
        ended = []
        if states & {SUCCEEDED, CANCELLED}:
            ended.append(self._reader.members(self._keys.finished, "ZREVRANGE", batch))
        if CANCELLED in states:
            ended.append(self._reader.members(self._keys.dropped, "ZREVRANGE", batch))
        if FAILED in states:
            ended.append(self._reader.members(self._keys.failed, "ZREVRANGE", batch))
        yield from (number for _, number in heapq.merge(*ended, reverse=True))

    def _members(self, states: set[str], group: str) -> Iterator[int]:
        """Those of a group that are not pending, the newest submitted first; of a large one a part."""
        found: dict[str, list[int]] = {SCHEDULED: [], BLOCKED: [], RUNNING: []}
        ended: list[int] = []
        if not states - {PENDING}:
            return
        numbers = islice(self._reader.numbers(self._keys.members(group), "ZREVRANGE", STATES_AT_ONCE), LOOKED_AT_MOST)
        for some in chunks(numbers, STATES_AT_ONCE):
            read = self._reader.ask([("HGET", self._keys.job(number), "state") for number in some])
            for number, word in zip(some, read, strict=True):
                state = text(word or b"")
                if state in states:
                    found.get(state, ended).append(number)
        if RUNNING in states:  # there are few of them, wherever they stand in the group
            found[RUNNING] = list(self._reader.numbers(self._keys.running))
        for numbers_of in (found[SCHEDULED][::-1], found[BLOCKED][::-1], found[RUNNING], ended):
            yield from numbers_of

    # Groups, devices, workers, statistics

    def group(self, name: str) -> GroupView:
        """One group.

        Raises:
            GroupNotFound: there is none of that name.
        """
        found = read_groups(self._reader, [name])
        if not found:
            raise GroupNotFound(f"there is no group {name!r}: foxqueue groups lists those there are")
        return found[0]

    def groups(self) -> Iterator[GroupView]:
        """All groups, the newest first, read as they are asked for."""
        for some in chunks(self._newest_groups(), BATCH):
            yield from read_groups(self._reader, some)

    def _newest_groups(self) -> Iterator[str]:
        start, told = 0, set[str]()  # one that comes meanwhile shifts the others
        while page := self._reader.ask([("ZREVRANGE", self._keys.groups, start, start + BATCH - 1)])[0]:
            names = dict.fromkeys(map(text, page))
            yield from (name for name in names if name not in told)
            told.update(names)
            start += len(page)

    def paused(self, groups: Iterable[str] = ()) -> dict[str, str]:
        """What is paused: ``*`` (the namespace), devices and ``@group`` of the groups asked for -> by whom and why."""
        names = list(dict.fromkeys(groups))
        found, *texts = self._reader.ask(
            [("HGETALL", self._keys.paused), *(("HGET", self._keys.group(name), "paused") for name in names)]
        )
        of_groups = {f"@{name}": text(why) for name, why in zip(names, texts, strict=True) if why is not None}
        return fields(found) | of_groups

    def seen(self) -> Seen:
        """The devices, what is paused, and the server's clock."""
        return self.fleet.seen()

    def devices(self) -> list[SeenDevice]:
        """Every registered device, those whose worker is gone too, by host and index."""
        return self.seen().devices

    def gpus(self) -> list[dict[str, Any]]:
        """The JSON objects of all devices."""
        return self.fleet.gpus(self.seen())

    def workers(self) -> list[dict[str, Any]]:
        """The JSON objects of live workers, one a device."""
        return self.fleet.workers(self.seen())

    def stats(self) -> dict[str, Any]:
        """The JSON object of the queue's figures; ages are seconds, None where there is nothing to measure."""
        seen = self.seen()
        waiting_for_leases = len(self.fleet.waiters(seen))
        return statistics.figures(self._reader, self.trail, seen, waiting_for_leases)

    # Values, output and events

    def value(self, number: int) -> bytes | None:
        """What a call returned, packed; None when there is nothing."""
        found = self._reader.ask([("GET", self._keys.value(number))])[0]
        return None if found is None else bytes(found)

    def log(self, number: int) -> list[Piece]:
        """What is kept of a job's output, oldest first: the tail of its runs."""
        answer = self._reader.ask([("XRANGE", self._keys.log(number), "-", "+", "COUNT", LOG_ENTRIES)])[0]
        return read_pieces(answer)

    def last_event(self) -> str:
        """Id of the newest event: where a reader of :meth:`news` starts."""
        return self.trail.last()

    def news(self, event: str, block_s: float, log: int | None = None, piece: str = "0-0") -> News:
        """Wait for an event, or a piece of one job's output; see :meth:`foxqueue.trail.Trail.news`."""
        return self.trail.news(event, block_s, log, piece)


def _explain(job: JobView, seen: Seen, lines: Lines, ahead: int) -> JobView:
    """With the reason it waits; others stay as they are."""
    if not job.waiting:
        return job
    if job.state == SCHEDULED:
        due_in = None if job.due_ms is None else job.due_ms - seen.now_ms
        why = waiting.why_scheduled(job.attempts, due_in)
    elif job.state == BLOCKED:
        why = waiting.why_blocked(job.held, job.blocked_by or job.after, job.parents_open)
    else:
        held_back = waiting.why_held_back(seen.paused.get("*"), lines.groups.get(job.group or ""))
        why = held_back or waiting.why_waiting(job.need, seen.devices, ahead)
    word, sentence = why
    earlier = f"; before: {job.detail}" if job.detail else ""
    return replace(job, waiting_for=word, detail=sentence + earlier)


def _view(number: int, answers: Sequence[Any]) -> JobView | None:
    values, spec, result = answers
    found = dict(zip(FIELDS, values or [None] * len(FIELDS), strict=True))
    if spec is None and not any(found.values()):
        return None
    return view(number, found, spec, result)
