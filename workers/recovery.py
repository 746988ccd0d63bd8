"""What a starting worker does about its predecessor's run, before its own first claim."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxqueue.errors import LeftoverProcesses
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId, kill_marked
from workers.runs import MARK, read_exit_record
from workers.verdict import Verdict, judge

SWEEP_UP_S = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftRun:
    """A run that a dead worker left, its last process gone."""

    number: int
    fence: str
    instance: str
    record: dict[str, Any] | None
    verdict: Verdict


def left_runner(lock: DeviceLock) -> ProcessId | None:
    """The runner that the lock's record names, if it lives."""
    record = lock.read() or {}
    try:
        runner = ProcessId.from_dict(record["runner"])
    except (KeyError, ValueError):
        return None
    return runner if runner.alive() else None


def take_over(lock: DeviceLock, ours: Callable[[Mapping[str, Any]], bool], wait: Callable[[], bool]) -> bool:
    """Get the device's ``.gpu`` lock, ending the run of our own dead predecessor that still holds it.

    Until runs are adopted, the job is ended and runs again.

    Args:
        lock: the ``.gpu`` lock, not held.
        ours: whether a lock record is of this home and namespace.
        wait: waits a moment; false when the worker is to stop.

    Returns:
        Whether the lock is held. False when somebody else has the device, or we are to stop.
    """
    asked: ProcessId | None = None
    while not lock.acquire():
        record = lock.read() or {}
        if not ours(record):
            return False
        runner = left_runner(lock)
        if runner is not None and runner != asked:
            _log.warning("ending job %s, which a dead worker left running", record.get("job"))
            runner.send(signal.SIGTERM)
            asked = runner
        if not wait():
            return False
    return True


def names_a_run(lock: DeviceLock) -> bool:
    """Whether the lock's record names a run that nobody has cleaned up after."""
    return isinstance((lock.read() or {}).get("mark"), str)


def clean_up(lock: DeviceLock, ours: Callable[[Mapping[str, Any]], bool]) -> LeftRun | None:
    """Make sure that nothing is left of the run that the held lock's record names, and say how it ended.

    Args:
        lock: the ``.gpu`` lock, held.
        ours: whether a lock record is of this home and namespace.

    Returns:
        The run whose outcome is still to be told, None when there is none or it is another queue's.

    Raises:
        LeftoverProcesses: something of it lives on and cannot be killed.
    """
    record = lock.read() or {}
    mark = record.get("mark")
    if not isinstance(mark, str):
        return None
    if not kill_marked(MARK, mark, 0.0, SWEEP_UP_S):
        raise LeftoverProcesses(
            f"processes of job {record.get('job')} (marked {MARK}={mark}) still use device {lock.device} and cannot "
            "be killed: end them by hand"
        )
    if not ours(record):
        return None
    try:
        number, fence, instance = int(record["job"]), int(record["fence"]), str(record["instance"])
        exit_record = read_exit_record(Path(record["run_dir"]), fence)
    except (KeyError, TypeError, ValueError):
        return None
    verdict = judge(exit_record, record.get("time_limit_s"))
    return LeftRun(number, str(fence), instance, exit_record, verdict)
