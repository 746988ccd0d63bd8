"""Writes a namespace into one file, while it goes on: nothing in it is changed.

Jobs are found by counting through the numbers that were given out, so none is missed that stands in no set. Each is
read in one step; what changes meanwhile is taken as it was when it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import hiredis

from foxqueue.archive import IMPORT_FIELD, StoredJob, Writer
from foxqueue.broker import CHUNK_BYTES, CHUNK_JOBS, Broker
from foxqueue.errors import ServerError
from foxqueue.replies import pairs, text, whole
from foxqueue.requirement import group_of

LOOKED_FOR = 1000  # numbers in one round trip
_MOST_FIELDS = 1000  # of a job's hash; more is none of ours
_LOG_ENTRIES = 10_000  # the newest


@dataclass
class Exported:
    """What an export wrote.

    Attributes:
        jobs: how many.
        running: of them ran when they were read.
        size: of the file in bytes.
        said: sentences for people about what was left out or could not be read.
    """

    jobs: int = 0
    running: int = 0
    size: int = 0
    said: list[str] = field(default_factory=list)


def export_namespace(broker: Broker, stream: BinaryIO, version: str) -> Exported:
    """Write the namespace of a broker into a file.

    Args:
        broker: of the namespace.
        stream: where it goes.
        version: of foxqueue.

    Raises:
        ServerError: the server went away, or what the namespace stands on cannot be read.
        OSError: the file cannot be written.
    """
    return _Export(broker, stream, version).run()


class _Export:
    def __init__(self, broker: Broker, stream: BinaryIO, version: str) -> None:
        self._broker = broker
        self._keys = broker.keys
        self._done = Exported()
        self._kept: set[bytes] = set()  # digests of environments that are written
        self._unseen: set[str] = set()  # groups that are being filled
        names = ("next", "settings", "paused", "groups", "filling", "instance", "time")
        found = dict(zip(names, self._look(), strict=True))
        self._last = whole(found["next"] or b"0")
        settings = dict(pairs(found["settings"]))
        if settings.pop(IMPORT_FIELD, b"").endswith(b" open"):
            raise ServerError(
                f"namespace {self._keys.namespace!r} is half imported: run that import to its end before you export it"
            )
        header = {
            "foxqueue": version,
            "namespace": self._keys.namespace,
            "schema": whole(settings.pop(b"schema", b"1")),
            "server_time_ms": whole(found["time"][0]) * 1000 + whole(found["time"][1]) // 1000,
            "instance": text(found["instance"] or b""),
        }
        self._writer = Writer(stream, header)
        self._writer.put("settings", settings)
        self._writer.put("paused", dict(pairs(found["paused"])))
        self._put_groups(found["groups"], found["filling"])

    def run(self) -> Exported:
        """Write all jobs, and the trailer."""
        for numbers in self._batches():
            jobs = [job for job in map(self._job, numbers, self._read(numbers)) if job is not None]
            self._put_environments(jobs)
            for job in jobs:
                self._writer.put("job", *job.parts())
            self._done.jobs += len(jobs)
        clock, time = self._broker.connection.answers([("GET", self._keys.clock), ("TIME",)], "export")
        now_us = whole(time[0]) * 1_000_000 + whole(time[1])
        figures = {"jobs": self._done.jobs, "next": self._last, "clock": max(whole(clock or b"0"), now_us)}
        self._writer.end(figures)
        self._done.size = self._writer.size
        return self._done

    def _look(self) -> list[Any]:
        keys = self._keys
        commands = [
            ("GET", keys.next),
            ("HGETALL", keys.settings),
            ("HGETALL", keys.paused),
            ("ZRANGE", keys.groups, 0, -1, "WITHSCORES"),
            ("ZRANGE", keys.filling, 0, -1),
            ("GET", keys.instance),
            ("TIME",),
        ]
        found = self._steps([commands])[0]
        for command, answer in zip(commands, found, strict=True):
            if isinstance(answer, hiredis.ReplyError):
                raise ServerError(
                    f"{command[1]} cannot be read ({answer}): foxqueue doctor says what is wrong with the namespace"
                )
        if not text(found[0] or b"0").isdecimal():
            raise ServerError(f"{keys.next} is no number: foxqueue doctor says what is wrong with the namespace")
        return found

    def _steps(self, steps: Sequence[Sequence[tuple[Any, ...]]]) -> list[list[Any]]:
        """Read in one round trip, each step at one moment. An error stands in the place of an answer."""
        commands = [command for step in steps for command in (("MULTI",), *step, ("EXEC",))]
        answers = iter(self._broker.connection.answers(commands, "export"))
        found = []
        for step in steps:
            for _ in range(len(step) + 1):
                next(answers)
            found.append(next(answers))
        return found

    # --- groups ------------------------------------------------------------------------------------------------

    def _put_groups(self, groups: Any, filling: Any) -> None:
        """What nobody sees yet is left out: a group that is being filled, and its jobs."""
        self._unseen = set(map(text, filling or []))
        if self._unseen:
            self._say(f"left out, for they are still being filled: {', '.join(sorted(self._unseen)):.300}")
        began = {text(group): int(float(score)) for group, score in pairs(groups) if text(group) not in self._unseen}
        names = list(began)
        for start in range(0, len(names), CHUNK_JOBS):
            some = names[start : start + CHUNK_JOBS]
            answers = self._broker.connection.ask([("HGETALL", self._keys.group(name)) for name in some], "export")
            for name, answer in zip(some, answers, strict=True):
                if isinstance(answer, Exception):
                    self._say(f"the record of group {name} cannot be read: its limits are lost")
                    answer = []
                self._writer.put("group", name, began[name], dict(pairs(answer)))

    # --- jobs --------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[list[int]]:
        """Numbers of jobs that are there, as many as fit into one round trip and into memory."""
        batch: list[int] = []
        size = 0
        for number, bytes_ in self._there():
            if batch and (len(batch) == CHUNK_JOBS or size + bytes_ > CHUNK_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(number)
            size += bytes_
        if batch:
            yield batch

    def _there(self) -> Iterator[tuple[int, int]]:
        keys = self._keys
        for start in range(1, self._last + 1, LOOKED_FOR):
            numbers = range(start, min(start + LOOKED_FOR, self._last + 1))
            exist = self._broker.connection.answers(
                [("EXISTS", keys.job(number), keys.spec(number)) for number in numbers], "export"
            )
            found = [number for number, there in zip(numbers, exist, strict=True) if there]
            sizes = self._broker.connection.ask(
                [("STRLEN", key(number)) for number in found for key in (keys.spec, keys.result, keys.value)], "export"
            )
            for at, number in enumerate(found):
                yield number, sum(size for size in sizes[3 * at : 3 * at + 3] if isinstance(size, int))

    def _read(self, numbers: Sequence[int]) -> list[list[Any]]:
        keys = self._keys
        return self._steps(
            [
                [
                    ("HGETALL", keys.job(number)),
                    ("GET", keys.spec(number)),
                    ("GET", keys.result(number)),
                    ("GET", keys.value(number)),
                    ("XREVRANGE", keys.log(number), "+", "-", "COUNT", _LOG_ENTRIES),
                    ("LRANGE", keys.history(number), -20, -1),
                    ("HGETALL", keys.blocked_by(number)),
                    ("ZSCORE", keys.notices, number),
                    ("ZSCORE", keys.blocked, number),
                ]
                for number in numbers
            ]
        )

    def _job(self, number: int, answers: list[Any]) -> StoredJob | None:
        names = ("record", "spec", "result", "value", "output", "history", "dependencies", "notice", "blocked")
        unreadable = [
            name for name, answer in zip(names, answers, strict=True) if isinstance(answer, hiredis.ReplyError)
        ]
        record, spec, result, value, log, history, edges, *scores = (
            None if isinstance(answer, hiredis.ReplyError) else answer for answer in answers
        )
        if record is not None and not record and spec is None and not unreadable:
            return None  # it was purged between the two looks
        fields: dict[bytes, bytes] | None = dict(pairs(record))
        if not fields or len(fields) > _MOST_FIELDS:
            fields = None
            unreadable += [] if "record" in unreadable else ["record"]
        if unreadable:
            self._say(f"job {number}: its {', '.join(unreadable)} cannot be read")
        if group_of(text((fields or {}).get(b"shape", b""))) in self._unseen:
            return None
        self._done.running += (fields or {}).get(b"state") == b"running"
        pieces = [[entry, dict(pairs(values)).get(b"data", b"")] for entry, values in reversed(log or [])]
        notice, since = (None if score is None else int(float(score)) for score in scores)
        return StoredJob(number, fields, spec, result, value, pieces, history or [], dict(pairs(edges)), notice, since)

    def _put_environments(self, jobs: Sequence[StoredJob]) -> None:
        digests = {(job.fields or {}).get(b"env", b"") for job in jobs} - self._kept - {b""}
        wanted = sorted(digests)
        keys = [self._keys.env(text(digest)) for digest in wanted]
        for digest, key in zip(wanted, keys, strict=True):
            packed = self._broker.connection.ask([("GET", key)], "export")[0]
            if isinstance(packed, bytes):  # else it is older than it is kept
                self._writer.put("env", digest, packed)
        self._kept |= digests

    def _say(self, sentence: str) -> None:
        self._done.said.append(sentence)
