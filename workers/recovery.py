"""What a starting worker does about its predecessor's run, before its own first claim."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxqueue.broker import Broker
from foxqueue.ending import Verdict, outcome_of
from foxqueue.errors import ServerError
from foxqueue.holding import end_named
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId
from foxqueue.retry import Retries
from workers.calling import take_report
from workers.logtail import LogTail
from workers.runs import output_path, read_exit_record
from workers.verdict import judge

TAKEOVER_S = 5.0  # a runner that is told to end its job has ended it within 2 s, unless it is stopped or sick

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftRun:
    """A run that a dead worker left, its last process gone."""

    number: int
    fence: str
    instance: str
    run_dir: Path
    verdict: Verdict
    outcome: bytes
    retries: Retries


def take_over(lock: DeviceLock, ours: Callable[[Mapping[str, Any]], bool], wait: Callable[[], bool]) -> bool:
    """Get the device's ``.gpu`` lock, ending the run of our own dead predecessor that still holds it.

    Until runs are adopted, the job is ended and runs again. A runner that does not end it is killed, and what is left
    of the job is found by :func:`clean_up`. Its predecessor may have had the device whole, or in slots.

    Args:
        lock: the ``.gpu`` lock, not held.
        ours: whether a lock record is of this home and namespace.
        wait: waits a moment; false when the worker is to stop.

    Returns:
        Whether the lock is held. False when somebody else has the device, or a lease, or we are to stop.
    """
    asked: dict[ProcessId, float] = {}
    while not lock.acquire():
        records = lock.records() or [{}]
        runs = [record for record in records if ours(record) and "lease" not in record]
        named = ((record.get("job"), ProcessId.named(record, "runner")) for record in runs)
        runners = [(job, runner) for job, runner in named if runner is not None and runner.alive()]
        if not runners and len(runs) < len(records):
            return False
        for job, runner in runners:
            _end(job, runner, asked)
        if not wait():
            return False
    return True


def _end(job: Any, runner: ProcessId, asked: dict[ProcessId, float]) -> None:
    """Ask a runner to end its job, and kill it when it does not."""
    now = time.monotonic()
    if runner not in asked:
        _log.warning("ending job %s, which a dead worker left running", job)
        runner.send(signal.SIGTERM)
        runner.send(signal.SIGCONT)  # a stopped one takes the TERM only when it goes on
        asked[runner] = now
    elif now - asked[runner] > TAKEOVER_S:
        _log.error("the runner of job %s does not end it: killing the runner", job)
        runner.send(signal.SIGKILL)
        asked[runner] = now


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
    record = end_named(lock)
    if not ours(record):
        return None
    try:
        number, fence, instance = int(record["job"]), int(record["fence"]), str(record["instance"])
        run_dir = Path(record["run_dir"])
        exit_record = read_exit_record(run_dir, fence)
        limit = record.get("call_limit")
        report = None if limit is None else take_report(run_dir, int(limit))
        retries = Retries.from_dict(record.get("retries") or {})
    except (KeyError, TypeError, ValueError):
        return None
    verdict = judge(exit_record, record.get("time_limit_s"), report)
    return LeftRun(number, str(fence), instance, run_dir, verdict, outcome_of(exit_record, verdict), retries)


def tail_of(broker: Broker, left: LeftRun) -> LogTail:
    """What of a left run's output its worker had not yet sent."""
    sent = 0
    with suppress(ServerError):  # then all of it is sent again, and what is there already is refused by its offset
        sent = broker.logged(left.number, left.fence)
    return LogTail(broker, left.number, left.fence, output_path(left.run_dir), sent)
