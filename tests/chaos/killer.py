"""Once a second, something dies or stands still for a while. Which, is a seed's choice."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stack import Stack

from foxqueue.processes import ProcessId, children, parent_of

EVERY_S = 1.0
ROLES = {"worker": 8, "runner": 8, "server": 3, "up": 1}
STOPPED_S = (0.3, 1.0, 3.0, 3.0, 5.0)  # shorter and longer than a lease


def command_of(pid: int) -> list[str]:
    """Words of a process's command line; none when it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []
    return [word for word in words if word]


def role_of(words: list[str]) -> str:
    """What a process of the home is: up, server, worker, runner, or "" for anything else."""
    if "workers.runner" in words:
        return "runner"
    if "workers" in words and "--gpu" in words:
        return "worker"
    if "up" in words[1:3]:
        return "up"
    return "server" if words and "valkey-server" in words[0] else ""


@dataclass
class Killer:
    """Kills and stops until told to end; then whatever it stopped goes on.

    Args:
        stack: whose processes.
        seed: of the choice of role, place and signal. What stands there at that moment is not the seed's.
        revive: starts ``up`` again.
    """

    stack: Stack
    seed: int
    revive: Callable[[], None]
    done: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _stopped: dict[ProcessId, float] = field(default_factory=dict)
    _up_due: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._end = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Stop killing, let everything go on, and see that ``up`` runs."""
        self._end.set()
        self._thread.join()
        for process in self._stopped:
            process.send(signal.SIGCONT)
        self._stopped.clear()
        if not self._by_role()["up"]:
            self.revive()

    def _go(self) -> None:
        next_at = time.monotonic() + EVERY_S
        while not self._end.wait(0.05):
            now = time.monotonic()
            for process in [process for process, until in self._stopped.items() if until <= now]:
                process.send(signal.SIGCONT)
                del self._stopped[process]
            if self._up_due and self._up_due <= now:
                self._up_due = 0.0
                self.revive()
            if now >= next_at:
                next_at += EVERY_S
                try:
                    self._strike()
                except Exception as error:  # noqa: BLE001 a chaos that does nothing must not pass
                    self.errors.append(repr(error))

    def _strike(self) -> None:
        # The same number of choices each time, whatever is there, so that the seed's row stays in step.
        at_once = self._chance.choices((1, 2, len(ROLES)), (85, 12, 3))[0]
        away = self._chance.choice((0.0, 0.5, 3.0))
        there = self._by_role()
        if not there["up"] and not self._up_due:  # its server was killed while it started; systemd would restart it
            self._up_due = time.monotonic()
            self._note("up ended by-itself")
        if at_once == len(ROLES):
            for role in ("up", "worker", "runner", "server"):
                for victim in there[role]:
                    self._hit(role, victim, None, away)
            self._note("everything but-jobs killed")
            return
        for _ in range(at_once):
            role = self._chance.choices(list(ROLES), list(ROLES.values()))[0]
            place, kills, pause = self._chance.random(), self._chance.random() < 0.6, self._chance.choice(STOPPED_S)
            if not there[role]:
                self._note(f"no {role} there")
                continue
            victim = there[role][int(place * len(there[role]))]
            self._hit(role, victim, None if kills else pause, away)
            self._note(f"{role} {victim.pid} " + ("killed" if kills else f"stopped for {pause:g} s"))

    def _hit(self, role: str, victim: ProcessId, pause: float | None, away: float) -> None:
        """Stop a process for so many seconds, or kill it; ``up`` comes back after ``away`` seconds."""
        if pause is not None:
            victim.send(signal.SIGSTOP)
            self._stopped[victim] = max(self._stopped.get(victim, 0.0), time.monotonic() + pause)
            return
        victim.send(signal.SIGKILL)
        self._stopped.pop(victim, None)
        if role == "up":
            self._up_due = time.monotonic() + away + 0.01

    def _note(self, text: str) -> None:
        self.done.append(f"{time.monotonic() - self._began:6.1f} s {text}")

    def _by_role(self) -> dict[str, list[ProcessId]]:
        """Living processes of each role, in an order that does not depend on their numbers; runners with a job only."""
        found: dict[str, list[tuple[str, ProcessId]]] = {role: [] for role in ROLES}
        for pid in self.stack.all_processes():
            words = command_of(pid)
            role, process = role_of(words), ProcessId.of(pid)
            if not role or process is None or not process.alive():
                continue
            if role == "runner":
                if not children(pid):
                    continue  # it stands by
                words = command_of(parent_of(pid) or 0)
            found[role].append((" ".join(words), process))
        return {
            role: [process for _, process in sorted(there, key=lambda pair: pair[0])] for role, there in found.items()
        }
