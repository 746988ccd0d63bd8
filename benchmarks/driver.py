"""Drives the scripts of one namespace as clients and workers do, without their processes."""

from __future__ import annotations

import hashlib
import os
import random

from foxqueue.broker import CHUNK_JOBS, Broker, Claimed, NewJob
from foxqueue.capture import capture
from foxqueue.codec import pack
from foxqueue.gpu import Device
from foxqueue.messages import Environment, Reply
from foxqueue.presence import Presence
from foxqueue.probing import Observation
from foxqueue.scripts import Call, Script

SHAPE = "g1"
COMMAND = ["python", "train.py", "--lr", "0.001", "--epochs", "30", "--seed", "17"]
EMPTY = "return {'ok', ''}"
_OUTCOME = pack({"exit_code": 0})
_CHOICE = random.Random(1)


def empty_call() -> Call:
    """A script that does nothing, sent the way all others are."""
    sha = hashlib.sha1(EMPTY.encode(), usedforsecurity=False).hexdigest()
    return Call(Script("empty", "", (), (), None, (), "", EMPTY, sha), ())


def new_job(size: int = 200) -> NewJob:
    """A job whose spec has so many bytes."""
    spec = {"v": 1, "argv": COMMAND, "cwd": "/", "umask": 18, "description": ""}
    spec["description"] = "x" * (size - len(pack(spec)) - 2)
    return NewJob("bench", SHAPE, 5, 0, 10_000, pack(spec))


def environment() -> Environment:
    """What this process would pass on."""
    return Environment.of(capture(os.environ).env)


class Driver:
    """One namespace, with one worker that claims and completes.

    Args:
        broker: of the namespace.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.job = new_job()
        self.env = environment()
        self.run: Claimed | None = None
        self.queued: list[tuple[int, str]] = []
        self._question = 0
        self._claimed = 0
        self._version = "?"
        self._chunk = [self.job] * CHUNK_JOBS
        self._presence: Presence | None = None
        self._parents: list[int] = []
        self._dependent = self.job

    # --- a user's ------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """One job."""
        self.queued.append(self.broker.enqueue(self.job, self.env))

    def enqueue_dependent(self) -> None:
        """One job that waits for three others, which wait themselves."""
        if not self._parents:
            self._parents = [self.broker.enqueue(self.job, self.env)[0] for _ in range(3)]
            lines = "".join(f"after={number}::succeeded\n" for number in self._parents)
            self._dependent = self.job._replace(more=lines)
        self.broker.enqueue(self._dependent, self.env)

    def enqueue_many(self) -> None:
        """One chunk of jobs."""
        self.queued += self.broker.enqueue_many(self._chunk, self.env)

    def fill(self, count: int) -> None:
        """Enqueue until so many jobs are known that nobody has claimed or cancelled yet."""
        while len(self.queued) < count:
            few = min(count - len(self.queued), CHUNK_JOBS)
            self.queued += self.broker.enqueue_many(self._chunk[:few], self.env)

    def renew(self, count: int) -> None:
        """Enqueue so many, and know those alone."""
        self.queued.clear()
        self.fill(count)

    def pick(self) -> tuple[int, str]:
        """Any of the jobs that wait, taken off the list: claims take the lowest numbers."""
        while True:
            at = _CHOICE.randrange(len(self.queued))
            self.queued[at], self.queued[-1] = self.queued[-1], self.queued[at]
            number, born = self.queued.pop()
            if number > self._claimed:
                return number, born

    def cancel(self) -> None:
        """Any of the jobs that wait."""
        number, born = self.pick()
        word = self.broker.cancel(number, born, "bench")
        assert word == "cancelled", word

    # --- a worker's ----------------------------------------------------------------------------------------

    def claim_call(self, worker: str = "bench", device: str = "SIM-bench") -> Call:
        """The next question of the worker."""
        self._question += 1
        return self.broker.claim_call(worker, self._question, device, "host", self._version, (), [SHAPE])

    def learn_shapes(self) -> None:
        """Ask which shapes there are, as every worker does first."""
        reply = self.broker.send(self.claim_call())[0]
        assert reply.word == "shapes", reply
        self._version = reply.rest[0].decode()

    def claim(self) -> None:
        """A job that must be there."""
        self._has(self.broker.send(self.claim_call())[0])

    def claim_if_free(self) -> None:
        """A job, unless one was claimed already."""
        if self.run is None:
            self.claim()

    def _has(self, reply: Reply) -> None:
        assert reply.word == "ok", reply
        self.run = Claimed.of(reply)
        self._claimed = self.run.number

    def complete(self) -> None:
        """The claimed job succeeded."""
        if self.run is not None:
            self.broker.send(self.broker.complete_call(self.run.number, self.run.fence, _OUTCOME))
            self.run = None

    def complete_and_claim(self) -> None:
        """One round trip a job, as a busy worker has it."""
        assert self.run is not None
        done = self.broker.complete_call(self.run.number, self.run.fence, _OUTCOME)
        self._has(self.broker.send(done, self.claim_call())[1])

    def heartbeat(self) -> None:
        """The lease of the claimed job."""
        assert self.run is not None
        self.broker.send(self.broker.heartbeat_call(self.run.number, self.run.fence))

    def stand_idle(self, worker: str) -> None:
        """Register a worker as idle: it asked, and there was nothing for it."""
        word = self.broker.send(self.claim_call(worker, f"SIM-{worker}"))[0].word
        assert word == "empty", word

    def serve(self) -> None:
        """Register a live device, so that clients find one for their jobs."""
        if self._presence is None:
            device = Device("SIM-bench", 0, "simulated", "simulated", 24576)
            self._presence = Presence(self.broker, device, "bench", "host")
            self._presence.look(Observation(24576, 24576, 0, "free", ""))
            self._presence.idle()
        self._presence.register()
