"""Queues with jobs of every kind, and what an archive of one holds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from queue_driver import ENVIRONMENT, Queue

from foxqueue.archive import END, StoredJob, open_archive
from foxqueue.broker import Environment, NewJob
from foxqueue.codec import pack
from foxqueue.exporting import export_namespace
from foxqueue.importing import Imported, _Import, import_namespace
from foxqueue.messages import Reply
from foxqueue.scripts import Call, Value

HOUR_MS = 3_600_000


def new_job(name: str = "job", shape: str = "g1", more: str = "", **given: Any) -> NewJob:
    """A request; ``given`` stands in its spec."""
    spec = pack({"v": 1, "argv": ["true"], **given})
    return NewJob(name, shape, int(given.get("priority", 5)), int(given.get("retries", 0)), 1000, spec, more)


def put(queue: Queue, *jobs: NewJob, user: str = "ann", env: Environment = ENVIRONMENT) -> int:
    """Enqueue jobs in one step and return the number of the first."""
    return queue.broker.enqueue_many(list(jobs), env, user=user)[0][0]


def put_all_kinds(queue: Queue) -> dict[str, int]:
    """Jobs of every state and with everything that a job may have: what each is -> its number."""
    broker, jobs = queue.broker, dict[str, int]()
    worker = queue.worker(shapes=("g1", "g1.m8192@lr-sweep"))
    jobs["succeeded"] = put(queue, new_job("ended \udcff ü", tags={"a": "ü"}, more="notify=1\n"))
    run = worker.claim()
    for at, data in enumerate((b"line 1\n", b"\xff\x00\n")):
        assert queue.send(broker.log_call(run.number, run.fence, at * 7, 0, data)) == "ok"
    assert queue.send(broker.complete_call(run.number, run.fence, pack({"v": 1}), b"value \xff")) == "succeeded"
    jobs["failed"] = put(queue, new_job("bad", retries=1, more="unique=key of old\n"))
    for _ in range(2):
        queue.fail(worker.claim())
    jobs["retried"] = put(queue, new_job("again", retries=3))
    queue.fail(worker.claim(), delay_ms=HOUR_MS)
    jobs["lost"] = put(queue, new_job("lost"), env=Environment.of({"B": "ü"}))
    queue.lose(worker.claim())
    broker.hold(jobs["lost"], "", "ann")
    jobs["cancelled"] = put(queue, new_job("no"), user="bob \udcfe")
    broker.cancel(jobs["cancelled"], "", "ann ü")
    jobs["running"] = put(queue, new_job("runs", "g1.m8192@lr-sweep", priority=9, retries=1), user="bob \udcfe")
    assert worker.claim().number == jobs["running"]
    other = queue.worker("w2", "GPU-2", ("g1.m8192@lr-sweep",))
    jobs["stopping"] = put(queue, new_job("stops", "g1.m8192@lr-sweep"))
    assert other.claim().number == jobs["stopping"]
    broker.cancel(jobs["stopping"], "", "ann")
    jobs["child"] = put(queue, new_job("child", more=f"after={jobs['running']}::succeeded\n"))
    jobs["grandchild"] = put(
        queue, new_job("late", more=f"after={jobs['child']}::any\nafter={jobs['succeeded']}::any\n")
    )
    jobs["met"] = put(queue, new_job("met", more=f"after={jobs['succeeded']}::succeeded\n"))
    jobs["never"] = put(queue, new_job("never", more=f"after={jobs['failed']}::succeeded\n"))
    jobs["delayed"] = put(queue, new_job("later", more=f"delay_ms={HOUR_MS}\nexpires_ms={2 * HOUR_MS}\n"))
    jobs["held"] = put(queue, new_job("held", more="held=ann\nunique=key\n"))
    jobs["member"] = put(queue, *(new_job(f"member {at}", "g1@lr-sweep") for at in range(3)))
    jobs["of a paused group"] = put(queue, new_job("still", "g0@still", priority=0))
    broker.pause("@still", "for now", "ann")
    broker.change_settings({"priority:dqn": "9", "max_losses": "7"}, "ann")
    queue.been_looking()
    queue.broker.sweep()
    return jobs


def exported(queue: Queue) -> bytes:
    """An archive of the namespace."""
    stream = io.BytesIO()
    export_namespace(queue.broker, stream, "test")
    return stream.getvalue()


def imported(queue: Queue, data: bytes) -> Imported:
    """Put an archive into a namespace."""
    return import_namespace(queue.broker, io.BytesIO(data), "the file", "bob")


def records(data: bytes | Path) -> dict[Any, Any]:
    """What an archive holds, header and checksum left out: kind and name of each record -> the record."""
    raw = data.read_bytes() if isinstance(data, Path) else data
    found: dict[Any, Any] = {}
    for kind, *parts in open_archive(io.BytesIO(raw), "the file").records():
        match kind:
            case "job":
                found["job", parts[0]] = StoredJob(*parts)
            case "env" | "group":
                found[kind, parts[0]] = parts[1:]
            case _:
                found[kind] = parts[0]
    found[END] = {name: value for name, value in found[END].items() if name != "clock"}
    return found


@pytest.fixture
def target(queue: Queue) -> Iterator[Queue]:
    """A namespace beside the one that is exported; both are emptied by ``queue``."""
    other = Queue(queue.broker.connection.url, "the-other")
    yield other
    other.broker.close()


class Steps:
    """The calls of an import, to be sent by hand."""

    def __init__(self, target: Queue, data: bytes, jobs_a_step: int = 100) -> None:
        self.target = target
        self._import = _Import(target.broker, open_archive(io.BytesIO(data), "f"), "f", "bob")
        self._jobs = jobs_a_step
        self.begin = self._call("begin", self._import._settings)
        self.puts = [self._call("put", piece) for piece in self._pieces()]
        paused = [word for item in self._import._paused.items() for word in item]
        self.end = self._call("end", paused)

    @property
    def all(self) -> list[Call]:
        return [self.begin, *self.puts, self.end]

    def send(self, *calls: Call) -> list[Reply]:
        return self.target.broker.send(*calls)

    def _call(self, step: str, words: list[Value]) -> Call:
        found = self._import
        return self.target.broker.import_call(found._archive.token, "bob", step, found._last, found._clock, words)

    def _pieces(self) -> Iterator[list[Value]]:
        piece, jobs = [], 0
        for words in self._import._records():
            piece, jobs = piece + words, jobs + (words[0] == "job")
            if jobs == self._jobs:
                yield piece
                piece, jobs = [], 0
        yield piece
