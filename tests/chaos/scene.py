"""One chaos from beginning to end."""

from __future__ import annotations

import fcntl
import functools
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stack import Stack
from wait import until

from chaos.audit import Audit, Trail
from chaos.killer import Killer
from foxqueue import Client
from foxqueue.errors import FoxqueueError, ServerUnavailable

WORK = Path(__file__).with_name("work.py")
FLAGS = ("--simulate", "4x24G", "--lease-ttl", "1s")
KINDS = {"quick": 36, "long": 4, "flaky": 12, "fails": 12, "stubborn": 12, "daemon": 10, "deaf": 2, "loud": 12}
MANY_LOSSES = "1000"  # a job that is killed again and again is no poison here
SAY_EVERY = 250  # jobs
STUCK_S = 90.0  # in which some job must end, whatever is killed
AHEAD = 200  # jobs that wait at most, so that submitting goes on all along


@dataclass
class Scene:
    """Runs one chaos.

    Args:
        root: an empty directory.
        jobs: how many.
        seed: of the jobs' kinds and of what is killed.
        pace_s: how long a job lasts on average, seconds.
        kill_s: seconds after which the killing stops, should jobs be left.
        say: told of the progress, now and then.
    """

    root: Path
    jobs: int
    seed: int
    pace_s: float
    kill_s: float
    say: Callable[[str], object] = str
    kinds: dict[int, str] = field(default_factory=dict)
    _refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stack = Stack(self.root)
        self.folder = self.root / "stamps"
        self.folder.mkdir()
        self.trail = Trail(self.stack)
        self._ended: set[int] = set()

    def run(self) -> str:
        """Run it; what happened, in figures.

        Raises:
            AssertionError: with every broken promise, and what is needed to find the cause.
        """
        began = time.monotonic()
        try:
            self.stack.up(*FLAGS, workers=4)
            self.stack.api.broker.change_settings({"max_losses": MANY_LOSSES}, "chaos")
            killer = Killer(self.stack, self.seed, lambda: void(self.stack.start("up", *FLAGS)))
            killer.start()
            faults = self._play(killer) + killer.errors + self._refused
            audit = Audit(self.stack, self.kinds, self.trail, self.folder)
            faults += audit.faults()
            faults += self._down()
            figures = self._figures(killer, time.monotonic() - began)
            if faults:
                log = self.stack.log("up")[-3000:]
                shown = "\n".join([*faults[:20], f"({len(faults)} faults)", *killer.done[-40:], log, figures])
                raise AssertionError(f"seed {self.seed}:\n{shown}")
            return figures
        finally:
            self.stack.end()

    def _play(self, killer: Killer) -> list[str]:
        """Submit, and wait until all have ended; the killer rests after that, or after its time."""
        submitter = threading.Thread(target=self._submit, daemon=True)
        submitter.start()
        began, killing = time.monotonic(), True
        moved_at, ended = began, 0
        while len(self._ended) < self.jobs and time.monotonic() - moved_at < STUCK_S and not self._refused:
            self._look()
            time.sleep(0.1)
            if len(self._ended) > ended:
                if len(self._ended) // SAY_EVERY > ended // SAY_EVERY:
                    self.say(f"{len(self._ended)} of {self.jobs} jobs have ended, {len(killer.done)} blows")
                moved_at, ended = time.monotonic(), len(self._ended)
            if killing and time.monotonic() > began + self.kill_s:
                killer.end()
                killing = False
        if killing:
            killer.end()
        until(self.trail.read, 30, "an answer of the server")
        missing = sorted(set(self.kinds) - self._ended)
        audit = Audit(self.stack, self.kinds, self.trail, self.folder)
        return ["\n    ".join([f"job {number} has not ended", *audit.story(number)]) for number in missing[:5]]

    def _submit(self) -> None:
        chance = random.Random(self.seed)
        with Client(home=str(self.stack.home)) as fox:
            for _ in range(self.jobs):
                kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
                while len(self.kinds) - len(self._ended) > AHEAD:
                    time.sleep(0.05)
                try:
                    lasts_s = 3.0 if kind == "long" else chance.uniform(0, 2 * self.pace_s)
                    number = self._send(fox, kind, lasts_s)
                    self.kinds[number] = kind
                except FoxqueueError as error:
                    self._refused.append(f"a {kind} job was refused: {error!r}")
                    return

    def _send(self, fox: Client, kind: str, lasts_s: float) -> int:
        command = (sys.executable, "-I", "-S", str(WORK), kind, str(self.folder), f"{lasts_s:.3f}")
        retries = {"flaky": 2, "fails": 1}.get(kind, 0)
        deadline = time.monotonic() + 60
        while True:
            try:
                return fox.submit(command, cwd=self.stack.work, retry_delay=0.2, retries=retries).number
            except ServerUnavailable:  # not done; OutcomeUnknown is another error
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _look(self) -> None:
        if self.trail.read():
            redis, keys = self.stack.api.redis, self.stack.api.broker.keys
            try:
                with self.stack.api.broker.connection.errors("ended"):
                    for key in (keys.finished, keys.failed):
                        self._ended.update(map(int, redis.zrange(key, 0, -1)))
            except FoxqueueError:
                return

    def _down(self) -> list[str]:
        """``down`` leaves no process, and no process of a job holds a device."""
        done = self.stack.fox("down", check=False, timeout=120)
        faults = [] if done.returncode == 0 else [f"down: {done.returncode} {done.stderr}"]
        left = self.stack.all_processes()
        faults += [f"left: {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r}" for pid in left]
        for path in self.folder.glob("*.held"):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    faults.append(f"a process of a run is left on {path.stem}: {path.read_text()}")
        return faults

    def _figures(self, killer: Killer, took_s: float) -> str:
        names = Counter(event["event"] for events in self.trail.events.values() for event in events)
        struck = Counter(" ".join(line.split()[i] for i in (2, 4)) for line in killer.done if "there" not in line)
        parts = [f"{count} {name}" for name, count in sorted(struck.items())]
        return f"seed {self.seed}: {len(self.kinds)} jobs in {took_s:.0f} s; {', '.join(parts)}; {dict(names)}"


def void(_: object) -> None:
    """For a callback whose value nobody wants."""


def play(jobs: int, seed: int, pace_s: float, kill_s: float) -> str:
    """One chaos in a directory of its own, which is removed unless something was wrong; the progress is printed."""
    root = Path(tempfile.mkdtemp(prefix="fq-chaos-"))
    say = functools.partial(print, flush=True)
    figures = Scene(root, jobs, seed, pace_s, kill_s, say).run()
    shutil.rmtree(root, ignore_errors=True)
    return figures
