"""The audit trail: what happened to jobs, groups, devices and settings, by whom and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from foxqueue.job import rfc3339
from foxqueue.paging import Reader
from foxqueue.replies import Piece, fields, read_pieces, streams, text, whole
from foxqueue.states import ENDED, PENDING, RUNNING, SCHEDULED, SUCCEEDED

EVENTS_PER_READ = 500
BLOCK_S = 1.0  # the longest a reader waits before it looks again
CLAIM_LOOKED_FOR = 2_000  # events among which the latest claim is looked for

# States that an event of this name implies where the scripts, which are many a second, leave them out.
IMPLIED: Final = {
    "enqueue": ("-", PENDING),
    "promote": (SCHEDULED, PENDING),
    "claim": (PENDING, RUNNING),
    "complete": (RUNNING, SUCCEEDED),
}
# Fields of an entry that have a meaning of their own here.
_KNOWN: Final = frozenset({"event", "job", "count", "from", "to", "reason", "by", "worker", "device", "fence", "scope"})


@dataclass(frozen=True)
class News:
    """What a blocking read brought: pieces of output, jobs that something happened to, the last event read, and whether
    a job has ended.
    """

    pieces: list[Piece]
    jobs: set[int]
    event: str
    ended: bool = False


@dataclass(frozen=True)
class Event:
    """One entry of the trail.

    Attributes:
        entry: its id in the stream.
        name: the transition, or what else was done.
        job: that it is about, None where it is about none.
        count: of jobs, from that one on, or of whatever else was counted.
        before, after: states, None where none changed or where it is not known.
        by: who asked for it.
        scope: of what was paused, resumed or opened: ``*``, ``@group`` or a device.
        more: other fields, by name.
    """

    entry: str
    name: str
    job: int | None = None
    count: int | None = None
    before: str | None = None
    after: str | None = None
    reason: str | None = None
    by: str | None = None
    worker: str | None = None
    device: str | None = None
    fence: str | None = None
    scope: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def at(self) -> str | None:
        """When it happened, RFC 3339 in UTC."""
        return rfc3339(whole(self.entry.partition("-")[0]))

    def concerns(self, job: int) -> bool:
        """Whether it is about this job."""
        return self.job is not None and self.job <= job < self.job + (self.count or 1)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of an event."""
        return {
            "id": self.entry,
            "at": self.at,
            "event": self.name,
            "job": self.job,
            "count": self.count,
            "from": self.before,
            "to": self.after,
            "reason": self.reason,
            "by": self.by,
            "worker": self.worker,
            "device": self.device,
            "fence": self.fence,
            "scope": self.scope,
            "more": dict(self.more),
        }


def event_of(entry: Any, values: Any) -> Event:
    """Read one entry."""
    found = {name: value for name, value in fields(values).items() if value}
    name = found.get("event", "?")
    before, after = IMPLIED.get(name, (None, None))
    return Event(
        text(entry),
        name,
        job=whole(found.get("job")) or None,
        count=whole(found["count"]) if "count" in found else None,
        before=found.get("from", before),
        after=found.get("to", after),
        more={other: value for other, value in found.items() if other not in _KNOWN},
        **{other: found.get(other) for other in ("reason", "by", "worker", "device", "fence", "scope")},
    )


Ask = Callable[[], list[Event]]


class Trail:
    """The trail of one namespace, as far as it is kept: some 10,000 events.

    Args:
        reader: asks the server.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._blocking: Any = None

    def last(self) -> str:
        """Id of the newest event: where a reader of what comes starts."""
        entries = self._reader.ask([("XREVRANGE", self._reader.keys.events, "+", "-", "COUNT", 1)])[0]
        return text(entries[0][0]) if entries else "0-0"

    def newest(self, limit: int, job: int | None = None, until: str = "+") -> list[Event]:
        """The newest events, the oldest of them first.

        Args:
            limit: how many at most.
            job: only those about this one.
            until: id of the last event that counts.
        """
        found: list[Event] = []
        for event in self._backwards(EVENTS_PER_READ if job is not None else min(limit, EVENTS_PER_READ), until):
            if job is None or event.concerns(job):
                found.append(event)
            if len(found) == limit:
                break
        return found[::-1]

    def follow(self, after: str, patiently: Callable[[Ask], list[Event]]) -> Iterator[list[Event]]:
        """Events as they come, each once, for ever; an empty list where none came within BLOCK_S.

        Args:
            after: id of the last event known.
            patiently: calls what it is given until the server answers.
        """
        while True:
            events = patiently(partial(self._next, after))
            after = events[-1].entry if events else after
            yield events

    def last_claim_ms(self) -> int | None:
        """Epoch ms when a worker last took a job; None when that is not known any more."""
        latest = islice(self._backwards(EVENTS_PER_READ), CLAIM_LOOKED_FOR)
        return next((whole(event.entry.partition("-")[0]) for event in latest if event.name == "claim"), None)

    def news(self, event: str, block_s: float, log: int | None = None, piece: str = "0-0") -> News:
        """Wait for an event, or a piece of one job's output.

        Args:
            event: id of the last event read.
            block_s: seconds to wait at most; more than BLOCK_S is BLOCK_S.
            log: the job whose output counts too.
            piece: id of its last piece read.
        """
        keys, ids = [self._reader.keys.events], [event]
        if log is not None:
            keys, ids = [*keys, self._reader.keys.log(log)], [*ids, piece]
        pieces: list[Piece] = []
        jobs: set[int] = set()
        ended = False
        for key, entries in self._blocked_read(keys, ids, block_s):
            if text(key) == self._reader.keys.events:
                told = [fields(values) for _, values in entries]
                jobs |= {whole(one.get("job")) for one in told}
                ended = ended or any(one.get("to") in ENDED for one in told)
                event = text(entries[-1][0])
            else:
                pieces += read_pieces(entries)
        return News(pieces, jobs, event, ended)

    def _next(self, after: str) -> list[Event]:
        found = self._blocked_read([self._reader.keys.events], [after], BLOCK_S)
        return [event_of(entry, values) for _, entries in found for entry, values in entries]

    def _blocked_read(self, keys: list[str], ids: list[str], block_s: float) -> list[tuple[Any, Any]]:
        block = max(1, int(min(block_s, BLOCK_S) * 1000))
        words = ("XREAD", "COUNT", EVENTS_PER_READ, "BLOCK", block, "STREAMS", *keys, *ids)
        if self._blocking is None:
            self._blocking = self._reader.broker.blocking(BLOCK_S)
        with self._reader.broker.connection.errors("xread"):
            return streams(self._blocking.execute_command(*words))

    def _backwards(self, count: int, end: str = "+") -> Iterator[Event]:
        """From the newest to the oldest, so many a round trip."""
        while True:
            command = ("XREVRANGE", self._reader.keys.events, end, "-", "COUNT", count)
            entries = self._reader.ask([command])[0] or []
            yield from (event_of(entry, values) for entry, values in entries)
            if len(entries) < count:
                return
            end = "(" + text(entries[-1][0])
