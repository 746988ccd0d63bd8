"""What the demo promises, checked against what the queue wrote down: its jobs, its devices, its audit trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Fate = Literal["succeeds", "fails", "is cancelled", "loses its worker"]

GOOD = 0.8  # an accuracy that every network of the demo reaches; a guess reaches 0.1

# Events of the audit trail that put a job among the waiting, and those after which it has its device no more.
ENTERS = frozenset({"enqueue", "promote", "release", "lose", "reap"})
LEAVES = frozenset({"complete", "fail", "release", "lose", "reap"})


@dataclass(frozen=True)
class Run:
    """One run of the demo, over.

    Attributes:
        fate: what was to become of it.
        job: the queue's JSON object of it.
        rank: the queue runs the lowest one first.
        accuracy: that it printed at its end, if it did.
        resumed_from: the epoch it went on from in its last attempt.
        output: what is kept of what it printed.
    """

    fate: Fate
    job: Mapping[str, Any]
    rank: int
    accuracy: float | None
    resumed_from: int
    output: str

    @property
    def label(self) -> str:
        return f"job {self.job['number']} ({self.job['name']})"


def check(
    runs: Sequence[Run], events: Sequence[Mapping[str, str]], devices: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Each promise with a sentence for every way in which it was not kept.

    Args:
        runs: all jobs of the demo.
        events: the queue's audit trail, oldest first.
        devices: the queue's JSON objects of them.
    """
    return {
        "devices that are simulated say so": [
            f"{device['uuid']} is of kind {device['kind']}" for device in devices if device["kind"] != "simulated"
        ],
        "every run came to the end it was meant to have": [sentence for run in runs for sentence in _fate(run)],
        "every accepted job ended, and its end was accepted once": list(_accepted_once(runs, events)),
        "never two runs at once on a device": [*_one_at_a_time(runs), *_given_twice(runs, events)],
        "of the waiting runs the best went first": list(_order(runs, events)),
    }


def _fate(run: Run) -> Iterator[str]:
    wanted: dict[Fate, dict[str, Any]] = {
        "succeeds": {"state": "succeeded", "reason": "exit_code", "attempts": 1, "losses": 0, "exit_code": 0},
        "fails": {"state": "failed", "reason": "exit_code", "attempts": 1, "losses": 0, "exit_code": 1},
        "is cancelled": {"state": "cancelled", "reason": "cancelled_by_user", "attempts": 1, "losses": 0},
        "loses its worker": {"state": "succeeded", "reason": "exit_code", "attempts": 1, "losses": 1, "exit_code": 0},
    }
    for name, value in wanted[run.fate].items():
        if run.job[name] != value:
            yield f"{run.label}, which {run.fate}, has {name} {run.job[name]!r} and not {value!r}"
    if run.job["state"] == "succeeded" and (run.accuracy is None or run.accuracy < GOOD):
        yield f"{run.label} has accuracy {run.accuracy} and not {GOOD} or more"
    if run.fate == "fails" and "ValueError" not in run.output:
        yield f"{run.label} failed, and its output does not hold the exception"
    if run.fate == "is cancelled" and not run.job["started_at"]:
        yield f"{run.label} was cancelled before it ran"
    if run.fate == "loses its worker" and not run.resumed_from:
        yield f"{run.label} began again instead of going on from its checkpoint"


def _accepted_once(runs: Sequence[Run], events: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Every accepted job ended, and its end was accepted once."""
    accepted = [event["job"] for event in events if event["event"] == "enqueue"]
    numbers = [str(run.job["number"]) for run in runs]
    if sorted(accepted) != sorted(numbers):
        yield f"submitted were jobs {', '.join(numbers)}, and the queue accepted {', '.join(accepted)}"
    for run, number in zip(runs, numbers, strict=True):
        ends = [event for event in events if event["job"] == number and event["event"] in ("complete", "fail")]
        if len(ends) != 1:
            yield f"{run.label} has {len(ends)} accepted ends and not one"


def _one_at_a_time(runs: Sequence[Run]) -> Iterator[str]:
    """Never two at once on a device, by the times of the last runs. (Times of one form compare as text.)"""
    by_device: dict[str, list[Run]] = {}
    for run in runs:
        for device in run.job["gpu_uuids"]:
            by_device.setdefault(device, []).append(run)
    for device, users in by_device.items():
        users.sort(key=lambda run: str(run.job["started_at"]))
        for first, second in pairwise(users):
            if str(second.job["started_at"]) < str(first.job["finished_at"]):
                yield f"{first.label} and {second.label} ran at once on {device}"


def _given_twice(runs: Sequence[Run], events: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The same by the audit trail, lost runs included: every claim took a device that nobody had."""
    labels = _labels(runs)
    users: dict[str, str] = {}
    for event in events:
        job = event["job"]
        if event["event"] == "claim":
            device = event["device"]
            if device in users:
                yield f"{labels(job)} was given {device} while {labels(users[device])} had it"
            users[device] = job
        elif event["event"] in LEAVES:
            users = {device: user for device, user in users.items() if user != job}


def _order(runs: Sequence[Run], events: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Play the audit trail again: every claim took the best of the jobs that waited then."""
    labels = _labels(runs)
    ranks = {str(run.job["number"]): run.rank for run in runs}
    waiting: set[str] = set()
    for event in events:
        job = event["job"]
        if event["event"] in ENTERS:
            waiting.add(job)
            continue
        waiting.discard(job)
        if event["event"] != "claim":
            continue
        for other in sorted(waiting, key=int):
            if ranks.get(other, 0) < ranks.get(job, 0):
                yield f"{labels(job)} ran before {labels(other)}, which was to go first"


def _labels(runs: Sequence[Run]) -> Callable[[str], str]:
    known = {str(run.job["number"]): run.label for run in runs}
    return lambda number: known.get(number, f"job {number}")
