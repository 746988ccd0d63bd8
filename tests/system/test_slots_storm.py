"""A storm on two GPUs in four slots each: what runs there at any time has declared no more than the GPU has."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stack import Stack
from wait import until

from foxqueue.errors import FoxqueueError
from foxqueue.processes import ProcessId, marked

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

GPUS, SLOTS, TOTAL_MIB = 2, 4, 10240
STORM_S = 30.0
ENDS = ("complete", "fail", "release", "lose", "reap")
SIZES = (None, 1024, 2048, 3072, 4096, 5120, 6144, 10240)


class Overrun(AssertionError):
    """More was declared on a GPU than it has."""


def trail(stack: Stack) -> Iterator[dict[str, str]]:
    """The events, oldest first."""
    entries: Any = stack.api.redis.xrange(stack.api.broker.keys.events)
    for _, fields in entries:
        yield {key.decode(): value.decode() for key, value in fields.items()}


def check_trail(events: Iterator[dict[str, str]], sizes: dict[int, int]) -> int:
    """Replay the trail: a job counts on its device from its claim on, until the event that takes it out of running.

    Returns:
        How many claims were made while others ran on the same GPU.
    """
    running: dict[int, str] = {}
    shared = 0
    for event in events:
        job = int(event.get("job") or 0)
        if event["event"] == "claim":
            device = event["device"]
            if device in running.values() or job in running:
                raise Overrun(f"{event} while {running}")
            whole = device.partition("/")[0]
            beside = [other for other, name in running.items() if name.startswith(whole)]
            if sum(sizes[other] for other in (*beside, job)) > TOTAL_MIB:
                raise Overrun(f"{event}: {sizes[job]} MiB beside {[(other, sizes[other]) for other in beside]}")
            running[job] = device
            shared += bool(beside)
        elif event["event"] in ENDS:
            running.pop(job, None)
    assert not running, running
    return shared


def check_processes(sizes: dict[int, int], home: Path) -> int:
    """Look at the living processes of all runs: those that live at one moment fit together.

    Returns:
        How many runs there were on the busiest GPU.
    """
    found: dict[tuple[str, int], ProcessId] = {}
    for pid in marked("STORM_OF", str(home)):
        environ: dict[str, str] = {}
        with suppress(OSError):
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            environ = dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
        process = ProcessId.of(pid)
        if process is not None and "FOXQUEUE_JOB_ID" in environ:
            found[environ["FOXQUEUE_GPUS"].partition("/")[0], int(environ["FOXQUEUE_JOB_ID"])] = process
    living = {key for key, process in found.items() if process.alive()}  # all of them, at the moment the look ended
    busiest = 0
    for whole in {whole for whole, _ in living}:
        jobs = [job for name, job in living if name == whole]
        busiest = max(busiest, len(jobs))
        if sum(sizes[job] for job in jobs) > TOTAL_MIB:
            raise Overrun(f"on {whole}: {[(job, sizes[job]) for job in jobs]}")
    return busiest


class Storm:
    """What is done to one home."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.sizes: dict[int, int] = {}
        self._chance = random.Random(seed)

    def submit(self) -> None:
        """A few jobs that last for up to half a second."""
        for _ in range(self._chance.randint(1, 4)):
            size = self._chance.choice(SIZES)
            options = {} if size is None else {"gpu_memory": f"{size}M"}
            env = {"STORM_OF": str(self.stack.home)}
            seconds = f"{self._chance.uniform(0.0, 0.5):.2f}"
            number = self.stack.queue("sleep", seconds, priority=self._chance.randint(0, 9), env=env, **options)
            self.sizes[number] = size or TOTAL_MIB

    def cancel(self) -> None:
        """One of the last jobs."""
        if self.sizes:
            with suppress(FoxqueueError):
                self.stack.api.job(self._chance.choice([*self.sizes][-20:])).cancel()

    def kill(self) -> None:
        """A worker, a runner or both."""
        workers = [worker["pid"] for worker in self.stack.api.workers()]
        if not workers:
            return
        worker = self._chance.choice(workers)
        children = Path(f"/proc/{worker}/task/{worker}/children")
        runners: list[str] = []
        with suppress(OSError):
            runners = children.read_text().split()
        victims = self._chance.choice(([worker], [*map(int, runners[:1])], [worker, *map(int, runners)]))
        for process in filter(None, map(ProcessId.of, victims)):
            process.send(signal.SIGKILL)

    def go_on(self) -> None:
        """One step."""
        step = self._chance.random()
        if step < 0.75 and self.unfinished() < 40:
            self.submit()
        elif step < 0.9:
            self.cancel()
        elif step > 0.96:
            self.kill()

    def unfinished(self) -> int:
        """How many jobs wait or run."""
        stats = self.stack.api.stats()
        return int(stats["queued_jobs"]) + int(stats["processing_jobs"])


@pytest.mark.parametrize("seed", [1])
def test_no_gpu_is_overrun_in_a_storm(stack: Stack, seed: int) -> None:
    stack.up("--simulate", f"{GPUS}x10G", "--slots", str(SLOTS), "--lease-ttl", "2s", workers=GPUS * SLOTS)
    stack.fox("config", "set", "max_losses", "1000")
    storm, busiest = Storm(stack, seed), 0
    until_s = time.monotonic() + STORM_S
    while time.monotonic() < until_s:
        storm.go_on()
        busiest = max(busiest, check_processes(storm.sizes, stack.home))
    until(lambda: storm.unfinished() == 0, 120, "the end of all jobs", every=0.2)
    shared = check_trail(trail(stack), storm.sizes)
    assert busiest > 2 and shared > len(storm.sizes) / 30, (busiest, shared, len(storm.sizes))
    for uuid in {device.partition("/")[0] for device in stack.devices()}:
        assert stack.api.redis.hgetall(f"{stack.api.broker.keys.prefix}declared:{uuid}") == {}


def test_the_checks_find_an_overrun() -> None:
    sizes = {1: 6144, 2: 4096, 3: 1024}
    claims = [{"event": "claim", "job": str(job), "device": f"GPU-1/{job}"} for job in (1, 2, 3)]
    ends = [{"event": "complete", "job": str(job), "to": "succeeded"} for job in (1, 2, 3)]
    with pytest.raises(Overrun):
        check_trail(iter(claims), sizes)
    asked = {"event": "cancel", "job": "2", "from": "running", "to": "running"}
    with pytest.raises(Overrun):
        check_trail(iter([*claims[:2], asked, claims[2]]), sizes)
    assert check_trail(iter([*claims[:2], ends[0], claims[2], *ends[1:]]), sizes) == 2
