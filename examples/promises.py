"""What the demo promises, checked against what the queue wrote down: its jobs, its devices, its audit trail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Fate = Literal["succeeds", "fails", "is cancelled", "loses its worker"]

GOOD = 0.9  # the accuracy that every network of the demo reaches


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


def broken(runs: Sequence[Run], events: Sequence[Mapping[str, str]], devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each promise that was not kept.

    Args:
        runs: all jobs of the demo.
        events: the queue's audit trail, oldest first.
        devices: the queue's JSON objects of them.
    """
    return [
        *(f"{device['uuid']} is not marked as simulated" for device in devices if device["kind"] != "simulated"),
        *(sentence for run in runs for sentence in _fate(run)),
        *_accepted_once(runs, events),
        *_one_at_a_time(runs),
        *_order(runs, events),
    ]


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


def _order(runs: Sequence[Run], events: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Play the audit trail again: every claim took a free device, and the best of the jobs that waited then."""
    labels = {str(run.job["number"]): run.label for run in runs}
    ranks = {str(run.job["number"]): run.rank for run in runs}
    waiting: set[str] = set()
    users: dict[str, str] = {}
    for event in events:
        verb, job = event["event"], event["job"]
        if verb == "claim":
            device = event["device"]
            if device in users:
                yield f"{labels.get(job, job)} was given {device} while {labels.get(users[device])} had it"
            users[device] = job
            waiting.discard(job)
            yield from (
                f"{labels.get(job, job)} ran before {labels[other]}, which was to go first"
                for other in sorted(waiting, key=int)
                if ranks.get(other, 0) < ranks.get(job, 0)
            )
            continue
        users = {device: user for device, user in users.items() if user != job} if verb != "cancel" else users
        if verb in ("enqueue", "promote", "release", "lose", "reap"):
            waiting.add(job)
        else:
            waiting.discard(job)
