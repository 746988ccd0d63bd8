"""Questions that change nothing: jobs, devices, workers, statistics, output.

Everything is pipelined and bounded. Nothing walks the key space: jobs are found through the sets of their
states, so a listing sees what the scripts see.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import hiredis

from foxqueue import waiting
from foxqueue.broker import Broker
from foxqueue.devices import SeenDevice, device_dict, seen_device
from foxqueue.errors import JobNotFound, ServerError, ServerRefused, ServerUnavailable
from foxqueue.job import FIELDS, JobView, rfc3339, view
from foxqueue.replies import Piece, fields, first_page, page_from, pairs, read_pieces, scores, streams, text, whole
from foxqueue.requirement import parse_shape
from foxqueue.states import CANCELLED, FAILED, PENDING, RUNNING, SCHEDULED, STATES, SUCCEEDED

BATCH = 100  # jobs read in one round trip
LOOKED_AT_MOST = 20_000  # jobs that one filtered listing reads before it says that there may be more
OLDEST_LOOKED_AT = 10_000  # pending jobs among which the oldest is looked for
LOG_ENTRIES = 10_000
EVENTS_PER_READ = 500
LATELY_MS = 15_000  # unless the settings say otherwise
BLOCK_S = 1.0  # the longest a reader waits before it looks again

T = TypeVar("T")


@dataclass(frozen=True)
class Listing:
    """Some jobs in the order of a listing.

    Attributes:
        jobs: pending ones in the order in which they would run, scheduled, running, then ended, newest first.
        counts: how many stand in each group: pending, scheduled, running, finished, failed.
        complete: False when the search stopped at its bound before ``limit`` matches were found.
    """

    jobs: list[JobView]
    counts: dict[str, int]
    complete: bool


@dataclass(frozen=True)
class News:
    """What a blocking read brought: pieces of output, jobs that something happened to, the last event read."""

    pieces: list[Piece]
    jobs: set[int]
    event: str


class Inspector:
    """Read-only questions to one namespace."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._keys = broker.keys
        self._blocking: Any = None

    # Jobs

    def job(self, number: int) -> JobView:
        """One job, with the reason it waits.

        Raises:
            JobNotFound: no job has that number.
        """
        found = self.views([number])[0]
        if found is None:
            raise JobNotFound(f"there is no job {number}")
        if not found.waiting:
            return found
        return self._explained([found], self.devices(), self._ahead)[0]

    def views(self, numbers: Sequence[int]) -> list[JobView | None]:
        """Jobs by number, None where there is none, without the reasons they wait."""
        found: list[JobView | None] = []
        for start in range(0, len(numbers), BATCH):
            some = numbers[start : start + BATCH]
            commands: list[tuple[Any, ...]] = []
            for number in some:
                commands += [
                    ("HMGET", self._keys.job(number), *FIELDS),
                    ("GET", self._keys.spec(number)),
                    ("GET", self._keys.result(number)),
                ]
            answers = self._ask(commands)
            for at, number in enumerate(some):
                values, spec, result = answers[3 * at : 3 * at + 3]
                found.append(_view(number, values, spec, result))
        return found

    def jobs(self, states: Collection[str], match: Callable[[JobView], bool] | None = None, limit: int = 50) -> Listing:
        """List jobs of these states, all states when there are none.

        Args:
            states: words of STATES.
            match: keeps a job when it answers True.
            limit: how many at most.
        """
        wanted = set(states) or set(STATES)
        chosen: dict[int, JobView] = {}
        places: dict[int, int] = {}
        looked_at = 0
        numbers = islice(self._numbers(wanted, places, min(limit, BATCH)), LOOKED_AT_MOST)
        for some in _chunks(numbers, BATCH if match else min(limit, BATCH)):
            looked_at += len(some)
            for job in self.views(some):
                if job and job.state in wanted | {"unknown"} and (match is None or match(job)):
                    chosen.setdefault(job.number, job)
            if len(chosen) >= limit:
                break
        jobs = list(chosen.values())[:limit]
        if any(job.waiting for job in jobs):
            jobs = self._explained(jobs, self.devices(), lambda some: [places.get(job.number, 0) for job in some])
        return Listing(jobs, self.counts(), len(chosen) >= limit or looked_at < LOOKED_AT_MOST)

    def counts(self) -> dict[str, int]:
        """How many jobs stand in each set: pending, scheduled, running, finished, failed."""
        keys, shapes = self._keys, self._shapes()
        sizes = self._ask(
            [("ZCARD", keys.scheduled), ("ZCARD", keys.running), ("ZCARD", keys.finished), ("ZCARD", keys.failed)]
            + [("ZCARD", keys.pending(shape)) for shape in shapes]
        )
        known = [whole(size) for size in sizes]
        names = ("scheduled", "running", "finished", "failed")
        return {"pending": sum(known[4:]), **dict(zip(names, known[:4], strict=True))}

    def _numbers(self, states: set[str], places: dict[int, int], batch: int) -> Iterator[int]:
        """Numbers in the order of a listing; ``places`` learns how many stand before a pending one."""
        if PENDING in states:
            yield from self._pending(places, batch)
        for state, key in ((SCHEDULED, self._keys.scheduled), (RUNNING, self._keys.running)):
            if state in states:
                yield from (number for _, number in self._range(key, "ZRANGE", batch))
        ended = []
        if states & {SUCCEEDED, CANCELLED}:
            ended.append(self._range(self._keys.finished, "ZREVRANGE", batch))
        if FAILED in states:
            ended.append(self._range(self._keys.failed, "ZREVRANGE", batch))
        yield from (number for _, number in heapq.merge(*ended, reverse=True))

    def _pending(self, places: dict[int, int], batch: int) -> Iterator[int]:
        shapes = self._shapes()
        heads = self._ask([first_page(self._keys.pending(shape), "ZRANGE", 0, batch) for shape in shapes])
        before: dict[bool, int] = {}
        queues = [self._shape_queue(shape, head, batch) for shape, head in zip(shapes, heads, strict=True) if head]
        for _, number, on_cpu in heapq.merge(*queues):
            places[number] = before.get(on_cpu, 0)
            before[on_cpu] = places[number] + 1
            yield number

    def _shape_queue(self, shape: str, head: Any, batch: int) -> Iterator[tuple[float, int, bool]]:
        need = parse_shape(shape)
        on_cpu = need is not None and need.gpus == 0
        queue = self._range(self._keys.pending(shape), "ZRANGE", batch, head)
        return ((score, number, on_cpu) for score, number in queue)

    def _range(self, key: str, verb: str, batch: int, first: Any = None) -> Iterator[tuple[float, int]]:
        """A sorted set from its near end, a batch a round trip. What leaves it meanwhile shifts nothing: pages begin at
        the last score, and members with that score that were told already are passed over.
        """
        answer = first if first is not None else self._ask([first_page(key, verb, 0, batch)])[0]
        edge, told = 0.0, set[int]()
        while True:
            found = scores(answer)
            for score, number in found:
                if score != edge:
                    edge, told = score, set()
                if number not in told:
                    told.add(number)
                    yield score, number
            if len(found) < batch:
                return
            skipped = len(told) if len(told) >= batch else 0  # more of one score than a page holds
            answer = self._ask([page_from(key, verb, edge, skipped, batch)])[0]

    def _shapes(self) -> list[str]:
        return [text(shape) for shape in self._ask([("HKEYS", self._keys.shapes)])[0] or []]

    def _ahead(self, jobs: Sequence[JobView]) -> list[int]:
        """How many pending jobs for the same kind of device stand before each."""
        shapes = [(shape, need) for shape in self._shapes() if (need := parse_shape(shape))]
        counted: list[int] = []
        for job in jobs:
            need = job.need
            rivals = [shape for shape, other in shapes if need and (other.gpus == 0) == (need.gpus == 0)]
            commands = [("ZCOUNT", self._keys.pending(shape), "-inf", f"({job.rank or 0}") for shape in rivals]
            counted.append(sum(map(whole, self._ask(commands))))
        return counted

    def _explained(
        self,
        jobs: Sequence[JobView],
        devices: Sequence[SeenDevice],
        ahead: Callable[[Sequence[JobView]], list[int]],
    ) -> list[JobView]:
        now = self._broker.server_time_ms() if any(job.state == SCHEDULED for job in jobs) else 0
        places = ahead(jobs)
        return [
            _explain(job, devices, place, now) if job.waiting else job for job, place in zip(jobs, places, strict=True)
        ]

    # Devices, workers, statistics

    def devices(self) -> list[SeenDevice]:
        """Every registered device, those whose worker is gone too, by host and index."""
        keys = self._keys
        seen, grants, alive, time = self._ask(
            [
                ("HGETALL", keys.gpus),
                ("HGETALL", keys.granted),
                ("ZRANGE", keys.workers, 0, -1, "WITHSCORES"),
                ("TIME",),
            ]
        )
        within = self._lately_ms()
        now = whole(time[0]) * 1000 + whole(time[1]) // 1000
        heard = {text(worker): int(ms) for worker, score in pairs(alive) if math.isfinite(ms := float(score))}
        granted = {text(device): text(grant) for device, grant in pairs(grants)}
        found = []
        for device, record in pairs(seen):
            entry = seen_device(text(device), record, granted, heard, now - within)
            if entry:
                found.append(entry)
        kinds = ("nvml", "simulated", "cpu")
        order = {kind: at for at, kind in enumerate(kinds)}
        return sorted(found, key=lambda d: (d.host, order.get(d.kind, 9), d.index or 0, d.uuid))

    def _lately_ms(self) -> int:
        """How long ago a living worker was heard of at most."""
        try:
            settings = self._broker.settings()
        except (ServerUnavailable, ServerRefused):
            raise
        except (ServerError, ValueError):  # damaged settings must not hide the devices
            return LATELY_MS
        return max(3 * settings.beat_ms, settings.ttl_ms)

    def gpus(self) -> list[dict[str, Any]]:
        """The JSON objects of all devices."""
        return [device_dict(device, rfc3339(device.observed_ms)) for device in self.devices()]

    def workers(self) -> list[dict[str, Any]]:
        """The JSON objects of live workers, one a device."""
        return [
            {
                "id": device.worker,
                "host": device.host,
                "pid": device.pid,
                "device": device.uuid,
                "state": device.worker_state,
                "job": device.job,
                "since": rfc3339(device.since_ms),
            }
            for device in self.devices()
            if device.live
        ]

    def stats(self) -> dict[str, Any]:
        """The JSON object of the queue's figures; ages are seconds, None where there is nothing to measure."""
        counts = self.counts()
        gpus = [device for device in self.devices() if device.is_gpu and device.live]
        now = self._broker.server_time_ms()
        return {
            "queued_jobs": counts["pending"] + counts["scheduled"],
            "processing_jobs": counts["running"],
            "total_gpu_slots": len(gpus),
            "available_gpu_slots": sum(device.state == "free" for device in gpus),
            "finished": counts["finished"],
            "failed": counts["failed"],
            "oldest_pending_s": _age(now, self._oldest_pending_ms()),
            "last_claim_s": _age(now, self._last_claim_ms()),
        }

    def _oldest_pending_ms(self) -> int | None:
        shapes = self._shapes()
        # Numbers grow with submission, ranks with priority too: the oldest job has a small number, though one that was
        # queued again by hand is younger than its number says.
        share = max(OLDEST_LOOKED_AT // max(len(shapes), 1), 1)
        heads = self._ask([("ZRANGE", self._keys.pending(shape), 0, share - 1) for shape in shapes])
        numbers = heapq.nsmallest(BATCH, (whole(number) for head in heads for number in head or []))
        ticks = map(whole, self._ask([("HGET", self._keys.job(number), "tick") for number in numbers]))
        return min((tick // 1000 for tick in ticks if tick), default=None)

    def _last_claim_ms(self) -> int | None:
        end = "+"
        for _ in range(4):
            entries = self._ask([("XREVRANGE", self._keys.events, end, "-", "COUNT", EVENTS_PER_READ)])[0] or []
            for entry, values in entries:
                if fields(values).get("event") == "claim":
                    return int(text(entry).partition("-")[0])
            if len(entries) < EVENTS_PER_READ:
                return None
            end = "(" + text(entries[-1][0])
        return None

    # Values, output and events

    def value(self, number: int) -> bytes | None:
        """What a call returned, packed; None when there is nothing."""
        found = self._ask([("GET", self._keys.value(number))])[0]
        return None if found is None else bytes(found)

    def log(self, number: int) -> list[Piece]:
        """What is kept of a job's output, oldest first: the tail of its runs."""
        answer = self._ask([("XRANGE", self._keys.log(number), "-", "+", "COUNT", LOG_ENTRIES)])[0]
        return read_pieces(answer)

    def last_event(self) -> str:
        """Id of the newest event: where a reader of :meth:`news` starts."""
        entries = self._ask([("XREVRANGE", self._keys.events, "+", "-", "COUNT", 1)])[0]
        return text(entries[0][0]) if entries else "0-0"

    def news(self, event: str, block_s: float, log: int | None = None, piece: str = "0-0") -> News:
        """Wait for an event, or a piece of one job's output.

        Args:
            event: id of the last event read.
            block_s: seconds to wait at most; more than BLOCK_S is BLOCK_S.
            log: the job whose output counts too.
            piece: id of its last piece read.
        """
        keys, ids = [self._keys.events], [event]
        if log is not None:
            keys, ids = [*keys, self._keys.log(log)], [*ids, piece]
        block = max(1, int(min(block_s, BLOCK_S) * 1000))
        words = ("XREAD", "COUNT", EVENTS_PER_READ, "BLOCK", block, "STREAMS", *keys, *ids)
        if self._blocking is None:
            self._blocking = self._broker.blocking(BLOCK_S)
        with self._broker.connection.errors("xread"):
            answer = streams(self._blocking.execute_command(*words))
        pieces: list[Piece] = []
        jobs: set[int] = set()
        for key, entries in answer:
            if text(key) == self._keys.events:
                jobs |= {whole(fields(values).get("job")) for _, values in entries}
                event = text(entries[-1][0])
            else:
                pieces += read_pieces(entries)
        return News(pieces, jobs, event)

    def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one round trip. One that meets a key of another type answers None."""
        if not commands:
            return []
        with self._broker.connection.errors("read"):
            return [_checked(answer) for answer in self._broker.connection.ask(commands)]


def _explain(job: JobView, devices: Sequence[SeenDevice], ahead: int, now_ms: int) -> JobView:
    if job.state == SCHEDULED:
        due_in = None if job.due_ms is None else job.due_ms - now_ms
        word, sentence = waiting.why_scheduled(job.attempts, due_in)
    else:
        word, sentence = waiting.why_waiting(job.need, devices, ahead)
    earlier = f"; before: {job.detail}" if job.detail else ""
    return replace(job, waiting_for=word, detail=sentence + earlier)


def _view(number: int, values: Any, spec: Any, result: Any) -> JobView | None:
    fields = dict(zip(FIELDS, values or [None] * len(FIELDS), strict=True))
    if spec is None and not any(fields.values()):
        return None
    return view(number, fields, spec, result)


def _age(now_ms: int, then_ms: int | None) -> float | None:
    return None if then_ms is None else round(max(now_ms - then_ms, 0) / 1000, 3)


def _chunks(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while some := list(islice(items, size)):
        yield some


def _checked(answer: Any) -> Any:
    if isinstance(answer, hiredis.ReplyError) and "WRONGTYPE" in str(answer):
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer
