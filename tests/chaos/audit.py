"""What was promised, held against the audit trail, the results, and what the jobs stamped."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from key_owners import unexplained
from stack import Stack

from foxqueue import ServerUnavailable
from foxqueue.codec import unpack

# Kind of job -> state, attempts and reason of its end.
ENDS = {
    "quick": ("succeeded", 1, "exit_code"),
    "long": ("succeeded", 1, "exit_code"),
    "stubborn": ("succeeded", 1, "exit_code"),
    "daemon": ("succeeded", 1, "exit_code"),
    "deaf": ("succeeded", 1, "exit_code"),
    "loud": ("succeeded", 1, "exit_code"),
    "flaky": ("succeeded", 2, "exit_code"),
    "fails": ("failed", 2, "exit_code"),
}


@dataclass(frozen=True)
class Stamp:
    """A line that a job wrote: what, where, in which run, when (monotonic ns), and more words."""

    what: str
    device: str
    fence: str
    number: int
    at: int
    more: str

    @classmethod
    def of(cls, line: str) -> Stamp:
        """Read a line."""
        what, device, fence, number, at, more = line.split(" ", 5)
        return cls(what, device, fence, int(number), int(at), more)


@dataclass
class Trail:
    """The audit trail, read as it grows: the server keeps some 10,000 entries only."""

    stack: Stack
    events: dict[int, list[dict[str, str]]] = field(default_factory=lambda: defaultdict(list))
    _last: str = "-"

    def read(self) -> bool:
        """Read what is new; False while the server does not answer."""
        broker = self.stack.api.broker
        while True:
            try:
                with broker.connection.errors("events"):
                    entries: Any = broker.redis.xrange(broker.keys.events, self._last, count=1000)
            except ServerUnavailable:
                return False
            for entry, pairs in entries:
                self._last = "(" + entry.decode()
                event = {key.decode(): value.decode() for key, value in pairs.items()}
                if event["job"]:
                    self.events[int(event["job"])].append(event)
            if not entries:
                return True


@dataclass
class Audit:
    """Judges a queue at rest.

    Args:
        stack: where it ran.
        kinds: job -> its kind.
        trail: all its events.
        folder: of the stamps.
    """

    stack: Stack
    kinds: dict[int, str]
    trail: Trail
    folder: Path

    def faults(self) -> list[str]:
        """Everything that is not as promised, with what is needed to find the cause."""
        stamps = self._stamps()
        faults = [f"two on a device: {stamp}" for stamp in stamps if stamp.what == "overlap"]
        faults += self._overlaps(stamps)
        by_job: dict[int, list[Stamp]] = defaultdict(list)
        for stamp in stamps:
            by_job[stamp.number].append(stamp)
        for number in self.kinds:
            wrong = self._job(number, by_job[number])
            if wrong:
                faults.append(
                    "\n    ".join([f"job {number} ({self.kinds[number]}): {'; '.join(wrong)}", *self.story(number)])
                )
        faults += [
            f"key without an owner: {key}" for key in unexplained(self.stack.api.redis, self.stack.api.broker.keys)
        ]
        return faults

    def story(self, number: int) -> list[str]:
        """A job's record, events and stamps."""
        keys = self.stack.api.broker.keys
        record = {key.decode(): value.decode() for key, value in self.stack.api.redis.hgetall(keys.job(number)).items()}
        stamps = [stamp for stamp in self._stamps() if stamp.number == number]
        return [str(record), *map(str, self.trail.events[number]), *map(str, stamps)]

    def _stamps(self) -> list[Stamp]:
        file = self.folder / "stamps"
        return [Stamp.of(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _overlaps(self, stamps: list[Stamp]) -> list[str]:
        """By the jobs' own clock: on each device one run has ended, or was killed, before the next begins."""
        ends = {stamp.fence: stamp.at for stamp in stamps if stamp.what == "end"}
        begins = sorted(
            (stamp for stamp in stamps if stamp.what == "begin"), key=lambda stamp: (stamp.device, stamp.at)
        )
        return [
            f"two runs at once: {first} ended at {ends[first.fence]}, {second}"
            for first, second in itertools.pairwise(begins)
            if first.device == second.device and ends.get(first.fence, 0) > second.at
        ]

    def _job(self, number: int, stamps: list[Stamp]) -> list[str]:
        redis, keys, events = self.stack.api.redis, self.stack.api.broker.keys, self.trail.events[number]
        job = {key.decode(): value.decode() for key, value in redis.hgetall(keys.job(number)).items()}
        wanted = ENDS[self.kinds[number]]
        wrong = []
        if (job.get("state"), int(job.get("attempts", 0)), job.get("reason")) != wanted:
            wrong.append(f"its end should be {wanted}")
        named: dict[str, list[dict[str, str]]] = defaultdict(list)
        for event in events:
            named[event["event"]].append(event)
        ends = len(named["complete"]) + len(named["fail"])
        losses = len(named["lose"]) + len(named["reap"])
        if len(named["enqueue"]) != 1 or len(named["complete"]) != (wanted[0] == "succeeded") or ends != wanted[1]:
            wrong.append(f"{len(named['enqueue'])} enqueued, {len(named['complete'])} completed, {ends} ends accepted")
        if len(named["claim"]) != ends + losses + len(named["release"]):
            wrong.append(f"{len(named['claim'])} claims")
        if int(job.get("losses", -1)) != losses:
            wrong.append(f"{losses} losses in the trail")
        return wrong + self._runs(number, job, named["claim"], stamps)

    def _runs(self, number: int, job: dict[str, str], claims: list[dict[str, str]], stamps: list[Stamp]) -> list[str]:
        """Each run was claimed, began once at most, on the device it was given; the accepted one began and ended."""
        wrong = []
        given = {claim["fence"]: claim["device"] for claim in claims}
        begun = [stamp for stamp in stamps if stamp.what == "begin"]
        if len({stamp.fence for stamp in begun}) != len(begun):
            wrong.append("a run began twice")
        if any(given.get(stamp.fence) != stamp.device for stamp in begun):
            wrong.append("a run that was not given to its device")
        last, settled = claims[-1]["fence"] if claims else "", job.get("settled", "")
        if settled != last or {s.what for s in stamps if s.fence == settled} < {"begin", "end"}:
            wrong.append(f"its accepted run {settled} is not the last, or did not begin and end")
        record = unpack(self.stack.api.redis.get(self.stack.api.broker.keys.result(number)) or b"\xc0") or {}
        if str(record.get("fence")) != settled:
            wrong.append(f"its result is of another run: {record}")
        return wrong
