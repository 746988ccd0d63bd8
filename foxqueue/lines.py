"""The lines in which pending jobs stand, one for each shape, and how many jobs stand elsewhere."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foxqueue.groups import FIELDS, GroupView, group_view
from foxqueue.job import JobView
from foxqueue.paging import Reader
from foxqueue.replies import first_page, text, whole
from foxqueue.requirement import Requirement, group_of, parse_shape
from foxqueue.states import BLOCKED, SCHEDULED

_COUNTED = ("scheduled", "blocked", "running", "finished", "failed")


@dataclass(frozen=True)
class Line:
    """Pending jobs of one shape; ``need`` is None where this version cannot read it.

    Attributes:
        name: of the group, None for jobs without one.
        group: what is known of it.
    """

    shape: str
    need: Requirement | None
    name: str | None
    group: GroupView | None

    @property
    def on_cpu(self) -> bool:
        """Whether its jobs run on CPU slots."""
        return self.need is not None and self.need.gpus == 0

    @property
    def held_back(self) -> bool:
        """Whether none of its jobs may start now, whatever the devices do."""
        return self.group is not None and self.group.held_back


class Lines:
    """All lines at one moment.

    Args:
        reader: asks the server.
        shapes: those that jobs have or had.
        groups: those that the shapes name, and those that are being filled, by name.

    Attributes:
        unseen: names of the groups whose jobs nobody sees yet.
    """

    def __init__(self, reader: Reader, shapes: Sequence[str], groups: Mapping[str, GroupView]) -> None:
        self._reader = reader
        self.groups = groups
        self.unseen = frozenset(name for name, group in groups.items() if group.filling)
        named = [(shape, group_of(shape)) for shape in shapes]
        self._all = [Line(shape, parse_shape(shape), name, groups.get(name or "")) for shape, name in named]
        self._seen = [line for line in self._all if line.name not in self.unseen]

    @classmethod
    def read(cls, reader: Reader) -> Lines:
        """Ask for them: in one round trip, and a second one where there are groups."""
        keys = reader.keys
        shapes, filling = reader.ask([("HKEYS", keys.shapes), ("ZRANGE", keys.filling, 0, -1)])
        names = [text(shape) for shape in shapes or []]
        grouped = dict.fromkeys(name for shape in names if (name := group_of(shape)))
        grouped |= dict.fromkeys(text(name) for name in filling or [])
        return cls(reader, names, {group.name: group for group in read_groups(reader, [*grouped])})

    def waiting(self, group: str | None = None) -> list[Line]:
        """The lines that people see, of one group or of all."""
        return [line for line in self._seen if group is None or line.name == group]

    def pending(self, places: dict[int, int], batch: int, group: str | None = None) -> Iterator[int]:
        """Pending jobs in the order in which they would run.

        Args:
            places: learns how many jobs for the same kind of device would run before each.
            batch: how many of a line are read in one go.
            group: only this one's.
        """
        lines, keys = self.waiting(group), self._reader.keys
        heads = self._reader.ask([first_page(keys.pending(line.shape), "ZRANGE", 0, batch) for line in lines])
        before: dict[bool, int] = {}
        found = [self._jobs_of(line, head, batch) for line, head in zip(lines, heads, strict=True) if head]
        for _, number, on_cpu, held_back in heapq.merge(*found):
            places[number] = before.get(on_cpu, 0)
            before[on_cpu] = places[number] + (not held_back)
            yield number

    def _jobs_of(self, line: Line, head: Any, batch: int) -> Iterator[tuple[float, int, bool, bool]]:
        jobs = self._reader.members(self._reader.keys.pending(line.shape), "ZRANGE", batch, head)
        return ((score, number, line.on_cpu, line.held_back) for score, number in jobs)

    def ahead(self, job: JobView) -> int:
        """How many pending jobs for the same kind of device would run before this one."""
        need, keys = job.need, self._reader.keys
        lines = [line for line in self._seen if need and line.need and line.on_cpu == (need.gpus == 0)]
        rivals = [line for line in lines if not line.held_back or line.name == job.group]
        before = f"({job.rank or 0}"
        counted = self._reader.ask([("ZCOUNT", keys.pending(line.shape), "-inf", before) for line in rivals])
        return sum(map(whole, counted))

    def counts(self) -> dict[str, int]:
        """How many jobs stand in each set: pending, scheduled, blocked, running, finished, failed."""
        keys = self._reader.keys
        sets = {name: getattr(keys, name) for name in (*_COUNTED, "dropped")}
        sizes = self._reader.ask(
            [("ZCARD", key) for key in sets.values()] + [("ZCARD", keys.pending(line.shape)) for line in self._seen]
        )
        known = [whole(size) for size in sizes]
        found = {"pending": sum(known[len(sets) :]), **dict(zip(sets, known, strict=False))}
        found["finished"] += found.pop("dropped")
        for name in sorted(self.unseen):
            for state, count in self._hidden(self.groups[name]).items():
                found[state] = max(found[state] - count, 0)
        return found

    def _hidden(self, group: GroupView) -> dict[str, int]:
        """Of a group that nobody sees yet: how many stand where jobs of all groups do."""
        keys = self._reader.keys
        lines = [("ZCARD", keys.pending(line.shape)) for line in self._all if line.name == group.name]
        size, last, *pending = self._reader.ask(
            [("ZCARD", keys.members(group.name)), ("ZRANGE", keys.members(group.name), -1, -1), *lines]
        )
        found = {"finished": group.succeeded + group.cancelled, "failed": group.failed}
        waiting = whole(size or 0) - sum(map(whole, pending)) - sum(found.values())
        if waiting > 0 and last:  # all of one sweep wait for the same
            state = self._reader.ask([("HGET", keys.job(whole(last[0])), "state")])[0]
            found[BLOCKED if state == BLOCKED.encode() else SCHEDULED] = waiting
        return found


def read_groups(reader: Reader, names: Sequence[str]) -> list[GroupView]:
    """The groups of these names that there are, in one round trip."""
    found = reader.ask([("HMGET", reader.keys.group(name), *FIELDS) for name in names])
    views = [
        group_view(name, dict(zip(FIELDS, values or [None] * len(FIELDS), strict=True)))
        for name, values in zip(names, found, strict=True)
    ]
    return [view for view in views if view is not None]
