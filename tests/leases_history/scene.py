"""A history from beginning to end: who acts, who is killed or stopped, and what the judge finds when all is over.

Eight processes take four devices, foxqueue's workers run jobs on the same ones, and the server is killed twice.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from crowd import Crowd
from servers import RealServer
from stack import Stack, ended
from wait import until

from foxqueue.errors import FoxqueueError
from foxqueue.leases import GpuLeases
from foxqueue.processes import ProcessId, children
from leases_history.checker import faults, told
from leases_history.history import Book, read

ACTORS = 8
DEVICES = 4
TTL_MS = 1000
STRIKES_EVERY_S = 0.6
STOPPED_S = (0.2, 0.5, 1.0, 3.0, 6.0)  # shorter and longer than a lease
JOBS_AHEAD = 1
STAMP = Path(__file__).with_name("stamp.py")


class Scene:
    """One history.

    Args:
        root: of its files.
        seed: of whom it strikes and how; what that one does at that moment is not the seed's.
        lasts_s: how long things happen.
        jobs: whether workers run jobs on the same devices.
    """

    def __init__(self, root: Path, seed: int, lasts_s: float = 60.0, jobs: bool = True) -> None:
        self._root = root
        self._chance = random.Random(seed)
        self._lasts_s = lasts_s
        self._jobs = jobs
        self._folder = root / "histories"
        self._folder.mkdir(parents=True)
        self._server = RealServer(None, root / "server")
        self._stack = Stack(root / "stack", {"FOXQUEUE_URL": self._server.url})
        self._book = Book(self._folder / "judge.history", "judge")
        self._actors: dict[str, int] = {}  # name -> pid
        self._stopped: dict[ProcessId, tuple[float, str]] = {}
        self._born = 0

    def run(self) -> str:
        """Play it; fails with every fault that the checker finds. Returns figures for people."""
        with self._server.start(), ended(self._stack):
            self._stack.api.broker.configure(TTL_MS)
            self._stack.up("--simulate", f"{DEVICES}x24G", workers=DEVICES)
            self._devices = sorted(self._stack.devices())
            with Crowd(self._root / "crowd", "leases_history.actor", environ=self._stack.environ) as self._crowd:
                began = time.monotonic()
                self._ends = began + self._lasts_s
                for _ in range(ACTORS):
                    self._start_actor()
                self._strike_until_the_end(began)
                self._let_all_end()
            self._end_jobs()
            self._judge()
        return self._verdict()

    # --- what happens --------------------------------------------------------------------------------------

    def _start_actor(self) -> None:
        self._born += 1
        who = f"actor-{self._born}"
        self._actors[who] = self._crowd.start(
            "leases_history.actor:act",
            self._server.url,
            self._devices,
            str(self._folder),
            who,
            self._chance.randrange(10**9),
            self._ends,
        )

    def _strike_until_the_end(self, began: float) -> None:
        restarts = [began + self._lasts_s * part for part in (1 / 3, 2 / 3)]
        strike_at = began
        while time.monotonic() < self._ends:
            now = time.monotonic()
            self._let_go_on(now)
            if restarts and now >= restarts[0]:
                restarts.pop(0)
                self._book.note("server killed")
                self._server.restart()
                self._book.note("server again")
            if now >= strike_at:
                strike_at = now + STRIKES_EVERY_S * self._chance.uniform(0.5, 1.5)
                self._strike()
                self._submit()
            time.sleep(0.01)

    def _strike(self) -> None:
        who = self._victim()
        actor = ProcessId.of(self._actors[who])
        helper = next(iter(map(ProcessId.of, children(self._actors[who]))), None)
        how = self._chance.choices(("kill", "stop", "kill helper", "stop helper", "term"), (20, 30, 20, 5, 5))[0]
        if actor is None:
            return
        if how == "stop":
            self._stop(actor, who, self._chance.choice(STOPPED_S))
        elif how == "stop helper" and helper is not None:
            self._stop(helper, f"helper of {who}", 0.5)
        elif how == "kill helper" and helper is not None:
            self._book.note("helper killed", who=who)
            helper.send(signal.SIGKILL)
        elif how in ("kill", "term"):
            self._end(actor, who, signal.SIGKILL if how == "kill" else signal.SIGTERM)

    def _victim(self) -> str:
        """Mostly one that has a device: who is dead in a line costs those behind him a second, and nothing else."""
        holding = [who for who in sorted(self._actors) if self._has_device(who)]
        return self._chance.choice(holding if holding and self._chance.random() < 0.8 else sorted(self._actors))

    def _has_device(self, who: str) -> bool:
        file = self._folder / f"{who}.history"
        lines = file.read_text().splitlines() if file.exists() else []
        return bool(lines) and json.loads(lines[-1])["what"] in ("acquired", "holds")

    def _stop(self, process: ProcessId, who: str, seconds: float) -> None:
        self._book.note("stopped", who=who)
        process.send(signal.SIGSTOP)
        self._stopped[process] = (max(self._stopped.get(process, (0.0, ""))[0], time.monotonic() + seconds), who)

    def _let_go_on(self, now: float) -> None:
        for process, (ends, who) in list(self._stopped.items()):
            if ends <= now:
                self._book.note("continued", who=who)
                process.send(signal.SIGCONT)
                del self._stopped[process]

    def _end(self, actor: ProcessId, who: str, how: signal.Signals) -> None:
        """Kill an actor, and start another in its place."""
        self._book.note("killed", who=who)
        actor.send(how)
        if how != signal.SIGKILL:
            actor.send(signal.SIGCONT)
        self._stopped.pop(actor, None)
        pid = self._actors.pop(who)
        self._crowd.wait(pid, 20)
        self._start_actor()

    def _submit(self) -> None:
        """Keep a few jobs waiting."""
        if not self._jobs:
            return
        with contextlib.suppress(FoxqueueError):
            if self._stack.api.stats()["queued_jobs"] < JOBS_AHEAD:
                lasts = self._chance.choice(("0.05", "0.3", "1"))
                self._stack.queue(sys.executable, "-S", str(STAMP), str(self._folder), lasts)

    # --- the end ---------------------------------------------------------------------------------------------

    def _let_all_end(self) -> None:
        self._let_go_on(float("inf"))
        for pid in self._actors.values():
            self._crowd.answer(pid, 30)

    def _end_jobs(self) -> None:
        fox = self._stack.api

        def over() -> bool:
            stats = fox.stats()
            return stats["queued_jobs"] == 0 and stats["processing_jobs"] == 0

        until(over, 30, "the end of the jobs")

    def _judge(self) -> None:
        """Each device can be had by the judge, and afterwards nothing in Redis says that somebody has it."""
        with GpuLeases(self._server.url, home=self._stack.home, gpus=self._devices) as leases:
            for device in self._devices:
                asked = time.monotonic_ns()
                with contextlib.suppress(FoxqueueError), leases.acquire(device, timeout=20) as lease:
                    self._book.note("acquired", device, lease.fence, asked)
                    self._book.note("releasing", device, lease.fence)
            for device in self._devices:
                left = self._left(device)
                self._book.note("taken" if left else "free", device, more="; ".join(left))

    def _left(self, device: str) -> list[str]:
        redis: Any = self._stack.api.redis
        keys = self._stack.api.broker.keys
        last = redis.hget(keys.granted, device) or b""
        told = {
            "its last grant": b"" if last.endswith(b" -") else last or b"none",
            "a lease key": redis.get(keys.lease(device)),
            "a holder": redis.hget(keys.holders, device),
            "a waiter": [  # of those who listen: the dead keep their place for a minute, and are passed over
                token
                for token in redis.zrange(keys.lease_waiting(device), 0, -1)
                if redis.exists(keys.waiter(token.decode())) and not redis.exists(keys.wake(token.decode()))
            ],
            "withheld": redis.hget(keys.withheld, device),
        }
        return [f"{what}: {value!r}" for what, value in told.items() if value]

    def _verdict(self) -> str:
        events = read(self._folder.glob("*.history"))
        found = faults(events)
        words = told(events)
        had = {event.device for event in events if event.who == "judge" and event.what == "acquired"}
        found += [f"the judge could not have {device}" for device in self._devices if device not in had]
        assert not found, "\n".join([f"{len(found)} faults; the histories are in {self._folder}", *found[:40]])
        taken = {event.who.split("-")[0] for event in events if event.what == "acquired"}
        assert taken >= {"actor", "judge", *(["job"] if self._jobs else [])}, f"somebody never had a device: {taken}"
        for word, least in (("acquired", 2), ("holds", 2), ("refused", 0.5), ("killed", 0.2), ("stopped", 0.2)):
            assert words[word] >= least * self._lasts_s, f"too little happened: {words}"
        assert words["server killed"] == 2
        return ", ".join(f"{count} {word}" for word, count in words.most_common())
