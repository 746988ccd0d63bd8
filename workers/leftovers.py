"""What runs of this home and namespace on this machine by what the device locks say: workers, and runs without one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxqueue.config import Config
from foxqueue.errors import FoxqueueError
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, Role, devices_in, lock_places
from foxqueue.processes import ProcessId, kill_marked, marked, pid_namespace, session_of
from foxqueue.rundirs import MARK
from workers.keeper import Seat, say

DRAIN_S = 80.0  # a worker waits 60 s for its job, then needs some to kill it and to give it back
KILLED_S = 10.0
RUNNER_ENDS_S = 6.0  # it gives its job 2 s, and then kills
SWEEP_UP_S = 5.0
PROGRESS_S = 10.0
COMMAND = "a command under a lease"
_LOOK_S = 0.05


# --- workers ------------------------------------------------------------------------------------------


def left_behind(config: Config, device: Device) -> ProcessId | None:
    """The living worker of this home and namespace that holds the device's lock, if there is one."""
    try:
        record = _lock(config, device, "worker").read()
    except FoxqueueError:
        return None  # the worker finds out and says why
    return _process(record, "process") if record and _is_ours(config, record) else None


def served_otherwise(config: Config, devices: Sequence[Device]) -> Device | None:
    """The first device that a living worker of this home and namespace serves in slots where it is wanted whole, or the
    reverse; None when there is none.
    """
    for device in devices:
        with suppress(FoxqueueError):
            lock = _lock(config, device, "worker")
            own = lock.read()
            beside = (record for record in lock.records() if record != own)
            if any(_is_ours(config, record) and _process(record, "process") for record in beside):
                return device
    return None


def left_workers(config: Config) -> list[ProcessId]:
    """All living workers of this home and namespace on this machine."""
    found = (_process(record, "process") for record in records(config, "worker"))
    return list(dict.fromkeys(process for process in found if process))


def recorded_workers(seat: Seat) -> list[ProcessId]:
    """Workers that a killed `up` had noted and that still live."""
    records = seat.read().get("workers")
    found = [ProcessId.named({"worker": record}, "worker") for record in records] if isinstance(records, list) else []
    return [process for process in found if process and process.alive()]


def end_workers(workers: Sequence[ProcessId]) -> bool:
    """SIGTERM, and SIGKILL to those that do not end in time. Returns whether none is left."""
    left = [process for process in dict.fromkeys(workers) if ask(process)]
    text = f"waiting for {len(left)} workers that an earlier foxqueue up left"
    if not left or await_end(left, DRAIN_S, text):
        return True
    say(f"they did not end within {DRAIN_S:g} s and are killed")
    for process in left:
        process.send(signal.SIGKILL)
    if await_end(left, KILLED_S):
        return True
    say(f"a worker cannot be killed, the kernel holds it: pid {_pids(left)}")
    return False


def holder_of(config: Config, device: Device) -> str:
    """Who serves a device of ours, for people; empty when nobody does, or it cannot be told."""
    try:
        lock = _lock(config, device, "worker")
        if lock.acquire():
            lock.release()  # a worker that starts at this very moment tries for longer than that
            return ""
    except (FoxqueueError, OSError):
        return ""
    records = lock.records()
    living = (record for record in records if (process := _seated(record)) and process.alive())
    record = next(living, records[0] if records else {})
    process = _seated(record)
    user, namespace, home = (record.get(key, "unknown") for key in ("user", "namespace", "home"))
    return f"pid {process.pid if process else 'unknown'} of user {user}, namespace {namespace}, home {home}"


def _seated(record: Mapping[str, Any]) -> ProcessId | None:
    return ProcessId.named(record, "process") or ProcessId.named(record, "claimer")


# --- runs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoneRun:
    """A run whose worker is dead, or a command whose lease's holder is, and of which something lives.

    Attributes:
        what: it is, for people: ``job 7``.
        mark: in the environment of its processes.
        runner: None when it is dead.
        leader: of the job's session, dead or alive; None when it is not recorded.
    """

    what: str
    mark: str
    runner: ProcessId | None
    leader: ProcessId | None

    def alive(self) -> bool:
        """Whether anything of it is left, as far as it can be known."""
        if self.runner and self.runner.alive():
            return True
        return bool(marked(MARK, self.mark) or (self.leader and session_of(self.leader)))


def named_runner(config: Config, device: Device) -> ProcessId | None:
    """The living runner that the device's lock names, whoever's it is.

    Raises:
        FoxqueueError: the lock cannot be looked at.
    """
    return _process(_lock(config, device, "gpu").read() or {}, "runner")


def lone_runs(config: Config) -> list[LoneRun]:
    """All runs of this home and namespace that no worker watches any more."""
    found = []
    for record in records(config, "gpu"):
        mark = record.get("mark")
        if not isinstance(mark, str) or _process(record, "worker"):
            continue  # no run, or its worker, started by hand or not yet dead, sees to it
        leader = ProcessId.named(record, "leader")
        what = COMMAND if "lease" in record else f"job {record.get('job')}"
        run = LoneRun(what, mark, _process(record, "runner") or _process(record, "command"), leader)
        if run.alive():
            found.append(run)
    return found


def end_runs(runs: Sequence[LoneRun]) -> bool:
    """End runs that no worker watches: by their runners, and what is left then by SIGKILL.

    The lock records stay, so that the next worker of the device tells the queue.

    Returns:
        Whether nothing of them is left.
    """
    for run in runs:
        say(f"ending {run.what}, which has no {'holder' if run.what == COMMAND else 'worker'} any more")
        if run.runner:
            ask(run.runner)
    runners = [run.runner for run in runs if run.runner]
    if not await_end(runners, RUNNER_ENDS_S):
        for runner in runners:
            runner.send(signal.SIGKILL)
        await_end(runners, KILLED_S)
    left = [run for run in runs if not _sweep_up(run)]
    return not left


def _sweep_up(run: LoneRun) -> bool:
    gone = kill_marked(MARK, run.mark, 0.0, SWEEP_UP_S, run.leader) and not (run.runner and run.runner.alive())
    if not gone:
        say(
            f"processes of {run.what} (marked {MARK}={run.mark}) cannot be killed and still use its device: "
            "end them by hand"
        )
    return gone


# --- records and waiting ------------------------------------------------------------------------------


def _lock(config: Config, device: Device, role: Role) -> DeviceLock:
    return DeviceLock(device.uuid, role, lock_places(device.kind, config.machine_dir, os.environ))


def records(config: Config, role: Role) -> Iterator[dict[str, Any]]:
    """What the lock files of one role say, as far as it is about this home and namespace."""
    for kind in ("nvml", "simulated"):
        places: list[Path] = []
        with suppress(FoxqueueError):
            places = lock_places(kind, config.machine_dir, os.environ)
        for name in devices_in(places, role):
            record = DeviceLock(name, role, places).read()
            if record and _is_ours(config, record):
                yield record


def _is_ours(config: Config, record: Mapping[str, Any]) -> bool:
    return record.get("home") == str(config.home) and record.get("namespace") == config.namespace


def _process(record: Mapping[str, Any], name: str) -> ProcessId | None:
    """The process of that name, if it lives and can be signalled from here."""
    process = ProcessId.named(record, name)
    return process if process and process.pid_ns == pid_namespace() and process.alive() else None


def _pids(processes: Sequence[ProcessId]) -> str:
    return ", ".join(str(process.pid) for process in processes if process.alive())


def ask(process: ProcessId) -> bool:
    """SIGTERM. Returns whether it was sent."""
    sent = process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)  # a stopped one takes the SIGTERM only when it goes on
    return sent


def await_end(processes: Sequence[ProcessId], seconds: float, text: str = "") -> bool:
    """Wait until all have ended; false when they do not in time."""
    return wait(lambda: not any(process.alive() for process in processes), seconds, text)


def wait(condition: Callable[[], bool], seconds: float, text: str = "") -> bool:
    """Wait until the condition holds, saying ``text`` now and then; false when it does not in time."""
    begin = told = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now - begin > seconds:
            return False
        if text and now - told > (1.0 if told == begin else PROGRESS_S):
            told = now
            say(f"{text} ({now - begin:.0f} s)")
        time.sleep(_LOOK_S)
    return True
